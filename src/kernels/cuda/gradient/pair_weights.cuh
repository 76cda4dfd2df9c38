// Weights of pairs, the product of factors u of the points x and v of the points z, for fields that take values of some
// rows of pairs as planes (field.cuh and the other kernels of fields).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define WEIGHT_THREADS 256
#define WEIGHT_TILE 64
#define WEIGHT_SLICE 16
#define WEIGHT_OWN 4  // rows and columns of a thread

struct WeightSlices {
  REAL rows[WEIGHT_SLICE][WEIGHT_TILE], columns[WEIGHT_SLICE][WEIGHT_TILE];
};

// out[m][n] = sum over e of rows[e][m] columns[e][n], a block 64 x 64 of them.
extern "C" __global__ void __launch_bounds__(WEIGHT_THREADS)
    weigh_pairs(const __grid_constant__ PairWeightArguments a) {
  __shared__ WeightSlices slices;
  const i64 m0 = (i64)blockIdx.y * WEIGHT_TILE, n0 = (i64)blockIdx.x * WEIGHT_TILE;
  const int row = threadIdx.x / 16 * WEIGHT_OWN, column = threadIdx.x % 16 * WEIGHT_OWN;
  REAL sum[WEIGHT_OWN][WEIGHT_OWN] = {};
#pragma unroll 1
  for (int first = 0; first < a.factors; first += WEIGHT_SLICE) {
    __syncthreads();
    for (int at = threadIdx.x; at < WEIGHT_SLICE * WEIGHT_TILE; at += WEIGHT_THREADS) {
      const int e = first + at / WEIGHT_TILE, own = at % WEIGHT_TILE;
      const bool is_there = e < a.factors;
      slices.rows[at / WEIGHT_TILE][own] =
          is_there && m0 + own < a.m ? ((const REAL*)a.rows)[e * a.rows_ld + m0 + own] : (REAL)0;
      slices.columns[at / WEIGHT_TILE][own] =
          is_there && n0 + own < a.n ? ((const REAL*)a.columns)[e * a.columns_ld + n0 + own] : (REAL)0;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < WEIGHT_SLICE; ++e)
#pragma unroll
      for (int i = 0; i < WEIGHT_OWN; ++i)
#pragma unroll
        for (int j = 0; j < WEIGHT_OWN; ++j)
          sum[i][j] = mul_add(slices.rows[e][row + i], slices.columns[e][column + j], sum[i][j]);
  }
#pragma unroll
  for (int i = 0; i < WEIGHT_OWN; ++i)
#pragma unroll
    for (int j = 0; j < WEIGHT_OWN; ++j)
      if (m0 + row + i < a.m && n0 + column + j < a.n)
        ((REAL*)a.out)[(m0 + row + i) * a.out_row + n0 + column + j] = sum[i][j];
}

extern "C" __global__ void __launch_bounds__(WEIGHT_THREADS)
    write_ones(const __grid_constant__ PairWeightArguments a) {
  const i64 at = (i64)blockIdx.x * WEIGHT_THREADS + threadIdx.x;
  if (at < a.n) ((REAL*)a.out)[at] = 1;
}

// out[m][n] *= rows[0][m]
extern "C" __global__ void __launch_bounds__(WEIGHT_THREADS)
    scale_rows(const __grid_constant__ PairWeightArguments a) {
  const i64 at = (i64)blockIdx.x * WEIGHT_THREADS + threadIdx.x, m = at / a.n;
  if (m < a.m) ((REAL*)a.out)[m * a.out_row + at % a.n * a.out_column] *= ((const REAL*)a.rows)[m];
}
