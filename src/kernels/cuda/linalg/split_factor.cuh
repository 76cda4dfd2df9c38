// The steps of a blocked factorisation in split precision (backend/cuda/linalg/split_factor.cpp) except its products.
// Pieces carry rows whose largest value is in [2^-50, 2^50], so the factorisation is that of D a D, with powers of two
// D that bring the diagonal into [1, 4). Then no value of the factor is over 2, and what is below 2^-50 changes nothing
// that float32 would show. L = D^-1 L'. Both are exact, but for values that vanish next to the diagonal.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"

#define FACTOR_THREADS 256
#define FACTOR_WIDTH 64  // columns that are factored at once
#define FACTOR_ROWS 64   // of a block of solve_rows
#define MOST_OF_FACTOR 0x1p50f

// Up to 64 columns from `first` on: the square of the diagonal, by one block; thread (i, j) has rows 4 i … and columns
// 4 j … in registers. The 16 threads of four columns factor them among themselves, then all take them from theirs.
// Floor of four: four quotients and shuffles, a trip through shared memory and 64 multiply-adds, some 450 cycles: 4 us
// for 64. Loops stay loops: code that runs once waits for its instructions.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) factor_square(const __grid_constant__ FactorArguments a) {
  __shared__ __align__(16) float columns[2][4][FACTOR_WIDTH], parts[2][4][FACTOR_WIDTH];  // parts: over their pivots
  __shared__ float pivots[FACTOR_WIDTH];
  const int i = threadIdx.x % 16 * 4, j = threadIdx.x / 16 * 4, n = a.block;
  float* const own = a.a + a.first * (a.stride + 1);
  float value[4][4];
  wait_for_kernel_ahead();
#pragma unroll
  for (int q = 0; q < 4; ++q)
#pragma unroll
    for (int r = 0; r < 4; ++r)
      value[r][q] = j + q <= i + r && i + r < n ? own[i + r + (j + q) * a.stride] : i + r == j + q ? 1.0f : 0.0f;
  for (int k4 = 0; k4 < FACTOR_WIDTH; k4 += 4) {
    const int set = k4 / 4 % 2;
    // A warp has eight columns: the other half goes along.
    if (threadIdx.x / 32 == k4 / 8) {
      const int corner = (threadIdx.x & 16) + k4 / 4;
      const bool mine = j == k4;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float pivot = __shfl_sync(0xffffffffu, value[k][k], corner), inverse = inverse_of(pivot);
        float part[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) part[r] = value[r][k] * inverse;
#pragma unroll
        for (int q = k + 1; q < 4; ++q) {
          const float across = __shfl_sync(0xffffffffu, value[q][k], corner);
#pragma unroll
          for (int r = 0; r < 4; ++r)
            value[r][q] = mine ? __fmaf_rn(-part[r], across, value[r][q]) : value[r][q];
        }
        if (mine) {
          *(Pack<float, 4>*)&columns[set][k][i] = {value[0][k], value[1][k], value[2][k], value[3][k]};
          *(Pack<float, 4>*)&parts[set][k][i] = {part[0], part[1], part[2], part[3]};
          if (i == k4) pivots[k4 + k] = pivot;
        }
      }
    }
    __syncthreads();
    if (j <= k4) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Pack<float, 4> rows = *(const Pack<float, 4>*)&parts[set][k][i];
      const Pack<float, 4> across = *(const Pack<float, 4>*)&columns[set][k][j];
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int q = 0; q < 4; ++q) value[r][q] = __fmaf_rn(-rows.value[r], across.value[q], value[r][q]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float root = __fsqrt_rn(pivots[j + q]), inverse = 1.0f / root;
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (j + q <= i + r && i + r < n)
        own[i + r + (j + q) * a.stride] = i + r == j + q ? root : value[r][q] * inverse;
  }
  if (threadIdx.x < n && !(pivots[threadIdx.x] > 0)) atomicMin(a.bad, (int)a.first + (int)threadIdx.x + 1);
}

