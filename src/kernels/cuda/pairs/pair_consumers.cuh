// What becomes of the values of a tile: stored, multiplied with v, or folded over n (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

// ---- STORE ----------------------------------------------------------------------------------------------------------
#if CONSUMER == 0
// Rows `first` … of the thread's pairs, one after the other, with all that can be asked of a store: edges, any strides,
// the mirrored half. A function of its own: its registers are not the fast path's.
static __device__ __noinline__ void store_rows(const PairArguments& a, const REAL* params, OUT* out, i64 m0, i64 n0,
                                               i64 x_set, i64 z_set, const REAL* own, int first) {
  const TilePlace place{m0, n0, x_set, z_set};
  // Pairs on and above the diagonal of a symmetric matrix are kept; whatever is stored is mirrored.
  const bool mirror = a.symmetric, diagonal = mirror && place.n0 < place.m0 + TILE_M;
#pragma unroll 1
  for (int pair = 0; pair < SCRATCH_ROWS * THREAD_N && first + pair / THREAD_N < THREAD_M; ++pair) {
    const i64 m = place.m0 + row_of(position(), first + pair / THREAD_N);
    const i64 n = place.n0 + col_of(position(), pair % THREAD_N);
    if (m >= a.m || n >= a.n || (diagonal && n < m)) continue;
    REAL outputs[OUTPUTS];
    epilogue_of(outputs, own, pair, m, n, a, params, place);
#pragma unroll
    for (int p = 0; p < OUTPUTS; ++p) {
      OUT value;
      convert(value, outputs[p]);
      out[p * a.out_plane + m * a.out_row + n * a.out_col] = value;
      if (mirror && n != m) out[p * a.out_plane + n * a.out_row + m * a.out_col] = value;
    }
  }
}

// Quick kernels are compiled sooner without it.
#define HAS_FAST_PATH (!LONG_EPILOGUE && !MERCER_QUICK)
#if HAS_FAST_PATH
// The fast path: whole tiles, vectors of values along n; of a symmetric matrix those above the diagonal, and their
// mirror images as vectors along m.
MERCER_INLINE void store_whole(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                               const TilePlace& place) {
  const Position at = position();
  OUT* row = out + (place.m0 + row_of(at, 0)) * a.out_row + place.n0 + col_of(at, 0);
  REAL own[PARAMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p) own[p] = params[p];
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, position());
  Pack<OUT, VECTOR_M> columns[OUTPUTS * THREAD_N];
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    if (i > 0) row += (row_of(at, i) - row_of(at, i - 1)) * a.out_row;
#pragma unroll
    for (int j0 = 0; j0 < THREAD_N; j0 += VECTOR_N) {
      Pack<OUT, VECTOR_N> pack[OUTPUTS];
#pragma unroll
      for (int c = 0; c < VECTOR_N; ++c) {
        REAL outputs[OUTPUTS];
        epilogue(outputs, acc.value[i][j0 + c], points.row[i], points.col[j0 + c], own, points.i[i],
                 points.j[j0 + c], (REAL)a.features);
#pragma unroll
        for (int p = 0; p < OUTPUTS; ++p) {
          convert(pack[p].value[c], outputs[p]);
          columns[p * THREAD_N + j0 + c].value[i % VECTOR_M] = pack[p].value[c];
        }
      }
#pragma unroll
      for (int p = 0; p < OUTPUTS; ++p)
        store_pack(row + p * a.out_plane + (col_of(at, j0) - col_of(at, 0)), pack[p]);
    }
    if (i % VECTOR_M != VECTOR_M - 1 || !a.symmetric) continue;
    OUT* column = out + place.m0 + row_of(at, i - (VECTOR_M - 1)) + place.n0 * a.out_row;
#pragma unroll
    for (int p = 0; p < OUTPUTS; ++p)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j)
        store_pack(column + p * a.out_plane + col_of(at, j) * a.out_row, columns[p * THREAD_N + j]);
  }
}
#endif

