// The zoo's table as Python data, and what a verb may be given for a formula.
#include "mercer/zoo.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ir/expr.h"
#include "mercer/error.h"
#include "ops/prepared.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

// Past this many entries a cache starts anew: a program that builds formulas without end must not grow without end.
constexpr std::size_t kCacheLimit = 4096;

template <class Map>
void make_room(Map& map) {
  if (map.size() >= kCacheLimit) map.clear();
}

nb::dict row_of(const ZooEntry& entry) {
  nb::dict row;
  nb::list aliases, options;
  for (const std::string& alias : entry.aliases) aliases.append(nb::str(alias.c_str()));
  for (const ZooOption& option : entry.options) {
    nb::dict fields;
    fields["name"] = option.name;
    fields["default"] = option.default_value;
    fields["is_static"] = option.is_static;
    fields["doc"] = option.doc;
    options.append(fields);
  }
  row["name"] = entry.name;
  row["aliases"] = aliases;
  row["is_metric"] = entry.is_metric;
  row["weighted"] = entry.weighted;
  row["text"] = entry.text;
  row["weighted_text"] = entry.weighted_text;
  row["options"] = options;
  row["source"] = entry.source;
  row["scipy_name"] = entry.scipy_name;
  row["domain"] = entry.domain;
  return row;
}

/// An option of an entry; `rule` says what it must be.
double option_of(nb::handle given, const std::string& entry, const std::string& option, const char* rule) {
  double value = 0;
  if (nb::try_cast(given, value)) return value;
  throw nb::type_error(
      fmt::format("{}: {} {}. Received {}", entry, option, rule, nb::cast<std::string>(nb::repr(given))).c_str());
}

/// Moves the static options of `entry` from `params` to the result.
std::map<std::string, double> take_static_options(const ZooEntry& entry, nb::dict* params) {
  std::map<std::string, double> taken;
  for (const ZooOption& option : entry.options) {
    if (!option.is_static || params == nullptr || !params->contains(option.name.c_str())) continue;
    const nb::object given = (*params)[option.name.c_str()];
    taken.emplace(option.name,
                  option_of(given, entry.name, option.name, "chooses the formula, so it must be one number"));
    nb::del((*params)[option.name.c_str()]);
  }
  return taken;
}

/// A text parsed earlier. An entry of the zoo with static options is built anew for the options of each call.
struct KnownText {
  Symbol symbol;
  bool has_static_options = false;
};

KnownText read_text(const std::string& text, bool weighted, nb::dict* params) {
  const ZooEntry* entry = find_zoo_entry(text);
  if (entry == nullptr) {
    Expr expr = parse(text);
    if (expr->op == ir::Op::param) zoo(text);  // a lone name is a misspelt entry: throws with the known ones
    return {Symbol(std::move(expr))};
  }
  const auto& options = entry->options;
  const bool has_static = std::any_of(options.begin(), options.end(), [](const ZooOption& o) { return o.is_static; });
  return {Symbol(zoo(text, take_static_options(*entry, params), weighted && entry->weighted)), has_static};
}

/// Valid until the next text.
const Symbol& symbol_of_text(nb::handle object, bool weighted, nb::dict* params) {
  static auto& known = *new std::unordered_map<std::string, KnownText>;
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(object.ptr(), &length);
  if (bytes == nullptr) throw nb::python_error();
  std::string key(bytes, length);
  if (weighted) key += '\0';
  auto found = known.find(key);
  if (found == known.end() || found->second.has_static_options) {
    KnownText read = read_text(key.substr(0, length), weighted, params);
    make_room(known);
    found = known.insert_or_assign(std::move(key), std::move(read)).first;
  }
  return found->second.symbol;
}

/// What `prepare` makes of an expression, once for equal ones.
template <class Prepare>
const Formula& prepared(const Expr& expr, Prepare prepare) {
  static auto& known = *new std::unordered_map<Expr, Formula, ir::ExprHash, ir::ExprEqual>;  // one for each Prepare
  auto found = known.find(expr);
  if (found == known.end()) {
    Formula made = prepare(expr);
    make_room(known);
    found = known.emplace(expr, std::move(made)).first;
  }
  return found->second;
}

