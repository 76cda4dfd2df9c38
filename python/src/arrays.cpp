#include "arrays.h"

#include <fmt/format.h>

#include <cstring>

#include "core/cuda_driver.h"
#include "mercer/error.h"

namespace mercer::python {
namespace {

/// The dtype of a buffer's format, native byte order only.
bool dtype_from_format(const char* format, Py_ssize_t item_size, Dtype& dtype) {
  if (*format == '=' || *format == '@' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return false;
  switch (*format) {
    case 'e': dtype = Dtype::float16; return true;
    case 'f': dtype = Dtype::float32; return true;
    case 'd': dtype = Dtype::float64; return true;
    case 'B': dtype = Dtype::uint8; return true;
    case '?': dtype = Dtype::boolean; return true;
    case 'i': dtype = Dtype::int32; return item_size == 4;
    case 'l':
    case 'q': dtype = Dtype::int64; return item_size == 8;
    default: return false;
  }
}

bool dtype_from_dlpack(DLDataType type, Dtype& dtype) {
  if (type.lanes != 1) return false;
  const auto is = [&](std::uint8_t code, std::uint8_t bits) { return type.code == code && type.bits == bits; };
  if (is(kDLFloat, 16))
    dtype = Dtype::float16;
  else if (is(kDLBfloat, 16))
    dtype = Dtype::bfloat16;
  else if (is(kDLFloat, 32))
    dtype = Dtype::float32;
  else if (is(kDLFloat, 64))
    dtype = Dtype::float64;
  else if (is(kDLUInt, 8))
    dtype = Dtype::uint8;
  else if (is(kDLInt, 64))
    dtype = Dtype::int64;
  else if (is(kDLInt, 32))
    dtype = Dtype::int32;
  else if (is(kDLBool, 8))
    dtype = Dtype::boolean;
  else
    return false;
  return true;
}

/// The element type in the array interface's spelling, such as "<f4".
bool dtype_from_typestr(const std::string& type, Dtype& dtype) {
  if (type.size() != 3 || type[0] == '>') return false;
  struct Row {
    const char* code;
    Dtype dtype;
  };
  for (const Row& row : {Row{"f2", Dtype::float16},
                         {"f4", Dtype::float32},
                         {"f8", Dtype::float64},
                         {"u1", Dtype::uint8},
                         {"i8", Dtype::int64},
                         {"i4", Dtype::int32},
                         {"b1", Dtype::boolean}}) {
    if (type.compare(1, 2, row.code) != 0) continue;
    dtype = row.dtype;
    return true;
  }
  return false;
}

/// Managed memory counts as its device's, pinned memory of the host as the CPU's; empty arrays have no address.
Device device_of_pointer(const void* pointer, const char* verb) {
  const CudaDriver& driver = need_cuda(verb);
  int device = 0;
  if (pointer == nullptr) return {DeviceKind::cuda, driver.context_device(&device) == kCuSuccess ? device : 0};
  device = cuda_device_of(pointer);
  return device < 0 ? Device{} : Device{DeviceKind::cuda, device};
}

/// What torch.vmap, torch.func.grad and their like pass to the function.
bool is_wrapped_by_functorch(const Library& library, nb::handle tensor) {
  if (library.kind != Library::Kind::torch) return false;
  const nb::object inner = library.namespace_.attr("_C").attr("_functorch");
  return nb::cast<bool>(inner.attr("is_functorch_wrapped_tensor")(tensor));
}

std::vector<std::int64_t> integers(const nb::object& sequence) {
  std::vector<std::int64_t> values;
  for (const nb::handle value : sequence) values.push_back(nb::cast<std::int64_t>(value));
  return values;
}

}  // namespace

thread_local bool Unfollowed::current_ = false;

Array::Array(nb::handle object, Place place, Access access)
    : object_(nb::borrow(object)), place_(place), access_(access), library_(&library_of(object, place)) {
  const Library::Kind kind = library_->kind;
  if (kind == Library::Kind::jax) {
    fail(ErrorKind::invalid_argument, "must come from the library of x. Received an array of jax");
  }
  if (library_->is_masked) fail_of_mask();
  if (kind == Library::Kind::torch && access != Access::fresh) {
    if (!Unfollowed::current()) check_followed();
    check_sign();
  }
  if (kind == Library::Kind::numpy)
    view_buffer();
  else if (library_->exchange != nullptr)
    view_exchange();
  else if (kind == Library::Kind::cupy)
    view_cupy();
  else if (library_->has_dlpack)
    view_capsule();
  else
    view_interface();
  if (tensor_.dtype == Dtype::int32 && !place.takes_int32) fail_element(true);
}

/// An element type in the letters of NumPy and the struct module, native byte order only.
void Array::take_format(const char* format, Py_ssize_t item_size) {
  if (dtype_from_format(format, item_size, tensor_.dtype)) return;
  const bool swapped = format[0] == '>' || format[0] == '!';
  if (swapped && std::strchr("efdlq", format[1])) {
    fail_dtype("must be in the byte order of this machine",
               fmt::format("{0}.astype({0}.dtype.newbyteorder('='))", place_.name));
  }
  fail_element(*format != '\0' && std::strchr("bhHiIlLqQ", format[std::strlen(format) - 1]) != nullptr);
}

/// The tensor's data and shape are set.
void Array::take_strides(const std::vector<std::int64_t>& bytes, std::int64_t item_size) {
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor_.data) % item_size == 0;
  tensor_.strides.resize(bytes.size());
  for (std::size_t axis = 0; axis < bytes.size(); ++axis) {
    tensor_.strides[axis] = bytes[axis] / item_size;
    aligned &= bytes[axis] % item_size == 0;
  }
  if (aligned || tensor_.count() == 0) return;
  fail(ErrorKind::invalid_argument,
       fmt::format("must have its elements at multiples of their size. Received a view across other fields or an odd "
                   "address; pass {}.copy()",
                   place_.name));
}

void Array::view_buffer() {
  if (PyObject_GetBuffer(object_.ptr(), &buffer_.view, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    fail_dtype("must hold real numbers");
  }
  buffer_.held = true;
  const Py_buffer& view = buffer_.view;
  if (access_ == Access::write && view.readonly)
    fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
  take_format(view.format, view.itemsize);
  tensor_.data = view.buf;
  tensor_.shape.assign(view.shape, view.shape + view.ndim);
  take_strides({view.strides, view.strides + view.ndim}, view.itemsize);
}

/// PyTorch: gradients would be lost without a word, and a tensor that stands for others has no memory to look at.
void Array::check_followed() const {
  static PyObject* const kLevel = PyUnicode_InternFromString("_current_level");
  static PyObject* const kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  if (library_->is_subclass) fail_followed("must be a plain tensor. Received " + type_text(object_));
  PyObject* const level = PyDict_GetItem(library_->forward_mode.ptr(), kLevel);  // -1 outside forward mode
  if (level != nullptr && PyLong_AsLong(level) >= 0) fail_followed("must not be part of forward-mode differentiation");
  const nb::object tracked = nb::steal(PyObject_GetAttr(object_.ptr(), kRequiresGrad));
  if (!tracked.is_valid()) throw nb::python_error();
  if (tracked.ptr() == Py_True && nb::cast<bool>(library_->namespace_.attr("is_grad_enabled")())) {
    fail_followed(fmt::format("must not track gradients. Received requires_grad=True; pass {}.detach()", place_.name));
  }
}

/// A lazily negated tensor would be read with the wrong sign.
void Array::check_sign() const {
  static PyObject* const kIsNegated = PyUnicode_InternFromString("is_neg");
  const nb::object negated = nb::steal(PyObject_CallMethodNoArgs(object_.ptr(), kIsNegated));
  if (!negated.is_valid()) throw nb::python_error();
  if (negated.ptr() == Py_True) {
    fail(ErrorKind::invalid_argument,
         fmt::format("must hold its own values. Received a lazily negated view; pass {}.resolve_neg()", place_.name));
  }
}

/// Pinned memory of the host counts as the CPU's, managed memory as its device's.
void Array::take_device(DLDevice device) {
  switch (device.type) {
    case kDLCPU:
    case kDLCUDAHost: tensor_.device = {}; return;
    case kDLCUDA:
    case kDLCUDAManaged: tensor_.device = {DeviceKind::cuda, device.id}; return;
    default: break;
  }
  fail(ErrorKind::unsupported,
       fmt::format("must lie on the CPU or on a CUDA device. Received an array on a device of DLPack type {}",
                   device.type));
}

void Array::view_exchange() {
  DLTensor view;
  if (library_->exchange->view_of_object(object_.ptr(), &view) != 0) {
    PyErr_Clear();  // the library's own error says less
    if (is_wrapped_by_functorch(*library_, object_)) fail_followed("must be a plain tensor. Received one inside vmap");
    const nb::object layout = nb::getattr(object_, "layout", nb::str("an unknown layout"));
    fail(ErrorKind::unsupported,
         fmt::format("must be a dense array on the CPU or on a CUDA device. Received one on {}, {}",
                     nb::cast<std::string>(nb::str(nb::object(object_.attr("device")))),
                     nb::cast<std::string>(nb::str(layout))));
  }
  take_device(view.device);
  take(view);
}

/// CuPy before its C table. Its __dlpack__ and its interface would look after streams, which are the current ones here.
void Array::view_cupy() {
  const nb::object memory = object_.attr("data"), dtype = object_.attr("dtype");
  tensor_.device = {DeviceKind::cuda, nb::cast<int>(memory.attr("device_id"))};
  const auto item_size = nb::cast<std::int64_t>(dtype.attr("itemsize"));
  take_format(nb::cast<std::string>(dtype.attr("char")).c_str(), item_size);
  tensor_.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(memory.attr("ptr")));
  tensor_.shape = integers(object_.attr("shape"));
  take_strides(integers(object_.attr("strides")), item_size);
}

/// The CUDA array interface, version 2 or 3; from 3 on it may name the stream in which the array is in use.
void Array::view_interface() {
  capsule_ = object_.attr("__cuda_array_interface__");
  const auto entry = [&](const char* key) { return nb::borrow(PyDict_GetItemString(capsule_.ptr(), key)); };
  const auto given = [](const nb::object& value) { return value.is_valid() && !value.is_none(); };
  if (given(entry("mask"))) fail_of_mask();
  const nb::object data = entry("data");
  if (access_ == Access::write && nb::cast<bool>(data[1]))
    fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
  const auto type = nb::cast<std::string>(entry("typestr"));
  if (!dtype_from_typestr(type, tensor_.dtype)) fail_element(false);
  if (tensor_.dtype == Dtype::int32 && !place_.takes_int32) fail_element(true);
  const auto item_size = static_cast<std::int64_t>(size_of(tensor_.dtype));
  tensor_.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::object(data[0])));
  tensor_.shape = integers(entry("shape"));
  if (given(entry("strides")))
    take_strides(integers(entry("strides")), item_size);
  else
    tensor_ = Tensor(tensor_.data, tensor_.dtype, std::move(tensor_.shape));
  if (given(entry("stream"))) producer_stream_ = nb::cast<std::uintptr_t>(entry("stream"));
  tensor_.device = device_of_pointer(tensor_.data, place_.verb);
}

