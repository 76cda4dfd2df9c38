// Texts and paths between the engine and Python. Paths are bytes, which need not be UTF-8, and messages hold them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <string>
#include <string_view>

namespace mercer::python {

namespace nb = nanobind;

/// A text for people: U+FFFD stands for bytes that are not UTF-8.
nb::str to_text(std::string_view text);
/// A path as os.fsdecode gives it, from which Python's functions find the file again.
nb::str to_path(std::string_view path);
/// The bytes of a path: a str, bytes or os.PathLike.
std::string bytes_of_path(nb::handle path);

}  // namespace mercer::python
