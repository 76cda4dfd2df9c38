// What the rules of differentiation in mercer/_torch need of a formula: its sides swapped, its free names, and derived
// formulas as a list of steps.
//
// A derived formula has more features per point than x, z and w: the directions of its derivatives. They are leaves w
// with a slot above 0, which no text can say, so they leave this file as steps.
#include <nanobind/nanobind.h>

#include "arrays.h"
#include "ir/expr/ops.h"
#include "ir/expr/ptx.h"
#include "ir/passes/passes.h"
#include "ir/passes/point_form.h"
#include "ir/passes/split.h"
#include "plan/backward/weight_form.h"
#include "plan/forms/linear_form.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

constexpr int kMultiplier = 1 << 16;  // the slot of t, past every direction

/// "x", "z", "w", or "t" ("s" with the sides swapped): the multiplier of a field φ, whose formula is sum(t * φ).
Expr target_of(const std::string& name) {
  if (name == "x") return points().x;
  if (name == "z") return points().z;
  if (name == "w") return weights();
  if (name == "t" || name == "s") return ir::leaf(ir::Op::w, kMultiplier);
  throw nb::value_error(("steps: a target is x, z, w, t or s. Received " + name).c_str());
}

const char* leaf_name(ir::Op op) {
  switch (op) {
    case ir::Op::constant: return "constant";
    case ir::Op::x: return "x";
    case ir::Op::z: return "z";
    case ir::Op::w: return "w";
    case ir::Op::row: return "row";
    case ir::Op::col: return "col";
    case ir::Op::index_i: return "i";
    case ir::Op::index_j: return "j";
    case ir::Op::features: return "K";
    case ir::Op::param: return "param";
    case ir::Op::state: return "state";
    default: return "incoming";
  }
}

const char* name_of(const ir::Node& node) {
  switch (node.op) {
    case ir::Op::sum: return "sum";
    case ir::Op::prod: return "prod";
    case ir::Op::max_over: return "max_over";
    case ir::Op::min_over: return "min_over";
    case ir::Op::logsumexp: return "logsumexp";
    case ir::Op::reduce: return "reduce";
    case ir::Op::neg: return "neg";
    case ir::Op::logical_not: return "not";
    default: break;
  }
  if (node.op == ir::Op::w && node.slot > 0) return "direction";
  return ir::is_leaf(node.op) ? leaf_name(node.op) : ir::info(node.op).name;
}

/// Whether a formula may compare its terms, rounded as they are, with the value.
bool decides(const Expr& reduction) {
  using ir::Op;
  bool found = reduction->op == Op::max_over || reduction->op == Op::min_over || reduction->op == Op::reduce;
  ir::for_each(reduction, [&](const Expr& e) {
    found = found || (!ir::is_leaf(e->op) && !ir::is_reduction(e->op) && ir::info(e->op).boolean);
  });
  return found;
}

/// (name, arguments as numbers of earlier steps, value or whether a reduce is associative, slot, name of the parameter
/// or text of a reduction)
nb::list steps_of(const Expr& expr) {
  nb::list steps;
  ir::ExprMap<int> numbers;
  std::vector<bool> has_text;  // no direction in it
  ir::for_each(expr, [&](const Expr& e) {
    if (numbers.contains(e)) return;
    nb::list arguments;
    bool has_direction = e->op == ir::Op::w && e->slot > 0;
    for (const Expr& a : e->args) {
      const int argument = numbers.at(a);
      arguments.append(argument);
      has_direction = has_direction || !has_text[static_cast<std::size_t>(argument)];
    }
    numbers.emplace(e, static_cast<int>(numbers.size()));
    has_text.push_back(!has_direction);
    const int slot = e->op == ir::Op::w ? e->slot - 1 : e->slot;
    const std::string word = ir::is_reduction(e->op) && !has_direction && !decides(e) ? e.to_text() : e->name;
    const double value = e->op == ir::Op::reduce ? double(e->associative) : e->value;
    steps.append(nb::make_tuple(name_of(*e), nb::tuple(arguments), value, slot, word));
  });
  return steps;
}

nb::list py_steps(const Symbol& f, const nb::sequence& along, nb::handle wrt) {
  const auto is_multiplier = [](nb::handle name) {
    return !name.is_none() && target_of(nb::cast<std::string>(name))->slot == kMultiplier;
  };
  bool field = is_multiplier(wrt);
  for (nb::handle name : along) field = field || is_multiplier(name);
  ir::verify(f.expr, field ? ir::Form::field : ir::Form::pairs);
  Expr expr = ir::without_ptx(f.expr);
  if (field) expr = sum(target_of("t") * expr);
  int slot = 0;
  for (nb::handle name : along) {
    expr = ir::differentiate_along(expr, target_of(nb::cast<std::string>(name)), ir::leaf(ir::Op::w, ++slot));
  }
  if (!wrt.is_none()) expr = ir::differentiate_made(expr, target_of(nb::cast<std::string>(wrt)));
  return steps_of(expr);
}

}  // namespace

