// Neighbours where a mask knows the values of some columns (backend/cuda/pairs/mask_strips.h): those that were found
// among the columns between these, ascending, become those of all columns. Order: values, NaN last, then columns.
//
//   REAL
#pragma once

#include "common/prelude.cuh"
#include "pairs/skipped.h"

#define KNOWN_THREADS 256

struct Neighbour {
  REAL value;
  i64 column;
};
MERCER_INLINE bool comes_before(const Neighbour& a, const Neighbour& b) {
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && a.value != b.value) return a.value < b.value;
  return a.column < b.column;
}

// A thread has a row. From each of three lists comes a part of the result, from its start on: how long these are is
// found forwards, the result is written backwards, so that the list of what was found may be where it lies.
extern "C" __global__ void __launch_bounds__(KNOWN_THREADS)
    merge_neighbours(const __grid_constant__ KnownNeighbourArguments a) {
  const i64 m = (i64)blockIdx.x * KNOWN_THREADS + threadIdx.x;
  if (m >= a.m) return;
  REAL* const values = (REAL*)a.values + m * a.values_row;
  i64* const indices = (i64*)a.indices + m * a.indices_row;
  const i64 size[3] = {a.column, a.count, a.n - a.end};
  const auto at = [&](int list, i64 i) -> Neighbour {
    if (list == 0) return {(REAL)a.before, i};
    if (list == 2) return {(REAL)a.after, a.end + i};
    return {values[i * a.values_col], indices[i * a.indices_col] + a.column};
  };
  i64 taken[3] = {0, 0, 0};
  for (i64 i = 0; i < a.count; ++i) {
    int best = -1;
    for (int list = 0; list < 3; ++list)
      if (taken[list] < size[list] && (best < 0 || comes_before(at(list, taken[list]), at(best, taken[best]))))
        best = list;
    ++taken[best];
  }
  for (i64 i = a.count - 1; i >= 0; --i) {
    int last = -1;
    for (int list = 0; list < 3; ++list)
      if (taken[list] > 0 && (last < 0 || comes_before(at(last, taken[last] - 1), at(list, taken[list] - 1))))
        last = list;
    const Neighbour one = at(last, --taken[last]);
    values[i * a.values_col] = one.value;
    indices[i * a.indices_col] = one.column;
  }
}
