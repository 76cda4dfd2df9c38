// Expressions in Python: the class Expr with its operators, the symbols, the functions and the reductions.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "ir/expr.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Unary = Expr (*)(const Expr&);
using Binary = Expr (*)(const Expr&, const Expr&);

struct UnaryRow {
  const char* name;
  Unary function;
  const char* doc;
};
constexpr UnaryRow kUnary[] = {
    {"abs", mercer::abs, "|a|; the builtin abs(a) does the same."},
    {"sign", mercer::sign, "-1, 0 or 1."},
    {"square", mercer::square, "a * a."},
    {"sqrt", mercer::sqrt, "The square root; NaN below zero."},
    {"rsqrt", mercer::rsqrt, "1 / sqrt(a)."},
    {"rcp", mercer::rcp, "1 / a."},
    {"exp", mercer::exp, "e**a."},
    {"exp2", mercer::exp2, "2**a."},
    {"expm1", mercer::expm1, "e**a - 1, accurate near 0."},
    {"log", mercer::log, "The natural logarithm."},
    {"log2", mercer::log2, "The logarithm to base 2."},
    {"log1p", mercer::log1p, "log(1 + a), accurate near 0."},
    {"sin", mercer::sin, "The sine; a in radians."},
    {"cos", mercer::cos, "The cosine; a in radians."},
    {"asin", mercer::asin, "The arc sine, in radians."},
    {"acos", mercer::acos, "The arc cosine, in radians."},
    {"tanh", mercer::tanh, "The hyperbolic tangent."},
    {"erf", mercer::erf, "The error function."},
    {"floor", mercer::floor, "The largest whole number not above a."},
    {"ceil", mercer::ceil, "The smallest whole number not below a."},
    {"round", mercer::round, "To the nearest whole number, ties to even."},
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
    {"maximum", mercer::max, "The larger of two; NaN wins."},
    {"minimum", mercer::min, "The smaller of two; NaN wins."},
    {"pow", mercer::pow, "a**b."},
    {"xlogy", mercer::xlogy, "a * log(b), and 0 where a is 0."},
    {"atan2", mercer::atan2, "The angle of the point (b, a), in radians."},
    {"copysign", mercer::copysign, "|a| with the sign of b."},
    {"equal", mercer::equal, "1 where a equals b, else 0; also a == b."},
    {"not_equal", mercer::not_equal, "1 where a differs from b, else 0; also a != b."},
    {"logical_and", mercer::logical_and, "1 where both differ from 0; also a & b."},
    {"logical_or", mercer::logical_or, "1 where one of them differs from 0; also a | b."},
};

struct SymbolRow {
  const char* name;
  Expr expr;
};

/// One operator with an expression on its left, and its mirror image for a number on its left.
void bind_operator(nb::class_<Symbol>& type, const char* name, const char* mirrored, Binary function) {
  const std::string sign = "(self, other: mercer._types.ExprLike, /) -> Expr";
  const auto bind = [&](const char* method, bool swapped) {
    type.def(
        method,
        [function, swapped](const Symbol& self, nb::handle other) {
          const std::optional<Expr> value = try_expr(other);
          if (!value) throw nb::next_overload();
          return Symbol(swapped ? function(*value, self.expr) : function(self.expr, *value));
        },
        nb::is_operator(), nb::sig(fmt::format("def {}{}", method, sign).c_str()));
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
    type.def(name, [function](const Symbol& self) { return Symbol(function(self.expr)); });
  };
  unary("__neg__", [](const Expr& a) { return -a; });
  unary("__pos__", [](const Expr& a) { return a; });
  unary("__abs__", mercer::abs);
  unary("__invert__", mercer::logical_not);
  unary("__floor__", mercer::floor);
  unary("__ceil__", mercer::ceil);
}

/// np.exp(e), and operators with NumPy's scalars on the left.
void bind_ufuncs(nb::class_<Symbol>& type) {
  type.def(
      "__array_ufunc__",
      [](nb::handle, nb::handle ufunc, nb::handle method, nb::args inputs, nb::kwargs options) {
        return nb::module_::import_("mercer._ufuncs").attr("apply")(ufunc, method, *inputs, **options);
      },
      nb::sig("def __array_ufunc__(self, ufunc: typing.Any, method: str, *inputs: typing.Any, **options: typing.Any) "
              "-> Expr"));
}

/// NumPy's np.sum(e) calls e.sum(axis=None, …): the features are the only axis a formula has.
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
          return Symbol(function(self.expr));
        },
        nb::sig(fmt::format("def {}(self, **options: None) -> Expr", name).c_str()), doc);
  };
  method("sum", mercer::sum, "The same as mercer.sum(self).");
  method("prod", mercer::prod, "The same as mercer.prod(self).");
  method("max", mercer::max, "The same as mercer.max(self).");
  method("min", mercer::min, "The same as mercer.min(self).");
}

