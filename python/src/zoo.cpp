// The zoo's table as Python data, and what a verb may be given for a formula.
#include "mercer/zoo.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "ir/expr/expr.h"
#include "libraries.h"
#include "mercer/error.h"
#include "ops/call/prepared.h"
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
  row["w_meaning"] = entry.w_meaning;
  return row;
}

/// An option of an entry; `rule` says what it must be.
double option_of(nb::handle given, const std::string& entry, const std::string& option, const char* rule) {
  double value = 0;
  if (!is_carried(given) && nb::try_cast(given, value)) return value;
  throw nb::type_error(
      fmt::format("{}: {} {}. Received {}", entry, option, rule, nb::cast<std::string>(nb::repr(given))).c_str());
}

/// An option that chooses the formula: an array would be read back, and its gradient lost.
double static_option_of(nb::handle given, const ZooEntry& entry, const std::string& option) {
  const std::string rule =
      is_carried(given) ? fmt::format("chooses the formula, so it must be one number; where it is an array, write the "
                                      "formula as text: \"{}\"",
                                      entry.text)
                        : std::string("chooses the formula, so it must be one number");
  return option_of(given, entry.name, option, rule.c_str());
}

/// The default of an option of the entry; one that it does not have is refused later.
double default_of(const ZooEntry& entry, const std::string& name) {
  for (const ZooOption& option : entry.options)
    if (option.name == name) return option.default_value;
  return 0;
}

bool is_static(const ZooEntry& entry, const std::string& name) {
  return std::any_of(entry.options.begin(), entry.options.end(),
                     [&](const ZooOption& option) { return option.is_static && option.name == name; });
}

