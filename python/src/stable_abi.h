// Calls of Python objects that CPython has as inline functions outside its stable ABI, at the same cost. The bindings
// keep to that ABI (of Python 3.12), so that one wheel serves every later Python.
#pragma once

#include <Python.h>

namespace mercer::python {

/// A new reference to function(argument), null after an error.
inline PyObject* call_with(PyObject* function, PyObject* argument) {
  PyObject* arguments[] = {nullptr, argument};  // the room that lets a bound method put its object there
  return PyObject_Vectorcall(function, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

/// A new reference to object.name(argument), null after an error.
inline PyObject* call_method_with(PyObject* object, PyObject* name, PyObject* argument) {
  PyObject* arguments[] = {nullptr, object, argument};
  return PyObject_VectorcallMethod(name, arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

}  // namespace mercer::python
