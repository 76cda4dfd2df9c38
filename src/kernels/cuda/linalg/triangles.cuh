// Triangular systems of one large matrix, by rows.
//
// Systems with a few right-hand sides go by columns, in blocks of TRIANGLE rows:
//
//   for blocks of rows, of a lower triangle downwards, of an upper one upwards
//     solve_lower, solve_upper   x = T^-1 b of the block, by substitution: a block of threads, 16 right-hand sides
//     subtract_solved            b -= A x of the rows that are left
//
// Systems with many go by rows next to the triangle: solve_wide, up to 64 rows, and products of matrices for the rest.
//
// A substitution is a chain of as many steps as there are rows, so what counts is the latency of one. A thread has half
// of a row of right-hand sides in registers. Each warp solves one column of 32 rows at a time, a row a lane, by
// shuffles; then the rows that are left take these off. The next 32 columns of the triangle are on their way meanwhile:
// rows lie far apart, so eight threads fetch a row's 128 bytes together, and it passes through shared memory.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "linalg/substitution.cuh"

#define TRIANGLE 256
#define TRIANGLE_STEP 32
#define TRIANGLE_COLUMNS 16
#define TRIANGLE_THREADS 512
#define TRIANGLE_HALF (TRIANGLE_COLUMNS / 2)
#define TRIANGLE_PITCH (TRIANGLE_STEP + 4)  // of a row of the triangle: threads' vectors meet in no bank
#define SOLVED_PITCH (TRIANGLE_COLUMNS + 4)
#define SUBTRACT_ROWS 8  // of a warp
#define SUBTRACT_THREADS 128

struct TriangleShared {
  alignas(16) float part[TRIANGLE][TRIANGLE_PITCH];      // of 32 columns
  alignas(16) float solved[TRIANGLE_STEP][SOLVED_PITCH];
};

// 32 columns of the triangle, four vectors a thread; zeros outside it.
struct TriangleFetch {
  static constexpr int kVectors = TRIANGLE * TRIANGLE_STEP / 4 / TRIANGLE_THREADS;
  Pack<float, 4> four[kVectors];

  MERCER_METHOD static int row_of(int v) { return (v * TRIANGLE_THREADS + threadIdx.x) / 8; }
  MERCER_METHOD static int column_of() { return threadIdx.x % 8 * 4; }

  MERCER_METHOD void load(const float* corner, i64 stride, int left, int rows) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int row = row_of(v), column = left + column_of();
      const float* from = corner + row * stride + column;
      if (row < rows && column + 4 <= rows) {
        four[v] = *(const Pack<float, 4>*)from;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) four[v].value[c] = row < rows && column + c < rows ? from[c] : 0.0f;
      }
    }
  }
  MERCER_METHOD void store(float (&part)[TRIANGLE][TRIANGLE_PITCH]) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) *(Pack<float, 4>*)&part[row_of(v)][column_of()] = four[v];
  }
};

MERCER_INLINE void read_row(float (&values)[TRIANGLE_STEP], const float* row) {
#pragma unroll
  for (int k = 0; k < TRIANGLE_STEP; k += 4) {
    const Pack<float, 4> four = *(const Pack<float, 4>*)(row + k);
#pragma unroll
    for (int c = 0; c < 4; ++c) values[k + c] = four.value[c];
  }
}

// value / divisor by the divisor's inverse and a step of refinement. A remainder that is too small for a normal float
// is too small for the matrix, too, so the divisor alone says whether this will do.
MERCER_INLINE float quotient_of(float value, float divisor, float inverse) {
  const float near = value * inverse;
  return fabsf(near) < float_of(0x7f800000u) ? __fmaf_rn(__fmaf_rn(-near, divisor, value), inverse, near) : near;
}

