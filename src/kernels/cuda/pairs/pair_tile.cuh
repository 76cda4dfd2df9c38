// A tile of pairs: accumulate over the features in registers, then the epilogue, then what the verb makes of the
// values.
//
//   acc[s][m][n] = fold over k of update(acc, x[k][·][m], z[k][·][n], w[k], …)
//   value        = epilogue(acc, row[m], col[n], i, j, …)
//   STORE        out[m][n] = value             PRODUCT  out[m][e] = sum over n of value * v[n][e]
//   FOLD         out[m] = max, argmin, … over n     NEAREST  values that may be among the smallest of row m are kept
//
//             TILE_N: thread tx owns THREAD_N columns, in groups of VECTOR, TILE_N / groups apart
//            ┌──────────────────────────────┐
//   TILE_M   │ warp: 4 x 8 threads          │     shared memory: STAGES x TILE_K features of both panels, copied
//            │ thread: THREAD_M x THREAD_N  │     asynchronously; partial sums promoted every `chunk` features
//            └──────────────────────────────┘
//
// A block owns one tile of m and one tile of n (STORE) or a range of them. Steps over (tile of n, slice of k) form one
// pipeline, so that it never drains between tiles. Configuration: the #defines and functions that codegen puts before.
// Parts: pair_slices.cuh, pair_update.cuh, pair_integers.cuh (MIXED 1), pair_rows.cuh, pair_differences.cuh
// (DIFFERENCES 1; 2 is the tile of values that have no pieces), and of what becomes of values tile_stored.cuh,
// tile_products.cuh, tile_folds.cuh or tile_nearest.cuh; this file is the kernel. It computes what products on tensor
// cores leave to it: with REGIONS tiles of a matrix (pair_regions.cuh), as FALLBACK all or nothing, BY_TURNS in blocks
// that stay, and of a product COLUMNS of v at a time. With DOUBLE_PRODUCTS those products are its own
// (double_products.cuh). With RANGES blocks share the features of a tile (pair_ranges.cuh).
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

// Functions of this file are templates, so that the compiler looks up parts of a kernel only where it has them: what a
// plan lacks is not declared. `Arguments` are PairArguments, `Sums` Accumulators.

// What the accumulators stand for, in their place.
template <class Sums, class Arguments>
MERCER_INLINE void finish_sums(Sums& acc, const Arguments& a, const TilePlace& place, const Position& at) {
  if constexpr (BYTES) to_floats(acc);
  if constexpr (MIXED == 1) to_values(acc, a, place, at);
  if constexpr (DOUBLE_PRODUCTS) to_sums(acc, a, place, at);
  if constexpr (PLANES > 0) read_planes(acc, a, place, at);
}

// The values of all members of a group, which share the sums.
template <class Arguments>
MERCER_INLINE void store_members(Accumulators& acc, const Arguments& a, const Block& block, const TilePlace& place,
                                 REAL* scratch) {
  OUT* out = (OUT*)a.out.data + batch_offset(a.groups, a.out.step, block.group);
  if constexpr (NUMBERS) {
    store_tile(acc, a, params_of(a, 0), out, place, scratch);
  } else {
#pragma unroll 1
    for (i64 member = 0; member < a.members.count; ++member)
      store_tile(acc, a, params_of(a, block.item + batch_offset(a.members.axes, a.members.item_step, member)),
                 out + batch_offset(a.members.axes, a.members.out_step, member), place, scratch);
  }
}

// Whether a tile of values, integers or differences is to do anything. One thread asks: the answer changes when the
// list of repairs overflows.
template <class Arguments>
MERCER_INLINE bool asked(const Arguments& a) {
  if constexpr (MIXED || DIFFERENCES) {
    const bool stands =
        a.mixed.state != nullptr && (CONSUMER == 0 ? mixed_stands(*a.mixed.state) : products_allowed(*a.mixed.state));
    return DIFFERENCES ? !stands && have_pieces(*a.x.range, *a.z.range) : stands == (MIXED == 1);
  }
  return true;
}

