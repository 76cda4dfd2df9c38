// Long columns of a block method: random values, the factor that makes a block orthonormal, what H gets of it, and how
// far products are from multiples of their columns.
//
// Budget: 64 registers, 64 KB of shared memory for the factor, of one block.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define COLUMN_THREADS 256
#define MOST_BLOCK 64

// splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
MERCER_INLINE unsigned long long mixed_bits(unsigned long long x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// data[i] in (-1, 1), evenly distributed.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS) draw_columns(const __grid_constant__ ColumnArguments a) {
  const i64 stride = (i64)gridDim.x * COLUMN_THREADS;
  for (i64 i = (i64)blockIdx.x * COLUMN_THREADS + threadIdx.x; i < a.rows * a.columns; i += stride) {
    const unsigned bits = (unsigned)(mixed_bits(mixed_bits(a.seed) + (unsigned long long)i) >> 40);
    ((REAL*)a.data)[i] = (REAL)((double)(2 * (int)bits + 1) * 0x1p-24 - 1.0);
  }
}

// sums[j, block] = what a block has of the sum over i of (product[i, j] - values[j] data[i, j])^2; blockIdx.y is j.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS) column_gaps(const __grid_constant__ ColumnArguments a) {
  __shared__ double parts[COLUMN_THREADS / 32];
  const i64 j = blockIdx.y, stride = (i64)gridDim.x * COLUMN_THREADS;
  const REAL *data = (const REAL*)a.data + j * a.rows, *product = (const REAL*)a.product + j * a.rows;
  double sum = 0;
  for (i64 i = (i64)blockIdx.x * COLUMN_THREADS + threadIdx.x; i < a.rows; i += stride) {
    const double gap = (double)product[i] - a.values[j] * (double)data[i];
    sum += gap * gap;
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < COLUMN_THREADS / 32; ++warp) sum += parts[warp];
  a.sums[j * gridDim.x + blockIdx.x] = sum;
}

// gram = u^T u of one block; `factor` gets u, `inverse` its inverse: rows of [gram 1] are taken from those below until
// they are [u u^-T]. A block that is not finite, or that leaves little of itself, is put off: *put_off = first, unless
// an earlier one was.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS) factor_gram(const __grid_constant__ GramArguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  double (*const u)[2 * MOST_BLOCK] = (double (*)[2 * MOST_BLOCK])memory;
  const int n = (int)a.count, width = 2 * n;
  const REAL* const gram = (const REAL*)a.gram;
  for (int e = threadIdx.x; e < n * width; e += COLUMN_THREADS) {
    const int i = e / width, j = e % width;
    u[i][j] = j < n ? (double)gram[i + j * n] : j - n == i ? 1 : 0;
  }
  __syncthreads();
  double least = INFINITY, largest = 0, trace = 0;
  bool bad = false;
  for (int k = 0; k < n; ++k) {
    const double pivot = u[k][k];
    bad |= !(pivot > 0 && pivot < INFINITY);
    least = fmin(least, pivot);
    largest = fmax(largest, pivot);
    trace += (double)gram[k * (n + 1)];
    const double inverse = bad ? 0 : 1 / sqrt(pivot);
    __syncthreads();
    // Row k, from its diagonal on to where the other half has its last.
    for (int j = k + threadIdx.x; j <= n + k; j += COLUMN_THREADS) u[k][j] *= inverse;
    __syncthreads();
    const int rest = n - k - 1;
    for (int e = threadIdx.x; e < rest * n; e += COLUMN_THREADS) {
      const int i = k + 1 + e / n, j = k + 1 + e % n;
      if (j >= i && j <= n + k) u[i][j] = fma(-u[k][i], u[k][j], u[i][j]);
    }
    __syncthreads();
  }
  // `pivot` is the square of what stands on the diagonal of u.
  bad |= !(least > a.rounding * n * largest) || !(trace > a.least);
  if (bad && threadIdx.x == 0 && *a.put_off == 0) *a.put_off = (int)a.first;
  for (int e = threadIdx.x; e < n * n; e += COLUMN_THREADS) {
    const int i = e % n, j = e / n;
    ((REAL*)a.inverse)[e] = i <= j ? (REAL)u[j][n + i] : (REAL)0;
    a.factor[e] = i <= j ? u[i][j] : 0;
  }
}

// The last columns of H, c = c_1 + c_2 u_1 of the two passes: rows 0 … first of columns first - count …; the square of
// them is made symmetric. The upper triangle of H is read.
extern "C" __global__ void __launch_bounds__(COLUMN_THREADS) record_products(const __grid_constant__ GramArguments a) {
  const i64 at = (i64)blockIdx.x * COLUMN_THREADS + threadIdx.x, first = a.first, count = a.count;
  if (at >= first * count) return;
  const i64 i = at % first, j = at / first, from = first - count;
  const auto sum_of = [&](i64 row, i64 column) {
    double sum = (double)((const REAL*)a.once)[row + column * first];
    for (i64 p = 0; p <= column; ++p)
      sum = fma((double)((const REAL*)a.again)[row + p * first], a.factor[p + column * count], sum);
    return sum;
  };
  double value = sum_of(i, j);
  if (i >= from) value = 0.5 * (value + sum_of(from + j, i - from));
  a.h[i + (from + j) * a.stride] = value;
}