// One column of 32 rows: `value` of the lane's row becomes its solution. `row`: of the triangle.
template <bool UPPER, bool BY_INVERSE>
MERCER_INLINE float substitute(const float (&row)[TRIANGLE_STEP], float value, int lane, float divisor) {
  const float inverse = 1.0f / divisor;
#pragma unroll
  for (int s = 0; s < TRIANGLE_STEP; ++s) {
    const int k = UPPER ? TRIANGLE_STEP - 1 - s : s;
    float own = value;
    if (UPPER) own = BY_INVERSE ? quotient_of(value, divisor, inverse) : value / divisor;
    const float solved = __shfl_sync(0xffffffffu, own, k);
    value = lane == k ? own : (UPPER ? lane < k : lane > k) ? __fmaf_rn(-row[k], solved, value) : value;
  }
  return value;
}
template <bool UPPER>
MERCER_INLINE float substitute(const float (&row)[TRIANGLE_STEP], float value, int lane, int count) {
  if (!UPPER) return substitute<false, true>(row, value, lane, 1.0f);
  float divisor = 1;
#pragma unroll
  for (int k = 0; k < TRIANGLE_STEP; ++k) divisor = lane == k && k < count ? row[k] : divisor;
  const bool plain = fabsf(divisor) > 0x1p-100f && fabsf(divisor) < 0x1p100f;
  return __all_sync(0xffffffffu, plain) ? substitute<true, true>(row, value, lane, divisor)
                                        : substitute<true, false>(row, value, lane, divisor);
}

template <bool UPPER>
MERCER_INLINE void solve_triangle(const TriangleArguments& t) {
  __shared__ TriangleShared shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = threadIdx.x % TRIANGLE;
  const int left = threadIdx.x / TRIANGLE * TRIANGLE_HALF;
  const int rows = (int)min((i64)TRIANGLE, t.n - t.first), steps = (rows + TRIANGLE_STEP - 1) / TRIANGLE_STEP;
  const float* const corner = t.a + t.first * (t.stride + 1);
  float* const own_row = t.b + ((i64)blockIdx.x * TRIANGLE_COLUMNS + left) * t.b_stride + t.first + row;
  const i64 columns = row < rows ? t.count - ((i64)blockIdx.x * TRIANGLE_COLUMNS + left) : 0;
  float own[TRIANGLE_HALF], part[TRIANGLE_STEP];
  TriangleFetch next;
  next.load(corner, t.stride, (UPPER ? steps - 1 : 0) * TRIANGLE_STEP, rows);
  wait_for_kernel_ahead();
#pragma unroll
  for (int c = 0; c < TRIANGLE_HALF; ++c) own[c] = c < columns ? own_row[c * t.b_stride] : 0.0f;
  Pack<float, 4>* const place = (Pack<float, 4>*)&shared.solved[row % TRIANGLE_STEP][left];
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    const int top = (UPPER ? steps - 1 - s : s) * TRIANGLE_STEP;
    const bool solves = row / TRIANGLE_STEP * TRIANGLE_STEP == top;
    const bool waits = UPPER ? row < top : row > top && !solves;
    next.store(shared.part);
    if (solves) {
      place[0] = {own[0], own[1], own[2], own[3]};
      place[1] = {own[4], own[5], own[6], own[7]};
    }
    __syncthreads();
    if (s + 1 < steps) next.load(corner, t.stride, UPPER ? top - TRIANGLE_STEP : top + TRIANGLE_STEP, rows);
    read_row(part, shared.part[top + lane]);
    float& value = shared.solved[lane][warp];
    value = substitute<UPPER>(part, value, lane, rows - top);
    __syncthreads();
    if (solves) {
#pragma unroll
      for (int c = 0; c < TRIANGLE_HALF; ++c) own[c] = place[c / 4].value[c % 4];
    } else if (waits) {
      read_row(part, shared.part[row]);
#pragma unroll
      for (int k = 0; k < TRIANGLE_STEP; ++k)
#pragma unroll
        for (int c = 0; c < TRIANGLE_HALF; ++c) own[c] = __fmaf_rn(-part[k], shared.solved[k][left + c], own[c]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int c = 0; c < TRIANGLE_HALF; ++c)
    if (c < columns) own_row[c * t.b_stride] = own[c];
}

extern "C" __global__ void __launch_bounds__(TRIANGLE_THREADS)
    solve_lower(const __grid_constant__ TriangleArguments t) {
  solve_triangle<false>(t);
}
extern "C" __global__ void __launch_bounds__(TRIANGLE_THREADS)
    solve_upper(const __grid_constant__ TriangleArguments t) {
  solve_triangle<true>(t);
}

// Sums over the lanes: `sum[0]` of a lane and its neighbour becomes column lane / 2.
MERCER_INLINE void add_lanes(float (&sum)[TRIANGLE_COLUMNS]) {
#pragma unroll
  for (int step = 1; step < 5; ++step) {
    const int half = TRIANGLE_COLUMNS >> step;
    const bool upper = threadIdx.x & (2 * half);
#pragma unroll
    for (int c = 0; c < TRIANGLE_COLUMNS / 2; ++c) {
      if (c >= half) break;
      const float sent = upper ? sum[c] : sum[c + half], kept = upper ? sum[c + half] : sum[c];
      sum[c] = kept + __shfl_xor_sync(0xffffffffu, sent, 2 * half);
    }
  }
  sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], 1);
}

