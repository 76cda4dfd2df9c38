// Expressions in Python: the class Expr with its operators, the symbols, the functions and the reductions.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>

#include "core/dtype_error.h"
#include "formula/suggest.h"
#include "ir/expr/expr.h"
#include "ir/expr/ops.h"
#include "libraries.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Unary = Expr (*)(const Expr&);
using Binary = Expr (*)(const Expr&, const Expr&);

/// Functions that the table of ops (ir/expr/ops.cpp) lacks: shorthands, reductions, and ops that operators have.
struct UnaryRow {
  const char* name;
  Unary function;
  const char* doc;
};
constexpr UnaryRow kUnary[] = {
    {"square", mercer::square, "a * a."},
    {"logical_not", mercer::logical_not, "1 where a is 0, else 0; also ~a."},
    {"sum", mercer::sum, "The sum of the term over the features k."},
    {"prod", mercer::prod, "The product of the term over the features k."},
    {"logsumexp", mercer::logsumexp, "log(sum(exp(term))) over the features k, without overflow."},
};

struct BinaryRow {
  const char* name;
  Binary function;
  const char* doc;
};
constexpr BinaryRow kBinary[] = {
    {"equal", mercer::equal, "1 where a equals b, else 0; also a == b."},
    {"not_equal", mercer::not_equal, "1 where a differs from b, else 0; also a != b."},
    {"logical_and", mercer::logical_and, "1 where both differ from 0; also a & b."},
    {"logical_or", mercer::logical_or, "1 where one of them differs from 0; also a | b."},
};

struct SymbolRow {
  const char* name;
  Expr expr;
};

/// function(self, other), or the other way round. Anything that is no operand is left to Python.
Symbol applied(Binary function, const Symbol& self, nb::handle other, bool swapped = false) {
  Operands operands("Expr");
  if (!swapped) operands.add(self);
  if (!operands.take(other)) throw nb::next_overload();
  if (swapped) operands.add(self);
  const std::vector<Expr>& sides = operands.expressions();
  return operands.made(function(sides[0], sides[1]));
}

/// One operator with an expression on its left, and its mirror image for a number on its left.
void bind_operator(nb::class_<Symbol>& type, const char* name, const char* mirrored, Binary function) {
  const auto bind = [&](const char* method, bool swapped) {
    type.def(
        method,
        [function, swapped](const Symbol& self, nb::handle other) { return applied(function, self, other, swapped); },
        nb::is_operator(),
        nb::sig(fmt::format("def {}(self, other: mercer._types.ExprLike, /) -> Expr", method).c_str()));
  };
  bind(name, false);
  if (mirrored != nullptr) bind(mirrored, true);
}

void bind_operators(nb::class_<Symbol>& type) {
  bind_operator(type, "__add__", "__radd__", [](const Expr& a, const Expr& b) { return a + b; });
  bind_operator(type, "__sub__", "__rsub__", [](const Expr& a, const Expr& b) { return a - b; });
  bind_operator(type, "__mul__", "__rmul__", [](const Expr& a, const Expr& b) { return a * b; });
  bind_operator(type, "__truediv__", "__rtruediv__", [](const Expr& a, const Expr& b) { return a / b; });
  bind_operator(type, "__pow__", "__rpow__", mercer::pow);
  bind_operator(type, "__and__", "__rand__", mercer::logical_and);
  bind_operator(type, "__or__", "__ror__", mercer::logical_or);
  bind_operator(type, "__lt__", nullptr, [](const Expr& a, const Expr& b) { return a < b; });
  bind_operator(type, "__le__", nullptr, [](const Expr& a, const Expr& b) { return a <= b; });
  bind_operator(type, "__gt__", nullptr, [](const Expr& a, const Expr& b) { return a > b; });
  bind_operator(type, "__ge__", nullptr, [](const Expr& a, const Expr& b) { return a >= b; });
  bind_operator(type, "__eq__", nullptr, mercer::equal);
  bind_operator(type, "__ne__", nullptr, mercer::not_equal);
  const auto unary = [&](const char* name, Unary function) {
    type.def(name, [function](const Symbol& self) { return Symbol(function(self.expr), self.arrays); });
  };
  unary("__neg__", [](const Expr& a) { return -a; });
  unary("__pos__", [](const Expr& a) { return a; });
  unary("__abs__", mercer::abs);
  unary("__invert__", mercer::logical_not);
  unary("__floor__", mercer::floor);
  unary("__ceil__", mercer::ceil);
}

