// Gradient fields of few features in one pass over the pairs (kernels/cuda/gradient/few_features.cuh).
#pragma once

#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/runtime/panels.h"

namespace mercer::cuda {

/// The field of one batch item, for few features.
class FewFeaturesField {
 public:
  /// Lays its memory out in `workspace`.
  FewFeaturesField(const PairKernels& kernels, const PairJob& job, const FieldJob& operands, Workspace& workspace);
  /// Puts the kernels into the stream.
  void run() const;

 private:
  FewFeaturesArguments arguments() const;
  void contract(std::int64_t first, std::int64_t count) const;
  void finish_side_sums(std::int64_t first, std::int64_t count) const;

  const PairKernels& kernels_;
  const plan::GpuFieldPlan& field_;
  const PairJob& job_;
  const FieldJob& operands_;
  Workspace& workspace_;
  Panels panels_;
  ParamTable params_;
  PlainPanel x_, z_, row_, col_, coefs_, weights_;  // those without an array are not read
  std::int64_t size_ = 4, tiles_ = 0, splits_ = 1, partial_ = 0, side_sums_at_ = 0;
};

}  // namespace mercer::cuda
