// Sums of functions of x - z whose differences come from tensor cores (kernels/cuda/pairs/pair_differences.cuh).
#pragma once

#include <cstdint>
#include <string>

#include "plan/gpu/plan.h"

namespace mercer::plan {

struct DifferenceCosts;

/// Whether tiles of 128 x 128 pairs, one at a time on a multiprocessor, keep most of them busy. A symmetric matrix
/// leaves half of them, some of which take longer.
bool fills_waves(std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors,
                 const DifferenceCosts& costs, bool symmetric = false);

/// Adds the tile by differences to a plan whose programs are there, and that knows whether it has mixed pipes.
void add_differences(GpuPairPlan& plan, const DifferenceCosts& costs);

std::string differences_text(const GpuPairPlan& plan);

}  // namespace mercer::plan