/// np.exp(e), operators with NumPy's scalars on the left, np.sum(e); what has no counterpart is refused in words.
void bind_numpy(nb::class_<Symbol>& type) {
  type.def(
      "__array_ufunc__",
      [](nb::handle, nb::handle ufunc, nb::handle method, nb::args inputs, nb::kwargs options) {
        return nb::module_::import_("mercer._ufuncs").attr("apply")(ufunc, method, *inputs, **options);
      },
      nb::sig("def __array_ufunc__(self, ufunc: typing.Any, method: str, *inputs: typing.Any, **options: typing.Any) "
              "-> Expr"));
  type.def(
      "__array_function__",
      [](nb::handle, nb::handle function, nb::handle, nb::handle inputs, nb::handle options) {
        return nb::module_::import_("mercer._ufuncs").attr("call")(function, inputs, options);
      },
      nb::sig("def __array_function__(self, function: typing.Any, types: typing.Any, inputs: tuple[typing.Any, ...], "
              "options: dict[str, typing.Any], /) -> Expr"));
  type.def(
      "__array__",
      [](const Symbol& self, nb::args, nb::kwargs) -> nb::object {
        // A ValueError too, since scikit-learn's searches try to make an array of their candidates.
        throw DtypeError(fmt::format("Expr: an expression holds no numbers, so it is no array; give points to a verb, "
                                     "such as pairwise. Received {}",
                                     self.expr.to_text()));
      },
      nb::sig("def __array__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.NoReturn"));
  type.attr("__array_priority__") = 1e6;  // CuPy's arrays leave their operators to ours
}

/// As arrays have them: the features are the only axis a formula has.
void bind_reduction_methods(nb::class_<Symbol>& type) {
  const auto method = [&](const char* name, Unary function, const char* doc) {
    type.def(
        name,
        [function, name](const Symbol& self, nb::kwargs options) {
          for (const auto& [key, value] : options) {
            if (!value.is_none()) {
              throw nb::type_error(fmt::format("Expr.{}: takes no options; it reduces over the features. Received {}=",
                                               name, nb::cast<std::string>(nb::str(key)))
                                       .c_str());
            }
          }
          return Symbol(function(self.expr), self.arrays);
        },
        nb::sig(fmt::format("def {}(self, **options: None) -> Expr", name).c_str()), doc);
  };
  method("sum", mercer::sum, "Equal to mercer.sum(self).");
  method("prod", mercer::prod, "Equal to mercer.prod(self).");
  method("max", mercer::max, "Equal to mercer.max(self).");
  method("min", mercer::min, "Equal to mercer.min(self).");
}

nb::dict parameter_dict(const Symbol& self) {
  nb::dict result;
  for (const auto& [name, value] : parameters(self.expr)) {
    result[name.c_str()] = value ? nb::object(nb::float_(*value)) : nb::object(nb::none());
  }
  for (const Carried& carried : self.arrays) result[carried.name.c_str()] = carried.array;
  return result;
}

std::string repr_of(const Symbol& self) {
  std::string text = fmt::format("kernel(\"{}\")", self.expr.to_text());
  if (self.arrays.empty()) return text;
  std::string arrays;
  for (const Carried& carried : self.arrays)
    arrays += fmt::format("{}{}: {}", arrays.empty() ? "" : ", ", carried.name, type_text(carried.array));
  return fmt::format("<{} with {}>", text, arrays);
}

nb::tuple reduced(const Symbol& self, bool is_kernel) {
  nb::dict arrays;
  for (const Carried& carried : self.arrays) arrays[carried.name.c_str()] = carried.array;
  const nb::object restore = nb::module_::import_("mercer._trace").attr("restore");
  return nb::make_tuple(restore, nb::make_tuple(self.expr.to_text(), arrays, is_kernel));
}

nb::object restored(const std::string& text, const nb::dict& arrays, bool is_kernel) {
  std::vector<Carried> carried;
  for (const auto& [name, array] : arrays) carried.push_back({nb::cast<std::string>(name), nb::borrow(array)});
  const Symbol symbol(mercer::parse(text), std::move(carried));
  return is_kernel ? nb::cast(Kernel(symbol)) : nb::cast(symbol);
}

/// The names that a formula has, and what a misspelt one may have meant.
[[noreturn]] void refuse_name(const std::string& name, const Symbol& self) {
  std::string known;
  std::vector<std::string_view> names;
  const auto all = parameters(self.expr);
  for (const auto& [one, value] : all) {
    names.push_back(one);
    known += (known.empty() ? "" : ", ") + one;
  }
  const std::string_view near = formula::nearest(name, names);
  throw nb::value_error(fmt::format("Expr.bind: the formula has no parameter \"{}\"{}. It has {}.", name,
                                    near.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", near),
                                    known.empty() ? "none" : known)
                            .c_str());
}

