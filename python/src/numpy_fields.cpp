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

}  // namespace mercer::python
