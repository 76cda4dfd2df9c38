// Few features: a tile's rows one after the other, each through its epilogue into the fold (pair_tile.cuh). The special
// functions of one row run during the additions of the next, and no tile of accumulators is held.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"
#include "pairs/tile_values.cuh"

template <bool WHOLE, class Fold>
MERCER_INLINE void fold_rows(Fold& fold, const PairArguments& a, const Operands& from, const REAL* w,
                             const REAL* params, const REAL* v, const TilePlace& place, const Position& at) {
  const int left = columns_left(a, place.n0);
  const REAL features = (REAL)a.features;
  typename Fold::Columns columns;
  load_columns(columns, a, v, place.n0, at);
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, at);
  REAL numbers[PARAMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p) numbers[p] = params[p];
  REAL z[TILE_K][THREAD_N][Z_STREAMS + (Z_STREAMS == 0)];
#pragma unroll
  for (int kk = 0; kk < TILE_K; ++kk)
    load_operands<PlacesZ>(z[kk], from.z, kk);
#pragma unroll
  for (int first = 0; first < THREAD_M; first += VECTOR_M) {
    REAL x[TILE_K][VECTOR_M][X_STREAMS + (X_STREAMS == 0)];
#pragma unroll
    for (int kk = 0; kk < TILE_K; ++kk)
      load_operands<PlacesX>(x[kk], from.x, kk, first);
#pragma unroll
    for (int c = 0; c < VECTOR_M; ++c) {
      const int i = first + c;
      REAL values[THREAD_N];
      u32 marked = 0;
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) {
        REAL acc[STATES + (STATES == 0)], outputs[OUTPUTS];
#if FIRST_UPDATE
        first_update(acc, x[0][c], z[0][j], READS_WEIGHTS ? w[0] : (REAL)0, points.row[i], points.col[j], numbers,
                     points.i[i], points.j[j], features);
#else
        identity(acc);
#endif
#if EXPANDED == 1
        REAL second[1] = {};
#pragma unroll
        for (int kk = 0; kk < TILE_K; ++kk)
          update(kk < FIRST_FEATURES ? acc : second, x[kk][c], z[kk][j], 0, points.row[i], points.col[j], numbers,
                 points.i[i], points.j[j], features);
        if (FIRST_FEATURES < TILE_K) acc[0] += second[0];
#else
#pragma unroll
        for (int kk = FIRST_UPDATE; kk < TILE_K; ++kk)
          update(acc, x[kk][c], z[kk][j], READS_WEIGHTS ? w[kk] : (REAL)0, points.row[i], points.col[j], numbers,
                 points.i[i], points.j[j], features);
#endif
        epilogue(outputs, acc, points.row[i], points.col[j], numbers, points.i[i], points.j[j], features);
        values[j] = outputs[0];
        if (is_out_of_range(acc)) marked |= 1u << j;
      }
      take_again<THREAD_N>(marked, i * THREAD_N, a, params, place, [&](int j) -> REAL& { return values[j]; });
      fold.template add_row<WHOLE>(i, values, columns, place.n0, left, at);
    }
  }
}
