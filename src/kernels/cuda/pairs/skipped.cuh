// Around the pairs that a call computes: what rows of v that a product skips add to it (their values are 0, and 0 v is
// 0 where v is finite, else NaN), known values of a matrix, and mirror images of what a symmetric one has.
#pragma once

#include "common/prelude.cuh"
#include "pairs/skipped.h"

#define SKIPPED_THREADS 256

// A thread has a column of the rows that share a flag; neighbours have neighbouring columns.
extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS)
    find_not_finite(const __grid_constant__ SkippedArguments a) {
  const i64 at = (i64)blockIdx.x * SKIPPED_THREADS + threadIdx.x;
  if (at >= a.blocks * a.columns) return;
  const i64 block = at / a.columns, column = at % a.columns, first = block * a.points;
  const int count = (int)(a.n - first < a.points ? a.n - first : a.points);
  const POINT* v = (const POINT*)a.v + first * a.v_row + column * a.v_column;
  bool found = false;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const REAL value = widen<REAL>(v[i * a.v_row]);
    found = found || value - value != 0;
  }
  a.flags[column * a.blocks + block] = found;
}

// Whether a flag is set outside of the blocks that were computed, of those that this thread looks at.
MERCER_INLINE int is_skipped(const unsigned char* flags, i64 blocks, i64 first, i64 end) {
  int found = 0;
  for (i64 block = threadIdx.x; block < blocks; block += SKIPPED_THREADS)
    found |= (block < first || block >= end) && flags[block] != 0;
  return found;
}

// A block has some rows of one column.
extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS)
    mark_skipped(const __grid_constant__ SkippedArguments a) {
  const int found = is_skipped(a.flags + blockIdx.y * a.blocks, a.blocks, a.first, a.end);
  const i64 m = (i64)blockIdx.x * SKIPPED_THREADS + threadIdx.x;
  if (!__syncthreads_or(found) || m >= a.m) return;
  convert(((OUT*)a.out)[m * a.out_row + blockIdx.y * a.out_column], (REAL)(INFINITY - INFINITY));
}

// A block has some rows of one feature and one output.
extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS)
    mark_field(const __grid_constant__ SkippedFieldArguments a) {
  const i64 m = (i64)blockIdx.x * SKIPPED_THREADS + threadIdx.x, feature = blockIdx.y, output = blockIdx.z;
  int found = 0;
  if (a.coef != nullptr) {
    const i64 count = a.factors > 0 ? a.factors : 1, from = a.factors > 0 ? 0 : output;
    for (i64 c = 0; c < count; ++c) found |= is_skipped(a.coef + (from + c) * a.blocks, a.blocks, a.first, a.end);
  }
  if (a.z != nullptr) found |= is_skipped(a.z + feature * a.blocks, a.blocks, a.first, a.end);
  found = __syncthreads_or(found);
  if (m >= a.m) return;
  if (a.x != nullptr) found |= a.x[feature * a.flag_rows + m];
  for (i64 c = 0; c < a.factors && a.rows != nullptr; ++c) found |= a.rows[c * a.flag_rows + m];
  OUT* const out = (OUT*)a.out + output * a.out_output + m * a.out_row + feature * a.out_feature;
  if (found) convert(*out, (REAL)(INFINITY - INFINITY));
}

// Threads go along the columns; blocks along the second axis of the grid take rows in turn.
extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS) fill_known(const __grid_constant__ KnownArguments a) {
  constexpr int WIDTH = MERCER_KNOWN_BYTES / (int)sizeof(OUT);
  const i64 first = ((i64)blockIdx.x * SKIPPED_THREADS + threadIdx.x) * WIDTH;
  if (first >= a.n) return;
  Pack<OUT, WIDTH> pack;
#pragma unroll
  for (int w = 0; w < WIDTH; ++w) convert(pack.value[w], (REAL)a.value);
  for (i64 m = blockIdx.y; m < a.m; m += gridDim.y) {
    OUT* const out = (OUT*)a.out + m * a.out_row + first * a.out_column;
    const bool packs = a.n - first >= WIDTH && a.out_column == 1 && (u64)out % MERCER_KNOWN_BYTES == 0;
    if (packs) store_pack(out, pack);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w)
      if (!packs && first + w < a.n) out[w * a.out_column] = pack.value[w];
  }
}

extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS) mirror_pairs(const __grid_constant__ MirrorArguments a) {
  constexpr int SIDE = MERCER_MIRROR_SIDE, STEP = SKIPPED_THREADS / SIDE;
  __shared__ OUT tile[SIDE][SIDE + 1];
  const i64 m0 = (i64)blockIdx.y * SIDE, n0 = (i64)blockIdx.x * SIDE;
  const int lane = threadIdx.x % SIDE;
#pragma unroll
  for (int i = threadIdx.x / SIDE; i < SIDE; i += STEP) {
    const i64 m = m0 + i, n = n0 + lane;
    if (m < a.m && n < a.n) tile[i][lane] = ((const OUT*)a.from)[m * a.out_row + n * a.out_column];
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x / SIDE; i < SIDE; i += STEP) {
    const i64 m = m0 + lane, n = n0 + i;
    if (m < a.m && n < a.n && n + a.ahead > m) ((OUT*)a.to)[n * a.out_row + m * a.out_column] = tile[lane][i];
  }
}
