#include "plan/backward/weight_form.h"

#include <optional>
#include <utility>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"
#include "plan/forms/field_factors.h"

namespace mercer::plan {
namespace {

using ir::Op;

/// What scaling the points does to an expression of one feature.
struct Degree {
  double joint = 0;  // t(s x, s z) = s^joint t(x, z)
  bool apart = true;  // t(s x, r z) = s^x r^z t(x, z) too
  double x = 0, z = 0;
  bool of_differences = true;  // x and z stand as x - z alone

  Degree to(double power) const { return {joint * power, apart, x * power, z * power, of_differences}; }
};

Degree product(const Degree& a, const Degree& b) {
  return {a.joint + b.joint, a.apart && b.apart, a.x + b.x, a.z + b.z, a.of_differences && b.of_differences};
}

bool reads_points(const Expr& e) { return ir::uses(e).x || ir::uses(e).z; }

/// a x, or a z.
bool is_multiple(const Expr& e) {
  switch (e->op) {
    case Op::x:
    case Op::z: return true;
    case Op::neg: return is_multiple(e->args[0]);
    case Op::mul: {
      const int of_points = reads_points(e->args[0]) ? 0 : 1;
      return !reads_points(e->args[1 - of_points]) && is_multiple(e->args[of_points]);
    }
    case Op::div: return !reads_points(e->args[1]) && is_multiple(e->args[0]);
    default: return false;
  }
}

/// a x - a z, or a z - a x.
bool is_difference(const Expr& e) {
  if (e->op != Op::sub || !is_multiple(e->args[0]) || !is_multiple(e->args[1])) return false;
  const bool first_of_x = ir::uses(e->args[0]).x;
  const auto [from, to] = first_of_x ? std::pair(Op::x, Op::z) : std::pair(Op::z, Op::x);
  return same(ir::substitute(e->args[0], {{ir::leaf(from), ir::leaf(to)}}), e->args[1]);
}

/// Nothing where it is not homogeneous.
std::optional<Degree> degree_of(const Expr& e) {
  const ir::Uses& used = ir::uses(e);
  if (!used.x && !used.z) return Degree{};
  if (used.ptx) return std::nullopt;
  if (e->op == Op::x) return Degree{1, true, 1, 0, false};
  if (e->op == Op::z) return Degree{1, true, 0, 1, false};
  if (is_difference(e)) return Degree{1, false, 0, 0, true};
  std::vector<Degree> of;
  for (const Expr& arg : e->args) {
    const auto degree = degree_of(arg);
    if (!degree) return std::nullopt;
    of.push_back(*degree);
  }
  switch (e->op) {
    case Op::neg:
    case Op::abs: return of[0];
    case Op::sqrt: return of[0].to(0.5);
    case Op::rcp: return of[0].to(-1);
    case Op::mul: return product(of[0], of[1]);
    case Op::div: return product(of[0], of[1].to(-1));
    case Op::pow:
      if (e->args[1]->op != Op::constant) return std::nullopt;
      return of[0].to(e->args[1]->value);
    case Op::add:
    case Op::sub:
    case Op::min:
    case Op::max: {
      if (of[0].joint != of[1].joint) return std::nullopt;
      Degree both = product(of[0], of[1]).to(0.5);
      both.apart = both.apart && of[0].x == of[1].x;
      return both;
    }
    default: return std::nullopt;
  }
}

/// The degree that all terms have. Nothing where some have another one, or where w is read elsewhere.
std::optional<Degree> degree_of_terms(const Expr& f) {
  std::optional<Degree> found;
  bool alike = true;
  ir::for_each(f, [&](const Expr& e) {
    if (!ir::is_reduction(e->op)) return;
    const ir::Uses& used = ir::uses(e);
    const auto degree = e->op == Op::sum && used.x && used.z && used.w ? degree_of(e->args[0]) : std::nullopt;
    alike = alike && degree && degree->joint > 0 &&
            (!found || (found->joint == degree->joint && found->of_differences == degree->of_differences));
    if (!alike) return;
    if (found) found->apart = found->apart && degree->apart;
    else found = degree;
  });
  return alike ? found : std::nullopt;
}

}  // namespace

WeightForm weight_form(const Expr& given) {
  const Expr f = ir::simplify(given);
  const auto degree = degree_of_terms(f);
  if (!degree) return {};
  const ir::FieldSplit split = ir::split_field(ir::simplify(differentiate(f, points().x)));
  const WeightedField field = weighted_field(split.field);
  if (field.weight.empty()) return {};
  WeightForm form;
  form.of_both_sides = !degree->apart || degree->x != degree->z;
  form.of_differences = degree->of_differences;
  form.weight = ir::simplify(ir::substitute(field.weight, {{ir::leaf(Op::w), row_value()}}));
  const double of_side = form.of_both_sides ? degree->joint : degree->x;
  form.slope = ir::simplify(differentiate(form.weight, row_value()) / of_side);
  return form;
}

}  // namespace mercer::plan