/// An array becomes the value of the parameter, which keeps its name; anything else takes its place.
Symbol bound(const Symbol& self, const nb::kwargs& values) {
  const auto known = parameters(self.expr);
  Symbol open(self.expr, self.arrays);
  std::vector<std::pair<std::string, nb::object>> replaced;
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    const auto has_name = [&](const auto& parameter) { return parameter.first == name; };
    if (std::none_of(known.begin(), known.end(), has_name)) refuse_name(name, self);
    std::erase_if(open.arrays, [&](const Carried& carried) { return carried.name == name; });
    if (is_carried(value)) open.arrays.push_back({name, nb::borrow(value)});
    else replaced.emplace_back(name, nb::borrow(value));
  }
  Operands operands("Expr.bind");
  operands.add(open);
  for (const auto& [name, value] : replaced) operands.add(value);
  const std::vector<Expr>& given = operands.expressions();
  std::map<std::string, Expr> replacements;
  for (std::size_t i = 0; i < replaced.size(); ++i) replacements.emplace(replaced[i].first, given[i + 1]);
  return operands.made(mercer::bind(given[0], replacements));
}

void bind_class(nb::module_& module) {
  nb::class_<Symbol> type(module, "Expr", R"(A formula over pairs of points, or a part of one. Immutable.

Built from the symbols x, z, w, row, col, i, j, K and param(), with operators and the functions of this package.
Outside reductions an expression is evaluated once per pair; inside one, once per feature.

An array of one number among the operands, as a tensor that is trained, stays an array: it becomes a parameter whose
value the formula carries, differentiable and never read back. Where two parts bring different arrays under one name,
the second one's is called name_2; ``parameters`` shows them, and a call may give other values.

``==`` and ``!=`` build expressions too (1 where they hold, else 0), so an expression has no truth value and no hash:
use where(condition, a, b) to choose, a.same(b) to compare two expressions as wholes, and kernel(a) as the key of a
dictionary.)");
  bind_operators(type);
  bind_reduction_methods(type);
  bind_numpy(type);
  type.def("__hash__", [](const Symbol& self) -> Py_hash_t {
    throw nb::type_error(fmt::format("Expr: an expression has no hash, since == builds another one; write "
                                     "mercer.kernel(f), whose == compares. Received {}",
                                     self.expr.to_text())
                             .c_str());
  });
  type.def("__bool__", [](const Symbol& self) -> bool {
    throw nb::type_error(fmt::format("Expr: an expression has no truth value; write where(condition, a, b), & | ~ "
                                     "instead of and, or, not, and a.same(b) to compare. Received {}",
                                     self.expr.to_text())
                             .c_str());
  });
  type.def("__str__", [](const Symbol& self) { return self.expr.to_text(); });
  type.def("__repr__", repr_of);
  type.def(
      "__reduce__", [](const Symbol& self) { return reduced(self, false); },
      nb::sig("def __reduce__(self) -> tuple"));
  type.def(
      "same", [](const Symbol& self, const Symbol& other) { return same(self, other); }, "other"_a,
      "True when both are built of the same operations on the same leaves, and carry the same arrays.");
  type.def("bind", bound, nb::sig("def bind(self, **values: mercer._types.Parameter | Expr) -> Expr"),
           "This expression with parameters replaced by numbers, expressions or arrays; an array may have the axes "
           "of a batch. Raises ValueError for a name that the formula does not have.");
  type.def_prop_ro("parameters", parameter_dict,
                   nb::sig("def parameters(self) -> dict[str, typing.Any]"),
                   "Names of the parameters in order of first use, with their defaults: a number, an array that the "
                   "formula carries, or None where a call must give the value.");
  type.def_prop_ro(
      "symmetric", [](const Symbol& self) { return self.formula().symmetric(); },
      "True when swapping x and z leaves the formula unchanged; then half of the pairs of the same points "
      "is computed.");
}

Py_hash_t hash_of(const Kernel& self) {
  std::size_t hash = self.expr->hash;
  for (const Carried& carried : self.arrays)  // in any order
    hash += std::hash<std::string>()(carried.name) ^ reinterpret_cast<std::size_t>(carried.array.ptr());
  return static_cast<Py_hash_t>(hash >> 1);
}