Symbol trace(nb::handle object, const char* verb) {
  if (PyCallable_Check(object.ptr())) {
    return nb::cast<Symbol>(nb::module_::import_("mercer._trace").attr("trace")(object));
  }
  throw nb::type_error(
      fmt::format("{}: f must be an Expr, a text, a name of the zoo or a function of (x, z, …). Received {}", verb,
                  nb::cast<std::string>(nb::str(nb::object(object.type().attr("__qualname__")))))
          .c_str());
}

}  // namespace

const Formula& Symbol::formula() const {
  if (!formula_) formula_ = prepared(expr, [](const Expr& e) { return Formula(e); });
  return *formula_;
}

const Formula& Symbol::field() const {
  if (!field_) field_ = prepared(expr, [](const Expr& e) { return Formula::field(e); });
  return *field_;
}

Formula find_formula(nb::handle object, const char* verb, bool weighted, nb::dict* params) {
  const Symbol* symbol = nullptr;
  if (nb::try_cast(object, symbol) && symbol != nullptr) return symbol->formula();
  if (PyUnicode_Check(object.ptr())) return symbol_of_text(object, weighted, params).formula();
  return trace(object, verb).formula();
}

Formula find_field(nb::handle object, const char* verb) {
  const Symbol* symbol = nullptr;
  if (nb::try_cast(object, symbol) && symbol != nullptr) return symbol->field();
  if (PyUnicode_Check(object.ptr())) return symbol_of_text(object, false, nullptr).field();
  return trace(object, verb).field();
}

Expr find_expr(nb::handle object, const char* verb) {
  const Symbol* symbol = nullptr;
  if (nb::try_cast(object, symbol) && symbol != nullptr) return symbol->expr;
  if (PyUnicode_Check(object.ptr())) return symbol_of_text(object, false, nullptr).expr;
  return trace(object, verb).expr;
}

void bind_zoo(nb::module_& module) {
  module.def(
      "zoo_rows",
      [] {
        nb::list rows;
        for (const ZooEntry& entry : zoo_table()) rows.append(row_of(entry));
        return rows;
      },
      nb::sig("def zoo_rows() -> list[dict[str, typing.Any]]"),
      "The table of named metrics and kernels, one dict a row.");
  module.def(
      "zoo_formula",
      [](const std::string& name, const nb::dict& options, bool weighted) {
        std::map<std::string, double> values;
        for (const auto& [key, given] : options) {
          const auto option = nb::cast<std::string>(nb::str(key));
          values.emplace(option, option_of(given, name, option, "must be a number, the default of calls"));
        }
        return Symbol(zoo(name, values, weighted));
      },
      "name"_a, "options"_a = nb::dict(), "weighted"_a = false,
      nb::sig("def zoo_formula(name: str, options: dict[str, float] = {}, weighted: bool = False) -> Expr"),
      "The formula of an entry of the zoo, by name or alias.");
  module.def(
      "formula_for",
      [](nb::handle f, const std::string& verb, bool weighted, nb::dict options) {
        return Symbol(find_formula(f, verb.c_str(), weighted, &options).prepared().written);
      },
      "f"_a, "verb"_a, "weighted"_a, "options"_a,
      nb::sig("def formula_for(f: mercer._types.FormulaLike, verb: str, weighted: bool, "
              "options: dict[str, typing.Any]) -> Expr"),
      "What a verb makes of f; options that choose the formula (a norm's p) are taken out of the dict.");
  module.def(
      "formula_of", [](nb::handle f) { return Symbol(find_expr(f, "kernel")); }, "f"_a,
      nb::sig("def formula_of(f: mercer._types.FormulaLike) -> Expr"),
      "An Expr as it is, a text parsed, a name of the zoo looked up, a function traced.");
}

}  // namespace mercer::python
