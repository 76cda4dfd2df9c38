// Ways that store values of the pairs, a part at a time, for a second kernel.
#pragma once

#include "plan/gpu/ways.h"

namespace mercer::plan {

extern const Way kMaterialised, kCandidates, kStoreAndSelect;

/// The product of values that are stored, or lie somewhere, with so many columns of v in place of the points z
/// (plan/gpu/value_products.h); nothing where its operands would be too large.
std::optional<GpuFieldProblem> product_of_values(const Request& request, std::int64_t columns,
                                                 const Costs& costs);
/// The plan of such a product.
KeptPlan<GpuFieldPlan> product_plan(GpuFieldProblem product, Planner& planner);

}  // namespace mercer::plan