void bind_derivatives(nb::module_& module) {
  module.def(
      "swap_sides", [](const Symbol& f) { return Symbol(ir::swap_sides(f.expr), f.arrays); }, "f"_a,
      "The formula with x and z, row and col, i and j exchanged.");
  module.def(
      "point_form",
      [](const Symbol& f) -> nb::object {
        const ir::PointForm form = ir::point_form(f.expr);
        if (!form) return nb::none();
        const auto text = [](const Expr& e) { return e.empty() ? std::string() : e.to_text(); };
        const auto side = [&](const ir::PointForm::Side& of) {
          return nb::make_tuple(text(of.shift), text(of.scale), text(of.value));
        };
        return nb::make_tuple(form.formula.to_text(), side(form.x), side(form.z));
      },
      "f"_a,
      nb::sig("def point_form(f: Expr) -> tuple[str, tuple[str, str, str], tuple[str, str, str]] | None"),
      "A formula of points (x - shift) * scale and z likewise, and of a value of each, row and col: its text, and\n"
      "those of shift, scale and value over x, for x and for z, empty where there is none. None where that is no form\n"
      "of f.");
  module.def(
      "weight_form",
      [](const Symbol& f) -> nb::object {
        const plan::WeightForm form = plan::weight_form(f.expr);
        if (!form) return nb::none();
        return nb::make_tuple(form.weight.to_text(), form.slope.to_text(), form.of_both_sides, form.of_differences);
      },
      "f"_a, nb::sig("def weight_form(f: Expr) -> tuple[str, str, bool, bool] | None"),
      "For terms c(w) t(x, z) with t homogeneous of degree d: c and c' / d, over row in place of w; whether sums\n"
      "of both sides' points times gradients without c are the one by w, or of one side; whether the points are read\n"
      "as x - z. None of other terms.");
  module.def(
      "linear_form",
      [](const Symbol& f) -> nb::object {
        const plan::LinearForm form = plan::linear_form(f.expr);
        if (!form) return nb::none();
        const auto text = [](const Expr& e) { return e.empty() ? std::string() : e.to_text(); };
        return nb::make_tuple(form.scale, form.offset, form.of_row, form.of_col, text(form.weight), text(form.slope));
      },
      "f"_a, nb::sig("def linear_form(f: Expr) -> tuple[float, float, bool, bool, str, str] | None"),
      "For offset + scale [row] [col] sum(c(w) x z): scale, offset, whether row and col are factors, and c and its\n"
      "derivative, over row in place of w, empty where there is none. None of other formulas.");
  module.def(
      "leaves",
      [](const Symbol& f) {
        const ir::Uses uses = ir::uses(f.expr);
        nb::list names;
        const std::pair<const char*, bool> known[] = {{"x", uses.x},      {"z", uses.z},     {"w", uses.w},
                                                      {"row", uses.row},  {"col", uses.col}, {"i", uses.index_i},
                                                      {"j", uses.index_j}};
        for (const auto& [name, used] : known)
          if (used) names.append(name);
        return names;
      },
      "f"_a, nb::sig("def leaves(f: Expr) -> list[str]"), "Which of x, z, w, row, col, i and j a formula reads.");
  module.def(
      "unfollowed",
      [](const std::string& verb, const nb::args& args, const nb::kwargs& kwargs) {
        const Unfollowed unfollowed;
        return nb::object(nb::module_::import_("mercer._mercer").attr(verb.c_str())(*args, **kwargs));
      },
      nb::sig("def unfollowed(verb: str, *args: typing.Any, **kwargs: typing.Any) -> typing.Any"),
      "A verb on the memory of its tensors, whatever PyTorch records.");
  module.def(
      "operations",
      [] {
        nb::list names;
        for (const ir::OpInfo& row : ir::op_table()) names.append(name_of(ir::Node{.op = row.op}));
        return names;
      },
      nb::sig("def operations() -> list[str]"), "The scalar operations, by their names in steps.");
  module.def("steps", py_steps, "f"_a, "along"_a, "wrt"_a.none(),
             nb::sig("def steps(f: Expr, along: typing.Sequence[str], wrt: str | None) -> "
                     "list[tuple[str, tuple[int, ...], float, int, str]]"),
             R"(A derivative of a formula as steps, each a function of earlier ones.

Differentiated in the direction number d of each target along[d] ("x", "z", "w", or "t" and "s" for the multiplier of
a field), then, where wrt is given, by that target at the free feature.

A step: its name, the numbers of the steps that it reads, a value (of a reduce: whether it is associative), a slot,
and a word: the name of a parameter, or the text of a reduction without directions, which is a formula; but for those
whose terms are compared, as with their maximum: the steps round these as they do the terms.)");
}

}  // namespace mercer::python
