// mercer.options: settings of a thread or task, kept in a context variable of Python's.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>  // in every file: casters must not differ from one to the next

#include <optional>
#include <string>

#include "core/settings.h"

namespace mercer::python {

namespace nb = nanobind;

/// While it lives, calls of this thread follow the options of the Python context that it was made in. Made and
/// destroyed with the GIL held.
class CallSettings {
 public:
  CallSettings();

 private:
  nb::object held_;
  WithSettings settings_;
};

/// The options of this context as text, empty for none; what a call that runs elsewhere is given.
std::string settings_text();
Settings settings_from_text(const std::string& text);

void bind_settings(nb::module_& module);

}  // namespace mercer::python
