// The sums of a tile of pairs (pair_tile.cuh) as products of float64 on tensor cores, from images
// (double_operands.cuh) in place of panels.
//
// Eight columns are the left operand's rows, eight rows the right one's columns: of the result a lane has two rows and
// one column, as Position says.
//
//   left   lane = 4 column + feature      right   lane = 4 row + feature      result   lane = 4 column + row / 2
#pragma once

#include "common/arguments.h"
#include "common/double_precision.cuh"
#include "common/double_units.cuh"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

// 16 features of the tile.
MERCER_INLINE void multiply_slice(Accumulators& acc, const REAL* slice, const Position& at) {
  constexpr int kRows = TILE_M / (THREAD_M / 2);  // from a thread's pair of rows to its next one
  const int feature = threadIdx.x % 4, row = at.ty / 4 * 8 + threadIdx.x % 32 / 4;
  double x[THREAD_M / 2][4];
#pragma unroll
  for (int i = 0; i < THREAD_M / 2; ++i)
#pragma unroll
    for (int s = 0; s < 4; ++s)
      x[i][s] = slice[place_of<1, PANEL_X>(4 * s + feature, 0, place_in_image(i * kRows + row, feature))];
#pragma unroll
  for (int j = 0; j < THREAD_N; j += 2) {
    double z[8];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int place = place_of<1, PANEL_Z>(4 * s + feature, 0, place_in_image(col_of(at, j), feature));
      const Pack<double, 2> both = *(const Pack<double, 2>*)(slice + SLICE_X + place);
      z[s * 2] = both.value[0];
      z[s * 2 + 1] = both.value[1];
    }
#pragma unroll
    for (int i = 0; i < THREAD_M / 2; ++i)
      multiply_16x8(acc.value[i * 2][j][0], acc.value[i * 2 + 1][j][0], acc.value[i * 2][j + 1][0],
                    acc.value[i * 2 + 1][j + 1][0], z, x[i]);
  }
}

#if SQUARES
// Pairs with a bit in `mask` again, from the values themselves, by the whole warp.
MERCER_INLINE void repair_pairs(Accumulators& acc, const PairArguments& a, const TilePlace& place, const Position& at,
                                u64 mask) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (u32 owners = __ballot_sync(0xffffffffu, mask != 0); owners; owners = __ballot_sync(0xffffffffu, mask != 0)) {
    const int owner = __ffs(owners) - 1, pair = __shfl_sync(0xffffffffu, __ffsll((long long)mask) - 1, owner);
    const int row = row_of(at, pair / THREAD_N), column = col_of(at, pair % THREAD_N);
    const i64 m = place.m0 + __shfl_sync(0xffffffffu, row, owner);
    const i64 n = place.n0 + __shfl_sync(0xffffffffu, column, owner);
    const double sum = direct_sum<1>(a, m, n);
    if (lane != owner) continue;
    mask &= mask - 1;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j)
        if (i * THREAD_N + j == pair) acc.value[i][j][0] = sum;
  }
}
#endif

// Sums of products become those of the formula.
MERCER_INLINE void to_sums(Accumulators& acc, const PairArguments& a, const TilePlace& place, const Position& at) {
#if SQUARES
  double z_norms[THREAD_N];
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) z_norms[j] = a.z.norms[place.n0 + col_of(at, j)];
  u64 cancels = 0;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    const i64 m = place.m0 + row_of(at, i);
    const double x_norm = a.x.norms[m];
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      const i64 n = place.n0 + col_of(at, j);
      const double norms = x_norm + z_norms[j];
      double& sum = acc.value[i][j][0];
      sum = mul_add(-2.0, sum, norms);
      // A point with itself, without asking: where its norm is finite.
      if (a.x.norms == a.z.norms && m == n && norms < INFINITY)
        sum = 0;
      else if (!(sum >= DOUBLE_CANCELS_BELOW * norms && norms < INFINITY) && m < a.m && n < a.n &&
               (!a.symmetric || m <= n))
        cancels |= (u64)1 << (i * THREAD_N + j);
      sum *= FACTOR;
    }
  }
  repair_pairs(acc, a, place, at, cancels);
#else
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) acc.value[i][j][0] *= FACTOR;
#endif
}
