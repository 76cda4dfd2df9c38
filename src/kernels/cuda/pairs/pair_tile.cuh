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
// Parts: pair_slices.cuh, pair_update.cuh, pair_consumers.cuh, pair_rows.cuh, pair_differences.cuh (DIFFERENCES 1; 2 is
// the tile of values that have no pieces); this file is the kernel. It computes what products on tensor cores leave to
// it: with REGIONS tiles of a matrix (pair_regions.cuh), as FALLBACK all or nothing, BY_TURNS in blocks that stay, and
// of a product COLUMNS of v at a time. With DOUBLE_PRODUCTS those products are its own (double_products.cuh). With
// RANGES blocks share the features of a tile (pair_ranges.cuh).
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pairs/pair_consumers.cuh"
#include "pairs/pair_params.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

// What the accumulators stand for, in their place.
MERCER_INLINE void finish_sums(Accumulators& acc, const PairArguments& a, const TilePlace& place, const Position& at) {
#if BYTES
  to_floats(acc);
#endif
#if MIXED == 1
  to_values(acc, a, place, at);
#endif
#if DOUBLE_PRODUCTS
  to_sums(acc, a, place, at);
#endif
#if PLANES
  read_planes(acc, a, place, at);
#endif
}

#if CONSUMER == 0
// The values of all members of a group, which share the sums.
MERCER_INLINE void store_members(Accumulators& acc, const PairArguments& a, const Block& block, const TilePlace& place,
                                 REAL* scratch) {
  OUT* out = (OUT*)a.out + batch_offset(a.groups, a.out_step, block.group);
#if NUMBERS
  store_tile(acc, a, params_of(a, 0), out, place, scratch);
#else
#pragma unroll 1
  for (i64 member = 0; member < a.member_count; ++member)
    store_tile(acc, a, params_of(a, block.item + batch_offset(a.members, a.member_item_step, member)),
               out + batch_offset(a.members, a.member_out_step, member), place, scratch);
#endif
}
#endif

MERCER_INLINE void run_block(const PairArguments& a, u32 place_of_block, REAL* const shared) {
  const Position at = position();
  const REAL features = (REAL)a.features;
#if (MIXED || DIFFERENCES) && !FEW_BLOCKS
  // One thread asks: the answer changes when the list of repairs overflows.
  __shared__ bool answer;
  const auto ask = [&] {
    const bool stands = a.mixed != nullptr && (CONSUMER == 0 ? mixed_stands(*a.mixed)
                                                             : all_allowed(*a.mixed, MIXED_PRODUCT_TOLERANCE));
    return answer = DIFFERENCES ? !stands && have_pieces(*a.x_range, *a.z_range) : stands == (MIXED == 1);
  };
#if MIXED != 1 || !BULK  // which leaves most often, or where all threads copy; otherwise the first slices are asked for
  if (threadIdx.x == 0) ask();
  __syncthreads();
  if (!answer) return;
  const auto is_wanted = [] { return true; };
#else
  const auto& is_wanted = ask;
#endif
#else
  const auto is_wanted = [] { return true; };
#endif
#if EXPANDED
  if (a.expanded->stands != (EXPANDED == 1)) return;
#endif
#if ZERO_IDENTITY
  __shared__ __align__(16) float zeros[4];
  if (threadIdx.x < 4) zeros[threadIdx.x] = 0;
#endif
#if ALTERNATIVE_EIGHTHS && POWER_SLOT < 0
  load_power_table();
#endif
#if DIFFERENCES == 1
  // Before the slices of x and behind those of z.
  u8 *const ones_x = (u8*)shared - 2 * ONES_X_BYTES, *const ones_z = (u8*)(shared + STAGES * SLICE);
  write_ones(ones_x, 64);
  write_ones(ones_z, 128);
  async_fence();
#endif
  SliceTurns turns;
#if BULK
#if MIXED == 1
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
#else  // one behind the other
  __shared__ __align__(8) u64 full[2 * STAGES];
  u64* const empty = full + STAGES;
#endif
  __shared__ Block block;
  turns.full = full, turns.empty = empty;
#else
  Block block;
#endif
  turns.start(block, a, place_of_block, shared, is_wanted);
#if POWER_SLOT >= 0
  const float exponent = params_of(a, block.item)[POWER_SLOT];
  const int power = kind_of_power(exponent);
  if (power == POWER_TABLE) make_power_table(exponent);
  __syncthreads();
#endif
#if DIFFERENCES == 1
  if (threadIdx.x >= THREADS) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(24));
    return turns.feed(block, a, shared);
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(240));
  const DifferenceOperands operands(shared_address(ones_x), shared_address(shared), shared_address(ones_z));
#endif
#if MIXED == 1 && BULK
  if (!answer) return;
#endif
#if MIXED == 1 && CONSUMER != 0
  const REAL step = a.mixed->step;
#else
  const REAL step = 1;
#endif
#if CONSUMER != 0
  Fold fold;
  start(fold);
#if CONSUMER == 1
  const REAL* const v = (const REAL*)a.v + batch_offset(a.groups, a.v_step, block.group);
#else
  const REAL* const v = nullptr;