template <class Sums, class Arguments, class Turns = SliceTurns>
MERCER_INLINE void run_block(const Arguments& a, u32 place_of_block, REAL* const shared) {
  const Position at = position();
  const REAL features = (REAL)a.features;
  constexpr bool kAsks = (MIXED || DIFFERENCES) && !FEW_BLOCKS;
  // On integers the first slices are asked for meanwhile; others leave more often, or all their threads copy.
  constexpr bool kAsksLate = kAsks && MIXED == 1 && BULK;
  __shared__ bool answer;
  const auto is_wanted = [&] { return !kAsksLate || (answer = asked(a)); };
  if constexpr (kAsks && !kAsksLate) {
    if (threadIdx.x == 0) answer = asked(a);
    __syncthreads();
    if (!answer) return;
  }
  if constexpr (EXPANDED != 0)
    if (a.expanded.state->stands != (EXPANDED == 1)) return;
  __shared__ __align__(16) float zeros[4];
  if constexpr (ZERO_IDENTITY)
    if (threadIdx.x < 4) zeros[threadIdx.x] = 0;
#if ALTERNATIVE_EIGHTHS && POWER_SLOT < 0
  load_power_table();
#endif
  Turns turns;
  if constexpr (BY_DIFFERENCES) write_ones(turns, shared);
#if BULK
#if MIXED == 1
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
#else  // one after the other
  __shared__ __align__(8) u64 full[2 * STAGES];
  u64* const empty = full + STAGES;
#endif
  __shared__ Block block;
  turns.full = full, turns.empty = empty;
#else
  Block block;
#endif
  turns.start(block, a, place_of_block, shared, is_wanted);
  int power = POWER_ANY;
  if constexpr (POWER_SLOT >= 0) {
    const auto exponent = params_of(a, block.item)[POWER_SLOT];
    power = kind_of_power(exponent);
    if (power == POWER_TABLE) make_power_table(exponent);
    __syncthreads();
  }
  if constexpr (BY_DIFFERENCES) {
    if (threadIdx.x >= THREADS) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24));
      return turns.feed(block, a, shared);
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(240));
  }
  const auto operands = operands_of_block(turns, shared);
  if constexpr (kAsksLate)
    if (!answer) return;
  REAL step = 1;
  if constexpr (MIXED == 1 && CONSUMER != 0) step = a.mixed.state->step;
  Fold fold;
  start(fold);
  const REAL* v = nullptr;
  if constexpr (CONSUMER == 1) v = (const REAL*)a.v.data + batch_offset(a.groups, a.v.step, block.group);
  const int end_tile = block.end_tile;
  for (int tile = block.first_tile; tile < end_tile; ++tile) {
    Sums acc;
    FoldColumns columns;
    if constexpr (CONSUMER != 0 && !BY_ROWS) load_columns(columns, a, v, column_of(a, tile), at);
    if constexpr (ZERO_IDENTITY)
      start_at_zero(acc, shared_address(zeros));
    else if constexpr (!FIRST_UPDATE)
      start(acc);
    PointValues points;
    const REAL* params = nullptr;
    if constexpr (UPDATE_READS_POINTS)
      load_points(points, a, block.x_set, block.z_set, block.m0, column_of(a, tile), at);
    if constexpr (UPDATE_READS_PARAMS) params = params_of(a, block.item);
    bool promoted_before = false;
    REAL* const promoted = shared + STAGES * SLICE + WORDS_BEHIND;
    volatile REAL totals[TOTALS ? PROMOTED_WORDS : 1];
    int promotions = 0;
    // Two loops: with promotion inside the inner one, accumulators would not stay in their registers.
    for (int k0 = FIRST_FEATURE; k0 < END_FEATURE;) {
      const int chunk_end = PROMOTES && a.chunk < END_FEATURE - k0 ? k0 + a.chunk : END_FEATURE;
      if constexpr (BY_DIFFERENCES) {
        accumulate_differences(acc, operands, turns, chunk_end - k0);
        k0 = chunk_end;
      } else {
#pragma unroll 1
        for (; k0 < chunk_end; k0 += TILE_K) {
          turns.wait(block, a, shared);
          const REAL *slice = shared + turns.stage * SLICE, *w = (const REAL*)a.w + k0;
#if BY_ROWS
          const Operands from = operands_of(slice, at);
          const TilePlace rows{block.m0, column_of(a, tile), block.x_set, block.z_set};
          if (rows.n0 + TILE_N <= a.n)
            fold_rows<true>(fold, a, from, w, params_of(a, block.item), v, rows, at);
          else
            fold_rows<false>(fold, a, from, w, params_of(a, block.item), v, rows, at);
#else
          using Operands = SliceOperands<MIXED == 1>;
          if constexpr (DOUBLE_PRODUCTS)
            multiply_slice(acc, slice, at);
          else if constexpr (POWER_SLOT < 0)
            accumulate_slice<POWER_ANY, Operands>(acc, slice, at, END_FEATURE - k0, w, points, params,
                                                  features);
          else if (power == POWER_TABLE)
            accumulate_slice<POWER_TABLE, Operands>(acc, slice, at, END_FEATURE - k0, w, points, params,
                                                    features);
          else if (power == POWER_ONE)
            accumulate_slice<POWER_ONE, Operands>(acc, slice, at, END_FEATURE - k0, w, points, params,
                                                  features);
          else if (power == POWER_TWO)
            accumulate_slice<POWER_TWO, Operands>(acc, slice, at, END_FEATURE - k0, w, points, params,
                                                  features);
          else
            accumulate_slice<POWER_ANY, Operands>(acc, slice, at, END_FEATURE - k0, w, points, params,
                                                  features);
#endif
          turns.next(block, a, shared);
        }
      }
      if constexpr (PROMOTES > 0)
        if (k0 < END_FEATURE) {
          if constexpr (MIXED == 1) settle(acc);
          promote(acc, promoted, !promoted_before, false);
          promoted_before = true;
          if constexpr (TOTALS > 0)
            if (++promotions % TOTALS == 0) {
              put_away(totals, promoted, promotions == TOTALS);
              promoted_before = false;
            }
        }
    }
    if constexpr (MIXED == 1) settle(acc);
    if constexpr (PROMOTES > 0)
      if (promoted_before) promote(acc, promoted, false, true);
    if constexpr (TOTALS > 0)
      if (promotions >= TOTALS) add_totals(acc, totals);
    const TilePlace place{block.m0, column_of(a, tile), block.x_set, block.z_set};
    if constexpr (RANGES)
      if (!join_ranges(acc, a, block)) return;
    finish_sums(acc, a, place, at);
    if constexpr (CONSUMER == 0) {
      store_members(acc, a, block, place, shared + SCRATCH_PLACE);
    } else {
      if constexpr (!BY_ROWS)
        fold_tile(fold, acc, a, params_of(a, block.item), v, columns, place, step, shared + SCRATCH_PLACE);
      if ((tile - block.first_tile) % TILES_OF_SUM == TILES_OF_SUM - 1) promote(fold);
    }
  }
  finish(fold, a, shared, block.m0, block.column, block.group, at);
  if constexpr ((REGIONS || FEW_BLOCKS) && BULK) turns.end();
}

