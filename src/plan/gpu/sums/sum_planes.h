// Formulas with several sums. Sums that are products of matrices are computed first, each by a plan of its own, into a
// plane of some rows m; the tile then reads them as accumulators, next to the states that it keeps itself.
#pragma once

#include <vector>

#include "plan/gpu/plan.h"

namespace mercer::plan {

/// The tile for planes of `rows` rows at once; an empty one where they do not pay.
BilinearTile plane_tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision, int multiprocessors,
                        const Costs& costs, std::int64_t rows);

/// A formula whose sums are planes: `outputs` has pair_value(s) in the place of the sum of plan s.
struct SumPlanes {
  std::vector<std::shared_ptr<const GpuPairPlan>> plans;
  std::vector<Expr> outputs;
};
/// The planes of a problem with a `plane_product`; no plans where tensor cores serve none of its sums.
SumPlanes sum_planes(const GpuPairProblem& problem, const Costs& costs);

}  // namespace mercer::plan