// Rows from `from` on, eight a warp; a lane has every 32nd of the block's solutions in registers.
extern "C" __global__ void __launch_bounds__(SUBTRACT_THREADS)
    subtract_solved(const __grid_constant__ TriangleArguments t) {
  constexpr int kDepth = TRIANGLE / 32, kTogether = 4;
  const int lane = threadIdx.x % 32, depth = (int)min((i64)TRIANGLE, t.n - t.first);
  const i64 first_row = t.from + ((i64)blockIdx.x * (SUBTRACT_THREADS / 32) + threadIdx.x / 32) * SUBTRACT_ROWS;
  const i64 first_column = (i64)blockIdx.y * TRIANGLE_COLUMNS, columns = t.count - first_column;
  float* const b = t.b + first_column * t.b_stride;
  wait_for_kernel_ahead();
  float x[kDepth][TRIANGLE_COLUMNS];
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int c = 0; c < TRIANGLE_COLUMNS; ++c)
      x[k][c] = 32 * k + lane < depth && c < columns ? b[c * t.b_stride + t.first + 32 * k + lane] : 0.0f;
#pragma unroll 1
  for (int pass = 0; pass < SUBTRACT_ROWS; pass += kTogether) {
    float part[kTogether][kDepth];
#pragma unroll
    for (int r = 0; r < kTogether; ++r)
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        const i64 row = first_row + pass + r;
        part[r][k] = row < t.to && 32 * k + lane < depth ? t.a[row * t.stride + t.first + 32 * k + lane] : 0.0f;
      }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      float sum[TRIANGLE_COLUMNS] = {};
#pragma unroll
      for (int k = 0; k < kDepth; ++k)
#pragma unroll
        for (int c = 0; c < TRIANGLE_COLUMNS; ++c) sum[c] = __fmaf_rn(part[r][k], x[k][c], sum[c]);
      add_lanes(sum);
      const i64 row = first_row + pass + r;
      if (lane % 2 == 0 && lane / 2 < columns && row < t.to) b[lane / 2 * t.b_stride + row] -= sum[0];
    }
  }
}

// ---- many right-hand sides, by rows ---------------------------------------------------------------------------------
#define WIDE_TRIANGLE 64  // rows
#define WIDE_THREADS 128
#define WIDE_PITCH (WIDE_TRIANGLE + 4)

// x = L^-1 b of `rows` <= 64 rows, L with ones on its diagonal; a thread has a column in registers.
extern "C" __global__ void __launch_bounds__(WIDE_THREADS) solve_wide(const __grid_constant__ WideTriangleArguments t) {
  constexpr int kHalf = WIDE_TRIANGLE / 2;
  __shared__ __align__(16) float l[WIDE_TRIANGLE][WIDE_PITCH];
  const i64 j = (i64)blockIdx.x * WIDE_THREADS + threadIdx.x;
  const bool has_column = j < t.count;
  float* const column = t.b + j;
  float x[WIDE_TRIANGLE], part[kHalf];
  const int k = threadIdx.x % WIDE_TRIANGLE, first = threadIdx.x / WIDE_TRIANGLE;
  wait_for_kernel_ahead();
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const int row = 2 * i + first;
    part[i] = k < row && row < t.rows ? t.a[row * t.stride + k] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < WIDE_TRIANGLE; ++i) x[i] = has_column && i < t.rows ? column[i * t.stride] : 0.0f;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) l[k][place_behind<WIDE_TRIANGLE>(2 * i + first, k)] = part[i];
  __syncthreads();
  const auto store = [&](int row, float value) {
    if (has_column && row < t.rows) column[row * t.stride] = value;
  };
  substitute_down<WIDE_TRIANGLE, WIDE_PITCH>(x, l[0], kHalf, store);
  substitute_down<kHalf, WIDE_PITCH>(x, l[kHalf], kHalf, [&](int row, float value) { store(kHalf + row, value); });
}
