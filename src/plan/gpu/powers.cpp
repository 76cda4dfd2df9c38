#include "plan/gpu/powers.h"

#include <algorithm>

#include "ir/passes/passes.h"

namespace mercer::plan {
namespace {

using ir::Op;

/// The parameter that powers of the updates have as exponent, if all with a parameter have the same one; else empty.
Expr parameter_of_powers(const std::vector<Expr>& updates) {
  std::vector<Expr> found;
  for (const Expr& update : updates)
    ir::for_each(update, [&](const Expr& e) {
      if (e->op != Op::pow || e->args[1]->op != Op::param) return;
      if (found.empty() || !same(found[0], e->args[1])) found.push_back(e->args[1]);
    });
  return found.size() == 1 ? found[0] : Expr();
}

/// A call so small that making a table would take longer than it saves.
bool is_too_small_for_tables(const GpuSizes& sizes) {
  return sizes.pairs == GpuSizes::Pairs::very_few && sizes.features >= GpuSizes::Features::some;
}

/// If there are powers of a parameter, the options say so, and the plan has their programs.
void add_powers(GpuPairPlan& plan, ir::LowerOptions& options) {
  const std::vector<Expr> updates = plan.split.updates();
  const Expr exponent = parameter_of_powers(updates);
  if (exponent.empty() || is_too_small_for_tables(plan.problem.sizes)) return;
  const auto lowered_with = [&](double value) {
    std::vector<Expr> known = updates;
    for (Expr& update : known) update = ir::simplify(ir::substitute(update, {{exponent, Expr(value)}}));
    return ir::lower(known, options);
  };
  plan.pipes.powers.one = lowered_with(1);
  plan.pipes.powers.two = lowered_with(2);
  options.moderate_exponent = exponent;
  plan.pipes.powers.moderate = ir::lower(updates, options);
  const std::vector<Expr> leaves = plan.split.param_leaves();
  const auto leaf = std::find_if(leaves.begin(), leaves.end(), [&](const Expr& e) { return same(e, exponent); });
  plan.pipes.powers.slot = static_cast<int>(leaf - leaves.begin());
}

}  // namespace

void add_alternative(GpuPairPlan& plan, ir::LowerOptions options) {
  if (plan.problem.type != Dtype::float32 || plan.input.bytes) return;
  add_powers(plan, options);
  options.table_powers = true;
  ir::Program other = ir::lower(plan.split.updates(), options);
  if (plan.pipes.powers && (other.powers.empty() || other.powers[0].param < 0)) {
    plan.pipes.powers = {};
    options.moderate_exponent = {};
    other = ir::lower(plan.split.updates(), options);
  }
  if (other.powers.empty()) return;
  const GpuCost unit = count_gpu(plan.pipes.powers ? plan.pipes.powers.moderate : plan.programs.update),
                table = count_gpu(other);
  double best = unit.slots();
  for (int eighths = 1; eighths < 8; ++eighths) {
    const double slots = blend(unit, table, eighths / 8.0).slots();
    if (slots >= best) continue;
    best = slots;
    plan.pipes.alternative_eighths = eighths;
  }
  if (plan.pipes.alternative_eighths > 0)
    plan.pipes.alternative = std::move(other);
  else
    plan.pipes.powers = {};
}

}  // namespace mercer::plan
