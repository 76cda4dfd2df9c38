// Sums of absolute differences on two sets of pipes (kernels/cuda/mixed.cuh): quantised panels, the list of repairs,
// and the kernels around the tiles. Which tile's results stand is decided on the device.
#pragma once

#include "backend/cuda/panels.h"

namespace mercer::cuda {

class MixedPipes {
 public:
  /// Lays its memory out in `workspace`: of one item of a batch, taken by the next one in the order of the stream.
  MixedPipes(const PairKernels& kernels, const PairJob& job, const Panels& panels, Workspace& workspace);
  /// Stores the pairs of every group of `a`.
  void run(const PairArguments& a, std::int64_t groups, std::int64_t blocks_of_group, Dtype out,
           const Workspace& workspace) const;
  /// Quantises the values of one group (panels.h, group_of).
  void prepare(const PairArguments& group, const Workspace& workspace) const;
  /// Its tiles, from integers and from values, and repairs between them.
  void launch_tiles(const PairArguments& group, std::int64_t blocks, const Workspace& workspace) const;

 private:
  bool stores() const { return kernels_.plan->problem.consumer == plan::Consumer::store; }
  MixedArguments arguments(const PairArguments& a, const Workspace& workspace) const;

  const PairKernels& kernels_;
  const PairJob& job_;
  Kernel start_;
  int sides_ = 2;
  std::int64_t capacity_ = 0;  // of the list of repairs: none of products
  std::int64_t state_ = 0, repairs_ = 0;
  std::int64_t quantised_[2] = {}, errors_[2] = {};
};

}  // namespace mercer::cuda
