#include "plan/cpu/forms.h"

#include <algorithm>

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

/// Whether a value of a pair has the same bits as that of the pair with its points in turn, where its sum has: indices
/// are compared with each other, or their distance is taken, and nothing else is read of one side.
bool turns(const Expr& e) {
  using ir::Op;
  const Expr i = index_i(), j = index_j();
  const auto are_indices = [&](const Expr& pair) {
    return (same(pair->args[0], i) && same(pair->args[1], j)) || (same(pair->args[0], j) && same(pair->args[1], i));
  };
  switch (e->op) {
    case Op::constant:
    case Op::param:
    case Op::features: return true;
    case Op::accumulator: return same(e, ir::leaf(Op::accumulator, 0));
    case Op::equal:
    case Op::not_equal:
      if (are_indices(e)) return true;
      break;
    case Op::abs:
      if (e->args[0]->op == Op::sub && are_indices(e->args[0])) return true;
      break;
    default: break;
  }
  return !ir::is_leaf(e->op) && std::ranges::all_of(e->args, turns);
}

bool sides_turn(const PairPlan& plan) {
  return std::ranges::all_of(plan.general.split.epilogue, turns) &&
         (!plan.has_fast || std::ranges::all_of(plan.fast.split.epilogue, turns));
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
  forms.sides_turn = !forms.reads_sides || (forms.sum != PairSum::none && sides_turn(plan));
  forms.is_ranged = !plan.guard.sums.empty();
  forms.has_maxima = plan.maxima.factor != 0;
  const TargetInfo& target = target_info(plan.problem.target);  // the reference row, as Costs::cycle has it
  forms.update_cycles = count_pipes(plan.best().update, target).cycles();
  forms.epilogue_cycles = count_pipes(plan.best().epilogue, target).cycles();
  forms.lanes = target.lanes(plan.problem.type);
  return forms;
}

}  // namespace mercer::plan::cpu
