// Stored values of float32 times many columns of v (kernels/cuda/gemm/wide_stored.cuh).
#pragma once

#include "backend/cuda/gemm/wide.h"

namespace mercer::cuda {

class StoredProduct {
 public:
  /// Lays its memory out in `workspace`. `job`: v in place of the points z, columns as features; `rows`: of a part.
  StoredProduct(const FieldKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace);
  /// Computes the rows of a part, all columns, which lie in the place of the field's z. `adds`: to what out has.
  void run(const FieldArguments& part, bool adds, const Workspace& workspace);

 private:
  void multiply(const FieldArguments& part, std::int64_t columns, const Workspace& workspace) const;
  void merge(const FieldArguments& part, std::int64_t first, std::int64_t columns, bool adds,
             const Workspace& workspace) const;

  const FieldKernels& kernels_;
  const plan::BilinearTile& tile_;
  const PairJob& job_;
  WideOperand v_;
  Kernel merge_;
  std::int64_t ld_, splits_, partial_;
  std::int64_t written_ = -1;  // the column from which on v is in the operand
};

}  // namespace mercer::cuda
