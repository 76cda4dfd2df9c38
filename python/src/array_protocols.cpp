// What arrays say of themselves by protocols, held against the rules of these before any of it is used: a number that
// is none, a missing entry, a null pointer or extents beyond memory are errors of the call.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "arrays.h"
#include "core/devices/cuda_driver.h"
#include "core/dtypes.h"

namespace mercer::python {
namespace {

constexpr std::int64_t kMostAxes = 64;                     // those of NumPy and PyTorch
constexpr std::int64_t kMostBytes = std::int64_t{1} << 56;   // beyond every address

bool dtype_from_dlpack(DLDataType type, Dtype& dtype) {
  return type.lanes == 1 &&
         find_dtype(dtype, [&](const DtypeRow& row) { return type.code == row.dlpack && type.bits == 8 * row.size; });
}

/// The element type in the array interface's spelling, such as "<f4".
bool dtype_from_typestr(const std::string& type, Dtype& dtype) {
  return type.size() == 3 && type[0] != '>' && find_dtype(dtype, [&](const DtypeRow& row) {
           return row.interface != 0 && type[1] == row.interface && type[2] == static_cast<char>('0' + row.size);
         });
}

constexpr int kCurrentCuda = -2;  // an outline's device where none is counted

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
  for (const char* question : {"is_functorch_wrapped_tensor", "is_legacy_batchedtensor"})
    if (nb::cast<bool>(inner.attr(question)(tensor))) return true;
  return false;
}

bool is_sequence(nb::handle object) { return PyTuple_Check(object.ptr()) || PyList_Check(object.ptr()); }

/// |count| times |bytes|, or what no memory has.
std::int64_t checked_bytes(std::int64_t count, std::int64_t bytes) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(count, bytes, &product) || product <= -kMostBytes) return kMostBytes;
  return std::min(std::abs(product), kMostBytes);
}

/// An attribute for a message, of an object that may have none.
std::string attribute_text(nb::handle object, const char* attribute) {
  const nb::object value = nb::steal(PyObject_GetAttrString(object.ptr(), attribute));
  if (!value.is_valid()) PyErr_Clear();
  return value.is_valid() ? text_of(value) : fmt::format("an array without {}", attribute);
}

}  // namespace

void Array::fail_protocol(const char* protocol, const std::string& rule, nb::handle received) const {
  fail(ErrorKind::invalid_argument, fmt::format("must describe its memory by the rules of {}: {}. Received {}",
                                                protocol, rule, text_of(received, true)));
}

/// A whole number of a protocol, by __index__.
template <class Number>
Number Array::whole(nb::handle value, const char* protocol, const char* what) const {
  const nb::object number = nb::steal(value.is_valid() ? PyNumber_Index(value.ptr()) : nullptr);
  Number result{};
  if (number.is_valid() && nb::try_cast(number, result)) return result;
  PyErr_Clear();
  fail_protocol(protocol, fmt::format("{} must be a whole number that fits it", what), value);
}

std::vector<std::int64_t> Array::whole_numbers(nb::handle values, const char* protocol, const char* what) const {
  if (!values.is_valid() || !is_sequence(values))
    fail_protocol(protocol, fmt::format("{} must be a tuple of whole numbers", what), values);
  std::vector<std::int64_t> numbers;
  for (const nb::handle value : values) numbers.push_back(whole<std::int64_t>(value, protocol, what));
  return numbers;
}

/// Without strides elements lie row by row.
void Array::take_rows() { tensor_.strides = Tensor(nullptr, tensor_.dtype, tensor_.shape).strides; }

/// The data, the dtype and the shape are set; `strides`, in steps of `step` bytes, may be null.
void Array::check_extent(const char* protocol, const std::vector<std::int64_t>* strides, std::int64_t step) const {
  const auto item_size = static_cast<std::int64_t>(size_of(tensor_.dtype));
  const auto refuse = [&](const char* rule) {
    fail(ErrorKind::invalid_argument, fmt::format("must describe its memory by the rules of {}: {}. Received {}",
                                                  protocol, rule, tensor_.to_text()));
  };
  if (strides != nullptr && strides->size() != tensor_.shape.size()) refuse("shape and strides must have one length");
  std::int64_t count = 1;
  bool is_empty = false;
  for (const std::int64_t extent : tensor_.shape) {
    if (extent < 0) refuse("no axis may be shorter than 0");
    is_empty |= extent == 0;
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(extent, 1), &count) || count >= kMostBytes * item_size)
      refuse("the number of its elements must fit in 64 bits");
  }
  if (is_empty) return;
  if (tensor_.data == nullptr) refuse("an array that has elements must have an address");
  std::int64_t reach = strides == nullptr ? checked_bytes(count, step) : item_size;
  for (std::size_t axis = 0; strides != nullptr && axis < strides->size(); ++axis)
    reach = std::min(kMostBytes, reach + checked_bytes(checked_bytes((*strides)[axis], step), tensor_.shape[axis] - 1));
  if (reach >= kMostBytes) refuse("its elements must lie within the addresses of a process");
}

