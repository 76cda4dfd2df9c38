// Tiles whose features blocks share, by ranges (plan/gpu/sums/feature_split.h, kernels/cuda/pairs/pair_ranges.cuh).
#pragma once

#include "backend/cuda/runtime/panels.h"
#include "plan/gpu/sums/feature_split.h"

namespace mercer::cuda {

class FeatureRanges {
 public:
  /// Lays out the states of so many groups' tiles, or of as many tiles as launch together.
  FeatureRanges(const PairKernels& kernels, const PairJob& job, std::int64_t groups, Workspace& workspace);
  /// All `tiles` of `a`, of `shared` bytes of shared memory each.
  void run(const Kernel& kernel, PairArguments a, std::int64_t tiles, std::int64_t shared,
           const Workspace& workspace) const;

 private:
  const plan::GpuTile& tile_;
  const PairJob& job_;
  plan::FeatureSplit split_;
  std::int64_t tiles_ = 0, states_ = 0, arrived_ = 0;
};

}  // namespace mercer::cuda