void Array::view_capsule() {
  const nb::object device = object_.attr("__dlpack_device__")();
  take_device({nb::cast<std::int32_t>(device[0]), nb::cast<std::int32_t>(device[1])});
  // PyTorch's own stream is the one that we use, so nothing is to be ordered (-1). Else the producer makes the legacy
  // default stream (1) wait for it.
  nb::dict options;
  if (on_cuda()) options["stream"] = library_->kind == Library::Kind::torch ? -1 : 1;
  nb::dict versioned = nb::steal<nb::dict>(PyDict_Copy(options.ptr()));
  versioned["max_version"] = nb::make_tuple(1, 0);
  try {
    capsule_ = object_.attr("__dlpack__")(**versioned);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule_ = object_.attr("__dlpack__")(**options);  // a producer of before DLPack 1.0
  }
  // The capsule is not consumed: its own destructor frees what it holds once capsule_ goes.
  if (PyCapsule_IsValid(capsule_.ptr(), "dltensor_versioned")) {
    const auto& managed =
        *static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned"));
    if (access_ == Access::write && (managed.flags & kDLReadOnly))
      fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
    if (access_ == Access::write && (managed.flags & kDLCopied))
      fail(ErrorKind::invalid_argument, "must be written in place. Received an array that gives away copies of itself");
    take(managed.tensor);
  } else {
    void* managed = PyCapsule_GetPointer(capsule_.ptr(), "dltensor");
    if (managed == nullptr) throw nb::python_error();
    take(static_cast<DLManagedTensor*>(managed)->tensor);
  }
}

