// Products of matrices by OpenBLAS, in pieces that depend on the sizes alone: one thread a piece.
#pragma once

#include "backend/cpu/pairs/operations.h"
#include "core/devices/lapack.h"

namespace mercer::cpu {

/// A row-major matrix, rows `stride` elements apart.
template <class T>
struct RowMatrix {
  const T* data = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
};

/// Points where they lie, if they are of the type, their features side by side and rows at most `most_stride` apart;
/// otherwise a copy in `own`.
template <class T>
RowMatrix<T> as_rows(const Points& points, std::int64_t most_stride, AlignedBuffer& own);

/// out = a b^T, or a b; sums of so many terms at a time are added to what is there.
template <class T>
void multiply(const Lapack& lapack, const RowMatrix<T>& a, const RowMatrix<T>& b, bool b_transposed,
              std::int64_t chunk, const OutputMatrix& out, const RunOptions& run);

}  // namespace mercer::cpu