/// Moves the static options of `entry` from `params` to the result.
std::map<std::string, double> take_static_options(const ZooEntry& entry, nb::dict* params) {
  std::map<std::string, double> taken;
  for (const ZooOption& option : entry.options) {
    if (!option.is_static || params == nullptr || !params->contains(option.name.c_str())) continue;
    const nb::object given = (*params)[option.name.c_str()];
    taken.emplace(option.name, static_option_of(given, entry, option.name));
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

/// A text that a call gave: a literal is the same object in all calls of its line.
struct RecentText {
  nb::object text;
  bool weighted = false;
  std::optional<Symbol> symbol;
};

RecentText& recent_text(nb::handle object) {
  constexpr std::size_t kTexts = 64;
  static auto& recent = *new std::array<RecentText, kTexts>;
  return recent[reinterpret_cast<std::uintptr_t>(object.ptr()) / 16 % kTexts];
}

/// Valid until the next text.
const Symbol& symbol_of_text(nb::handle object, bool weighted, nb::dict* params) {
  RecentText& recent = recent_text(object);
  if (recent.text.is(object) && recent.weighted == weighted) return *recent.symbol;
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
  if (!found->second.has_static_options && PyUnicode_CheckExact(object.ptr()))
    recent = {nb::borrow(object), weighted, found->second.symbol};
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

namespace {

/// What the formula carries, as parameters of the call that are not given.
void add_carried(const Symbol& symbol, nb::dict* params) {
  if (params == nullptr) return;
  for (const Carried& carried : symbol.arrays)
    if (!params->contains(carried.name.c_str())) (*params)[carried.name.c_str()] = carried.array;
}

/// What prepares the formula of a symbol.
using Prepare = const Formula& (Symbol::*)() const;

Formula found(nb::handle object, const char* verb, bool weighted, nb::dict* options, nb::dict* params,
              Prepare prepare) {
  if (PyUnicode_Check(object.ptr())) return (symbol_of_text(object, weighted, options).*prepare)();
  if (const Symbol* symbol = nullptr; nb::try_cast(object, symbol) && symbol != nullptr) {
    add_carried(*symbol, params);
    return (symbol->*prepare)();
  }
  const Symbol traced = trace(object, verb);
  add_carried(traced, params);
  return (traced.*prepare)();
}

}  // namespace

Formula find_formula(nb::handle object, const char* verb, bool weighted, nb::dict* params) {
  return found(object, verb, weighted, params, params, &Symbol::formula);
}

Formula find_field(nb::handle object, const char* verb, nb::dict* params) {
  return found(object, verb, false, nullptr, params, &Symbol::field);
}

namespace {

/// A reduction by its name in formulas; over the points here.
Expr combined(const Expr& term, const std::string& combine, const char* verb) {
  using Reduction = Expr (*)(const Expr&);
  static const std::pair<const char*, Reduction> kReductions[] = {
      {"sum", mercer::sum}, {"prod", mercer::prod}, {"max", mercer::max}, {"min", mercer::min},
      {"logsumexp", mercer::logsumexp}};
  for (const auto& [name, reduction] : kReductions)
    if (combine == name) return reduction(term);
  if (combine == "reduce") return term;
  fail(ErrorKind::invalid_argument,
       "{}: combine must be sum, prod, max, min or logsumexp, of which phi is the term, or reduce, where phi is a "
       "reduction itself (mercer.reduce). Received \"{}\".", verb, combine);
}

}  // namespace

Formula find_fold(nb::handle object, const char* verb, const std::string& combine, nb::dict* params) {
  const Symbol symbol = find_symbol(object, verb);
  add_carried(symbol, params);
  return prepared(combined(symbol.expr, combine, verb), [](const Expr& e) { return Formula::fold(e); });
}

Symbol find_symbol(nb::handle object, const char* verb) {
  if (const Symbol* symbol = nullptr; nb::try_cast(object, symbol) && symbol != nullptr) return *symbol;
  if (PyUnicode_Check(object.ptr())) return symbol_of_text(object, false, nullptr);
  return trace(object, verb);
}

Formula compiled_formula(nb::handle object, const char* verb, nb::dict& options) {
  return found(object, verb, false, &options, nullptr, &Symbol::formula);
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
        std::vector<Carried> arrays;
        const ZooEntry* entry = find_zoo_entry(name);
        for (const auto& [key, given] : options) {
          const auto option = nb::cast<std::string>(nb::str(key));
          const bool chooses = entry != nullptr && is_static(*entry, option);
          if (is_carried(given) && !chooses) {
            arrays.push_back({option, nb::borrow(given)});
            if (entry != nullptr) values.emplace(option, default_of(*entry, option));
          } else if (chooses) {
            values.emplace(option, static_option_of(given, *entry, option));
          } else {
            values.emplace(option,
                           option_of(given, name, option, "must be a number or an array, the default of calls"));
          }
        }
        return Kernel(zoo(name, values, weighted), std::move(arrays));
      },
      "name"_a, "options"_a = nb::dict(), "weighted"_a = false,
      nb::sig("def zoo_formula(name: str, options: dict[str, typing.Any] = {}, weighted: bool = False) -> Kernel"),
      "The formula of an entry of the zoo, by name or alias.");
  module.def(
      "formula_for",
      [](nb::handle f, const std::string& verb, bool weighted, nb::dict options) {
        return Kernel(find_formula(f, verb.c_str(), weighted, &options).prepared().written);
      },
      "f"_a, "verb"_a, "weighted"_a, "options"_a,
      nb::sig("def formula_for(f: mercer._types.FormulaLike, verb: str, weighted: bool, "
              "options: dict[str, typing.Any]) -> Kernel"),
      "What a verb makes of f; options that choose the formula (a norm's p) are taken out of the dict, and arrays that "
      "f carries put there.");
  module.def(
      "formula_of", [](nb::handle f) { return Kernel(find_symbol(f, "kernel")); }, "f"_a,
      nb::sig("def formula_of(f: mercer._types.FormulaLike) -> Kernel"),
      "An Expr as it is, a text parsed, a name of the zoo looked up, a function traced.");
}

}  // namespace mercer::python