/// Two kernels compare to a truth value; a kernel and anything else make an expression, as its parts do.
nb::object compared(const Kernel& self, nb::handle other, bool wants_equal) {
  if (const Kernel* kernel = nullptr; nb::try_cast(other, kernel) && kernel != nullptr)
    return nb::bool_(same(self, *kernel) == wants_equal);
  return nb::cast(applied(wants_equal ? mercer::equal : mercer::not_equal, self, other));
}

void bind_kernel(nb::module_& module) {
  nb::class_<Kernel, Symbol> type(module, "Kernel", R"(A finished formula.

Functions that give one are kernel, metric, parse, differentiate and those of the zoo.

``==`` and ``!=`` between two kernels compare them as wholes: True where they are built of the same operations on the
same leaves and carry the same arrays. So kernels have hashes and serve as keys of dictionaries, of functools.lru_cache
and of jax.jit(static_argnums=...). Against anything else, and in every other operator, a kernel is an expression like
any other, and so is what comes out: kernel(f + g) is a kernel again.)");
  const auto comparison = [&](const char* name, bool wants_equal) {
    type.def(
        name, [wants_equal](const Kernel& self, nb::handle other) { return compared(self, other, wants_equal); },
        nb::is_operator(), nb::sig(fmt::format("def {}(self, other: typing.Any, /) -> typing.Any", name).c_str()));
  };
  comparison("__eq__", true);
  comparison("__ne__", false);
  type.def("__hash__", hash_of);
  type.def(
      "__reduce__", [](const Kernel& self) { return reduced(self, true); },
      nb::sig("def __reduce__(self) -> tuple"));
  type.def(
      "bind", [](const Kernel& self, const nb::kwargs& values) { return Kernel(bound(self, values)); },
      nb::sig("def bind(self, **values: mercer._types.Parameter | Expr) -> Kernel"),
      "As Expr.bind; the result is a kernel.");
  module.def("restored", restored, "text"_a, "arrays"_a, "is_kernel"_a,
             nb::sig("def restored(text: str, arrays: dict[str, typing.Any], is_kernel: bool) -> Expr"),
             "What pickle makes an expression of.");
}

Symbol param_with(const std::string& name, nb::handle value) {
  if (value.is_none()) return Symbol(param(name));
  if (is_carried(value)) return Symbol(param(name), {{name, nb::borrow(value)}});
  double number = 0;
  if (nb::try_cast(value, number)) return Symbol(param(name, number));
  throw nb::type_error(fmt::format("param: the default of {} must be a number or an array. Received {}", name,
                                   nb::cast<std::string>(nb::repr(value)))
                           .c_str());
}

void bind_symbols(nb::module_& module) {
  const Points points = mercer::points();
  for (const SymbolRow& row : {SymbolRow{"x", points.x}, SymbolRow{"z", points.z}, SymbolRow{"w", weights()},
                               SymbolRow{"row", row_value()}, SymbolRow{"col", col_value()}, SymbolRow{"i", index_i()},
                               SymbolRow{"j", index_j()}, SymbolRow{"K", feature_count()}}) {
    module.attr(row.name) = nb::cast(Symbol(row.expr));
  }
  module.def("param", param_with, "name"_a, "default"_a = nb::none(),
             nb::sig("def param(name: str, default: float | mercer._types.Array | None = None) -> Expr"),
             "A named parameter. Each call gives its value, a number or an array, unless it has a default.\n\n"
             "The name has ASCII letters, digits and underscores, and starts with no digit. An array as default, such "
             "as a tensor that is trained, stays one: gradients reach it.");
}

/// Python's name of a function of the table: min and max are reductions there too, two arguments have NumPy's names.
const char* python_name(const ir::OpInfo& row) {
  return row.op == ir::Op::min ? "minimum" : row.op == ir::Op::max ? "maximum" : row.name;
}

