// Gradient fields of a linear factor whose pairs weigh products of two factors, in one pass over the pairs
// (kernels/cuda/gradient/rank_field.cuh).
#pragma once

#include "backend/cuda/gemm/bilinear.h"
#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/runtime/panels.h"
#include "plan/forms/rank_field.h"

namespace mercer::cuda {

/// The rank field of one batch item.
class RankFieldLaunch {
 public:
  /// Lays its memory out in `workspace`.
  RankFieldLaunch(const PairKernels& kernels, const PairJob& job, const FieldJob& operands, Workspace& workspace);
  /// Puts the kernels into the stream.
  void run() const;

 private:
  RankFieldArguments arguments() const;
  void contract(const RankFieldArguments& a) const;
  void launch_step(const char* name, jit::Dim3 grid, std::int64_t shared_bytes, const RankFieldArguments& a) const;

  const PairKernels& kernels_;
  const plan::RankField& field_;
  const PairJob& job_;
  const FieldJob& operands_;
  Workspace& workspace_;
  Panels panels_;
  SplitProducts products_;
  Kernel steps_;
  PlainPanel x_, z_, rows_, columns_;
  std::int64_t splits_ = 1, results_ = 1, pass_ = 1;  // ranges of n; outputs of a pass; its factors
  std::int64_t row_scales_ = 0, column_scales_ = 0, most_ = 0, weights_scale_ = 0;
  std::int64_t v_ = 0, shares_ = 0, partial_ = 0, spread_ = 0, left_ = 0;
  std::int64_t side_sums_ = 0, extra_columns_ = 0;  // in addition to the gradient
  std::int64_t times_ = 0, side_sums_at_ = 0, extra_ = 0;
  bool is_idle_ = false;  // nobody asks for the side sum, which is at idle_ then
  std::int64_t idle_ = 0;
};

}  // namespace mercer::cuda
