// Values of the pairs of some rows, stored for a second kernel: [plane][row][ld], n along the rows.
#pragma once

#include "backend/cuda/panels.h"

namespace mercer::cuda {

/// Rows of a part: as many as fit kPairBytes, a multiple of the panels' padding.
std::int64_t rows_of_part(std::int64_t rows, std::int64_t row_bytes);

/// Computes rows first … first + rows - 1 of every plane; `first` is a multiple of the panels' padding.
void store_rows(const PairKernels& kernels, const Panels& panels, const PairJob& job, const Workspace& workspace,
                std::int64_t first, std::int64_t rows, void* out, std::int64_t ld, std::int64_t plane);

}  // namespace mercer::cuda