/// Pinned memory of the host counts as the CPU's, managed memory as its device's.
Device Array::device_of(DLDevice device) const {
  switch (device.type) {
    case kDLCPU:
    case kDLCUDAHost: return {};
    case kDLCUDA:
    case kDLCUDAManaged: return {DeviceKind::cuda, device.id};
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
    if (library_->is_subclass) fail_followed("must be a plain tensor. Received " + type_text(object_));
    const std::string layout = attribute_text(object_, "layout");
    const bool is_sparse = layout.find("sparse") != std::string::npos;
    fail(ErrorKind::unsupported,
         fmt::format("must be a dense array on the CPU or on a CUDA device. Received one on {}, {}{}",
                     attribute_text(object_, "device"), layout,
                     is_sparse ? fmt::format("; pass {}.to_dense()", place_.name) : ""));
  }
  tensor_.device = device_of(view.device);
  if (view.data == nullptr && materialize()) {
    if (library_->exchange->view_of_object(object_.ptr(), &view) != 0) throw nb::python_error();
  }
  take(view);
}

/// CuPy before its C table. Its __dlpack__ and its interface would look after streams, which are the current ones here.
void Array::view_cupy() {
  constexpr const char* kProtocol = "cupy.ndarray";
  const nb::object memory = object_.attr("data"), dtype = object_.attr("dtype");
  tensor_.device = {DeviceKind::cuda, whole<int>(memory.attr("device_id"), kProtocol, "data.device_id")};
  const auto item_size = whole<std::int64_t>(dtype.attr("itemsize"), kProtocol, "dtype.itemsize");
  const nb::object letter = dtype.attr("char");
  if (!PyUnicode_Check(letter.ptr())) fail_protocol(kProtocol, "dtype.char must be a str", letter);
  take_format(text_of(letter).c_str(), item_size);
  if (item_size != static_cast<std::int64_t>(size_of(tensor_.dtype)))
    fail_protocol(kProtocol, "dtype.itemsize must be that of dtype.char", dtype.attr("itemsize"));
  tensor_.data =
      reinterpret_cast<void*>(whole<std::uintptr_t>(nb::object(memory.attr("ptr")), kProtocol, "data.ptr"));
  tensor_.shape = whole_numbers(object_.attr("shape"), kProtocol, "shape");
  const std::vector<std::int64_t> strides = whole_numbers(object_.attr("strides"), kProtocol, "strides");
  check_extent(kProtocol, &strides, 1);
  take_strides(strides);
}

/// The CUDA array interface, version 2 or 3; from 3 on it may name the stream in which the array is in use.
void Array::view_interface() {
  constexpr const char* kProtocol = "the CUDA array interface";
  const nb::object interface = object_.attr("__cuda_array_interface__");
  if (!PyDict_Check(interface.ptr())) fail_protocol(kProtocol, "it must be a dict", interface);
  capsule_ = interface;
  const auto entry = [&](const char* key) { return nb::borrow(PyDict_GetItemString(capsule_.ptr(), key)); };
  const auto given = [](const nb::object& value) { return value.is_valid() && !value.is_none(); };
  if (given(entry("mask"))) fail_of_mask();
  const nb::object type = entry("typestr"), data = entry("data"), strides = entry("strides"), stream = entry("stream");
  if (!type.is_valid() || !PyUnicode_Check(type.ptr())) fail_protocol(kProtocol, "typestr must be a str", type);
  if (!data.is_valid() || !PyTuple_Check(data.ptr()) || nb::len(data) != 2)
    fail_protocol(kProtocol, "data must be a tuple of an address and a bool", data);
  const int is_read_only = PyObject_IsTrue(nb::object(data[1]).ptr());
  if (is_read_only < 0) throw nb::python_error();
  if (access_ == Access::write && is_read_only == 1)
    fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
  if (!dtype_from_typestr(text_of(type), tensor_.dtype)) fail_element(false);
  const auto item_size = static_cast<std::int64_t>(size_of(tensor_.dtype));
  tensor_.data = reinterpret_cast<void*>(whole<std::uintptr_t>(nb::object(data[0]), kProtocol, "the address"));
  tensor_.shape = whole_numbers(entry("shape"), kProtocol, "shape");
  if (given(strides)) {
    const std::vector<std::int64_t> steps = whole_numbers(strides, kProtocol, "strides");
    check_extent(kProtocol, &steps, 1);
    take_strides(steps);
  } else {
    check_extent(kProtocol, nullptr, item_size);
    take_rows();
  }
  if (given(stream)) producer_stream_ = whole<std::uintptr_t>(stream, kProtocol, "stream");
  tensor_.device = device_of_pointer(tensor_.data, place_.verb);
}