// The rows below: x L^T = a. A warp has 16 rows, a lane 8 of them and 4 columns. Four columns of x are found by their
// lanes, then go to all lanes of their rows, which take them from theirs. Floor of four: 32 shuffles and 128
// multiply-adds, 200 issue slots and some 60 cycles of latency: 2.5 us for 64; and 512 bytes a row.
extern "C" __global__ void __launch_bounds__(FACTOR_ROWS * 2) solve_rows(const __grid_constant__ FactorArguments a) {
  __shared__ __align__(16) float factor[FACTOR_WIDTH][FACTOR_WIDTH];  // [column][row]
  __shared__ float inverses[FACTOR_WIDTH];
  constexpr int kPadded = 20;
  __shared__ __align__(16) float tile[FACTOR_ROWS / 16][FACTOR_WIDTH][kPadded];
  const int n = a.block, lane = threadIdx.x % 32, left = lane % 16 * 4;
  const float* const square = a.a + a.first * (a.stride + 1);
  // Memory is read and written along 16 rows of two columns at a time; all loads are on their way before the first is
  // waited for.
  constexpr int kSteps = FACTOR_WIDTH / 2;
  const i64 top = a.first + n + ((i64)blockIdx.x * (FACTOR_ROWS / 16) + threadIdx.x / 32) * 16;
  float(*const own)[kPadded] = tile[threadIdx.x / 32];
  const i64 row = top + lane % 16;
  float* const memory = a.a + row + (a.first + lane / 16) * a.stride;
  float loaded[kSteps], of_factor[kSteps];
  const int r0 = threadIdx.x % FACTOR_WIDTH, c0 = threadIdx.x / FACTOR_WIDTH;
  wait_for_kernel_ahead();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int c = 2 * step + lane / 16, of = 2 * step + c0;
    loaded[step] = row < a.n && c < n ? memory[2 * step * a.stride] : 0.0f;
    of_factor[step] = r0 >= of && r0 < n ? square[r0 + of * a.stride] : r0 == of ? 1.0f : 0.0f;
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    own[2 * step + lane / 16][lane % 16] = loaded[step];
    factor[2 * step + c0][r0] = of_factor[step];
  }
  __syncthreads();
  if (threadIdx.x < FACTOR_WIDTH) inverses[threadIdx.x] = 1.0f / factor[threadIdx.x][threadIdx.x];
  __syncthreads();
  float value[8][4];
#pragma unroll
  for (int q = 0; q < 4; ++q)
#pragma unroll
    for (int r = 0; r < 8; ++r) value[r][q] = own[left + q][lane / 16 * 8 + r];
  for (int j4 = 0; j4 < FACTOR_WIDTH; j4 += 4) {
    if (left == j4)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float inverse = inverses[j4 + j];
#pragma unroll
        for (int r = 0; r < 8; ++r) value[r][j] *= inverse;
#pragma unroll
        for (int q = j + 1; q < 4; ++q) {
          const float l = factor[j4 + j][left + q];
#pragma unroll
          for (int r = 0; r < 8; ++r) value[r][q] = __fmaf_rn(-value[r][j], l, value[r][q]);
        }
      }
    const int from = (lane & 16) + j4 / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Pack<float, 4> columns = *(const Pack<float, 4>*)&factor[j4 + j][left];
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const float x = __shfl_sync(0xffffffffu, value[r][j], from), taken = left > j4 ? -x : 0.0f;
#pragma unroll
        for (int q = 0; q < 4; ++q) value[r][q] = __fmaf_rn(taken, columns.value[q], value[r][q]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int q = 0; q < 4; ++q)
#pragma unroll
    for (int r = 0; r < 8; ++r) own[left + q][lane / 16 * 8 + r] = value[r][q];
  __syncwarp();
  bool carried = true;
#pragma unroll 8
  for (int c = 0; c < FACTOR_WIDTH; c += 2) {
    const float x = own[c + lane / 16][lane % 16];
    carried = carried && fabsf(x) <= MOST_OF_FACTOR;
    if (row < a.n && c + lane / 16 < n) memory[c * a.stride] = x;
  }
  if (row < a.n && !carried) atomicMin(a.bad, (int)row + 1);
}

extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) find_scales(const __grid_constant__ FactorArguments a) {
  const i64 i = (i64)blockIdx.x * FACTOR_THREADS + threadIdx.x;
  if (i >= a.n) return;
  const float pivot = a.a[i * (a.stride + 1)];
  const int exponent = pivot > 0 && pivot < INFINITY ? ilogbf(pivot) : 0;
  const int half = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
  a.halves[i] = half;
  if (half != 0) *a.scales = 1;
}

// The lower triangle, in columns; `undoes`: of the factor.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) scale_triangle(const __grid_constant__ FactorArguments a) {
  if (*a.scales == 0) return;
  for (i64 j = blockIdx.x; j < a.n; j += gridDim.x) {
    const int own = a.halves[j];
    for (i64 i = j + threadIdx.x; i < a.n; i += FACTOR_THREADS) {
      float& value = a.a[i + j * a.stride];
      value = a.undoes ? scalbnf(value, a.halves[i]) : scalbnf(scalbnf(value, -a.halves[i]), -own);
    }
  }
}

// The first failure of all: a pivot that is not positive, or a row that pieces cannot carry, whose pivot, of what is
// left of at most 4, would not be.
extern "C" __global__ void say_info(const __grid_constant__ FactorArguments a) {
  *a.said = *a.bad == 0x7fffffff ? 0 : *a.bad;
}