/// The ops of one and two arguments that functions have, as their table says.
void bind_ops(nb::module_& module) {
  for (const ir::OpInfo& row : ir::op_table()) {
    if (*row.doc == '\0') continue;
    const char* name = python_name(row);
    if (row.arity == 1) {
      module.def(
          name,
          [op = row.op, name](nb::handle a) {
            return combine(name, {a}, [&](const auto& e) { return ir::make(op, {e[0]}); });
          },
          "a"_a, nb::sig(fmt::format("def {}(a: mercer._types.ExprLike) -> Expr", name).c_str()), row.doc);
    } else {
      module.def(
          name,
          [op = row.op, name](nb::handle a, nb::handle b) {
            return combine(name, {a, b}, [&](const auto& e) { return ir::make(op, {e[0], e[1]}); });
          },
          "a"_a, "b"_a,
          nb::sig(fmt::format("def {}(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr", name).c_str()),
          row.doc);
    }
  }
  module.def(
      "ops",
      [] {
        nb::list rows;
        for (const ir::OpInfo& row : ir::op_table())
          rows.append(nb::make_tuple(row.op == ir::Op::neg ? "neg" : row.name, python_name(row), row.numpy, row.torch));
        return rows;
      },
      nb::sig("def ops() -> list[tuple[str, str, str, str]]"),
      "Rows of the table of scalar ops: the name in `steps`, Python's, NumPy's (with blanks between) and torch's.");
}

void bind_functions(nb::module_& module) {
  bind_ops(module);
  for (const UnaryRow& row : kUnary) {
    module.def(
        row.name,
        [function = row.function, name = row.name](nb::handle a) {
          return combine(name, {a}, [&](const auto& e) { return function(e[0]); });
        },
        "a"_a, nb::sig(fmt::format("def {}(a: mercer._types.ExprLike) -> Expr", row.name).c_str()), row.doc);
  }
  for (const BinaryRow& row : kBinary) {
    module.def(
        row.name,
        [function = row.function, name = row.name](nb::handle a, nb::handle b) {
          return combine(name, {a, b}, [&](const auto& e) { return function(e[0], e[1]); });
        },
        "a"_a, "b"_a,
        nb::sig(fmt::format("def {}(a: mercer._types.ExprLike, b: mercer._types.ExprLike) -> Expr", row.name).c_str()),
        row.doc);
  }
  // One argument: over the features; two: the larger (smaller) of both.
  const auto extremum = [&](const char* name, Unary over_features, Binary of_two, const char* doc) {
    module.def(
        name,
        [=](nb::handle a, nb::handle b) {
          if (b.is_none()) return combine(name, {a}, [&](const auto& e) { return over_features(e[0]); });
          return combine(name, {a, b}, [&](const auto& e) { return of_two(e[0], e[1]); });
        },
        "a"_a, "b"_a = nb::none(),
        nb::sig(fmt::format("def {}(a: mercer._types.ExprLike, b: mercer._types.ExprLike | None = None) -> Expr", name)
                    .c_str()),
        doc);
  };
  extremum("max", mercer::max, mercer::max,
           "max(term): the largest over the features k; max(a, b): the larger of two. NaN wins.");
  extremum("min", mercer::min, mercer::min,
           "min(term): the smallest over the features k; min(a, b): the smaller of two. NaN wins.");
  module.def(
      "where",
      [](nb::handle condition, nb::handle a, nb::handle b) {
        return combine("where", {condition, a, b}, [](const auto& e) { return mercer::where(e[0], e[1], e[2]); });
      },
      "condition"_a, "a"_a, "b"_a,
      nb::sig("def where(condition: mercer._types.ExprLike, a: mercer._types.ExprLike, "
              "b: mercer._types.ExprLike) -> Expr"),
      "a where the condition differs from 0, else b.");
  module.def(
      "fma",
      [](nb::handle a, nb::handle b, nb::handle c) {
        return combine("fma", {a, b, c}, [](const auto& e) { return mercer::fma(e[0], e[1], e[2]); });
      },
      "a"_a, "b"_a, "c"_a,
      nb::sig("def fma(a: mercer._types.ExprLike, b: mercer._types.ExprLike, "
              "c: mercer._types.ExprLike) -> Expr"),
      "a * b + c, rounded once.");
}

/// Lists of operands, one after the other; `list(place)` is one of them.
class Lists {
 public:
  explicit Lists(const char* where) : operands_(where) {}
  void add(const nb::sequence& items) {
    for (nb::handle item : items) add(item);
    ends_.push_back(count_);
  }
  void add(nb::handle item) {
    operands_.add(item);
    ++count_;
  }
  std::vector<Expr> list(std::size_t place) {
    const std::vector<Expr>& all = operands_.expressions();
    const auto at = [&](std::size_t end) { return all.begin() + static_cast<std::ptrdiff_t>(end); };
    return {at(place == 0 ? 0 : ends_[place - 1]), at(ends_[place])};
  }
  Operands& operands() { return operands_; }

 private:
  Operands operands_;
  std::vector<std::size_t> ends_;
  std::size_t count_ = 0;
};

