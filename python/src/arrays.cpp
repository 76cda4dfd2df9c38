#include "arrays.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/dtypes.h"
#include "mercer/error.h"
#include "numpy_fields.h"
#include "stable_abi.h"

namespace mercer::python {
namespace {

/// The dtype of a letter of the module struct, as NumPy and buffers have it.
bool dtype_from_letter(char letter, Dtype& dtype) {
  const char code = letter == 'l' ? 'q' : letter;  // two names of one type
  return find_dtype(dtype, [&](const DtypeRow& row) { return row.format != 0 && code == row.format; });
}

/// The dtype of a buffer's format, native byte order only.
bool dtype_from_format(const char* format, Py_ssize_t item_size, Dtype& dtype) {
  if (*format == '=' || *format == '@' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return false;
  return dtype_from_letter(*format, dtype) && item_size == static_cast<Py_ssize_t>(size_of(dtype));
}

/// As PyObject_CallNoArgs, without the way to a function of C, which is more than the function: of a call on tiny
/// arrays that counts.
PyObject* call_without_arguments(PyObject* function) {
  if (PyCFunction_Check(function) && PyCFunction_GetFlags(function) == METH_NOARGS)
    return PyCFunction_GetFunction(function)(PyCFunction_GetSelf(function), nullptr);
  return PyObject_CallNoArgs(function);
}

bool tracks_gradients(const Library& library, nb::handle tensor) {
  static PyObject* const kRequiresGrad = PyUnicode_InternFromString("requires_grad");
  const nb::object tracked = nb::steal(PyObject_GetAttr(tensor.ptr(), kRequiresGrad));
  if (!tracked.is_valid()) throw nb::python_error();
  return tracked.ptr() == Py_True && nb::cast<bool>(library.namespace_.attr("is_grad_enabled")());
}

}  // namespace

bool is_recorded(nb::handle object, Place place) {
  const Library& library = library_of(object, place);
  const bool is_plain = library.kind == Library::Kind::torch && !library.is_subclass;
  return is_plain && !Unfollowed::current() && tracks_gradients(library, object);
}

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
  else if (kind == Library::Kind::outline)
    view_outline();
  else if (kind == Library::Kind::cupy)
    view_cupy();
  else if (library_->has_dlpack)
    view_capsule();
  else
    view_interface();
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

/// The tensor's data, shape and dtype are set.
void Array::take_strides(std::span<const std::int64_t> bytes) {
  const std::size_t item_size = size_of(tensor_.dtype);  // a power of 2: divisions would take longer than all the rest
  const int shift = std::countr_zero(item_size);
  std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(tensor_.data);
  tensor_.strides.resize(bytes.size());
  for (std::size_t axis = 0; axis < bytes.size(); ++axis) {
    tensor_.strides[axis] = bytes[axis] >> shift;
    bits |= static_cast<std::uintptr_t>(bytes[axis]);
  }
  if ((bits & (item_size - 1)) != 0 && tensor_.count() != 0) fail_unaligned();
}

void Array::fail_unaligned() const {
  fail(ErrorKind::invalid_argument,
       fmt::format("must have its elements at multiples of their size. Received a view across other fields or an odd "
                   "address; pass {}.copy()",
                   place_.name));
}

/// NumPy's arrays of the package ml_dtypes have no buffer; those of bfloat16 are viewed as whole numbers of 16 bits.
bool Array::view_bits() {
  PyErr_Clear();
  if (nb::cast<std::string>(nb::str(nb::object(object_.attr("dtype")))) != "bfloat16") return false;
  const nb::object bits = object_.attr("view")("uint16");
  return PyObject_GetBuffer(bits.ptr(), &buffer_.view, PyBUF_RECORDS_RO) == 0;
}

/// False where there is something to say about the array.
bool Array::view_fields() {
  const NumpyArray& fields = NumpyArray::of(object_);
  if (!fields.is_native() || !dtype_from_letter(fields.type->letter, tensor_.dtype)) return false;
  if (access_ == Access::write && !fields.is_writable()) return false;
  const auto axes = static_cast<std::size_t>(fields.ndim);
  tensor_.data = fields.data;
  tensor_.shape.assign(fields.shape, fields.shape + axes);
  take_strides({reinterpret_cast<const std::int64_t*>(fields.strides), axes});
  return true;
}

void Array::view_buffer() {
  if (library_->has_fields && view_fields()) return;
  const bool has_buffer = PyObject_GetBuffer(object_.ptr(), &buffer_.view, PyBUF_RECORDS_RO) == 0;
  if (!has_buffer && !view_bits()) {
    PyErr_Clear();
    fail_element(false);
  }
  buffer_.held = true;
  const Py_buffer& view = buffer_.view;
  if (access_ == Access::write && view.readonly)
    fail(ErrorKind::invalid_argument, "must be writable. Received a read-only array");
  if (has_buffer) take_format(view.format, view.itemsize);
  else tensor_.dtype = Dtype::bfloat16;
  tensor_.data = view.buf;
  tensor_.shape.assign(view.shape, view.shape + view.ndim);
  static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
  take_strides({reinterpret_cast<const std::int64_t*>(view.strides), static_cast<std::size_t>(view.ndim)});
}

/// PyTorch: gradients would be lost without a word, and a tensor that stands for others has no memory to look at.
void Array::check_followed() const {
  static PyObject* const kLevel = PyUnicode_InternFromString("_current_level");
  if (library_->is_subclass) fail_followed("must be a plain tensor. Received " + type_text(object_));
  PyObject* const level = PyDict_GetItem(library_->forward_mode.ptr(), kLevel);  // -1 outside forward mode
  if (level != nullptr && PyLong_AsLong(level) >= 0) fail_followed("must not be part of forward-mode differentiation");
  if (tracks_gradients(*library_, object_)) {
    fail_followed(fmt::format("must not track gradients. Received requires_grad=True; pass {}.detach()", place_.name));
  }
}

/// Asked once for a call, as it is about the thread: past the dispatcher a tracer would see an array made, and nothing
/// that writes it.
void Array::require_unwatched() const {
  if (library_->kind != Library::Kind::torch || Unfollowed::current()) return;
  bool is_watched = false;
  for (const nb::object& count : library_->watchers) {
    const nb::object answer = nb::steal(call_without_arguments(count.ptr()));
    if (!answer.is_valid()) throw nb::python_error();
    is_watched = is_watched || PyObject_IsTrue(answer.ptr()) != 0;
  }
  if (!is_watched) return;
  const nb::object watcher = nb::module_::import_("mercer._watchers").attr("find")();
  if (watcher.is_none()) return;
  fail_followed(fmt::format("must not be traced, nor seen by a mode of PyTorch. Received a call under {}",
                            nb::cast<std::string>(watcher)));
}

/// Whether `object_` was a tensor of zeros that PyTorch never stored, as derivatives may be, and is a stored one now.
/// What torch.func.functionalize passes has no memory either.
bool Array::materialize() {
  if (library_->kind != Library::Kind::torch) return false;
  if (library_->is_subclass) fail_followed("must be a plain tensor. Received " + type_text(object_));
  if (nb::cast<bool>(library_->namespace_.attr("_is_functional_tensor")(object_)))
    fail_followed("must be a plain tensor. Received one inside torch.func.functionalize");
  if (access_ == Access::write || !nb::cast<bool>(object_.attr("_is_zerotensor")())) return false;
  object_ = object_.attr("clone")();
  return true;
}

/// A lazily negated tensor would be read with the wrong sign.
void Array::check_sign() const {
  const nb::object negated = nb::steal(call_with(library_->is_negated.ptr(), object_.ptr()));
  if (!negated.is_valid() && library_->is_subclass) {
    PyErr_Clear();  // what only stands for a tensor, as torch.fx's proxies do
    fail_followed("must be a plain tensor. Received " + type_text(object_));
  }
  if (!negated.is_valid()) throw nb::python_error();
  if (negated.ptr() == Py_True) {
    fail(ErrorKind::invalid_argument,
         fmt::format("must hold its own values. Received a lazily negated view; pass {}.resolve_neg()", place_.name));
  }
}

void Array::require_points() const {
  if (!is_of_points(tensor_.dtype)) fail_element(true);
}

void Array::require_same_library(const Array& first) const {
  if (library_ == first.library_ || library_->name == first.library_->name) return;
  for (const Array* array : {this, &first})
    if (array->library_->kind == Library::Kind::outline) return;  // of any library
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
  const std::string rule = access_ == Access::parameter ? "float32, float64 or int64"
                           : place_.is_whole ? "float16, bfloat16, float32, float64, int32 or int64" : kPointTypes;
  fail_dtype("must be " + rule, is_whole ? as_float32() : "");
}

void Array::fail_dtype(const std::string& rule, const std::string& advice) const {
  const bool bare = capsule_.is_valid() && PyDict_Check(capsule_.ptr());  // the CUDA array interface
  const nb::object type = bare ? nb::object(capsule_["typestr"])
                               : nb::getattr(object_, "dtype", nb::str("an array without dtype"));
  throw DtypeError(fmt::format("{}: {} {}. Received {}{}{}", place_.verb, place_.name, rule,
                               text_of(type), advice.empty() ? "" : "; write ", advice));
}

}  // namespace mercer::python