#endif
#endif
  const int end_tile = block.end_tile;
  for (int tile = block.first_tile; tile < end_tile; ++tile) {
    Accumulators acc;
#if CONSUMER != 0 && !BY_ROWS
    FoldColumns columns;
    load_columns(columns, a, v, column_of(a, tile), at);
#endif
#if ZERO_IDENTITY
    start_at_zero(acc, shared_address(zeros));
#elif !FIRST_UPDATE
    start(acc);
#endif
    PointValues points;
    const REAL* params = nullptr;
#if UPDATE_READS_POINTS
    load_points(points, a, block.x_set, block.z_set, block.m0, column_of(a, tile), at);
#endif
#if UPDATE_READS_PARAMS
    params = params_of(a, block.item);
#endif
#if PROMOTES
    bool promoted_before = false;
    REAL* const promoted = shared + STAGES * SLICE + WORDS_BEHIND;
#endif
#if TOTALS
    volatile REAL totals[PROMOTED_WORDS];
    int promotions = 0;
#endif
    // Two loops: with promotion inside the inner one, accumulators would not stay in their registers.
    for (int k0 = FIRST_FEATURE; k0 < END_FEATURE;) {
      const int chunk_end = PROMOTES && a.chunk < END_FEATURE - k0 ? k0 + a.chunk : END_FEATURE;
#if DIFFERENCES == 1
      accumulate_differences(acc, operands, turns, chunk_end - k0);
      k0 = chunk_end;
#else
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
#elif DOUBLE_PRODUCTS
        multiply_slice(acc, slice, at);
#elif POWER_SLOT >= 0
        if (power == POWER_TABLE)
          accumulate_slice<POWER_TABLE>(acc, slice, at, END_FEATURE - k0, w, points, params, features);
        else if (power == POWER_ONE)
          accumulate_slice<POWER_ONE>(acc, slice, at, END_FEATURE - k0, w, points, params, features);
        else if (power == POWER_TWO)
          accumulate_slice<POWER_TWO>(acc, slice, at, END_FEATURE - k0, w, points, params, features);
        else
          accumulate_slice<POWER_ANY>(acc, slice, at, END_FEATURE - k0, w, points, params, features);
#else
        accumulate_slice(acc, slice, at, END_FEATURE - k0, w, points, params, features);
#endif
        turns.next(block, a, shared);
      }
#endif
#if PROMOTES
      if (k0 < END_FEATURE) {
#if MIXED == 1
        settle(acc);
#endif
        promote(acc, promoted, !promoted_before, false);
        promoted_before = true;
#if TOTALS
        if (++promotions % TOTALS == 0) {
          put_away(totals, promoted, promotions == TOTALS);
          promoted_before = false;
        }
#endif
      }
#endif
    }
#if MIXED == 1
    settle(acc);
#endif
#if PROMOTES
    if (promoted_before) promote(acc, promoted, false, true);
#endif
#if TOTALS
    if (promotions >= TOTALS) add_totals(acc, totals);
#endif
    const TilePlace place{block.m0, column_of(a, tile), block.x_set, block.z_set};
#if RANGES
    if (!join_ranges(acc, a, block)) return;
#endif
    finish_sums(acc, a, place, at);
#if CONSUMER == 0
    store_members(acc, a, block, place, shared + SCRATCH_PLACE);
#else
#if !BY_ROWS
    fold_tile(fold, acc, a, params_of(a, block.item), v, columns, place, step, shared + SCRATCH_PLACE);
#endif
    if ((tile - block.first_tile) % TILES_OF_SUM == TILES_OF_SUM - 1) promote(fold);
#endif
  }
#if CONSUMER != 0
  finish(fold, a, shared, block.m0, block.column, block.group, at);
#endif
#if (REGIONS || FEW_BLOCKS) && BULK
  turns.end();
#endif
}

#if FEW_BLOCKS
MERCER_INLINE void run_places(const PairArguments& a, REAL* const shared) {
  const u32 places = (u32)(a.tiles_m * (ONE_TILE ? a.tiles_n : a.splits));
  for (u32 place = blockIdx.x; place < places; place += gridDim.x) {
    run_block(a, place, shared);
    if (!BULK) __syncthreads();
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS + FEEDING_THREADS, MIN_BLOCKS)
    pair_tile(const __grid_constant__ PairArguments a) {
#if !EARLY_PLACE && !REGIONS
  wait_for_kernel_ahead();
#endif
  extern __shared__ __align__(128) unsigned char shared_bytes[];
#if REGIONS
  run_regions(a, [&](u32 place) { run_block(a, place, (REAL*)shared_bytes); });
#else
#if FALLBACK || DOUBLE_PRODUCTS
  if (products_stand(*a.split) != DOUBLE_PRODUCTS) return;
#endif
#if FEW_BLOCKS
#if REPAIRS
  if (mixed_stands(*a.mixed)) return repair_listed(a);
#endif
#if DIFFERENCES
  if (have_pieces(*a.x_range, *a.z_range)) return;
#endif
#if BY_TURNS && CONSUMER == 1
  PairArguments pass = a;
  for (; pass.columns > 0; pass.columns -= COLUMNS) {
    run_places(pass, (REAL*)shared_bytes);
    pass.v = (const REAL*)pass.v + COLUMNS * pass.v_ld;
    pass.out = (REAL*)pass.out + COLUMNS * pass.partial_ld;
  }
#else
  run_places(a, (REAL*)shared_bytes);
#endif
#else
  run_block(a, blockIdx.x, (REAL*)shared_bytes + WORDS_BEFORE);
#endif
#endif
}
