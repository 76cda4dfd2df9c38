// PRODUCT: sums over n of value * v[n][e], COLUMNS of v at a time (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"
#include "pairs/tile_values.cuh"

// Where there are several columns, the eight threads of a row group end up with one row's sum each (a reduce-scatter).
#define SCATTERED (COLUMNS > 1)
#define FOLD_ROWS (SCATTERED ? 1 : THREAD_M)
// What a fold reads of a tile's columns. Loaded before the sums are made, a lone column of v costs no wait; products of
// float64 have no registers left for it.
struct LoadedColumns {
  REAL weights[THREAD_N];
};
struct UnloadedColumns {};
using FoldColumns = Either<COLUMNS == 1 && !DOUBLE_PRODUCTS, LoadedColumns, UnloadedColumns>;

struct Fold {
  typedef FoldColumns Columns;
  REAL sum[FOLD_ROWS][COLUMNS], total[FOLD_ROWS][COLUMNS];

  // Values of row i of a thread.
  template <bool WHOLE, class Columns>
  MERCER_METHOD void add_row(int i, const REAL (&values)[THREAD_N], const Columns& columns, i64, int left,
                             const Position& at) {
    REAL row = 0;
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
      if (WHOLE || col_of(at, j) < left) row = mul_add(values[j], columns.weights[j], row);
    sum[i][0] += row;
  }
};
MERCER_INLINE void start(Fold& fold) {
#pragma unroll
  for (int i = 0; i < FOLD_ROWS; ++i)
#pragma unroll
    for (int e = 0; e < COLUMNS; ++e) fold.sum[i][e] = fold.total[i][e] = 0;
}
// Sums of so many tiles go to totals: of equal addends, 256 additions would err by 4e-6.
#define TILES_OF_SUM 32
MERCER_INLINE void promote(Fold& fold) {
#pragma unroll
  for (int i = 0; i < FOLD_ROWS; ++i)
#pragma unroll
    for (int e = 0; e < COLUMNS; ++e) {
      fold.total[i][e] += fold.sum[i][e];
      fold.sum[i][e] = 0;
    }
}

// rows[THREAD_M] of eight threads → the sum of row `scattered_row` in each thread.
MERCER_INLINE REAL reduce_scatter(REAL (&rows)[THREAD_M]) {
  const int lane = threadIdx.x % 32;
  int left = THREAD_M;
#pragma unroll
  for (int offset = 4 * LANES_TX; offset >= LANES_TX; offset /= 2) {
    if (left > 1) {
      left /= 2;
      const bool upper = lane & offset;
#pragma unroll
      for (int r = 0; r < left; ++r) {
        const REAL mine = upper ? rows[r + left] : rows[r], other = upper ? rows[r] : rows[r + left];
        rows[r] = mine + __shfl_xor_sync(0xffffffffu, other, offset);
      }
    } else {
      rows[0] += __shfl_xor_sync(0xffffffffu, rows[0], offset);
    }
  }
  return rows[0];
}
MERCER_INLINE int scattered_row() {
  const int lane = threadIdx.x % 32;
  int row = 0, left = THREAD_M;
  for (int offset = 4 * LANES_TX; offset >= LANES_TX && left > 1; offset /= 2) {
    left /= 2;
    if (lane & offset) row += left;
  }
  return row;
}
MERCER_INLINE bool writes_scattered_row() {
  const int tx = threadIdx.x / LANES_TX % 8;
  return THREAD_M >= 8 || tx % (8 / (THREAD_M < 8 ? THREAD_M : 8)) == 0;
}

