// Sums that are products of matrices, on tensor cores: of float32 in pieces (bilinear.h), of float64 as they are
// (double_products.h).
#pragma once

#include <memory>

#include "backend/cuda/runtime/panels.h"

namespace mercer::cuda {

/// Lays its memory out in `workspace`: of one item of a batch, taken by the next one in the order of the stream.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  /// Before the panels of so many groups would be packed: whether prepare() makes them, of points as they lie.
  virtual bool takes_points(std::int64_t) { return false; }
  /// Before v would be packed: whether its operand is made of v as it lies, and the panel where others read it.
  virtual bool takes_v(const PlainPanel&) { return false; }
  /// Makes the operands of one group (panels.h, group_of).
  virtual void prepare(const PairArguments& group, const Workspace& workspace) const = 0;
  /// Stores its pairs from `first` on, which `part` are (panels.h, part_of).
  virtual void store(const PairArguments& part, const PairPlace& first, const Workspace& workspace) const = 0;
  /// Folds over n of that group in `group.splits` ranges; by direct differences where most pairs cancel.
  virtual void fold(const PairArguments& group, const Workspace& workspace) const = 0;
  /// Stores the pairs of every group of `a`.
  void run(const PairArguments& a, std::int64_t groups, const plan::GpuPairPlan& plan, Dtype out,
           const Workspace& workspace) const;
};

/// The uniform factors of a sum's terms, for the kernels that make operands.
UniformFactors uniform_factors(const plan::GpuPairPlan& plan, const PairArguments& group);

/// Whether points that are both sides have one operand: weights and parameters are on one side of products.
bool shares_operands(const plan::Bilinear& bilinear);

/// The products of a plan that has any; null otherwise. `rows`: of x, stored at once.
std::unique_ptr<MatrixProducts> matrix_products(const PairKernels& kernels, const PairJob& job, const Panels& panels,
                                                std::int64_t rows, bool symmetric, Workspace& workspace);

}  // namespace mercer::cuda
