// Values of the pairs of some rows, stored for a second kernel: [plane][row][ld], n along the rows.
#pragma once

#include <optional>

#include "backend/cuda/bilinear.h"

namespace mercer::cuda {

/// Rows of a part: as many as fit `job.part_bytes`, a multiple of the panels' padding.
std::int64_t rows_of_part(const PairJob& job, std::int64_t row_bytes);

class PairValues {
 public:
  /// Lays out what one item of a batch needs; `rows`: of a part.
  PairValues(const PairKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace);
  /// Packs both sides.
  void prepare(const Workspace& workspace) const;
  /// What a tile is told of rows first … first + rows - 1; `first` is a multiple of the panels' padding.
  PairArguments arguments(const Workspace& workspace, std::int64_t first, std::int64_t rows) const;
  /// Computes these rows of every plane.
  void store(const Workspace& workspace, std::int64_t first, std::int64_t rows, void* out, std::int64_t ld,
             std::int64_t plane) const;
  /// Keeps of these rows the values up to `a.found.bounds`, among the columns that `a.found` names.
  void find(const Workspace& workspace, std::int64_t first, PairArguments& a) const;

 private:
  const PairKernels& kernels_;
  const PairJob& job_;
  Panels panels_;
  std::unique_ptr<MatrixProducts> products_;
  std::optional<SplitProducts> finder_;  // of nearest neighbours
};

}  // namespace mercer::cuda
