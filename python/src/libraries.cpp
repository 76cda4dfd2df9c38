#include "libraries.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <memory>
#include <unordered_map>

#include "core/dtypes.h"
#include "core/system/aligned.h"
#include "gil.h"
#include "mercer/error.h"
#include "numpy_fields.h"
#include "stable_abi.h"

namespace mercer::python {
namespace {

nb::object loaded_module(const char* name) {
  PyObject* modules = PyImport_GetModuleDict();
  return nb::borrow(PyDict_GetItemString(modules, name));
}

bool is_instance(nb::handle object, const nb::object& module, const char* type) {
  if (!module.is_valid() || !nb::hasattr(module, type)) return false;
  const int answer = PyObject_IsInstance(object.ptr(), module.attr(type).ptr());
  if (answer < 0) throw nb::python_error();
  return answer == 1;
}

/// None where there is no such module: arrays may be read without it.
nb::object imported_module(const std::string& name) {
  nb::object module = nb::steal(name.empty() ? nullptr : PyImport_ImportModule(name.c_str()));
  if (module.is_valid()) return module;
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
  PyErr_Clear();
  return nb::none();
}

const DLPackExchange* find_exchange(nb::handle object) {
  const nb::object type = nb::borrow(object.type());
  if (!nb::hasattr(type, "__dlpack_c_exchange_api__")) return nullptr;
  const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
  const auto* table = static_cast<const DLPackExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  return table->version.major == 1 && table->view_of_object != nullptr ? table : nullptr;
}

void fill_torch(Library& library, nb::handle object) {
  const nb::handle type = object.type();
  library.is_subclass =
      !type.is(library.namespace_.attr("Tensor")) && !type.is(library.namespace_.attr("nn").attr("Parameter"));
  library.forward_mode = PyModule_GetDict(nb::module_::import_("torch.autograd.forward_ad").ptr());
  library.exchange = find_exchange(object);
  library.empty_like = library.namespace_.attr("empty_like");
  library.is_negated = library.namespace_.attr("Tensor").attr("is_neg");
  const nb::object inner = library.namespace_.attr("_C");
  for (const char* name : {"_len_torch_dispatch_stack", "_len_torch_function_stack", "_is_tracing"})
    library.watchers.push_back(inner.attr(name));
  if (nb::hasattr(inner, "_cuda_getCurrentRawStream")) library.stream_of = inner.attr("_cuda_getCurrentRawStream");
}

void fill_cupy(Library& library, nb::handle object) {
  library.exchange = find_exchange(object);
  const nb::object cuda = library.namespace_.attr("cuda");
  library.runtime = cuda.attr("runtime");
  library.stream_of = cuda.attr("get_current_stream");
}

/// A library that nobody here has heard of: its namespace by the array API standard, else the module of its type.
void fill_other(Library& library, nb::handle object) {
  const std::string module = text_of(object.type().attr("__module__"));
  library.name = module.substr(0, module.find('.'));
  if (nb::hasattr(object, "__array_namespace__"))
    library.namespace_ = object.attr("__array_namespace__")();
  else
    library.namespace_ = imported_module(library.name);
  if (library.has_dlpack) library.exchange = find_exchange(object);
}

struct KnownLibrary {
  const char* name;
  const char* array_type;
  Library::Kind kind;
};
constexpr KnownLibrary kKnown[] = {
    {"numpy", "ndarray", Library::Kind::numpy},
    {"torch", "Tensor", Library::Kind::torch},
    {"torch.fx", "Proxy", Library::Kind::torch},  // stands for one while torch.fx records a function
    {"cupy", "ndarray", Library::Kind::cupy},
    {"jax", "Array", Library::Kind::jax},
    {"mercer._outlines", "Outline", Library::Kind::outline},
};

/// What `object`'s type is at home in; nullptr for anything but an array.
std::unique_ptr<Library> find_library(nb::handle object) {
  auto library = std::make_unique<Library>();
  for (const KnownLibrary& known : kKnown) {
    const nb::object module = loaded_module(known.name);
    if (!is_instance(object, module, known.array_type)) continue;
    library->kind = known.kind;
    library->name = std::string(known.name, std::strcspn(known.name, "."));
    library->namespace_ = loaded_module(library->name.c_str());
    break;
  }
  library->has_dlpack = nb::hasattr(object, "__dlpack__");
  library->has_fields = library->kind == Library::Kind::numpy && has_known_fields(library->namespace_, object.type());
  if (library->has_fields) library->numpy_empty = find_numpy_empty(library->namespace_);
  library->is_masked = is_instance(object, loaded_module("numpy.ma"), "MaskedArray");
  switch (library->kind) {
    case Library::Kind::torch: fill_torch(*library, object); break;
    case Library::Kind::cupy: fill_cupy(*library, object); break;
    case Library::Kind::jax: return library;
    case Library::Kind::outline: library->namespace_ = nb::module_::import_("numpy"); break;
    case Library::Kind::other:
      if (PyType_Check(object.ptr())) return nullptr;
      if (!library->has_dlpack && !nb::hasattr(object, "__cuda_array_interface__")) return nullptr;
      fill_other(*library, object);
      break;
    default: break;
  }
  if (nb::hasattr(library->namespace_, "empty")) library->empty = library->namespace_.attr("empty");
  return library;
}

/// Numbers, texts and None are no arrays of any library, whichever is imported later.
bool is_plain(nb::handle object) {
  const PyTypeObject* const type = Py_TYPE(object.ptr());
  return type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type ||
         object.is_none();
}

/// Looked up once for each type. The types and libraries are kept until the process ends.
Library* cached_library(nb::handle object) {
  static PyTypeObject* last_type = nullptr;
  static Library* last_library = nullptr;
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (type == last_type) return last_library;
  if (is_plain(object)) return nullptr;
  static auto& known = *new std::unordered_map<PyTypeObject*, std::unique_ptr<Library>>;
  auto found = known.find(type);
  if (found == known.end()) {
    std::unique_ptr<Library> library = find_library(object);
    if (library == nullptr) return nullptr;  // not kept: NumPy may be imported later
    object.type().inc_ref();
    found = known.emplace(type, std::move(library)).first;
  }
  last_type = type;
  last_library = found->second.get();
  return last_library;
}

nb::object extents_of(const std::vector<std::int64_t>& shape) {
  nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    PyTuple_SetItem(extents.ptr(), static_cast<Py_ssize_t>(axis), PyLong_FromLongLong(shape[axis]));
  }
  return extents;
}

bool lies_in_rows(const Tensor& tensor) {
  std::int64_t step = 1;
  for (std::size_t axis = tensor.shape.size(); axis-- > 0; step *= tensor.shape[axis])
    if (tensor.strides[axis] != step) return false;
  return true;
}

/// torch.empty_like(like), like.new_empty(shape) or torch.empty(shape, dtype=, device=), which take 0.8, 1.2 and 1.6 us
/// (Zen 4). Not the C table's allocator: record_stream and resize_ pass over its tensors.
nb::object make_tensor(Library& library, nb::handle like, const std::vector<std::int64_t>& shape, Dtype dtype,
                       const Tensor* view) {
  static PyObject* const kNewEmpty = PyUnicode_InternFromString("new_empty");
  if (view != nullptr && view->dtype == dtype) {
    PyObject* const one = view->shape == shape && lies_in_rows(*view)
                              ? call_with(library.empty_like.ptr(), like.ptr())
                              : call_method_with(like.ptr(), kNewEmpty, extents_of(shape).ptr());
    if (one == nullptr) throw nb::python_error();
    return nb::steal(one);
  }
  const nb::object extents = extents_of(shape);
  static PyObject* const names =
      PyTuple_Pack(2, PyUnicode_InternFromString("dtype"), PyUnicode_InternFromString("device"));
  static PyObject* const kDevice = PyUnicode_InternFromString("device");
  const nb::object device = nb::steal(PyObject_GetAttr(like.ptr(), kDevice));
  if (!device.is_valid()) throw nb::python_error();
  PyObject* const arguments[] = {extents.ptr(), library.dtype(dtype).ptr(), device.ptr()};
  PyObject* made = PyObject_Vectorcall(library.empty.ptr(), arguments, 1, names);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace

std::optional<Dtype> dtype_of_name(std::string_view name) {
  Dtype dtype{};
  if (!find_dtype(dtype, [&](const DtypeRow& row) { return name == row.name; })) return std::nullopt;
  return dtype;
}

const nb::object& Library::dtype(Dtype dtype) {
  nb::object& known = dtypes[static_cast<int>(dtype)];
  if (!known.is_valid()) {
    const bool of_package = kind == Kind::numpy && dtype == Dtype::bfloat16;  // NumPy has none of its own
    known = (of_package ? nb::object(nb::module_::import_("ml_dtypes")) : namespace_).attr(name_of(dtype));
    if (kind == Kind::numpy) known = namespace_.attr("dtype")(known);  // which numpy.empty need not look for
  }
  return known;
}

std::string text_of(nb::handle object, bool as_code) {
  if (!object.is_valid()) return "nothing";
  const nb::object text = nb::steal(as_code ? PyObject_Repr(object.ptr()) : PyObject_Str(object.ptr()));
  const nb::object bytes =
      nb::steal(text.is_valid() ? PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace") : nullptr);
  if (bytes.is_valid()) return PyBytes_AsString(bytes.ptr());
  PyErr_Clear();
  return "an object that has no text";
}

std::string type_text(nb::handle object) {
  const nb::handle type = object.type();
  return fmt::format("{}.{}", text_of(type.attr("__module__")), text_of(type.attr("__qualname__")));
}

Library& library_of(nb::handle object, Place place) {
  Library* library = cached_library(object);
  if (library == nullptr) {
    // SciPy's and CuPy's matrices have toarray, those of the package sparse and of JAX todense.
    for (const char* dense : {"toarray", "todense"})
      if (!PyType_Check(object.ptr()) && nb::hasattr(object, dense))
        throw Error(ErrorKind::unsupported,
                    fmt::format("{}: {} must be a dense array; sparse ones are not offered. Received {}; pass {}.{}()",
                                place.verb, place.name, type_text(object), place.name, dense));
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} must be an array of NumPy, PyTorch or another library that speaks DLPack. Received "
                            "{}; write numpy.asarray({})",
                            place.verb, place.name, type_text(object), place.name));
  }
  return *library;
}

