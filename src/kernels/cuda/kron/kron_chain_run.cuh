// The kernel of kron_chain.cuh.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_values.cuh"

extern "C" __global__ void __cluster_dims__(CHAIN_CLUSTER, 1, 1)
    __launch_bounds__(CHAIN_THREADS, CHAIN_RESIDENT) kron_chain(const __grid_constant__ KronArguments k) {
  extern __shared__ __align__(16) u8 memory[];
  __shared__ int exponents[CHAIN_AXES];
  __shared__ u32 most[CHAIN_AXES * CHAIN_WARPS];
  Value* const tile = (Value*)memory;
  u8* const operands = memory + TILE_VALUES * sizeof(Value);
  // Places of this tile and of the next one in turn: threads may be one tile apart.
  i64* const places = (i64*)(operands + OPERAND_BYTES);
  const i64 tiles = chain_tiles(k);
  const KronEnd end(k);
  i64 item = -1;
  bool is_filled = false;
  int turn = 0;
  const i64 step = gridDim.x / CHAIN_CLUSTER;
  ChainPlace at = chain_place(k, blockIdx.x / CHAIN_CLUSTER);
  for (i64 index = blockIdx.x / CHAIN_CLUSTER; index < tiles; index += step, turn ^= 1) {
    i64 *from = places + turn * 3 * TILE_L, *to = from + TILE_L, *y = to + TILE_L;
    i64* const next_from = places + (turn ^ 1) * 3 * TILE_L;
    const bool is_new = at.item != item;
    if (is_new) {
      item = at.item;
      __syncthreads();
#if CHAIN_EARLY
      float* const raw = (float*)operands;
      CHAIN_ASKS
      commit_copies();
#else
      CHAIN_OPERANDS
#endif
    }
    if (!is_filled) {
      write_places(k, k.from, at, from, chain_rank() * CHAIN_RANK_STEP);
      __syncthreads();
      fill_tile(k, at, from, tile);
      if constexpr (CHAIN_ALTERNATES) {
        wait_copies<0>();
        __syncthreads();
      }
    }
#if CHAIN_EARLY
    if (is_new) {  // and the tile is asked for, after the factors
      const float* const raw = (const float*)operands;
      wait_copies<1>();
      CHAIN_MEASURES
      uint4 own = {};
      CHAIN_OPERANDS
      __syncthreads();
      if (threadIdx.x < OPERAND_BYTES / sizeof(uint4)) ((uint4*)operands)[threadIdx.x] = own;
    }
#endif
    const ChainPlace next = chain_place(k, index + step);
    const bool has_next = index + step < tiles && next.item == item;
    is_filled = CHAIN_REFILLS && has_next;
    write_places(k, k.to, at, to);
    if (FINAL && end.y) write_places(k, k.y, at, y);
    if (has_next) write_places(k, k.from, next, next_from, chain_rank() * CHAIN_RANK_STEP);
#if CHAIN_ALTERNATES && MERCER_QUICK
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      __syncthreads();
      const ArrivingOrInMemory results(pass == 1, k, end, at, next, to, y, next_from, is_filled);
      if (turn != pass) CHAIN_PHASE_1(results) else CHAIN_PHASE_0(results)
    }
#elif CHAIN_ALTERNATES
    if (turn) CHAIN_PHASE_1(Arriving()) else CHAIN_PHASE_0(Arriving())
    __syncthreads();
    const InMemory results(k, end, at, next, to, y, next_from, is_filled);
    if (turn) CHAIN_PHASE_0(results) else CHAIN_PHASE_1(results)
#else
    wait_copies<0>();
    __syncthreads();
    if (CHAIN_FETCHES && has_next) fetch_tile(k, next, next_from);
    const InMemory results(k, end, at, next, to, y, next_from, is_filled);
    CHAIN_PHASES
#endif
#if !CHAIN_DIRECT
    const auto row_of = [&](int l) { return results.row(l); };
    each_vector<OUT_SIZE, OUT_STEP, CHAIN_OUT_ADDS>(row_of, [&](int l, const ChainRow& row, int rest, int more) {
      typedef Pack<Value, OUT_STEP> Vector;
      const Vector values = *(const Vector*)(tile + l * STEP_L + chain_out(rest) + chain_out(more));
      write_vector(k, end, at, row, rest, more, values);
      if (CHAIN_REFILLS && is_filled) fill_vector(k, next, row.next, l, rest, more, tile);
    });
#endif
    if constexpr (CHAIN_CLUSTER > 1) {
      cluster_arrive();
      cluster_wait();  // all have read what is written over now
    } else if (!is_filled) {
      __syncthreads();
    } else if (!CHAIN_ALTERNATES) {
      commit_copies();
    }
    at = next;
  }
}
