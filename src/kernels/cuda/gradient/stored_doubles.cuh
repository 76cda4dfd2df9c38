// Values of float64 that are stored, times v, on tensor cores: what field.cuh has with the factor z and a single
// coefficient, which is one.
//
//   out[m][k] = sum over n of pair[m][n] * z[k][n]
//
//             TILE_F columns k       n passes in slices of 16, three of them on their way; rows of a slice lie 20
//             ┌─────────┐            elements apart, so that eight rows of four elements meet in no bank
//   128 rows  │ 8 warps │  m         64 columns: warps of 64 x 16; 32 columns: of 32 x 16
//             └─────────┘            two blocks a multiprocessor
//
// For 64 columns a warp has 4 x 2 products of 16 x 8 x 16 a slice, 512 clocks of its tensor core, and reads 10 KiB of
// shared memory. blockIdx.z: a range of n, with partial results.
#pragma once

#include "common/arguments.h"
#include "common/double_units.cuh"
#include "common/prelude.cuh"

#define FIELD_THREADS 256
#define TILE_R 128
#define WARP_R (TILE_F == 32 ? 32 : 64)
#define WARP_F 16
#define SLICE 16
#define SLICE_ROW (SLICE + 4)
#define STAGES 3
#define STAGE_ROWS (TILE_R + TILE_F)
#define STAGE_SIZE (STAGE_ROWS * SLICE_ROW)
#define PAIRS (SLICE / 2)               // of elements, which a thread copies at once
#define LINES (FIELD_THREADS / PAIRS)   // rows that the threads copy at once

// What a thread copies: a pair of elements of every LINES-th row. Rows after the last one keep what they have, for no
// other row reads it.
struct SliceCopy {
  const double *left, *right;
  int place, rows, columns;  // of rows and columns there are, from the thread's first one on

  MERCER_METHOD SliceCopy(const FieldArguments& a, i64 m0, i64 k0) {
    const int line = threadIdx.x / PAIRS, pair = threadIdx.x % PAIRS * 2;
    left = (const double*)a.pair + (m0 + line) * a.pair_row + pair;
    right = (const double*)a.z + (k0 + line) * a.z_ld + pair;
    place = line * SLICE_ROW + pair;
    rows = (int)(a.m - m0 < TILE_R ? a.m - m0 : TILE_R) - line;
    columns = (int)(a.k - k0 < TILE_F ? a.k - k0 : TILE_F) - line;
  }
  MERCER_METHOD void run(double* slice, const FieldArguments& a, i64 n) const {
    if (n + (i64)threadIdx.x % PAIRS * 2 >= a.n) return;
    double* const to = slice + place;
#pragma unroll
    for (int i = 0; i < TILE_R / LINES; ++i)
      if (i * LINES < rows) copy_16(to + i * LINES * SLICE_ROW, left + i * LINES * a.pair_row + n);
#pragma unroll
    for (int i = 0; i < TILE_F / LINES; ++i)
      if (i * LINES < columns) copy_16(to + (TILE_R + i * LINES) * SLICE_ROW, right + i * LINES * a.z_ld + n);
  }
};

// What follows the last point.
MERCER_INLINE void clear_behind(double* slice, i64 left) {
  for (int at = threadIdx.x; at < STAGE_ROWS * SLICE; at += FIELD_THREADS)
    if (at % SLICE >= left) slice[at / SLICE * SLICE_ROW + at % SLICE] = 0;
  __syncthreads();
}

// Elements t, t + 4 … of a row, t of the lane.
template <int COUNT>
MERCER_INLINE void load_steps(double (&to)[COUNT], int at, const double* row) {
#pragma unroll
  for (int s = 0; s < 4; ++s) to[s * (COUNT / 4) + at] = row[s * 4];
}

extern "C" __global__ void __launch_bounds__(FIELD_THREADS, 2) field(const __grid_constant__ FieldArguments a) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  double* const shared = (double*)shared_bytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 k0 = (i64)blockIdx.x * TILE_F, m0 = (i64)blockIdx.y * TILE_R;
  const i64 slices = (a.n + SLICE - 1) / SLICE;
  const i64 first = slices * blockIdx.z / gridDim.z;
  const int count = (int)(slices * (blockIdx.z + 1) / gridDim.z - first);
  const int row = warp / (TILE_F / WARP_F) * WARP_R, column = warp % (TILE_F / WARP_F) * WARP_F;
  const int own_left = (row + lane / 4) * SLICE_ROW + lane % 4;
  const int own_right = (TILE_R + column + lane / 4) * SLICE_ROW + lane % 4;
  const SliceCopy copy(a, m0, k0);
  double sums[WARP_R / 16][WARP_F / 8][4] = {};
#pragma unroll
  for (int ahead = 0; ahead < STAGES - 1; ++ahead) {
    if (ahead < count) copy.run(shared + ahead * STAGE_SIZE, a, (first + ahead) * SLICE);
    commit_copies();
  }
  int stage = 0;
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    wait_copies<STAGES - 2>();
    __syncthreads();
    double* const slice = shared + stage * STAGE_SIZE;
    const i64 n = (first + s) * SLICE;
    if (a.n - n < SLICE) clear_behind(slice, a.n - n);
    if (s + STAGES - 1 < count)
      copy.run(shared + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_SIZE, a, n + (STAGES - 1) * SLICE);
    commit_copies();
    double right[WARP_F / 8][4];
#pragma unroll
    for (int j = 0; j < WARP_F / 8; ++j) load_steps(right[j], 0, slice + own_right + j * 8 * SLICE_ROW);
#pragma unroll
    for (int i = 0; i < WARP_R / 16; ++i) {
      double left[8];
#pragma unroll
      for (int h = 0; h < 2; ++h) load_steps(left, h, slice + own_left + (i * 16 + h * 8) * SLICE_ROW);
#pragma unroll
      for (int j = 0; j < WARP_F / 8; ++j) {
        double(&d)[4] = sums[i][j];
        multiply_16x8(d[0], d[1], d[2], d[3], left, right[j]);
      }
    }
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  double* out = (double*)a.out + (i64)blockIdx.z * a.out_split;
#pragma unroll
  for (int i = 0; i < WARP_R / 16; ++i)
#pragma unroll
    for (int j = 0; j < WARP_F / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const i64 m = m0 + row + i * 16 + e / 2 * 8 + lane / 4, k = k0 + column + j * 8 + lane % 4 * 2 + e % 2;
        if (m < a.m && k < a.k) out[m * a.out_row + k * a.out_feature] = sums[i][j][e];
      }
}