bool is_array(nb::handle object) { return cached_library(object) != nullptr; }

namespace {

bool is_of(nb::handle object, Library::Kind kind) {
  const Library* library = cached_library(object);
  return library != nullptr && library->kind == kind;
}

}  // namespace

bool is_jax(nb::handle object) { return is_of(object, Library::Kind::jax); }
bool is_torch(nb::handle object) { return is_of(object, Library::Kind::torch); }
bool is_numpy(nb::handle object) { return is_of(object, Library::Kind::numpy); }

CupyDevice::CupyDevice(const Library& library, int index) : library_(library) {
  const nb::object current = library_.runtime.attr("getDevice")();
  if (nb::cast<int>(current) == index) return;
  library_.runtime.attr("setDevice")(index);
  before_ = current;
}

CupyDevice::~CupyDevice() {
  if (!before_.is_valid()) return;
  nb::error_scope keep;
  try {
    library_.runtime.attr("setDevice")(before_);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("mercer: setting CuPy's device back");
  }
}

namespace {

/// empty(shape, type)
nb::object made_by_numpy(const Library& library, const std::vector<std::int64_t>& shape, const nb::object& type) {
  PyObject* made = nullptr;
  if (library.numpy_empty != nullptr) {
    static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
    const auto* const extents = reinterpret_cast<const Py_ssize_t*>(shape.data());
    made = library.numpy_empty(static_cast<int>(shape.size()), extents, type.inc_ref().ptr(), 0);
  } else {
    const nb::object extents = extents_of(shape);
    PyObject* const arguments[] = {extents.ptr(), type.ptr()};
    made = PyObject_Vectorcall(library.empty.ptr(), arguments, 2, nullptr);
  }
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object uninitialised(Library& library, nb::handle like, Dtype dtype, const std::vector<std::int64_t>& shape,
                         Place place, const Tensor* view) {
  if (!library.empty.is_valid()) {
    throw Error(ErrorKind::invalid_argument,
                fmt::format("{}: {} must be given where the library of x has no function empty. Received none; x is {}",
                            place.verb, place.name, type_text(like)));
  }
  if (library.kind == Library::Kind::torch) return make_tensor(library, like, shape, dtype, view);
  const nb::object& type = library.dtype(dtype);
  if (library.kind == Library::Kind::numpy) return made_by_numpy(library, shape, type);
  const nb::object extents = extents_of(shape);
  if (library.kind == Library::Kind::cupy) {
    const CupyDevice current(library, nb::cast<int>(like.attr("data").attr("device_id")));
    return library.empty(extents, nb::arg("dtype") = type);
  }
  if (!nb::hasattr(like, "device")) return library.empty(extents, nb::arg("dtype") = type);
  return library.empty(extents, nb::arg("dtype") = type, nb::arg("device") = like.attr("device"));
}

/// Fills an array that no call has written with NaN, or -1.
void poison(const nb::object& array, Dtype dtype) {
  const double value = dtype <= Dtype::float64 ? std::numeric_limits<double>::quiet_NaN() : -1;
  for (const char* fill : {"fill_", "fill"})
    if (nb::hasattr(array, fill)) {
      array.attr(fill)(value);
      return;
    }
}

}  // namespace

nb::object make_array(Library& library, nb::handle like, Dtype dtype, const std::vector<std::int64_t>& shape,
                      Place place, const Tensor* view) {
  return end_asleep([&] {
    nb::object array = uninitialised(library, like, dtype, shape, place, view);
    if (poisons_memory()) poison(array, dtype);
    return array;
  });
}

DLDevice to_dlpack(Device device) {
  return {device.kind == DeviceKind::cuda ? kDLCUDA : kDLCPU, static_cast<std::int32_t>(device.index)};
}

DLDataType to_dlpack(Dtype dtype) {
  const DtypeRow& row = row_of(dtype);
  return {row.dlpack, static_cast<std::uint8_t>(8 * row.size), 1};
}

}  // namespace mercer::python
