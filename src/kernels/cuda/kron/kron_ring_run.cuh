// The kernel of kron_ring.cuh for rows that a block holds.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_phases.cuh"
#include "kron/kron_ring.cuh"
#include "kron/kron_ring_rows.cuh"
#include "kron/kron_values.cuh"

// The first axis of a row on its way into the tile: of each chunk a thread has a part of a vector, and reads its next
// one before it multiplies.
MERCER_STEP void empty_ring(const RingSlots& slots, Ring<RING_SLOTS>& ring, int turn, float* tile,
                            const u8* operands) {
  typedef Phase0 F;
  constexpr int VECTORS = RING_COLUMNS / 4;
  const Four f = ring_operand(operands, F::OPERAND_A);
  const ItemPlaces<F> places(threadIdx.x / 4);
  RingVectors next;
  const auto take = [&](int more) {
    barrier_wait(slots.full(ring.stage), ring.parity);
    next.load<F>(slots.slot(ring.stage) + places.first * 4, RING_STEP, F::ADDS || places.first + more < F::ITEMS);
    async_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(slots.empty(ring.stage));
    ring.advance();
  };
  take(0);
#pragma unroll(F::ADDS ? 32 : 1)
  for (int more = 0; more < ROW_CHUNKS * VECTORS; more += VECTORS) {
    const RingVectors vectors = next;
    if (more + VECTORS < ROW_CHUNKS * VECTORS) take(more + VECTORS);
    if (more == 0) barrier_wait(slots.tile_read(), turn % 2 ^ 1);
    vectors.multiply<F>(f, tile + places(more), F::ADDS || places.first + more < F::ITEMS);
  }
}

MERCER_INLINE void multiply_row(const KronArguments& k, const RingSlots& slots, const RingRow& row, float* tile,
                                const u8* operands) {
  RING_PHASES
  const RingResults store(k, row);
  ring_last<RingLast>(tile, operands, store, [&] {
    if (threadIdx.x % 32 == 0) barrier_arrive(slots.tile_read());
  });
}

extern "C" __global__ void __launch_bounds__(CHAIN_THREADS + 32, 1)
    kron_chain(const __grid_constant__ KronArguments k) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ RingRow rows[2];
  Value* const tile = (Value*)memory;
  u8* const operands = memory + TILE_VALUES * sizeof(Value);
  float* const values = (float*)(operands + OPERAND_BYTES);
  const RingSlots slots = {values, shared_address(values + RING_SLOTS * Phase0::P_A * RING_STEP), rows};
  if (threadIdx.x == 0) {
    slots.begin();
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= CHAIN_THREADS) return fill_ring(k, slots);
  i64 item = -1;
  const int turns = ring_turns(k);
  Ring<RING_SLOTS> ring = {0, 0};
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    barrier_wait(slots.full(ring.stage), ring.parity);
    const RingRow row = rows[turn % 2];
    if (row.item != item) {
      item = row.item;
      ring_barrier();
      RING_OPERANDS
      ring_barrier();
    }
    empty_ring(slots, ring, turn, tile, operands);
    ring_barrier();
    multiply_row(k, slots, row, tile, operands);
  }
}