// Columns that there are not repeat the last one; nobody stores them.
MERCER_INLINE void load_weights(REAL (&weights)[THREAD_N], const PairArguments& a, const REAL* v, int e, i64 n0,
                                const Position& at) {
  const REAL* column = COLUMNS == 1 ? v + n0 : v + (e < a.v.columns ? e : a.v.columns - 1) * a.v.ld + n0;
#pragma unroll
  for (int j = 0; j < THREAD_N; j += VECTOR_N) {
    const Pack<REAL, VECTOR_N> pack = *(const Pack<REAL, VECTOR_N>*)(column + col_of(at, j));
#pragma unroll
    for (int c = 0; c < VECTOR_N; ++c) weights[j + c] = pack.value[c];
  }
}

MERCER_INLINE void load_columns(LoadedColumns& columns, const PairArguments& a, const REAL* v, i64 n0,
                                const Position& at) {
  load_weights(columns.weights, a, v, 0, n0, at);
}
MERCER_INLINE void column_weights(REAL (&weights)[THREAD_N], const LoadedColumns& columns, const PairArguments&,
                                  const REAL*, int, i64, const Position&) {
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) weights[j] = columns.weights[j];
}
MERCER_INLINE void load_columns(UnloadedColumns&, const PairArguments&, const REAL*, i64, const Position&) {}
MERCER_INLINE void column_weights(REAL (&weights)[THREAD_N], const UnloadedColumns&, const PairArguments& a,
                                  const REAL* v, int e, i64 n0, const Position& at) {
  load_weights(weights, a, v, e, n0, at);
}

MERCER_INLINE void fold_tile(Fold& fold, const Accumulators& acc, const PairArguments& a, const REAL* params,
                             const REAL* v, const FoldColumns& columns, const TilePlace& place, REAL step,
                             REAL* scratch) {
  const Position at = position();
  const i64 n0 = place.n0;
  const int left = columns_left(a, n0);
  const bool whole = left == TILE_N;
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place, step, scratch);
  if (!whole) {
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      if (col_of(at, j) < left) continue;
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i) values[i][j] = 0;
    }
  }
#pragma unroll
  for (int e = 0; e < COLUMNS; ++e) {
    REAL weights[THREAD_N];
    column_weights(weights, columns, a, v, e, n0, at);
    if (!whole) {
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j)
        if (n0 + col_of(at, j) >= a.n) weights[j] = 0;  // by `left`, 16 columns spill
    }
    REAL rows[THREAD_M];
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
      rows[i] = values[i][0] * weights[0];
#pragma unroll
      for (int j = 1; j < THREAD_N; ++j) rows[i] = mul_add(values[i][j], weights[j], rows[i]);
      if (!SCATTERED) fold.sum[i][e] += rows[i];
    }
    if (SCATTERED) fold.sum[0][e] += reduce_scatter(rows);
  }
}

MERCER_INLINE void finish(Fold& fold, const PairArguments& a, REAL* shared, i64 m0, i64 split, i64 group,
                          const Position& at) {
  promote(fold);
  REAL* partial = (REAL*)a.out.data + (group * a.splits + split) * a.v.partial_columns * a.out.partial_ld;
  const int strips = THREADS_N / 8, strip = at.tx / 8;
#pragma unroll
  for (int e = 0; e < COLUMNS; ++e) {
    if (e >= a.v.columns) break;
    __syncthreads();
    if (SCATTERED) {
      if (writes_scattered_row()) shared[strip * TILE_M + row_of(at, scattered_row())] = fold.total[0][e];
    } else {
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i) {
        REAL sum = fold.total[SCATTERED ? 0 : i][e];
        for (int offset = 4 * LANES_TX; offset >= LANES_TX; offset /= 2)
          sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (at.tx % 8 == 0) shared[strip * TILE_M + row_of(at, i)] = sum;
      }
    }
    __syncthreads();
    for (int r = threadIdx.x; r < TILE_M; r += THREADS) {
      REAL sum = shared[r];
      for (int s = 1; s < strips; ++s) sum += shared[s * TILE_M + r];
      if constexpr (EXPANDED == 1) sum *= a.expanded.row_factors[m0 + r];
      if (m0 + r < a.m) partial[e * a.out.partial_ld + m0 + r] = sum;
    }
  }
}
