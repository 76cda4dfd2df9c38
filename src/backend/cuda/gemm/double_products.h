// Products of matrices in float64 (kernels/cuda/common/double_precision.cuh). What cancels is computed again where it
// stands; where most of a sample does, the direct tile computes everything. What is needed is decided on the device.
#pragma once

#include <optional>

#include "backend/cuda/gemm/matrix_products.h"
#include "backend/cuda/runtime/feature_ranges.h"

namespace mercer::cuda {

class DoubleProducts : public MatrixProducts {
 public:
  DoubleProducts(const PairKernels& kernels, const PairJob& job, const Panels& panels, Workspace& workspace);
  void prepare(const PairArguments& group, const Workspace& workspace) const override;
  void store(const PairArguments& part, const PairPlace& first, const Workspace& workspace) const override;
  void fold(const PairArguments& group, const Workspace& workspace) const override;

 private:
  DoubleArguments operands(const PairArguments& a, const Workspace& workspace) const;
  /// Rows from `first` on: products, then what the direct tile computes where they do not stand. `blocks_n`: of a tile
  /// of m with so many pairs along n.
  template <class BlocksN>
  void launch_tiles(const PairArguments& part, const PairPlace& first, const Workspace& workspace,
                    const BlocksN& blocks_n) const;
  bool of_squares() const { return kernels_.plan->products.bilinear.kind == plan::BilinearKind::square; }

  const PairKernels& kernels_;
  const PairJob& job_;
  Kernel start_;
  std::optional<FeatureRanges> ranges_;
  int sides_ = 2;
  std::int64_t image_k_ = 0, state_ = 0, centre_ = 0;
  struct Side {
    std::int64_t image = 0, rows = 0, norms = 0;
  };
  Side side_[2];
};

}  // namespace mercer::cuda
