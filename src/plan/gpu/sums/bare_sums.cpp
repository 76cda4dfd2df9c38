#include "plan/gpu/sums/bare_sums.h"

#include "ir/passes/passes.h"

namespace mercer::plan {
namespace {

bool stores_one_sum(const GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  return problem.consumer == Consumer::store && problem.outputs.size() == 1 && problem.arrays.out == problem.type &&
         !problem.use.subtracts && plan.split.states == 1 && plan.products.planes.empty();
}

/// Or what is made of them, and of the number of features.
bool sum_reads_params(const GpuPairPlan& plan) {
  return reads_site(plan.programs.update, {ir::Site::param}) ||
         reads_site(plan.programs.first_update, {ir::Site::param}) || reads_params(plan.sides) ||
         !plan.products.bilinear.uniforms.empty() || !plan.programs.accumulation_params.empty();
}

/// Values out of range are made of the points as they lie.
bool guards_points(const GpuPairPlan& plan) {
  return are_points(plan.sides.x_streams) && are_points(plan.sides.z_streams) &&
         !reads_site(plan.guard.largest, {ir::Site::w}) && !reads_site(plan.guard.update, {ir::Site::w});
}

}  // namespace

std::shared_ptr<const GpuPairPlan> bare_sums(const GpuPairPlan& plan) {
  using enum ir::Site;
  if (!stores_one_sum(plan) || sum_reads_params(plan)) return nullptr;
  if (reads_site(plan.programs.epilogue, {row, col, index_i, index_j})) return nullptr;
  if (plan.guard && !guards_points(plan)) return nullptr;
  // Items of a batch that share sums share the least of their allowances too.
  const bool has_allowance = !plan.loss.allowance.outputs.empty();
  if (has_allowance && !plan.problem.params.by_value) return nullptr;
  auto bare = std::make_shared<GpuPairPlan>(plan);
  bare->problem.params.by_value = true;
  bare->split.epilogue = {ir::leaf(ir::Op::accumulator, 0)};
  bare->split.params.clear();
  bare->split.uniforms.clear();
  bare->programs.uniforms = {};
  bare->guard = {};
  bare->programs.reciprocals.clear();
  ir::LowerOptions options;
  options.type = plan.problem.type;
  options.processor = ir::Processor::gpu;
  bare->programs.epilogue = ir::lower(bare->split.epilogue, options);
  bare->programs.long_epilogue = false;
  if (has_allowance) bare->loss.allowance = ir::lower({Expr(0.0)}, options);
  return bare;
}

}  // namespace mercer::plan