void Array::take(const DLTensor& view) {
  if (!dtype_from_dlpack(view.dtype, tensor_.dtype)) {
    fail_element(view.dtype.code == kDLInt || view.dtype.code == kDLUInt);
  }
  tensor_.data = static_cast<char*>(view.data) + view.byte_offset;
  tensor_.shape.assign(view.shape, view.shape + view.ndim);
  if (view.strides == nullptr)
    tensor_ = Tensor(tensor_.data, tensor_.dtype, std::move(tensor_.shape));
  else
    tensor_.strides.assign(view.strides, view.strides + view.ndim);
}

void Array::require_points() const {
  if (tensor_.dtype == Dtype::int64 || tensor_.dtype == Dtype::boolean) fail_element(true);
}

void Array::require_same_library(const Array& first) const {
  if (library_ == first.library_ || library_->name == first.library_->name) return;
  fail(ErrorKind::invalid_argument, fmt::format("must come from the library of {}, {}. Received an array of {}",
                                                first.place_.name, first.library_->name, library_->name));
}

void Array::require_same_device(const Array& first) const {
  if (tensor_.device == first.tensor_.device) return;
  fail(ErrorKind::invalid_argument,
       fmt::format("must lie on the device of {}, {}. Received an array on {}", first.place_.name,
                   first.tensor_.device.to_text(), tensor_.device.to_text()));
}

