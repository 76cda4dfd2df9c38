// Folds over n of which some columns have values that a mask knows (backend/cuda/pairs/mask_strips.h): their states are
// merged with the partial ones of the columns between them, as merge.cuh merges these.
//
//   FOLD_KIND  OUT  REAL
#pragma once

#include "common/prelude.cuh"
#include "pairs/fold.cuh"
#include "pairs/skipped.h"

#define KNOWN_THREADS 256

// The state of `count` columns from `first` on that all have a value.
MERCER_INLINE FoldState state_of_known(REAL value, i64 count, i64 first) {
#if FOLD_KIND == 5
  return {value, (REAL)count};
#elif FOLD_KIND == 3 || FOLD_KIND == 4
  return {value, first};
#else
  return state_of(FOLD_KIND == 0 ? value * (REAL)count : value);
#endif
}

extern "C" __global__ void __launch_bounds__(KNOWN_THREADS) merge_known(const __grid_constant__ KnownFoldArguments a) {
  const i64 m = (i64)blockIdx.x * KNOWN_THREADS + threadIdx.x;
  if (m >= a.m) return;
  const FoldState* partial = (const FoldState*)a.partial + m;
  FoldState state = empty_state();
  if (a.column > 0) merge(state, state_of_known((REAL)a.before, a.column, 0));
  for (int s = 0; s < a.splits; ++s) {
    FoldState one = partial[(i64)s * a.ld];
#if FOLD_KIND == 3 || FOLD_KIND == 4
    if (one.index >= 0) one.index += a.column;
#endif
    merge(state, one);
  }
  if (a.end < a.n) merge(state, state_of_known((REAL)a.after, a.n - a.end, a.end));
  convert(((OUT*)a.out)[m * a.out_row], result(state));
}