MERCER_INLINE void store_values(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                                const TilePlace& place, REAL* scratch) {
#if HAS_FAST_PATH
  constexpr int kLongest = VECTOR_N > VECTOR_M ? VECTOR_N : VECTOR_M;
  const bool whole = place.m0 + TILE_M <= a.m && place.n0 + TILE_N <= a.n && a.out_col == 1 &&
                     a.out_row % kLongest == 0 && (u64)out % (kLongest * sizeof(OUT)) == 0 &&
                     (OUTPUTS == 1 || a.out_plane % kLongest == 0);
  if (whole && (!a.symmetric || place.n0 >= place.m0 + TILE_M)) return store_whole(acc, a, params, out, place);
#endif
  // The slices are done with: their memory is scratch.
  if (ONE_TILE) __syncthreads();
#pragma unroll
  for (int first = 0; first < THREAD_M; first += SCRATCH_ROWS) {
    to_scratch(acc, first, scratch + threadIdx.x);
    store_rows(a, params, out, place.m0, place.n0, place.x_set, place.z_set, scratch + threadIdx.x, first);
  }
}

MERCER_STEP void store_tile(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                            const TilePlace& place, REAL* scratch) {
#if GUARDED
  const u64 marked = marked_pairs(acc);
#endif
  store_values(acc, a, params, out, place, scratch);
#if GUARDED
  if (__any_sync(0xffffffffu, marked != 0))
    store_again(marked, a, params, out, place.m0, place.n0, place.x_set, place.z_set);
#endif
}
#else
MERCER_INLINE int columns_left(const PairArguments& a, i64 n0) { return a.n - n0 < TILE_N ? (int)(a.n - n0) : TILE_N; }

// Values of the tile for a fold over n.
MERCER_INLINE void tile_values(REAL (&values)[THREAD_M][THREAD_N], const Accumulators& acc, const PairArguments& a,
                               const REAL* params, const TilePlace& place, REAL step, REAL* scratch) {
#if GUARDED && !BY_ROWS
  const u64 marked = marked_pairs(acc);
#endif
#if LONG_EPILOGUE
  // A row's values take the places of its first states.
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
#else
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, position());
  REAL numbers[PARAMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p) numbers[p] = params[p];
#if MIXED == 1
  if (RATE_SLOT >= 0) numbers[RATE_SLOT >= 0 ? RATE_SLOT : 0] *= step;
#endif
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      REAL outputs[OUTPUTS];
      epilogue(outputs, acc.value[i][j], points.row[i], points.col[j], numbers, points.i[i], points.j[j],
               (REAL)a.features);
      values[i][j] = outputs[0];
    }
#endif
#if GUARDED && !BY_ROWS
  take_again<THREAD_M * THREAD_N>(marked, 0, a, params, place,
                                  [&](int at) -> REAL& { return values[at / THREAD_N][at % THREAD_N]; });
#endif
}
#endif

// ---- PRODUCT: sums over n of value * v[n][e], COLUMNS of v at a time ------------------------------------------------
#if CONSUMER == 1
// With several columns, the eight threads of a row group end up with one row's sum each (a reduce-scatter).
#define SCATTERED (COLUMNS > 1)
#define FOLD_ROWS (SCATTERED ? 1 : THREAD_M)
struct Fold {
  REAL sum[FOLD_ROWS][COLUMNS], total[FOLD_ROWS][COLUMNS];
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
  const REAL* column = COLUMNS == 1 ? v + n0 : v + (e < a.columns ? e : a.columns - 1) * a.v_ld + n0;
#pragma unroll
  for (int j = 0; j < THREAD_N; j += VECTOR_N) {
    const Pack<REAL, VECTOR_N> pack = *(const Pack<REAL, VECTOR_N>*)(column + col_of(at, j));
#pragma unroll
    for (int c = 0; c < VECTOR_N; ++c) weights[j + c] = pack.value[c];
  }
}