void bind_custom_reduction(nb::module_& module) {
  module.def(
      "state", [](int slot) { return Symbol(mercer::state(slot)); }, "slot"_a = 0,
      "The state of a custom reduction; mercer.reduce passes it to your functions.");
  module.def(
      "incoming", [](int slot) { return Symbol(mercer::incoming(slot)); }, "slot"_a = 0,
      "The new term of a custom reduction, or the second state of its merge.");
  module.def(
      "custom_reduction",
      [](const nb::sequence& term, const nb::sequence& combine, const nb::sequence& identity, const nb::sequence& merge,
         nb::handle finish, bool associative) {
        Lists lists("reduce");
        for (const nb::sequence& items : {term, combine, identity, merge}) lists.add(items);
        lists.add(finish);
        const Reduce description{lists.list(0), lists.list(1), lists.list(2),
                                 lists.list(3), lists.operands().expressions().back(), associative};
        return lists.operands().made(mercer::reduce(description));
      },
      "term"_a, "combine"_a, "identity"_a, "merge"_a, "finish"_a, "associative"_a,
      nb::sig(
          "def custom_reduction(term: typing.Sequence[mercer._types.ExprLike], "
          "combine: typing.Sequence[mercer._types.ExprLike], identity: typing.Sequence[mercer._types.ExprLike], "
          "merge: typing.Sequence[mercer._types.ExprLike], finish: mercer._types.ExprLike, associative: bool) -> Expr"),
      "What mercer.reduce builds once it has called your functions.");
  module.def(
      "ptx_outputs",
      [](const std::string& text, const nb::sequence& inputs, const nb::sequence& meanings) {
        Lists lists("ptx");
        lists.add(inputs);
        lists.add(meanings);
        const std::vector<Expr> reads = lists.list(0), means = lists.list(1);
        const bool one = means.size() == 1 && text.find("{out0") == std::string::npos;
        nb::list outputs;
        for (const Expr& e : one ? std::vector{mercer::ptx(text, reads, means[0])}
                                 : mercer::ptx_outputs(text, reads, means))
          outputs.append(lists.operands().made(e));
        return nb::tuple(outputs);
      },
      "text"_a, "inputs"_a, "meanings"_a,
      nb::sig("def ptx_outputs(text: str, inputs: typing.Sequence[mercer._types.ExprLike], "
              "meanings: typing.Sequence[mercer._types.ExprLike]) -> tuple[Expr, ...]"),
      "What mercer.ptx builds once it has called your function.");
}

/// "x", "z", "w" or the name of a parameter, or the symbol itself.
Expr variable_of(nb::handle object, const Expr& expr) {
  if (!nb::isinstance<nb::str>(object)) return Operands("differentiate", {object}).expressions()[0];
  const std::string name = nb::cast<std::string>(object);
  if (name == "x") return points().x;
  if (name == "z") return points().z;
  if (name == "w") return weights();
  for (const auto& [known, value] : parameters(expr)) {
    if (known == name) return value ? param(name, *value) : param(name);
  }
  throw nb::value_error(fmt::format("differentiate: the variable must be x, z, w or a parameter of the formula. "
                                    "Received \"{}\"",
                                    name)
                            .c_str());
}

}  // namespace

void bind_expressions(nb::module_& module) {
  bind_class(module);
  bind_kernel(module);
  bind_symbols(module);
  bind_functions(module);
  bind_custom_reduction(module);
  module.def(
      "constant", [](double value) { return Symbol(Expr(value)); }, "value"_a, "A number as an expression.");
  module.def(
      "parse", [](const std::string& text) { return Kernel(mercer::parse(text)); }, "text"_a,
      "Reads the text form of a formula. Raises ValueError with a caret under the fault.");
  module.def(
      "differentiate",
      [](nb::handle f, nb::handle variable) {
        const Symbol symbol = find_symbol(f, "differentiate");
        Operands operands("differentiate");
        operands.add(symbol);
        const Expr& expr = operands.expressions()[0];
        return Kernel(operands.made(mercer::differentiate(expr, variable_of(variable, expr))));
      },
      "f"_a, "variable"_a, nb::sig("def differentiate(f: mercer._types.FormulaLike, variable: Expr | str) -> Kernel"),
      R"(The derivative of a formula as a formula.

``variable`` is x, z, w (as a symbol or its name) or a parameter's name. By a feature the result has x and z outside
reductions: they are the points' values at that feature. Zero at kinks and singular points.)");
}

}  // namespace mercer::python
