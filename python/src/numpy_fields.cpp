#include "numpy_fields.h"

#include <algorithm>

namespace mercer::python {
namespace {

bool agrees(nb::handle array, char letter) {
  Py_buffer view{};
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_RECORDS_RO) != 0) throw nb::python_error();
  const NumpyArray& fields = NumpyArray::of(array);
  const bool agrees = fields.ndim == view.ndim && fields.data == view.buf &&
                      std::equal(fields.shape, fields.shape + fields.ndim, view.shape) &&
                      std::equal(fields.strides, fields.strides + fields.ndim, view.strides) &&
                      fields.is_writable() == (view.readonly == 0) && fields.type->letter == letter &&
                      fields.is_native() == (*view.format != '>');
  PyBuffer_Release(&view);
  return agrees;
}

}  // namespace

bool has_known_fields(const nb::object& numpy, nb::handle type) {
  if (!type.is(numpy.attr("ndarray"))) return false;
  const nb::object part = numpy.attr("zeros")(nb::make_tuple(3, 5), "f")
                              .attr("T")
                              .attr("__getitem__")(nb::slice(nb::int_(1), nb::int_(4), nb::int_(2)));
  const nb::object fixed = numpy.attr("zeros")(4, ">i2");
  fixed.attr("setflags")(nb::arg("write") = false);
  return agrees(part, 'f') && agrees(fixed, 'h');
}

NumpyEmpty find_numpy_empty(const nb::object& numpy) {
  constexpr int kPlace = 184;  // of PyArray_Empty
  nb::object table;
  for (const char* name : {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"}) {  // 2.x, 1.x
    const nb::object module = nb::steal(PyImport_ImportModule(name));
    PyErr_Clear();
    if (!module.is_valid() || !nb::hasattr(module, "_ARRAY_API")) continue;
    table = module.attr("_ARRAY_API");
    break;
  }
  void* const* const functions =
      table.is_valid() ? static_cast<void* const*>(PyCapsule_GetPointer(table.ptr(), nullptr)) : nullptr;
  PyErr_Clear();
  if (functions == nullptr) return nullptr;
  const auto empty = reinterpret_cast<NumpyEmpty>(functions[kPlace]);
  const nb::object type = numpy.attr("dtype")("d");
  const Py_ssize_t shape[] = {3, 5};
  const nb::object made = nb::steal(empty(2, shape, type.inc_ref().ptr(), 0));
  if (!made.is_valid()) throw nb::python_error();
  const NumpyArray& fields = NumpyArray::of(made);
  const bool serves = made.type().is(numpy.attr("ndarray")) && fields.ndim == 2 && fields.shape[1] == 5 &&
                      fields.strides[0] == 40 && agrees(made, 'd');
  return serves ? empty : nullptr;
}

}  // namespace mercer::python
