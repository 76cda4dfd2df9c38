// The smallest values of rows that are stored, and where they are.
#pragma once

#include "backend/cpu/pairs/gemm.h"
#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

/// (value, index) in the order of the result: ascending, NaN last, ties by index.
template <class T>
struct Neighbour {
  T value;
  std::int64_t index;
  bool operator<(const Neighbour& other) const {
    const bool nan = value != value, other_nan = other.value != other.value;
    if (nan != other_nan) return other_nan;
    if (!nan && value != other.value) return value < other.value;
    return index < other.index;
  }
};

/// The k smallest values of each row in that order, and their columns: [rows, k].
template <class T>
void smallest(const RowMatrix<T>& rows, std::int64_t k, const OutputMatrix& values, const OutputMatrix& indices,
              const RunOptions& run);

}  // namespace mercer::cpu
