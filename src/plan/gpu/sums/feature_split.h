// Few tiles of many features: blocks share the features of a tile, by ranges (kernels/cuda/pairs/pair_ranges.cuh). How
// many ranges a tile has follows from the sizes, the device and its costs.
#pragma once

#include <cstdint>

#include "plan/gpu/costs/costs.h"
#include "plan/gpu/plan.h"

namespace mercer::plan {

struct FeatureSplit {
  int ranges = 1;           // at most kMostRanges; 1 where a tile's slice has all features
  int length = 0;           // features of a range, a multiple of the tile's
  double microseconds = 0;  // of the call's tiles, reckoned
};
inline constexpr int kMostRanges = 16;

/// Merges the states of two ranges of the features, for a plan that is ready but for its tile; empty where the problem
/// has none, or some states do not merge.
ir::Program merge_of_ranges(const GpuPairPlan& plan);

/// The ranges of a plan that has such: the number that takes the least time, two at least where there are two slices.
FeatureSplit split_features(const GpuPairPlan& plan, std::int64_t m, std::int64_t n, std::int64_t k,
                            int multiprocessors, const RangeCosts& costs);

/// Microseconds of tiles whose blocks have all features.
double whole_tiles_time(const GpuPairPlan& plan, std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors,
                        const RangeCosts& costs);

/// The tile that adds up: of float64 products on tensor cores their own.
const GpuTile& adding_tile(const GpuPairPlan& plan);

}  // namespace mercer::plan