nb::dict parameter_dict(const Expr& expr) {
  nb::dict result;
  for (const auto& [name, value] : parameters(expr)) {
    result[name.c_str()] = value ? nb::object(nb::float_(*value)) : nb::object(nb::none());
  }
  return result;
}

void bind_class(nb::module_& module) {
  nb::class_<Symbol> type(module, "Expr", R"(A formula over pairs of points, or a part of one. Immutable.

Built from the symbols x, z, w, row, col, i, j, K and param(), with operators and the functions of this package.
Outside reductions an expression is evaluated once per pair; inside one, once per feature.

``==`` and ``!=`` build expressions too (1 where they hold, else 0), so an expression has no truth value: use
where(condition, a, b) to choose, and a.same(b) to ask whether two expressions are one. Equal expressions have equal
hashes; still, take ``str(expression)`` as the key of a dictionary, since looking a key up asks for a truth value.)");
  bind_operators(type);
  bind_reduction_methods(type);
  bind_ufuncs(type);
  type.def("__hash__", [](const Symbol& self) { return static_cast<Py_hash_t>(self.expr->hash >> 1); });
  type.def("__bool__", [](const Symbol& self) -> bool {
    throw nb::type_error(fmt::format("Expr: an expression has no truth value; write where(condition, a, b), & | ~ "
                                     "instead of and, or, not, and a.same(b) to compare. Received {}",
                                     self.expr.to_text())
                             .c_str());
  });
  type.def("__str__", [](const Symbol& self) { return self.expr.to_text(); });
  type.def("__repr__", [](const Symbol& self) { return fmt::format("kernel(\"{}\")", self.expr.to_text()); });
  type.def(
      "__reduce__",
      [](const Symbol& self) {
        const nb::object restore = nb::module_::import_("mercer._trace").attr("restore");
        return nb::make_tuple(restore, nb::make_tuple(self.expr.to_text()));
      },
      nb::sig("def __reduce__(self) -> tuple"));
  type.def(
      "same", [](const Symbol& self, const Symbol& other) { return mercer::same(self.expr, other.expr); }, "other"_a,
      "True when both are built of the same operations on the same leaves.");
  type.def(
      "bind",
      [](const Symbol& self, nb::kwargs values) {
        std::map<std::string, Expr> replacements;
        for (const auto& [name, value] : values) {
          replacements.emplace(nb::cast<std::string>(name), to_expr(value, "Expr.bind"));
        }
        return Symbol(mercer::bind(self.expr, replacements));
      },
      nb::sig("def bind(self, **values: mercer._types.ExprLike) -> Expr"),
      "The same expression with parameters replaced by numbers or expressions.");
  type.def_prop_ro(
      "parameters", [](const Symbol& self) { return parameter_dict(self.expr); },
      nb::sig("def parameters(self) -> dict[str, float | None]"),
      "Names of the parameters in order of first use, with their defaults (None: a call must give it).");
  type.def_prop_ro(
      "symmetric", [](const Symbol& self) { return self.formula().symmetric(); },
      "True when swapping x and z leaves the formula unchanged; then half of the pairs of the same points "
      "is computed.");
}

void bind_symbols(nb::module_& module) {
  const Points points = mercer::points();
  for (const SymbolRow& row : {SymbolRow{"x", points.x}, SymbolRow{"z", points.z}, SymbolRow{"w", weights()},
                               SymbolRow{"row", row_value()}, SymbolRow{"col", col_value()}, SymbolRow{"i", index_i()},
                               SymbolRow{"j", index_j()}, SymbolRow{"K", feature_count()}}) {
    module.attr(row.name) = nb::cast(Symbol(row.expr));
  }
  module.def(
      "param",
      [](std::string name, std::optional<double> value) {
        return Symbol(value ? param(std::move(name), *value) : param(std::move(name)));
      },
      "name"_a, "default"_a = nb::none(), nb::sig("def param(name: str, default: float | None = None) -> Expr"),
      "A named parameter. Each call gives its value, a number or an array, unless it has a default.\n\n"
      "The name has ASCII letters, digits and underscores, and starts with no digit.");
}