template <class Arguments>
MERCER_INLINE void run_places(const Arguments& a, REAL* const shared) {
  const u32 places = (u32)(a.tiles_m * (ONE_TILE ? a.tiles_n : a.splits));
  for (u32 place = blockIdx.x; place < places; place += gridDim.x) {
    run_block<Accumulators>(a, place, shared);
    if (!BULK) __syncthreads();
  }
}

template <class Arguments>
MERCER_INLINE void run_few_blocks(const Arguments& a, REAL* const shared) {
  if constexpr (REPAIRS)
    if (mixed_stands(*a.mixed.state)) return repair_listed(a);
  if constexpr (DIFFERENCES != 0)
    if (have_pieces(*a.x.range, *a.z.range)) return;
  if constexpr (BY_TURNS && CONSUMER == 1) {
    Arguments pass = a;
    for (; pass.v.columns > 0; pass.v.columns -= COLUMNS) {
      run_places(pass, shared);
      pass.v.data = (const REAL*)pass.v.data + COLUMNS * pass.v.ld;
      pass.out.data = (REAL*)pass.out.data + COLUMNS * pass.out.partial_ld;
    }
  } else {
    run_places(a, shared);
  }
}

template <class Arguments>
MERCER_INLINE void run_tile(const Arguments& a, REAL* const shared) {
  if constexpr (!EARLY_PLACE && !REGIONS) wait_for_kernel_ahead();
  if constexpr (REGIONS) {
    run_regions(a, [&](u32 place) { run_block<Accumulators>(a, place, shared); });
  } else {
    if constexpr (FALLBACK || DOUBLE_PRODUCTS)
      if (products_stand(*a.split.state) != DOUBLE_PRODUCTS) return;
    if constexpr (FEW_BLOCKS)
      run_few_blocks(a, shared);
    else
      run_block<Accumulators>(a, blockIdx.x, shared + WORDS_BEFORE);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS + FEEDING_THREADS, MIN_BLOCKS)
    pair_tile(const __grid_constant__ PairArguments a) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  run_tile(a, (REAL*)shared_bytes);
}
