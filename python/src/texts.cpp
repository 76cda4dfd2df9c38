#include "texts.h"

namespace mercer::python {
namespace {

nb::str checked(PyObject* text) {
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

}  // namespace

nb::str to_text(std::string_view text) {
  return checked(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

nb::str to_path(std::string_view path) {
  return checked(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

std::string bytes_of_path(nb::handle path) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &converted) == 0) throw nb::python_error();
  const nb::object bytes = nb::steal(converted);
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

}  // namespace mercer::python
