// Ways of one kernel that makes values of pairs and uses or stores them, and what other ways share with them.
#pragma once

#include "plan/gpu/ways.h"

namespace mercer::plan {

extern const Way kMmaRhs, kGemmSum, kGemmSumFloat64, kPrecomputedSums, kDualPipe, kTensorCoreDifferences, kExpanded,
    kDirect, kSplitK;

/// The error of programs of the formula itself.
const char* bound_of(const Request& request);
/// What all plans of a request start from.
GpuPairProblem problem_of(const Request& request, Consumer consumer);
/// The tile of sums that are products of matrices, in one kernel with what becomes of them.
BilinearTile sum_tile(const Request& request, const Costs& costs);
/// The tile of sums that are products of matrices, for values that are stored some rows at a time.
BilinearTile values_tile(const Request& request, const Costs& costs);
/// The tile of sums that are computed first, of several (plan/gpu/sums/sum_planes.h).
BilinearTile plane_tile(const Request& request, const Costs& costs);

}  // namespace mercer::plan
