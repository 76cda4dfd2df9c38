// The sums of a formula alone: what its pairs are before they become values.
#pragma once

#include <memory>

#include "plan/gpu/plan.h"

namespace mercer::plan {

/// A plan that stores the only sum in the place of the value: the same arithmetic, so the same bits, and no formula
/// in its text but that of the sum. An allowance of the values stays theirs: it has a place there and none is made.
/// Null where values of pairs are of more than such a sum and parameters, or do not have its dtype.
std::shared_ptr<const GpuPairPlan> bare_sums(const GpuPairPlan& plan);

}  // namespace mercer::plan