void bind_functions(nb::module_& module) {
  for (const UnaryRow& row : kUnary) {
    module.def(
        row.name,
        [function = row.function, name = row.name](nb::handle a) { return Symbol(function(to_expr(a, name))); }, "a"_a,
        nb::sig(fmt::format("def {}(a: mercer._types.ExprLike) -> Expr", row.name).c_str()), row.doc);
  }
  for (const BinaryRow& row : kBinary) {
    module.def(
        row.name,
        [function = row.function, name = row.name](nb::handle a, nb::handle b) {
          return Symbol(function(to_expr(a, name), to_expr(b, name)));
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
          return Symbol(b.is_none() ? over_features(to_expr(a, name)) : of_two(to_expr(a, name), to_expr(b, name)));
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
        return Symbol(mercer::where(to_expr(condition, "where"), to_expr(a, "where"), to_expr(b, "where")));
      },
      "condition"_a, "a"_a, "b"_a,
      nb::sig("def where(condition: mercer._types.ExprLike, a: mercer._types.ExprLike, "
              "b: mercer._types.ExprLike) -> Expr"),
      "a where the condition differs from 0, else b.");
  module.def(
      "fma",
      [](nb::handle a, nb::handle b, nb::handle c) {
        return Symbol(mercer::fma(to_expr(a, "fma"), to_expr(b, "fma"), to_expr(c, "fma")));
      },
      "a"_a, "b"_a, "c"_a,
      nb::sig("def fma(a: mercer._types.ExprLike, b: mercer._types.ExprLike, "
              "c: mercer._types.ExprLike) -> Expr"),
      "a * b + c, rounded once.");
}

std::vector<Expr> to_exprs(const nb::sequence& items, const char* where) {
  std::vector<Expr> result;
  for (nb::handle item : items) result.push_back(to_expr(item, where));
  return result;
}

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
        Reduce description{to_exprs(term, "reduce"),  to_exprs(combine, "reduce"), to_exprs(identity, "reduce"),
                           to_exprs(merge, "reduce"), to_expr(finish, "reduce"),   associative};
        return Symbol(mercer::reduce(description));
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
        const std::vector<Expr> reads = to_exprs(inputs, "ptx"), means = to_exprs(meanings, "ptx");
        const bool one = means.size() == 1 && text.find("{out0}") == std::string::npos;
        nb::list outputs;
        for (const Expr& e : one ? std::vector{mercer::ptx(text, reads, means[0])}
                                 : mercer::ptx_outputs(text, reads, means))
          outputs.append(Symbol(e));
        return nb::tuple(outputs);
      },
      "text"_a, "inputs"_a, "meanings"_a,
      nb::sig("def ptx_outputs(text: str, inputs: typing.Sequence[mercer._types.ExprLike], "
              "meanings: typing.Sequence[mercer._types.ExprLike]) -> tuple[Expr, ...]"),
      "What mercer.ptx builds once it has called your function.");
}

/// "x", "z", "w" or the name of a parameter, or the symbol itself.
Expr variable_of(nb::handle object, const Expr& expr) {
  if (!nb::isinstance<nb::str>(object)) return to_expr(object, "differentiate");
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

std::optional<Expr> try_expr(nb::handle object) {
  const Symbol* symbol = nullptr;
  if (nb::try_cast(object, symbol) && symbol != nullptr) return symbol->expr;
  if (PyFloat_Check(object.ptr())) return Expr(PyFloat_AS_DOUBLE(object.ptr()));
  const PyNumberMethods* number = Py_TYPE(object.ptr())->tp_as_number;
  if (number == nullptr || (number->nb_float == nullptr && number->nb_index == nullptr)) return std::nullopt;
  if (nb::hasattr(object, "ndim") && nb::cast<int>(object.attr("ndim")) != 0) return std::nullopt;
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) throw nb::python_error();
  return Expr(value);
}

Expr to_expr(nb::handle object, const char* where) {
  if (std::optional<Expr> value = try_expr(object)) return *value;
  throw nb::type_error(fmt::format("{}: expected an expression or a number. Received {}", where,
                                   nb::cast<std::string>(nb::str(nb::object(object.type().attr("__qualname__")))))
                           .c_str());
}

void bind_expressions(nb::module_& module) {
  bind_class(module);
  bind_symbols(module);
  bind_functions(module);
  bind_custom_reduction(module);
  module.def(
      "constant", [](double value) { return Symbol(Expr(value)); }, "value"_a, "A number as an expression.");
  module.def(
      "parse", [](const std::string& text) { return Symbol(mercer::parse(text)); }, "text"_a,
      "Reads the text form of a formula. Raises ValueError with a caret under the fault.");
  module.def(
      "differentiate",
      [](nb::handle f, nb::handle variable) {
        const Expr expr = find_expr(f, "differentiate");
        return Symbol(mercer::differentiate(expr, variable_of(variable, expr)));
      },
      "f"_a, "variable"_a, nb::sig("def differentiate(f: mercer._types.FormulaLike, variable: Expr | str) -> Expr"),
      R"(The derivative of a formula as a formula.

``variable`` is x, z, w (as a symbol or its name) or a parameter's name. By a feature the result has x and z outside
reductions: they are the points' values at that feature. Zero at kinks and singular points.)");
}

}  // namespace mercer::python
