// STORE: the values of a tile go to out (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/no_fold.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

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
      out[p * a.out.plane + m * a.out.row + n * a.out.column] = value;
      if (mirror && n != m) out[p * a.out.plane + n * a.out.row + m * a.out.column] = value;
    }
  }
}

// Quick kernels are compiled sooner without it.
#define HAS_FAST_PATH (!LONG_EPILOGUE && !MERCER_QUICK)
// The fast path: whole tiles, vectors of values along n; of a symmetric matrix those above the diagonal, and their
// mirror images as vectors along m.
MERCER_INLINE void store_whole(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                               const TilePlace& place) {
  const Position at = position();
  OUT* row = out + (place.m0 + row_of(at, 0)) * a.out.row + place.n0 + col_of(at, 0);
  REAL own[PARAMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p) own[p] = params[p];
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, position());
  Pack<OUT, VECTOR_M> columns[OUTPUTS * THREAD_N];
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    if (i > 0) row += (row_of(at, i) - row_of(at, i - 1)) * a.out.row;
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
      for (int p = 0; p < OUTPUTS; ++p) store_pack(row + p * a.out.plane + (col_of(at, j0) - col_of(at, 0)), pack[p]);
    }
    if (i % VECTOR_M != VECTOR_M - 1 || !a.symmetric) continue;
    OUT* column = out + place.m0 + row_of(at, i - (VECTOR_M - 1)) + place.n0 * a.out.row;
#pragma unroll
    for (int p = 0; p < OUTPUTS; ++p)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j)
        store_pack(column + p * a.out.plane + col_of(at, j) * a.out.row, columns[p * THREAD_N + j]);
  }
}

MERCER_INLINE void store_values(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                                const TilePlace& place, REAL* scratch) {
  if constexpr (HAS_FAST_PATH) {
    constexpr int kLongest = VECTOR_N > VECTOR_M ? VECTOR_N : VECTOR_M;
    const bool whole = place.m0 + TILE_M <= a.m && place.n0 + TILE_N <= a.n && a.out.column == 1 &&
                       a.out.row % kLongest == 0 && (u64)out % (kLongest * sizeof(OUT)) == 0 &&
                       (OUTPUTS == 1 || a.out.plane % kLongest == 0);
    if (whole && (!a.symmetric || place.n0 >= place.m0 + TILE_M)) return store_whole(acc, a, params, out, place);
  }
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
  const u64 marked = marked_pairs(acc);
  store_values(acc, a, params, out, place, scratch);
  if constexpr (GUARDED)
    if (__any_sync(0xffffffffu, marked != 0))
      store_again(marked, a, params, out, place.m0, place.n0, place.x_set, place.z_set);
}
