#include "plan/gpu_field.h"

#include "core/integers.h"
#include "plan/sides.h"

namespace mercer::plan {
namespace {

/// Accumulators a thread keeps, in units of 32 bits, and its sums' room in shared memory.
constexpr int kAccumulatorWords = 64;
constexpr std::int64_t kThreads = 256, kSlice = 32, kChunk = 512;

}  // namespace

std::int64_t GpuFieldPlan::shared_bytes(std::int64_t n) const {
  const std::int64_t element = problem.type == Dtype::float64 ? 8 : 4, vector = 16 / element;
  const std::int64_t rows = tile_f() + std::int64_t{problem.planes} * tile_r() + reads_col;
  const std::int64_t coef_row = round_up(problem.outputs, vector);
  std::int64_t elements = 2 * (rows * (kSlice + vector) + kSlice * coef_row);
  if (n > kChunk) elements += kThreads * problem.outputs * thread_r * thread_f;
  return elements * element;
}

std::shared_ptr<const GpuFieldPlan> plan_gpu_field(const GpuFieldProblem& problem) {
  auto plan = std::make_shared<GpuFieldPlan>();
  plan->problem = problem;
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = problem.field.param_leaves();
  options.processor = ir::Processor::gpu_terms;
  plan->program = ir::lower({problem.field.field}, options);
  plan->uniforms = lower_uniforms(problem.field.uniforms, problem.field.params);
  plan->reads_row = reads_site(plan->program, {ir::Site::row});
  plan->reads_col = reads_site(plan->program, {ir::Site::col});
  plan->reads_weights = reads_site(plan->program, {ir::Site::w});
  const int words = problem.type == Dtype::float64 ? 2 : 1;
  while (problem.outputs * plan->thread_r * plan->thread_f * words > kAccumulatorWords &&
         plan->thread_r * plan->thread_f > 1)
    (plan->thread_f >= plan->thread_r ? plan->thread_f : plan->thread_r) /= 2;
  // Each plane takes as many rows as the tile has.
  while (plan->shared_bytes(kChunk + 1) > problem.shared_per_block && plan->thread_r * plan->thread_f > 1)
    (plan->thread_r > 1 ? plan->thread_r : plan->thread_f) /= 2;
  return plan;
}

}  // namespace mercer::plan
