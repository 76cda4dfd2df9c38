#include "settings.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>

#include <sstream>

#include "ops/settings.h"
#include "stable_abi.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

// Methods of the one context variable, kept for good; contextvars' C functions are no part of Python's stable ABI.
nb::handle get_options, set_options;

/// None where there are no options.
nb::object current() {
  const nb::object value = nb::steal(call_with(get_options.ptr(), Py_None));
  if (!value.is_valid()) throw nb::python_error();
  return value;
}

const Settings* settings_in(const nb::object& object) {
  return object.is_none() ? nullptr : nb::inst_ptr<Settings>(object);
}

/// The options that are given, over those of the context.
Settings joined(std::optional<int> threads, const std::optional<std::string>& target,
                const std::optional<std::string>& precision) {
  Settings made = checked_settings(threads, target ? std::optional(target_from_text(*target)) : std::nullopt,
                                   precision ? std::optional(precision_from_text(*precision)) : std::nullopt);
  const nb::object before = current();
  if (const Settings* outer = settings_in(before)) {
    if (!made.threads) made.threads = outer->threads;
    if (!made.target) made.target = outer->target;
    if (!made.precision) made.precision = outer->precision;
  }
  return made;
}

}  // namespace

CallSettings::CallSettings() : held_(current()), settings_(settings_in(held_)) {}

std::string settings_text() {
  const nb::object object = current();
  const Settings* settings = settings_in(object);
  std::string text;
  if (settings == nullptr) return text;
  if (settings->threads) text += fmt::format("threads {} ", *settings->threads);
  if (settings->target) text += fmt::format("target {} ", name_of(*settings->target));
  if (settings->precision) text += fmt::format("precision {} ", name_of(*settings->precision));
  return text;
}

Settings settings_from_text(const std::string& text) {
  Settings settings;
  std::istringstream words(text);
  std::string name, value;
  while (words >> name >> value) {
    if (name == "threads") settings.threads = std::stoi(value);
    if (name == "target") settings.target = target_from_text(value);
    if (name == "precision") settings.precision = precision_from_text(value);
  }
  return settings;
}

void bind_settings(nb::module_& module) {
  const nb::object variable = nb::module_::import_("contextvars").attr("ContextVar")("mercer.options");
  get_options = nb::object(variable.attr("get")).release();
  set_options = nb::object(variable.attr("set")).release();
  nb::class_<Settings>(module, "Settings", "Options of a thread or task, over those of the process.");
  module.def("settings", joined, "threads"_a.none(), "target"_a.none(), "precision"_a.none(),
             nb::sig("def settings(threads: int | None, target: str | None, precision: str | None) -> Settings"),
             "The options in force with these in their place; what is None stays as it is.");
  module.def("current_settings", current, nb::sig("def current_settings() -> Settings | None"),
             "The options in force in this thread or task, None where the process's are.");
  module.def(
      "set_settings",
      [](nb::handle settings) {
        if (!settings.is_none() && !nb::isinstance<Settings>(settings)) throw nb::type_error("set_settings: Settings");
        set_options(settings);
      },
      "settings"_a.none(), nb::sig("def set_settings(settings: Settings | None) -> None"),
      "Sets the options of this thread or task; mercer.options does it for a while.");
  module.def("settings_text", settings_text, "The options in force as text, empty where the process's are.");
}

}  // namespace mercer::python
