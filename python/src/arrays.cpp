#include "arrays.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <unordered_map>

#include "mercer/error.h"

namespace mercer::python {
namespace {

std::string type_text(nb::handle object) {
  const nb::handle type = object.type();
  return fmt::format("{}.{}", nb::cast<std::string>(nb::str(type.attr("__module__"))),
                     nb::cast<std::string>(nb::str(type.attr("__qualname__"))));
}

nb::object loaded_module(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  return nb::borrow(PyDict_GetItemString(modules, name));
}

bool is_instance(nb::handle object, const nb::object& module, const char* type) {
  return module.is_valid() && PyObject_IsInstance(object.ptr(), module.attr(type).ptr()) == 1;
}

/// What `object`'s type is at home in; nullptr for anything but an array.
std::unique_ptr<Library> find_library(nb::handle object) {
  auto library = std::make_unique<Library>();
  const nb::object numpy = loaded_module("numpy"), torch = loaded_module("torch");
  if (is_instance(object, numpy, "ndarray")) {
    library->kind = Library::Kind::numpy;
    library->name = "numpy";
    library->namespace_ = numpy;
  } else if (is_instance(object, torch, "Tensor")) {
    library->kind = Library::Kind::torch;
    library->name = "torch";
    library->namespace_ = torch;
    const nb::object type = nb::borrow(object.type());
    if (nb::hasattr(type, "__dlpack_c_exchange_api__")) {
      const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
      const auto* exchange =
          static_cast<const DLPackExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      if (exchange == nullptr)
        PyErr_Clear();
      else if (exchange->version.major == 1 && exchange->view_of_object != nullptr)
        library->exchange = exchange;
    }
  } else if (nb::hasattr(object, "__dlpack__")) {
    const std::string module = nb::cast<std::string>(nb::str(object.type().attr("__module__")));
    library->name = module.substr(0, module.find('.'));
    if (nb::hasattr(object, "__array_namespace__"))
      library->namespace_ = object.attr("__array_namespace__")();
    else
      library->namespace_ = nb::module_::import_(library->name.c_str());
  } else {
    return nullptr;
  }
  library->empty = library->namespace_.attr("empty");
  return library;
}

/// Looked up once for each type. The types and libraries are kept until the process ends.
const Library* cached_library(nb::handle object) {
  static auto& known = *new std::unordered_map<PyTypeObject*, std::unique_ptr<Library>>;
  const auto found = known.find(Py_TYPE(object.ptr()));
  if (found != known.end()) return found->second.get();
  std::unique_ptr<Library> library = find_library(object);
  if (library == nullptr) return nullptr;  // not kept: NumPy may be imported later
  Py_INCREF(Py_TYPE(object.ptr()));
  return known.emplace(Py_TYPE(object.ptr()), std::move(library)).first->second.get();
}

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
  else if (is(kDLBool, 8))
    dtype = Dtype::boolean;
  else
    return false;
  return true;
}

constexpr const char* kRealRule = "must be float16, bfloat16, float32, float64 or uint8";

}  // namespace

const Library& library_of(nb::handle object, Place place) {
  const Library* library = cached_library(object);
  if (library == nullptr) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} must be an array of NumPy, PyTorch or another library that speaks DLPack. Received "
                            "{}; write numpy.asarray({})",
                            place.verb, place.name, type_text(object), place.name));
  }
  return *library;
}

bool is_array(nb::handle object) { return cached_library(object) != nullptr; }

Array::Array(nb::handle object, Place place, Access access)
    : object_(nb::borrow(object)), place_(place), library_(&library_of(object, place)) {
  if (library_->kind == Library::Kind::numpy) {
    view_buffer(access);
    return;
  }
  if (library_->kind == Library::Kind::torch) check_torch();
  if (library_->exchange != nullptr)
    view_exchange();
  else
    view_capsule(access);
}

