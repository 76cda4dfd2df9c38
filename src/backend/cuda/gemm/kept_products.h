// Products with very many columns of v (docs/kernels/wide.md): values are stored in pieces of 16 bits, a part of the
// rows and of n at a time, and are an operand of one product with all columns. Whether pieces carry them, the device
// finds out; once they do not, nothing more is added up.
#pragma once

#include "backend/cuda/gemm/bilinear.h"

namespace mercer::cuda {

class KeptProducts {
 public:
  /// Lays its memory out in `workspace`.
  KeptProducts(const PairKernels& kernels, const PairJob& job, const SplitProducts& values, std::int64_t columns,
               Workspace& workspace);
  /// All columns [column][v_ld] of the only group, whose operands are made.
  void run(const PairArguments& group, const Workspace& workspace) const;
  /// Whose `rated` says, when all is run, whether these sums stand.
  const SplitState* state(const Workspace& workspace) const { return values_.state(workspace); }
  /// Tells who merges ranges of n of these sums.
  void write(MergeArguments& a, const Workspace& workspace) const;

 private:
  KeptArguments columns(const PairArguments& group, const Workspace& workspace) const;
  void add_part(const PairArguments& group, const PairPlace& first, const Workspace& workspace) const;

  const PairKernels& kernels_;
  const PairJob& job_;
  const SplitProducts& values_;
  Kernel write_kept_;
  std::int64_t columns_, padded_, ld_, rows_, points_, parts_;  // rows and points n of a part; parts of n
  std::int64_t states_ = 0;
  std::int64_t image_ = 0, row_scale_ = 0, state_ = 0, v_image_ = 0, v_scale_ = 0, zeros_ = 0, marks_ = 0, out_ = 0;
};

}  // namespace mercer::cuda