// What a fold reads of a tile's columns. Loaded before the sums are made, a lone column of v costs no wait; products of
// float64 have no registers left for it.
#if COLUMNS == 1 && !DOUBLE_PRODUCTS
struct FoldColumns {
  REAL weights[THREAD_N];
};
MERCER_INLINE void load_columns(FoldColumns& columns, const PairArguments& a, const REAL* v, i64 n0,
                                const Position& at) {
  load_weights(columns.weights, a, v, 0, n0, at);
}
MERCER_INLINE void column_weights(REAL (&weights)[THREAD_N], const FoldColumns& columns, const PairArguments&,
                                  const REAL*, int, i64, const Position&) {
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) weights[j] = columns.weights[j];
}
#else
struct FoldColumns {};
MERCER_INLINE void load_columns(FoldColumns&, const PairArguments&, const REAL*, i64, const Position&) {}
MERCER_INLINE void column_weights(REAL (&weights)[THREAD_N], const FoldColumns&, const PairArguments& a, const REAL* v,
                                  int e, i64 n0, const Position& at) {
  load_weights(weights, a, v, e, n0, at);
}
#endif

#if BY_ROWS
template <bool WHOLE>
MERCER_INLINE void fold_row(Fold& fold, int i, const REAL (&values)[THREAD_N], const FoldColumns& columns, i64,
                            int left, const Position& at) {
  REAL row = 0;
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j)
    if (WHOLE || col_of(at, j) < left) row = mul_add(values[j], columns.weights[j], row);
  fold.sum[i][0] += row;
}
#endif

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
  REAL* partial = (REAL*)a.out + (group * a.splits + split) * a.partial_columns * a.partial_ld;
  const int strips = THREADS_N / 8, strip = at.tx / 8;
#pragma unroll
  for (int e = 0; e < COLUMNS; ++e) {
    if (e >= a.columns) break;
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
#if EXPANDED == 1
      sum *= a.row_factors[m0 + r];
#endif
      if (m0 + r < a.m) partial[e * a.partial_ld + m0 + r] = sum;
    }
  }
}
#endif

// ---- FOLD: one state a row ------------------------------------------------------------------------------------------
#if CONSUMER == 2
struct Fold {
  FoldState row[THREAD_M];
};
MERCER_INLINE void start(Fold& fold) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) fold.row[i] = empty_state();
}
#define TILES_OF_SUM 0x7fffffff
MERCER_INLINE void promote(Fold&) {}
template <bool WHOLE>
MERCER_INLINE void merge_row(FoldState& row, const REAL (&values)[THREAD_N], i64 n0, int left, const Position& at) {
  int count = WHOLE ? THREAD_N : 0;
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j)
    if (!WHOLE) count += col_of(at, j) < left;
  merge_values(row, values, count, [&](int j) { return n0 + col_of(at, j); });
}

struct FoldColumns {};
MERCER_INLINE void load_columns(FoldColumns&, const PairArguments&, const REAL*, i64, const Position&) {}
#if BY_ROWS
template <bool WHOLE>
MERCER_INLINE void fold_row(Fold& fold, int i, const REAL (&values)[THREAD_N], const FoldColumns&, i64 n0, int left,
                            const Position& at) {
  merge_row<WHOLE>(fold.row[i], values, n0, left, at);
}
#endif

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
  const i64 first = (group * a.splits + split) * a.partial_ld;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    __syncthreads();
    states[at.ty * THREADS_N + at.tx] = fold.row[i];
    __syncthreads();
    if (at.tx == 0) {
      FoldState state = states[at.ty * THREADS_N];
      for (int t = 1; t < THREADS_N; ++t) merge(state, states[at.ty * THREADS_N + t]);
      const i64 m = m0 + row_of(at, i);
      if (m < a.m) ((FoldState*)a.out)[first + m] = state;
    }
  }
}
#endif

// ---- STORE, NEAREST: nothing is kept from tile to tile --------------------------------------------------------------
#if CONSUMER == 0 || CONSUMER == 3
struct Fold {};
MERCER_INLINE void start(Fold&) {}
#define TILES_OF_SUM 0x7fffffff
MERCER_INLINE void promote(Fold&) {}
struct FoldColumns {};
MERCER_INLINE void load_columns(FoldColumns&, const PairArguments&, const REAL*, i64, const Position&) {}
MERCER_INLINE void finish(Fold&, const PairArguments&, REAL*, i64, i64, i64, const Position&) {}
#endif

// ---- NEAREST: values that may be among the smallest of their rows ---------------------------------------------------
#if CONSUMER == 3
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
#endif
