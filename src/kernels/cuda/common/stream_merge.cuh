// Results of blocks of z joined on the device (stream_merge.h).
#pragma once

#include "common/prelude.cuh"
#include "common/stream_merge.h"

#define STREAM_THREADS 256

MERCER_INLINE bool is_nan(double v) { return v != v; }

// NaN wins, and between equals what came first.
MERCER_INLINE bool replaces(double value, double total, bool largest) {
  if (is_nan(total)) return false;
  return is_nan(value) || (largest ? value > total : value < total);
}

MERCER_INLINE double log_sum_exp(double a, double b) {
  const double high = a > b ? a : b, low = a > b ? b : a;
  if (is_nan(a) || is_nan(b)) return a + b;
  if (high == low && high - low != 0) return high;  // both are the same infinity
  return high + log1p(exp(low - high));
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    merge_values(const __grid_constant__ StreamMergeArguments a) {
  const i64 at = (i64)blockIdx.x * STREAM_THREADS + threadIdx.x;
  if (at >= a.count) return;
  const double value = (double)((const REAL*)a.part)[at];
  const double total = a.first ? value : a.total[at];
  const bool largest = a.merge == kStreamMax || a.merge == kStreamArgmax;
  const bool takes = a.first || replaces(value, total, largest);
  if (a.total_index != nullptr && takes) a.total_index[at] = a.part_index[at] + a.offset;
  double result = takes ? value : total;
  if (!a.first && a.merge == kStreamSum) result = total + value;
  if (!a.first && a.merge == kStreamLogSumExp) result = log_sum_exp(total, value);
  a.total[at] = result;
}

// NaN is last.
extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    merge_nearest(const __grid_constant__ StreamNearestArguments a) {
  const i64 row = (i64)blockIdx.x * STREAM_THREADS + threadIdx.x;
  if (row >= a.rows) return;
  const REAL* values = (const REAL*)a.values + row * a.had;
  const REAL* part = (const REAL*)a.part + row * a.got;
  i64 had = 0, got = 0;
  for (i64 at = 0; at < a.kept; ++at) {
    const bool is_new = had == a.had || (got < a.got && (part[got] < values[had] ||
                                                         (is_nan(values[had]) && !is_nan(part[got]))));
    ((REAL*)a.out)[row * a.kept + at] = is_new ? part[got] : values[had];
    a.out_index[row * a.kept + at] =
        is_new ? a.part_index[row * a.got + got] + a.offset : a.indices[row * a.had + had];
    if (is_new) ++got;
    else ++had;
  }
}

template <class To, class From>
MERCER_INLINE void store(const StreamStoreArguments& a) {
  const i64 at = (i64)blockIdx.x * STREAM_THREADS + threadIdx.x;
  if (at >= a.count) return;
  const i64 column = at % a.width, row = at / a.width % a.rows, plane = at / a.width / a.rows;
  ((To*)a.to)[plane * a.plane_stride + row * a.row_stride + column * a.column_stride] = (To)((const From*)a.from)[at];
}

extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    store_totals(const __grid_constant__ StreamStoreArguments a) {
  store<REAL, double>(a);
}
extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    store_values(const __grid_constant__ StreamStoreArguments a) {
  store<REAL, REAL>(a);
}
extern "C" __global__ void __launch_bounds__(STREAM_THREADS)
    store_indices(const __grid_constant__ StreamStoreArguments a) {
  store<i64, i64>(a);
}
