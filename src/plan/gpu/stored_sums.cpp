#include "plan/gpu/stored_sums.h"

#include "core/integers.h"
#include "ir/passes/passes.h"
#include "plan/forms/guarded_sums.h"
#include "plan/forms/sides.h"
#include "plan/gpu/value_products.h"

namespace mercer::plan {

int columns_at_once(std::int64_t columns) { return columns <= 1 ? 1 : columns <= 4 ? 4 : 16; }

bool pays_product_in_pass(const Costs& costs, Dtype type, std::int64_t k, std::int64_t columns, bool of_products) {
  const ExtraCosts& own = costs.extra;
  if (of_products) return columns <= own.products_columns;
  const int at_once = columns_at_once(columns);
  const double launch =
      (type == Dtype::float64 ? own.doubles : 1) * (at_once == 1 ? own.one : at_once == 4 ? own.four : own.sixteen);
  return launch * static_cast<double>(ceil_div(columns, std::int64_t{at_once})) < product_time(costs, type, k, columns);
}

std::shared_ptr<const StoredSums> plan_stored_sums(const std::vector<Expr>& amplitudes,
                                                   const std::vector<Expr>& side_values, std::int64_t columns,
                                                   Dtype type) {
  auto plan = std::make_shared<StoredSums>();
  std::vector<Expr> values = amplitudes;
  for (const Expr& value : side_values) values.push_back(ir::simplify(value));
  // Sums that leave the range before their values do would be stored too late for that.
  const bool guarded = !guarded_outputs(values).sums.empty();
  if (!guarded) plan->split = ir::split_values(values);
  if (!plan->split || plan->split.reductions.empty() || plan->split.reductions.size() > values.size()) {
    plan->as_they_are = true;
    plan->split = {};
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(amplitudes.size());
    plan->split.reductions.assign(first, values.end());
    plan->split.reductions.insert(plan->split.reductions.end(), values.begin(), first);
    for (std::size_t v = 0; v < values.size(); ++v)
      plan->split.values.push_back(
          ir::leaf(ir::Op::pair_value, static_cast<int>((v + side_values.size()) % values.size())));
  }
  plan->type = type;
  plan->amplitudes = static_cast<int>(amplitudes.size());
  plan->product = columns > 0;
  plan->sums = static_cast<int>(side_values.size()) - plan->product;
  plan->columns = columns_at_once(columns);
  ir::LowerOptions options;
  options.type = type;
  options.params = plan->split.param_leaves();
  options.processor = ir::Processor::gpu;
  plan->program = ir::lower(plan->split.values, options);
  plan->reads_row = reads_site(plan->program, {ir::Site::row});
  plan->reads_col = reads_site(plan->program, {ir::Site::col});
  plan->uniforms = lower_uniforms(plan->split.uniforms, plan->split.params);
  return plan;
}

}  // namespace mercer::plan
