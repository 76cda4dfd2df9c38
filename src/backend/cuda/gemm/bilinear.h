// Sums that are products of matrices, on tensor cores (kernels/cuda/common/split_precision.cuh): operands in pieces of
// 16 bits, the tiles of products, and what computes cancelling pairs again. What is needed is decided on the device.
#pragma once

#include <optional>

#include "backend/cuda/gemm/matrix_products.h"
#include "backend/cuda/gemm/wide.h"

namespace mercer::cuda {

/// Puts the tiles of products into the stream, so many for each strip of rows m: as many blocks as stay on the device.
void launch_products(const Kernel& kernel, const plan::GpuPairPlan& plan, const PairJob& job,
                     const BilinearArguments& products, std::int64_t tiles_of_strip);

/// Tiles of so many columns that the blocks of columns of `found` have (kernels/cuda/nearest/candidates.cuh).
std::int64_t tiles_of_candidates(const CandidateArguments& found, std::int64_t n, std::int64_t tile_n);

class SplitProducts : public MatrixProducts {
 public:
  SplitProducts(const PairKernels& kernels, const PairJob& job, const Panels& panels, std::int64_t rows,
                bool symmetric, Workspace& workspace);
  /// Takes points of float32: panels are packed after the products, where these leave pairs to who reads panels.
  /// Panels of few features are written with the operands (kernels/cuda/pack/split_points.cuh).
  bool takes_points(std::int64_t groups) override;
  /// Takes a v of float32 and of one item, which stays where it is while this lives.
  bool takes_v(const PlainPanel& v) override;
  void prepare(const PairArguments& group, const Workspace& workspace) const override;
  void store(const PairArguments& part, const PairPlace& first, const Workspace& workspace) const override;
  void fold(const PairArguments& group, const Workspace& workspace) const override;
  /// What their tile is told of a group.
  BilinearArguments products(const PairArguments& group, const Workspace& workspace) const;
  /// The products with many columns of v alone, whatever the device found out, and with the extra ones.
  void multiply(const BilinearArguments& products, const Workspace& workspace, const ExtraColumns& extra = {}) const;
  const float* centre(const Workspace& workspace) const { return workspace.at<float>(centre_); }
  SplitState* state(const Workspace& workspace) const { return workspace.at<SplitState>(state_); }
  /// As `products`, for a part whose first points are `first`.
  BilinearArguments products_from(const PairArguments& part, const PairPlace& first, const Workspace& workspace) const;
  /// Finds candidates among its pairs, `part` as in `store`; `part` is told what they found out, for who
  /// computes pairs from the values themselves.
  void find(PairArguments& part, const PairPlace& first, const Workspace& workspace) const;

 private:
  SplitArguments operands(const PairArguments& a, const Workspace& workspace) const;
  void pack_left(Overlap overlap, const Workspace& workspace) const;
  PlainColumns columns_of_v(const PairArguments& group, const Workspace& workspace) const;

  const PairKernels& kernels_;
  const PairJob& job_;
  const Panels& panels_;
  Kernel find_centre_;
  int sides_ = 2;
  std::int64_t areas_ = 0, area_capacity_ = 0, units_ = 0, image_units_ = 0, row_length_ = 0, chunks_ = 1;
  std::int64_t state_ = 0, centre_ = 0, farthest_ = 0, area_counts_ = 0, area_pairs_ = 0, marks_ = 0;
  int ranges_ = 1;  // of the features
  bool takes_points_ = false, writes_panels_ = false;
  std::int64_t partial_ = 0, arrived_ = 0, arrivals_ = 0;
  std::optional<WideOperand> v_;
  const PlainPanel* lying_v_ = nullptr;  // which is read as it lies
  struct Side {
    const float* given_rows = nullptr;  // in place of rows
    std::int64_t image = 0, rows = 0, largest = 0, norms = 0, norm = 0, norm_tail = 0, scale = 0;
  };
  Side side_[2];
};

}  // namespace mercer::cuda