/// What mercer/_outlines.py made of a description. Its address is no memory.
void Array::view_outline() {
  constexpr const char* kProtocol = "workspace_size";
  const std::string name = text_of(object_.attr("dtype"));
  const auto dtype = dtype_of_name(name);
  if (!dtype) fail_element(name.find("int") != std::string::npos);
  tensor_.dtype = *dtype;
  tensor_.shape = whole_numbers(object_.attr("shape"), kProtocol, "shape");
  tensor_.data =
      reinterpret_cast<void*>(whole<std::uintptr_t>(nb::object(object_.attr("address")), kProtocol, "address"));
  const nb::object strides = object_.attr("strides");
  if (!strides.is_none()) tensor_.strides = whole_numbers(strides, kProtocol, "strides");
  check_extent(kProtocol, strides.is_none() ? nullptr : &tensor_.strides, size_of(*dtype));
  if (strides.is_none()) take_rows();
  const int device = nb::cast<int>(object_.attr("device"));
  if (device >= 0) tensor_.device = {DeviceKind::cuda, device};
  if (device == kCurrentCuda) tensor_.device = device_of_pointer(nullptr, place_.verb);
}

void Array::view_capsule() {
  const nb::object said = object_.attr("__dlpack_device__")();
  if (!is_sequence(said) || nb::len(said) != 2)
    fail_protocol("DLPack", "__dlpack_device__ must give a device's type and its index", said);
  tensor_.device = device_of({whole<std::int32_t>(nb::object(said[0]), "DLPack", "the type of a device"),
                              whole<std::int32_t>(nb::object(said[1]), "DLPack", "the index of a device")});
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
  take_capsule(said);
}

/// The capsule is not consumed: its own destructor frees what it holds once capsule_ goes.
void Array::take_capsule(nb::handle said) {
  constexpr const char *kVersioned = "dltensor_versioned", *kPlain = "dltensor";
  const DLTensor* view = nullptr;
  if (PyCapsule_IsValid(capsule_.ptr(), kVersioned)) {
    const auto& managed = *static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule_.ptr(), kVersioned));
    if (managed.version.major != 1)
      fail(ErrorKind::unsupported, fmt::format("must be described by DLPack of version 1. Received version {}.{}",
                                               managed.version.major, managed.version.minor));
    if (access_ == Access::write && (managed.flags & kDLReadOnly))
      fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
    if (access_ == Access::write && (managed.flags & kDLCopied))
      fail(ErrorKind::invalid_argument, "must be written in place. Received an array that gives away copies of itself");
    view = &managed.tensor;
  } else if (PyCapsule_IsValid(capsule_.ptr(), kPlain)) {
    view = &static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule_.ptr(), kPlain))->tensor;
  } else {
    fail_protocol("DLPack", "__dlpack__ must give a capsule that nobody has used", capsule_);
  }
  if (device_of(view->device) != tensor_.device)
    fail_protocol("DLPack", fmt::format("__dlpack_device__ must name the device of the memory, {}",
                                        device_of(view->device).to_text()), said);
  take(*view);
}

void Array::take(const DLTensor& view) {
  if (!dtype_from_dlpack(view.dtype, tensor_.dtype)) {
    fail_element(view.dtype.code == kDLInt || view.dtype.code == kDLUInt);
  }
  if (view.ndim < 0 || view.ndim > kMostAxes || (view.ndim > 0 && view.shape == nullptr))
    fail(ErrorKind::invalid_argument,
         fmt::format("must describe its memory by the rules of DLPack: ndim must be from 0 to {}, with a shape. "
                     "Received {} axes{}",
                     kMostAxes, view.ndim, view.shape == nullptr ? " and no shape" : ""));
  tensor_.data = view.data == nullptr ? nullptr : static_cast<char*>(view.data) + view.byte_offset;
  tensor_.shape.assign(view.shape, view.shape + view.ndim);
  const auto item_size = static_cast<std::int64_t>(size_of(tensor_.dtype));
  if (view.strides != nullptr) tensor_.strides.assign(view.strides, view.strides + view.ndim);
  check_extent("DLPack", view.strides == nullptr ? nullptr : &tensor_.strides, item_size);
  if (view.strides == nullptr) take_rows();
  if (reinterpret_cast<std::uintptr_t>(tensor_.data) % static_cast<std::uintptr_t>(item_size) != 0) fail_unaligned();
}

}  // namespace mercer::python
