// The values of a tile for a fold over n (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

MERCER_INLINE int columns_left(const PairArguments& a, i64 n0) { return a.n - n0 < TILE_N ? (int)(a.n - n0) : TILE_N; }

// A row's values take the places of its first states.
MERCER_INLINE void long_values(REAL (&values)[THREAD_M][THREAD_N], const Accumulators& acc, const PairArguments& a,
                               const REAL* params, const TilePlace& place, REAL* scratch) {
  REAL* own = scratch + threadIdx.x;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    to_scratch(acc, i, own);
#pragma unroll 1
    for (int j = 0; j < THREAD_N; ++j) {
      REAL outputs[OUTPUTS];
      const i64 m = place.m0 + row_of(position(), i), n = place.n0 + col_of(position(), j);
      epilogue_of(outputs, own, j, m, n, a, params, place);
      own[j * (STATES + (STATES == 0)) * THREADS] = outputs[0];
    }
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) values[i][j] = own[j * (STATES + (STATES == 0)) * THREADS];
  }
}
// On mixed pipes the parameter that sums are multiplied with takes their `step`.
MERCER_INLINE void short_values(REAL (&values)[THREAD_M][THREAD_N], const Accumulators& acc, const PairArguments& a,
                                const REAL* params, const TilePlace& place, REAL step) {
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, position());
  REAL numbers[PARAMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p) numbers[p] = params[p];
  if (MIXED == 1 && RATE_SLOT >= 0) numbers[RATE_SLOT >= 0 ? RATE_SLOT : 0] *= step;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      REAL outputs[OUTPUTS];
      epilogue(outputs, acc.value[i][j], points.row[i], points.col[j], numbers, points.i[i], points.j[j],
               (REAL)a.features);
      values[i][j] = outputs[0];
    }
}

// Values of the tile for a fold over n.
MERCER_INLINE void tile_values(REAL (&values)[THREAD_M][THREAD_N], const Accumulators& acc, const PairArguments& a,
                               const REAL* params, const TilePlace& place, REAL step, REAL* scratch) {
  const u64 marked = marked_pairs(acc);
  if constexpr (LONG_EPILOGUE)
    long_values(values, acc, a, params, place, scratch);
  else
    short_values(values, acc, a, params, place, step);
  take_again<THREAD_M * THREAD_N>(marked, 0, a, params, place,
                                  [&](int at) -> REAL& { return values[at / THREAD_N][at % THREAD_N]; });
}