std::string Array::as_float32() const {
  return fmt::format("{}{}", place_.name, library_->kind == Library::Kind::torch ? ".float()" : ".astype('float32')");
}

void Array::fail_of_mask() const {
  fail(ErrorKind::unsupported, "must have no mask: masked values would count as any others. Received a masked array");
}

void Array::fail_followed(const std::string& rule_and_received) const {
  const std::string message = fmt::format("{}: {} {}", place_.verb, place_.name, rule_and_received);
  if (access_ == Access::write) throw Error(ErrorKind::unsupported, message);
  throw FollowedTensor(ErrorKind::unsupported, message);
}

void Array::fail(ErrorKind kind, const std::string& rule_and_received) const {
  throw Error(kind, fmt::format("{}: {} {}", place_.verb, place_.name, rule_and_received));
}

/// An element type that nothing takes; whole numbers can be converted.
void Array::fail_element(bool is_whole) const {
  if (access_ == Access::write) fail_dtype("must have the dtype of the result");
  const char* rule = access_ == Access::parameter ? "must be float32, float64 or int64"
                     : place_.takes_int32 ? "must be float16, bfloat16, float32, float64, int32 or int64"
                                          : "must be float16, bfloat16, float32, float64 or uint8";
  fail_dtype(rule, is_whole ? as_float32() : "");
}

void Array::fail_dtype(const std::string& rule, const std::string& advice) const {
  const bool bare = capsule_.is_valid() && PyDict_Check(capsule_.ptr());  // the CUDA array interface
  const nb::object type = bare ? nb::object(capsule_["typestr"]) : nb::object(object_.attr("dtype"));
  throw DtypeFault(fmt::format("{}: {} {}. Received {}{}{}", place_.verb, place_.name, rule,
                               nb::cast<std::string>(nb::str(type)), advice.empty() ? "" : "; write ", advice));
}

}  // namespace mercer::python
