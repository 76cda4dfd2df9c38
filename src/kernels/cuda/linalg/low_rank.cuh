// What maps of low rank and Cholesky's factor by columns do except products: weights of elements, sums of squares along
// rows, and rows that are taken out of long columns or put into them.
//
// Floor: bytes, each element once. Budget: 40 registers.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define LOW_RANK_THREADS 256

// to = from, each element times its weights.
extern "C" __global__ void __launch_bounds__(LOW_RANK_THREADS)
    weigh_elements(const __grid_constant__ LowRankArguments a) {
  const i64 step = (i64)gridDim.x * LOW_RANK_THREADS;
  for (i64 at = (i64)blockIdx.x * LOW_RANK_THREADS + threadIdx.x; at < a.rows * a.columns; at += step) {
    const i64 i = at % a.rows, j = at / a.rows;
    double value = (double)((const REAL*)a.from)[i + j * a.from_step];
    if (a.weights != nullptr) value *= a.weights[i * a.row_step + j * a.column_step];
    if (a.column_weights != nullptr) value *= a.column_weights[j];
    ((REAL*)a.to)[i + j * a.to_step] = (REAL)value;
  }
}

// sums[i] = the sum over j of column_weights[j] from[i, j]^2.
extern "C" __global__ void __launch_bounds__(LOW_RANK_THREADS) sum_squares(const __grid_constant__ LowRankArguments a) {
  const i64 step = (i64)gridDim.x * LOW_RANK_THREADS;
  for (i64 i = (i64)blockIdx.x * LOW_RANK_THREADS + threadIdx.x; i < a.rows; i += step) {
    double sum = 0;
    for (i64 j = 0; j < a.columns; ++j) {
      const double value = (double)((const REAL*)a.from)[i + j * a.from_step];
      sum += (a.column_weights != nullptr ? a.column_weights[j] : 1) * value * value;
    }
    a.sums[i] = sum;
  }
}

// values [rows, columns] = the rows at the indices of the columns `from`; the other way where `to` is not null.
extern "C" __global__ void __launch_bounds__(LOW_RANK_THREADS) move_rows(const __grid_constant__ LowRankArguments a) {
  const i64 step = (i64)gridDim.x * LOW_RANK_THREADS;
  for (i64 at = (i64)blockIdx.x * LOW_RANK_THREADS + threadIdx.x; at < a.rows * a.columns; at += step) {
    const i64 i = a.indices[at % a.rows], j = at / a.rows;
    if (a.to != nullptr)
      ((REAL*)a.to)[i + j * a.to_step] = (REAL)a.values[at];
    else
      a.values[at] = (double)((const REAL*)a.from)[i + j * a.from_step];
  }
}
