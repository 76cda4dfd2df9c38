// What operators and functions of expressions are given: numbers, expressions, and arrays, which stay arrays.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "ir/expr/expr.h"
#include "libraries.h"
#include "symbols.h"

namespace mercer::python {
namespace {

constexpr const char* kName = "array";  // of the parameter that an array without a name becomes

std::string short_name(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::object(object.type().attr("__qualname__"))));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// "bandwidth" of "bandwidth_2".
std::string_view stem_of(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  const bool numbered = end != std::string_view::npos && end > 0 && end + 1 < name.size() && name[end] == '_';
  return numbered ? name.substr(0, end) : name;
}

/// Names of the parameters of an operand that carry no array.
void add_free_names(const Expr& expr, const std::vector<Carried>& arrays, std::vector<std::string>& names) {
  for (const auto& [name, value] : parameters(expr)) {
    const bool carries = std::any_of(arrays.begin(), arrays.end(), [&](const Carried& c) { return c.name == name; });
    if (!carries) names.push_back(name);
  }
}

/// A number of Python or NumPy; absent for anything else.
std::optional<double> number_of(nb::handle object) {
  if (PyFloat_Check(object.ptr())) return PyFloat_AsDouble(object.ptr());
  PyTypeObject* const type = Py_TYPE(object.ptr());
  if (PyType_GetSlot(type, Py_nb_float) == nullptr && PyType_GetSlot(type, Py_nb_index) == nullptr) return std::nullopt;
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) throw nb::python_error();
  return value;
}

}  // namespace

bool is_carried(nb::handle object) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr()) || !is_array(object)) return false;
  return !is_numpy(object) || nb::cast<int>(object.attr("ndim")) != 0;
}

bool same(const Symbol& a, const Symbol& b) {
  const auto match = [](const Carried& c, const Carried& d) { return c.name == d.name && c.array.is(d.array); };
  return mercer::same(a.expr, b.expr) && a.arrays.size() == b.arrays.size() &&
         std::is_permutation(a.arrays.begin(), a.arrays.end(), b.arrays.begin(), match);
}

Operands::Operands(const char* where, std::initializer_list<nb::handle> objects) : where_(where) {
  for (nb::handle object : objects) add(object);
}

bool Operands::take(nb::handle object) {
  if (const Symbol* symbol = nullptr; nb::try_cast(object, symbol) && symbol != nullptr) {
    given_.push_back({symbol->expr, symbol->arrays});
    return true;
  }
  if (PyBool_Check(object.ptr()))
    throw nb::type_error(fmt::format("{}: an operand must be no truth value, since == of two kernels compares them as "
                                     "wholes; write 1 or 0, and equal(a, b) for a formula. Received {}",
                                     where_, object.ptr() == Py_True ? "True" : "False")
                             .c_str());
  if (is_carried(object)) {
    const auto axes = nb::cast<int>(object.attr("ndim"));
    if (axes != 0)
      throw nb::type_error(
          fmt::format("{}: an array in a formula must be one number, without axes; give values of features as w=, "
                      "values of points as row= and col=, several values of a parameter by its name. Received {} with "
                      "{} {}",
                      where_, type_text(object), axes, axes == 1 ? "axis" : "axes")
              .c_str());
    add_array(object);
    return true;
  }
  const std::optional<double> number = number_of(object);
  if (number) given_.push_back({Expr(*number), {}});
  return number.has_value();
}

void Operands::add(nb::handle object) {
  if (take(object)) return;
  throw nb::type_error(
      fmt::format("{}: expected an expression, a number or an array of one. Received {}", where_, short_name(object))
          .c_str());
}

void Operands::add_array(nb::handle array) { given_.push_back({param(kName), {{kName, nb::borrow(array)}}}); }

const std::vector<Expr>& Operands::expressions() {
  if (!settled_) settle();
  return expressions_;
}

void Operands::settle() {
  settled_ = true;
  std::vector<std::string> taken;
  const bool carries = std::any_of(given_.begin(), given_.end(), [](const Operand& o) { return !o.arrays.empty(); });
  if (carries)
    for (const Operand& operand : given_) add_free_names(operand.expr, operand.arrays, taken);
  for (const Operand& operand : given_) {
    std::map<std::string, Expr> renamed;
    for (const Carried& carried : operand.arrays) {
      const std::string& name = name_of(carried, taken);
      if (name != carried.name) renamed.emplace(carried.name, param(name));
    }
    expressions_.push_back(renamed.empty() ? operand.expr : mercer::bind(operand.expr, renamed));
  }
}

const std::string& Operands::name_of(const Carried& carried, const std::vector<std::string>& taken) {
  const std::string stem(stem_of(carried.name));
  for (const Carried& known : arrays_)
    if (known.array.is(carried.array) && (known.name == carried.name || stem_of(known.name) == stem)) return known.name;
  const auto is_free = [&](const std::string& name) {
    return !contains(taken, name) &&
           std::none_of(arrays_.begin(), arrays_.end(), [&](const Carried& known) { return known.name == name; });
  };
  std::string name = carried.name;
  for (int number = 2; !is_free(name); ++number) name = fmt::format("{}_{}", stem, number);
  return arrays_.emplace_back(Carried{std::move(name), carried.array}).name;
}

Symbol Operands::made(Expr expr) const {
  std::vector<Carried> read;
  if (!arrays_.empty()) {
    const auto names = parameters(expr);
    for (const Carried& carried : arrays_) {
      const auto reads = [&](const auto& parameter) { return parameter.first == carried.name; };
      if (std::any_of(names.begin(), names.end(), reads)) read.push_back(carried);
    }
  }
  return Symbol(std::move(expr), std::move(read));
}

}  // namespace mercer::python
