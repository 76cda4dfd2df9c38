// NEAREST: values that may be among the smallest of their rows are kept (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "nearest/candidates.cuh"
#include "pairs/no_fold.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"
#include "pairs/tile_values.cuh"

MERCER_INLINE void fold_tile(Fold&, const Accumulators& acc, const PairArguments& a, const REAL* params, const REAL*,
                             const FoldColumns&, const TilePlace& place, REAL step, REAL* scratch) {
  const Position at = position();
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place, step, scratch);
  float bound[THREAD_M];
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) bound[i] = candidate_bound(a, place.m0 + row_of(at, i));
  if (place.n0 + TILE_N > a.n) {
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      if (place.n0 + col_of(at, j) < a.n) continue;
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i) values[i][j] = NO_VALUE;
    }
  }
  keep_candidates<THREAD_M, THREAD_N>(
      a.found, bound, [&](int i, int j) { return values[i][j]; }, [&](int i) { return place.m0 + row_of(at, i); },
      [&](int j) { return place.n0 + col_of(at, j); });
}
