// Tiles of pairs whose sums are products of matrices (split_precision.cuh), on tensor cores of compute capability 9.0.
//
//   acc[m][n] = x · z or |x - z|^2, of pieces in split precision        value = epilogue(acc, row[m], col[n], i, j, …)
//   STORE    out[m][n] = value; pairs that cancel are listed (areas.cuh)           bilinear_epilogue.cuh
//   PRODUCT  out[m][e] = sum over n of value * v[n][e]                             bilinear_fold.cuh, wide_fold.cuh
//   NEAREST  values that may be among the smallest of row m are kept               bilinear_candidates.cuh
//
//             TILE_N columns: 32 points a block of the image
//            ┌──────────────────────────────┐    CLUSTER blocks lie one above the other and share the columns: each
//   128 rows │ warpgroup 0: 64 x TILE_N     │    fetches its part of them for all. Persistent blocks; one warp feeds a
//            │ warpgroup 1: 64 x TILE_N     │    ring of STAGES units (32 features, both pieces: 6 products of 16), two
//            └──────────────────────────────┘    warpgroups multiply.
//
// Tensor cores truncate what they accumulate, at every instruction. So sums of two units go to float registers:
// TILE_N / 2 accumulators and TILE_N / 2 sums a thread. What truncation within a chunk takes away on average is given
// back with the scale (measured: 2^-22 of the sum). BRIEF: there is one chunk, of that many units.
//
// Registers: 128 feeding threads of 56 and 256 of 224, 64512 in all; of two blocks, 288 threads of 96, for of their
// 18 warps five share the registers of a quarter of the multiprocessor, or, where no warp feeds (LAST_FEEDS), 256 of
// 128. Shared memory: STAGES units of (128 + TILE_N) x 128 bytes, values or sums of rows of each warp, norms, scales,
// slots, v of the columns.
// Parts: bilinear_walk.cuh, bilinear_shared.cuh, bilinear_products.cuh, bilinear_pairs.cuh, bilinear_ranges.cuh and the
// three above; this file is the kernel.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "common/warpgroups.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_products.cuh"
#include "gemm/bilinear_ranges.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_walk.cuh"

MERCER_INLINE bool next_tile(Walk& walk) {
  while (walk.next())
    if (!walk.is_below()) return true;
  return false;
}

// Whether this warp is the last of a block's to leave a tile's operands.
MERCER_INLINE bool leaves_last(u32* leaving) {
  u32 before = 0;
  if (threadIdx.x % 32 == 0) {
    __threadfence_block();
    before = atomicAdd(leaving, 1u);
    __threadfence_block();
  }
  return __shfl_sync(0xffffffffu, before, 0) % FEED_WARP == FEED_WARP - 1;
}

// The last of a tile's warps to have read the operands asks for the next tile's, which are on their way while values
// are stored. Its columns have two places: those of the tile before are free by then. The first tile's are asked for
// before it is known whether they carry the sums.
template <class Consumer>
MERCER_INLINE void multiply(const BilinearArguments& a, const BilinearShared& shared, u32* leaving) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const u64 x = descriptor(shared.stages + warp / 4 * 64 * ROW_BYTES);
  const u64 z = descriptor(shared.stages + STAGE_ROWS_X * ROW_BYTES);
  Ring<STAGES> ring = {0, 0};
  Walk walk(a);
  Consumer consumer;
  BilinearShared own = shared;
  u32 next_columns = shared.columns + COLUMN_BYTES;
  bool more = next_tile(walk);
  if (warp == 0 && more) feed_tile(a, shared, walk, ring, own.columns);
  if (!products_stand(*a.pairs.split.state)) {
    for (int unit = 0; more && unit < TILE_UNITS; ++unit) barrier_wait(shared.full(unit), 0);
    return;
  }
#pragma unroll 1
  while (more) {
    const Walk tile = walk;
    more = next_tile(walk);
    const i64 m = tile.m0 + warp * 16;
    typename Consumer::Rows norms;
    load_norms(norms, a, m);
    consumer.start(a, m);
    float sum[SUMS];
    run_chunk<SINGLE, TILE_UNITS>(sum, shared, ring, x, z);
    if (leaves_last(leaving) && more) feed_tile(a, shared, walk, ring, next_columns);
    consumer.take(a, own, sum, m, tile, norms);
    const u32 columns = own.columns;
    own.columns = next_columns;
    next_columns = columns;
  }
  consumer.finish(a.pairs.found);
}

// Tiles whose operands a warp of its own feeds. `Walk` and `Consumer` are those of the plan: what they lack is looked
// up only where it is used.
template <class Consumer, class Walk>
MERCER_INLINE void multiply(const BilinearArguments& a, const BilinearShared& shared, bool high, int units, int rank) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
  const u64 x = descriptor((RESIDENT ? shared.rows : shared.stages) + group * 64 * ROW_BYTES);
  const u64 z = descriptor(shared.stages + STAGE_ROWS_X * ROW_BYTES);
  Ring<STAGES> ring = {0, 0};
  u32 columns_parity = 0, rows_parity = 0;
  Walk walk(a);
  Consumer consumer;
  typename Consumer::Rows norms;
#if WEIGHT_MATRIX
  const WeightTile weights(a, shared);
  const auto fetch_ahead = [&](Walk ahead) {
    if (ahead.next()) weights.fetch(ahead.m0 + rank * TILE_M + warp * 16, ahead.n0);
  };
  fetch_ahead(walk);
