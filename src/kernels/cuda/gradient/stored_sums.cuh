// Between the reductions of some rows' pairs, which are stored, and the field that wants amplitudes in their place:
// these are made, and what else a backward has is added up too (plan/gpu/stored_sums.h).
//
//   planes[a][m][n]  = amplitude a of the reductions that were there; before them come PLANES_BEFORE of reductions
//   sums[i][m]       = sum over n of value i * weight[m][n]         or single[n] in place of the weight
//   product[m][e]    = sum over n of the last value * columns[e][n]
//
// A warp has four rows and a range of n, 64 points a lane: so many addends lose no more than the contract's digits.
// Ranges are added up in float64. For more columns of v than COLUMNS there are several launches, of which the last one
// stores amplitudes.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define SUM_THREADS 256
#define SUM_ROWS 4
#define SUM_RANGE 2048
#define STATES (SUMS + PRODUCT * COLUMNS)

extern "C" __global__ void __launch_bounds__(SUM_THREADS)
    finish_values(const __grid_constant__ StoredSumArguments a) {
  const int lane = threadIdx.x % 32;
  const i64 m0 = ((i64)blockIdx.x * (SUM_THREADS / 32) + threadIdx.x / 32) * SUM_ROWS;
  if (m0 >= a.m) return;
  const i64 first = (i64)blockIdx.y * SUM_RANGE, end = first + SUM_RANGE < a.n ? first + SUM_RANGE : a.n;
  const REAL* const params = a.params ? (const REAL*)a.params : (const REAL*)a.numbers;
  const REAL* const columns = (const REAL*)a.columns;
  REAL row[SUM_ROWS][1] = {};
#pragma unroll
  for (int r = 0; READS_ROW && r < SUM_ROWS; ++r)
    row[r][0] = ((const REAL*)a.row_values)[m0 + r < a.m ? m0 + r : a.m - 1];
  REAL* const planes = (REAL*)a.planes;
  REAL sums[SUM_ROWS][STATES] = {};
#pragma unroll 1
  for (i64 n = first + lane; n < end; n += 32) {
    REAL factors[COLUMNS];
#pragma unroll
    for (int e = 0; PRODUCT && e < COLUMNS; ++e) factors[e] = e < a.count ? columns[e * a.columns_ld + n] : (REAL)0;
    const REAL single = SUMS && a.weights == nullptr ? ((const REAL*)a.single)[n] : (REAL)0;
    const REAL col[1] = {READS_COL ? ((const REAL*)a.col_values)[n] : (REAL)0};
    REAL pairs[SUM_ROWS][REDUCTIONS], weights[SUM_ROWS];
#pragma unroll
    for (int r = 0; r < SUM_ROWS; ++r) {
      const i64 at = (m0 + r < a.m ? m0 + r : a.m - 1) * a.row + n;
#pragma unroll
      for (int p = 0; p < REDUCTIONS; ++p) pairs[r][p] = planes[p * a.plane + at];
      weights[r] = SUMS && a.weights != nullptr ? ((const REAL*)a.weights)[at] : single;
    }
#pragma unroll
    for (int r = 0; r < SUM_ROWS; ++r) {
      REAL values[OUTPUTS];
      values_of(values, pairs[r], row[r], col, params, (REAL)a.features);
      if (STORES_AMPLITUDES && a.stores && m0 + r < a.m) {
#pragma unroll
        for (int p = 0; p < AMPLITUDES; ++p) planes[(PLANES_BEFORE + p) * a.plane + (m0 + r) * a.row + n] = values[p];
      }
#pragma unroll
      for (int i = 0; i < SUMS; ++i) sums[r][i] = mul_add(values[AMPLITUDES + i], weights[r], sums[r][i]);
#pragma unroll
      for (int e = 0; PRODUCT && e < COLUMNS; ++e)
        sums[r][SUMS + e] = mul_add(values[OUTPUTS - 1], factors[e], sums[r][SUMS + e]);
    }
  }
  REAL* const partial = (REAL*)a.partial + (i64)blockIdx.y * STATES * a.partial_ld;
#pragma unroll
  for (int i = 0; i < STATES; ++i)
#pragma unroll
    for (int r = 0; r < SUM_ROWS; ++r) {
#pragma unroll
      for (int offset = 16; offset >= 1; offset /= 2)
        sums[r][i] += __shfl_xor_sync(0xffffffffu, sums[r][i], offset);
      if (lane == 0 && m0 + r < a.m) partial[i * a.partial_ld + m0 + r] = sums[r][i];
    }
}

// Ranges of a row together, a thread a state and row: sums where amplitudes are stored, and the launch's columns.
extern "C" __global__ void __launch_bounds__(SUM_THREADS) add_ranges(const __grid_constant__ StoredSumArguments a) {
  const i64 m = (i64)blockIdx.x * SUM_THREADS + threadIdx.x;
  const int i = blockIdx.y, e = i - SUMS;
  if (m >= a.m || (e < 0 ? !a.stores : e >= a.count)) return;
  double total = 0;
  for (i64 range = 0; range < a.ranges; ++range)
    total += ((const REAL*)a.partial)[(range * STATES + i) * a.partial_ld + m];
  if (e < 0 && a.weights == nullptr && a.n > 0) total *= ((const REAL*)a.row_weights)[m];
  REAL& to = e < 0 ? ((REAL*)a.sums)[i * a.sums_first + m * a.sums_row]
                   : ((REAL*)a.product)[m * a.product_row + e * a.product_column];
  to = a.adds ? to + (REAL)total : (REAL)total;
}
