// The fields of NumPy's arrays, read in place. The buffer protocol makes a text of the element type for every view, in
// 0.1 us. They lie where NumPy's own macros have read them since NumPy 1.7 and do in NumPy 2, compiled
// into every extension; still, the first array of a process is compared with what the buffer protocol says.
#pragma once

#include <nanobind/nanobind.h>

namespace mercer::python {

namespace nb = nanobind;

struct NumpyType {
  PyObject head;
  PyTypeObject* scalar;
  char kind, letter, byte_order;  // letter: as in the struct module; byte_order: '=' or '|' is the machine's
};

struct NumpyArray {
  PyObject head;
  void* data;
  int ndim;
  Py_ssize_t *shape, *strides;  // bytes
  PyObject* base;
  NumpyType* type;
  int flags;

  static const NumpyArray& of(nb::handle array) { return *reinterpret_cast<const NumpyArray*>(array.ptr()); }
  bool is_writable() const { return (flags & 0x400) != 0; }
  bool is_native() const { return type->byte_order == '=' || type->byte_order == '|'; }
};

/// Whether `type` is numpy.ndarray itself, and its arrays have these fields.
bool has_known_fields(const nb::object& numpy, nb::handle type);

/// NumPy's function of C that numpy.empty calls, which takes over one reference to `type`.
using NumpyEmpty = PyObject* (*)(int ndim, const Py_ssize_t* shape, PyObject* type, int by_columns);
/// It stands at one place of the table that compiled extensions read, in all of NumPy's versions; null where NumPy has
/// no such table, or something else there.
NumpyEmpty find_numpy_empty(const nb::object& numpy);

}  // namespace mercer::python
