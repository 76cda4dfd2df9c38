#include "plan/cpu/sum_field.h"

#include "ir/passes/passes.h"
#include "ir/passes/split.h"
#include "mercer/formula.h"

namespace mercer::plan::cpu {
namespace {

PairSum sum_of(const Expr& update) {
  const Expr acc = ir::leaf(ir::Op::accumulator, 0), x = points().x, z = points().z;
  const auto is = [&](const Expr& term) { return same(update, acc + term); };
  if (is(square(x - z)) || is(square(z - x))) return PairSum::square;
  return is(x * z) || is(z * x) ? PairSum::product : PairSum::none;
}

/// Whether the field is the pair's value times what the sum's terms have of it.
bool is_of_slope(const Expr& field, PairSum sum) {
  const Expr slope = ir::leaf(ir::Op::pair_value, 0), z = points().z;
  const Expr factor = sum == PairSum::square ? points().x - z : z;
  const auto is = [&](const Expr& form) { return same(field, form) || same(ir::simplify(field), ir::simplify(form)); };
  return is(slope * factor) || is(factor * slope);
}

}  // namespace

SumField sum_field(const Expr& formula) {
  const ir::Split split = ir::split({formula});
  // A reduction of one side would have a term of its own in the derivative by that side.
  if (split.reductions.size() != 1 || split.states != 1 || !split.stages.empty()) return {};
  const PairSum sum = sum_of(split.updates()[0]);
  if (sum == PairSum::none) return {};
  const ir::FieldSplit field = ir::split_field(ir::simplify(differentiate(formula, points().x)));
  if (field.pair_outputs.size() != 1 || !is_of_slope(field.field, sum)) return {};
  return {sum, ir::simplify(field.pair_outputs[0])};
}

}  // namespace mercer::plan::cpu
