#include "plan/stored_sums.h"

#include "ir/passes.h"
#include "plan/sides.h"

namespace mercer::plan {

std::shared_ptr<const StoredSums> plan_stored_sums(const std::vector<Expr>& amplitudes, const std::vector<Expr>& beside,
                                                   std::int64_t columns, Dtype type) {
  auto plan = std::make_shared<StoredSums>();
  std::vector<Expr> values = amplitudes;
  for (const Expr& value : beside) values.push_back(ir::simplify(value));
  plan->split = ir::split_values(values);
  if (!plan->split || plan->split.reductions.empty() || plan->split.reductions.size() > amplitudes.size()) return {};
  plan->type = type;
  plan->amplitudes = static_cast<int>(amplitudes.size());
  plan->product = columns > 0;
  plan->sums = static_cast<int>(beside.size()) - plan->product;
  plan->columns = columns <= 1 ? 1 : columns <= 4 ? 4 : 16;
  ir::LowerOptions options;
  options.type = type;
  options.params = plan->split.param_leaves();
  options.processor = ir::Processor::gpu;
  plan->program = ir::lower(plan->split.values, options);
  plan->uniforms = lower_uniforms(plan->split.uniforms, plan->split.params);
  return plan;
}

}  // namespace mercer::plan