void Array::view_buffer(Access access) {
  if (PyObject_GetBuffer(object_.ptr(), &buffer_.view, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    fail_dtype("must hold real numbers");
  }
  buffer_.held = true;
  const Py_buffer& view = buffer_.view;
  if (access == Access::write && view.readonly)
    fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
  if (!dtype_from_format(view.format, view.itemsize, tensor_.dtype)) {
    const bool swapped = view.format[0] == '>' || view.format[0] == '!';
    if (swapped && std::strchr("efdlq", view.format[1])) {
      fail_dtype("must be in the byte order of this machine",
                 fmt::format("{0}.astype({0}.dtype.newbyteorder('='))", place_.name));
    }
    const bool narrows = std::strchr("bhHiIlLqQ", view.format[std::strlen(view.format) - 1]) != nullptr;
    fail_dtype(kRealRule, narrows ? as_float32() : "");
  }
  tensor_.data = view.buf;
  tensor_.shape.assign(view.shape, view.shape + view.ndim);
  tensor_.strides.resize(view.ndim);
  bool aligned = reinterpret_cast<std::uintptr_t>(view.buf) % view.itemsize == 0;
  for (int axis = 0; axis < view.ndim; ++axis) {
    tensor_.strides[axis] = view.strides[axis] / view.itemsize;
    aligned &= view.strides[axis] % view.itemsize == 0;
  }
  if (!aligned && tensor_.count() != 0) {
    fail(ErrorKind::invalid_argument,
         fmt::format("must have its elements at multiples of their size. Received a view across other fields or an odd "
                     "address; pass {}.copy()",
                     place_.name));
  }
}

/// PyTorch: gradients would be lost without a word, and a lazily negated tensor would be read with the wrong sign.
void Array::check_torch() const {
  if (nb::object(object_.attr("requires_grad")).ptr() == Py_True &&
      nb::cast<bool>(library_->namespace_.attr("is_grad_enabled")())) {
    fail(ErrorKind::unsupported,
         fmt::format("must not track gradients: PyTorch's autograd is not offered here. Received requires_grad=True; "
                     "pass {}.detach(), or see kernel_gradient",
                     place_.name));
  }
  if (nb::cast<bool>(object_.attr("is_neg")())) {
    fail(ErrorKind::invalid_argument,
         fmt::format("must hold its own values. Received a lazily negated view; pass {}.resolve_neg()", place_.name));
  }
}

void Array::check_device(DLDevice device) const {
  if (device.type == kDLCPU) return;
  fail(ErrorKind::unsupported, fmt::format("must lie in the memory of the CPU. Received an array on {} {}",
                                           device.type == kDLCUDA ? "CUDA device" : "a device of DLPack type",
                                           device.type == kDLCUDA ? device.id : device.type));
}

void Array::view_exchange() {
  DLTensor view;
  if (library_->exchange->view_of_object(object_.ptr(), &view) != 0) {
    const nb::python_error reason;  // takes the pending Python error, which says less than this
    fail(ErrorKind::unsupported, fmt::format("must be a dense array in the memory of the CPU. Received one on {}, {}",
                                             nb::cast<std::string>(nb::str(nb::object(object_.attr("device")))),
                                             nb::cast<std::string>(nb::str(nb::object(object_.attr("layout"))))));
  }
  check_device(view.device);
  take(view);
}

void Array::view_capsule(Access access) {
  if (library_->name == "jax" || library_->name == "jaxlib") {
    fail(ErrorKind::unsupported, fmt::format("must be an array that can be read in place; JAX arrays are not offered "
                                             "here. Received one; pass numpy.asarray({})",
                                             place_.name));
  }
  const nb::object device = object_.attr("__dlpack_device__")();
  check_device({nb::cast<std::int32_t>(device[0]), nb::cast<std::int32_t>(device[1])});
  try {
    capsule_ = object_.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule_ = object_.attr("__dlpack__")();  // a producer of before DLPack 1.0
  }
  // The capsule is not consumed: its own destructor frees what it holds once capsule_ goes.
  if (PyCapsule_IsValid(capsule_.ptr(), "dltensor_versioned")) {
    const auto& managed =
        *static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor_versioned"));
    if (access == Access::write && (managed.flags & kDLReadOnly)) {
      fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
    }
    take(managed.tensor);
  } else {
    void* managed = PyCapsule_GetPointer(capsule_.ptr(), "dltensor");
    if (managed == nullptr) throw nb::python_error();
    take(static_cast<DLManagedTensor*>(managed)->tensor);
  }
}

void Array::take(const DLTensor& view) {
  if (!dtype_from_dlpack(view.dtype, tensor_.dtype)) {
    fail_dtype(kRealRule, view.dtype.code == kDLInt || view.dtype.code == kDLUInt ? as_float32() : "");
  }
  tensor_.data = static_cast<char*>(view.data) + view.byte_offset;
  tensor_.shape.assign(view.shape, view.shape + view.ndim);
  if (view.strides == nullptr)
    tensor_ = Tensor(tensor_.data, tensor_.dtype, std::move(tensor_.shape));
  else
    tensor_.strides.assign(view.strides, view.strides + view.ndim);
}

void Array::require_points() const {
  if (tensor_.dtype == Dtype::int64 || tensor_.dtype == Dtype::boolean) fail_dtype(kRealRule, as_float32());
}

void Array::require_same_library(const Array& first) const {
  if (library_ == first.library_ || library_->name == first.library_->name) return;
  fail(ErrorKind::invalid_argument, fmt::format("must come from the library of {}, {}. Received an array of {}",
                                                first.place_.name, first.library_->name, library_->name));
}

std::string Array::as_float32() const {
  return fmt::format("{}{}", place_.name, library_->kind == Library::Kind::torch ? ".float()" : ".astype('float32')");
}

void Array::fail(ErrorKind kind, const std::string& rule_and_received) const {
  throw Error(kind, fmt::format("{}: {} {}", place_.verb, place_.name, rule_and_received));
}

void Array::fail_dtype(const std::string& rule, const std::string& advice) const {
  throw DtypeFault(fmt::format("{}: {} {}. Received {}{}{}", place_.verb, place_.name, rule,
                               nb::cast<std::string>(nb::str(nb::object(object_.attr("dtype")))),
                               advice.empty() ? "" : "; write ", advice));
}

nb::object make_array(const Library& library, nb::handle like, Dtype dtype, const std::vector<std::int64_t>& shape) {
  nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    PyTuple_SET_ITEM(extents.ptr(), static_cast<Py_ssize_t>(axis), PyLong_FromLongLong(shape[axis]));
  }
  const nb::object type = library.namespace_.attr(name_of(dtype));
  if (library.kind != Library::Kind::other || !nb::hasattr(like, "device")) {
    return library.empty(extents, nb::arg("dtype") = type);
  }
  return library.empty(extents, nb::arg("dtype") = type, nb::arg("device") = like.attr("device"));
}

}  // namespace mercer::python
