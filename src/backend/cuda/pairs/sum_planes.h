// Sums of a formula that has several, by products on tensor cores (plan/gpu/sums/sum_planes.h): planes of some rows of
// one item of a batch, which the tile then reads as accumulators.
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/pairs/pair_values.h"

namespace mercer::cuda {

class SumPlanes {
 public:
  /// Lays out what one item of a batch needs; `rows`: of a part.
  SumPlanes(const PairKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace);
  ~SumPlanes();
  /// Packs both sides.
  void prepare(const Workspace& workspace) const;
  /// Computes the pairs of `part` (panels.h, part_of), at most `rows` of them, and tells it where they are.
  void write(PairArguments& part, const PairPlace& first, const Workspace& workspace) const;
  std::int64_t rows() const { return rows_; }

  /// Rows of a part: as many as fit four times `job.part_bytes`.
  static std::int64_t rows_of(const PairKernels& kernels, const PairJob& job);

 private:
  const PairJob job_;  // of one item
  std::int64_t rows_, ld_;
  std::vector<std::unique_ptr<PairValues>> sums_;
  std::int64_t planes_ = 0;
};

}  // namespace mercer::cuda
