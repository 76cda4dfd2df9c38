// FOLD: one state a row (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/fold.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"
#include "pairs/tile_values.cuh"

#define TILES_OF_SUM 0x7fffffff

template <bool WHOLE>
MERCER_INLINE void merge_row(FoldState& row, const REAL (&values)[THREAD_N], i64 n0, int left, const Position& at) {
  int count = WHOLE ? THREAD_N : 0;
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j)
    if (!WHOLE) count += col_of(at, j) < left;
  merge_values(row, values, count, [&](int j) { return n0 + col_of(at, j); });
}

struct FoldColumns {};
struct Fold {
  typedef FoldColumns Columns;
  FoldState row[THREAD_M];

  // Values of row i of a thread.
  template <bool WHOLE>
  MERCER_METHOD void add_row(int i, const REAL (&values)[THREAD_N], const FoldColumns&, i64 n0, int left,
                             const Position& at) {
    merge_row<WHOLE>(row[i], values, n0, left, at);
  }
};
MERCER_INLINE void start(Fold& fold) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) fold.row[i] = empty_state();
}
MERCER_INLINE void promote(Fold&) {}
MERCER_INLINE void load_columns(FoldColumns&, const PairArguments&, const REAL*, i64, const Position&) {}

MERCER_INLINE void fold_tile(Fold& fold, const Accumulators& acc, const PairArguments& a, const REAL* params,
                             const REAL*, const FoldColumns&, const TilePlace& place, REAL step, REAL* scratch) {
  const Position at = position();
  const int left = columns_left(a, place.n0);
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place, step, scratch);
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) merge_row<false>(fold.row[i], values[i], place.n0, left, at);
}
MERCER_INLINE void finish(Fold& fold, const PairArguments& a, REAL* shared, i64 m0, i64 split, i64 group,
                          const Position& at) {
  FoldState* states = (FoldState*)shared;
  const i64 first = (group * a.splits + split) * a.out.partial_ld;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    __syncthreads();
    states[at.ty * THREADS_N + at.tx] = fold.row[i];
    __syncthreads();
    if (at.tx == 0) {
      FoldState state = states[at.ty * THREADS_N];
      for (int t = 1; t < THREADS_N; ++t) merge(state, states[at.ty * THREADS_N + t]);
      const i64 m = m0 + row_of(at, i);
      if (m < a.m) ((FoldState*)a.out.data)[first + m] = state;
    }
  }
}