#endif
#pragma unroll 1
  while (walk.next()) {
    if (walk.is_below()) continue;
    const i64 m = walk.m0 + rank * TILE_M + warp * 16;
    if constexpr (WIDE > 0) {
      if (walk.starts_range()) load_norms(norms, a, m);
    } else {
      load_norms(norms, a, m);  // as fast as spilled registers are read
    }
    consumer.start(a, m);
    float sum[SUMS];
    if constexpr (RESIDENT)
      if (walk.starts_range()) {
        barrier_wait(shared.rows_full(), rows_parity);
        rows_parity ^= 1;
      }
    if constexpr (BRIEF && WEIGHT_UNITS) {
      run_both<BRIEF>(sum, consumer.weights, shared, ring, x, z);
    } else if constexpr (BRIEF > 0) {
      run_chunk<SINGLE, SINGLE ? 1 : BRIEF>(sum, shared, ring, x, z);
    } else {
      const int own_units = walk.end_unit(units) - walk.first_unit(units);
      if constexpr (MERCER_QUICK)
        add_units(sum, shared, ring, x, z, own_units, high);
      else if (high)
        add_units<true>(sum, shared, ring, x, z, own_units);
      else
        add_units<false>(sum, shared, ring, x, z, own_units);
    }
    if constexpr (WEIGHT_UNITS && !BRIEF) {
      if constexpr (WEIGHT_UNITS <= 2)
        run_chunk<false, WEIGHT_UNITS>(consumer.weights, shared, ring, x, z);
      else if constexpr (MERCER_QUICK)
        add_units(consumer.weights, shared, ring, x, z, WEIGHT_UNITS, false);
      else
        add_units<false>(consumer.weights, shared, ring, x, z, WEIGHT_UNITS);
    }
    if constexpr (RESIDENT)
      if (walk.ends_range() && lane == 0) barrier_arrive(shared.rows_empty());
#if WEIGHT_MATRIX
    weights.take(consumer.weights);
    fetch_ahead(walk);
#endif
    if constexpr (COLUMN_PLANES > 0) {
      barrier_wait(shared.columns_full(), columns_parity);
      columns_parity ^= 1;
    }
    if constexpr (JOINS_RANGES) {
      if (join_ranges(a, walk, rank, sum)) consumer.take(a, shared, sum, m, walk, norms);
    } else {
      consumer.take(a, shared, sum, m, walk, norms);
    }
    if constexpr (COLUMN_PLANES > 0) {
      if (SPREADS) async_fence();  // nothing waits for the shares before
      __syncwarp();
      if (lane == 0) barrier_arrive(shared.columns_empty());
    }
  }
  consumer.finish(a.pairs.found);
}

// The multiplying warps, and the one that feeds them.
template <class Consumer, class Walk>
MERCER_INLINE void run_fed(const BilinearArguments& a, const BilinearShared& shared, int rank) {
#if POWERS == 1
  const bool stands = products_stand(*a.pairs.split.state) && halves_stand(a.pairs);
  if (blockIdx.x == 0 && threadIdx.x == 0) tell_rated(*a.pairs.split.state, stands);
#elif KEEPS
  const bool stands = products_stand(*a.pairs.split.state) && may_be_kept(a);
  if (!stands && blockIdx.x == 0 && threadIdx.x == 0) refuse_to_keep(a);
#else
  const SplitState& state = *a.pairs.split.state;
  const bool stands = products_stand(state) && !(AFTER_HALVES && state.rated == MERCER_RATED_YES);
#endif
  if (stands) {
    const bool high = a.pairs.split.state->low == 0;
    const int written = (int)a.units - WEIGHT_UNITS, units = high ? (written + 1) / 2 : written;
    if (threadIdx.x / 32 >= FEED_WARP) {
      if constexpr (BLOCKS == 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
      if (threadIdx.x == FEED_WARP * 32) feed<Walk>(a, shared, units, rank);
    } else {
      if constexpr (BLOCKS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
      multiply<Consumer, Walk>(a, shared, high, units, rank);
    }
  }
}

template <class Consumer, class Walk>
MERCER_INLINE void run_warps(const BilinearArguments& a, const BilinearShared& shared, u8* memory, int rank) {
  if constexpr (LAST_FEEDS)
    multiply<Consumer>(a, shared, shared.leaving(memory));
  else
    run_fed<Consumer, Walk>(a, shared, rank);
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BILINEAR_THREADS, BLOCKS)
    bilinear_tile(const __grid_constant__ BilinearArguments a) {
  extern __shared__ __align__(1024) u8 memory[];
  const BilinearShared shared(shared_address(memory));
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(shared.full(s), 1);
      barrier_init(shared.empty(s), CLUSTER * FEED_WARP);
    }
    if constexpr (LAST_FEEDS) {
      *shared.leaving(memory) = 0;
    } else {
      barrier_init(shared.columns_full(), 1);
      barrier_init(shared.columns_empty(), FEED_WARP);
    }
    for (int s = 0; WIDE && s < V_STAGES; ++s) {
      barrier_init(shared.v_full(s), 1);
      barrier_init(shared.v_empty(s), CLUSTER * FEED_WARP);
    }
    if (RESIDENT) {
      barrier_init(shared.rows_full(), 1);
      barrier_init(shared.rows_empty(), FEED_WARP);
    }
    barrier_init_done();
  }
  const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;
  if (CLUSTER > 1)
    cluster_barrier();
  else
    __syncthreads();
  wait_for_kernel_ahead();
  run_warps<Consumer, Walk>(a, shared, memory, rank);
  // A block's memory stays while another one may still write into it or arrive at it.
  if (CLUSTER > 1) cluster_barrier();
}
