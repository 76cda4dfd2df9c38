#include "plan/gpu/sums/sum_planes.h"

#include "ir/passes/passes.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

/// Sums over the features of both sides, each once.
std::vector<Expr> pair_sums(const std::vector<Expr>& outputs) {
  ir::ExprMap<bool> known;
  std::vector<Expr> sums;
  for (const Expr& output : outputs)
    ir::for_each(output, [&](const Expr& e) {
      if (e->op != ir::Op::sum || !known.emplace(e, true).second) return;
      const ir::Uses used = ir::uses(e);
      if (used.x && used.z) sums.push_back(e);
    });
  return sums;
}

GpuPairProblem problem_of_sum(const GpuPairProblem& problem, const Expr& sum) {
  GpuPairProblem of_sum = problem;
  of_sum.outputs = {sum};
  of_sum.arrays.out = problem.type;
  of_sum.consumer = Consumer::store;
  of_sum.use.columns = 1;
  of_sum.tries.mixed_work = MixedWork::little;
  of_sum.product = problem.plane_product;
  of_sum.plane_product = {};
  return of_sum;
}

}  // namespace

BilinearTile plane_tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision, int multiprocessors,
                        const Costs& costs, std::int64_t rows) {
  if (k < costs.sums_features && costs.tensor_cores_from > 0) return {};
  return bilinear_tile(m, n, k, precision, multiprocessors, costs, rows);
}

SumPlanes sum_planes(const GpuPairProblem& problem, const Costs& costs) {
  SumPlanes found;
  if (!problem.plane_product || problem.consumer == Consumer::nearest) return found;
  ir::ExprMap<Expr> planes;
  for (const Expr& sum : pair_sums(problem.outputs)) {
    if (!bilinear_of(ir::split({sum}))) continue;
    auto plan = plan_gpu_pairs(problem_of_sum(problem, sum), costs);
    if (!plan->products.bilinear) continue;
    planes[sum] = ir::leaf(ir::Op::pair_value, static_cast<int>(found.plans.size()));
    found.plans.push_back(std::move(plan));
  }
  if (planes.empty()) return found;
  for (const Expr& output : problem.outputs) found.outputs.push_back(ir::substitute(output, planes));
  return found;
}

}  // namespace mercer::plan
