#include "plan/cpu/forms.h"

#include "mercer/formula.h"
#include "plan/cpu/planner.h"

namespace mercer::plan::cpu {
namespace {

/// What the update adds, or takes the larger one of.
PairSum sum_of(const ir::Split& split, const Sides& sides) {
  if (split.reductions.size() != 1 || split.states != 1) return PairSum::none;
  if (!are_points(sides.x_streams) || !are_points(sides.z_streams)) return PairSum::none;
  const Expr acc = ir::leaf(ir::Op::accumulator, 0), x = points().x, z = points().z, update = split.updates()[0];
  const auto is = [&](const Expr& form) { return same(update, form); };
  if (is(acc + x * z) || is(acc + z * x)) return PairSum::product;
  if (is(acc + square(x - z)) || is(acc + square(z - x))) return PairSum::square;
  if (is(acc + abs(x - z)) || is(acc + abs(z - x))) return PairSum::absolute;
  if (is(max(acc, abs(x - z))) || is(max(acc, abs(z - x)))) return PairSum::largest;
  return PairSum::none;
}

/// Whether sums made elsewhere may be looked at as those of a tile are.
bool is_checkable(const PairGuard& guard) {
  if (guard.sums.empty()) return true;
  return guard.sums.size() == 1 && guard.close_sums == 0 && !guard.sums[0].scaled;
}

bool is_bare(const ir::Split& split) {
  return split.epilogue.size() == 1 && same(split.epilogue[0], ir::leaf(ir::Op::accumulator, 0));
}

}  // namespace

const char* name_of(PairSum sum) {
  constexpr const char* kNames[kPairSums] = {"none", "x z", "(x - z)^2", "|x - z|", "the largest |x - z|"};
  return kNames[static_cast<int>(sum)];
}

PairForms forms_of(const PairPlan& plan) {
  PairForms forms;
  const ir::Split& split = plan.general.split;
  const bool serves = !plan.problem.empty_features && is_checkable(plan.guard);
  if (serves) forms.sum = sum_of(split, plan.sides);
  forms.is_bare = is_bare(split);
  forms.reads_sides = plan.row_slots > 0 || plan.col_slots > 0;
  forms.is_ranged = !plan.guard.sums.empty();
  forms.has_maxima = plan.maxima.factor != 0;
  const TargetInfo& target = target_info(plan.problem.target);  // the reference row, as Costs::cycle has it
  forms.update_cycles = count_pipes(plan.best().update, target).cycles();
  forms.epilogue_cycles = count_pipes(plan.best().epilogue, target).cycles();
  forms.lanes = target.lanes(plan.problem.type);
  return forms;
}

}  // namespace mercer::plan::cpu
