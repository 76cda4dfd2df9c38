// Products with Gauss kernels of few features, their squares of differences expanded (kernels/cuda/pairs/expanded.cuh):
// the operands of both tiles. Which one's results stand is decided on the device.
#pragma once

#include "backend/cuda/runtime/panels.h"

namespace mercer::cuda {

class ExpandedSquares {
 public:
  /// Lays its memory out in `workspace`: of one item of a batch, taken by the next one in the order of the stream.
  ExpandedSquares(const PairKernels& kernels, const PairJob& job, const Panels& panels, Workspace& workspace);
  /// What the tiles of one group (panels.h, group_of) are told, with its columns of v.
  struct Both {
    PairArguments expanded, values;
  };
  Both prepare(const PairArguments& group, const Workspace& workspace) const;

 private:
  const PairKernels& kernels_;
  const PairJob& job_;
  std::int64_t state_ = 0, x_ = 0, z_ = 0, v_ = 0, row_factors_ = 0, powers_ = 0, x_chunks_ = 0, z_chunks_ = 0;
};

}  // namespace mercer::cuda
