// Values of the pairs of some rows, stored for a second kernel: [plane][row][ld], n along the rows.
#pragma once

#include <optional>

#include "backend/cuda/gemm/bilinear.h"

namespace mercer::cuda {

/// Rows of a part: as many as fit `job.part_bytes`, a multiple of the panels' padding.
std::int64_t rows_of_part(const PairJob& job, std::int64_t row_bytes);

class SumPlanes;

class PairValues {
 public:
  /// Lays out what one item of a batch needs; `rows`: of a part.
  PairValues(const PairKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace);
  ~PairValues();
  /// Packs both sides.
  void prepare(const Workspace& workspace) const;
  /// What a tile is told of `rows` rows and of the columns from `first` on.
  PairArguments arguments(const Workspace& workspace, const PairPlace& first, std::int64_t rows) const;
  /// Computes them, of every plane.
  void store(const Workspace& workspace, const PairPlace& first, std::int64_t rows, void* out, std::int64_t ld,
             std::int64_t plane) const;
  /// Keeps of these rows the values up to `a.found.bounds`, among the columns that `a.found` names.
  void find(const Workspace& workspace, const PairPlace& first, PairArguments& a) const;

 private:
  const PairKernels& kernels_;
  const PairJob& job_;
  Panels panels_;
  std::unique_ptr<MatrixProducts> products_;
  std::optional<SplitProducts> finder_;  // of nearest neighbours
  std::unique_ptr<SumPlanes> sums_;
};

}  // namespace mercer::cuda
