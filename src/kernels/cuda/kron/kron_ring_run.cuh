// The kernel of kron_ring.cuh. All that belongs to a row, and not to its elements, is found by one warp, which asks for
// its chunks as well: threads that multiply would spend a third of their instructions on it.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_phases.cuh"
#include "kron/kron_ring.cuh"
#include "kron/kron_values.cuh"

#define ROW_COLUMNS (IN_SIZE / Phase0::P_A)
#define ROW_CHUNKS ((ROW_COLUMNS + RING_COLUMNS - 1) / RING_COLUMNS)

MERCER_INLINE void ring_barrier() { asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(CHAIN_THREADS) : "memory"); }

// What the others need to know of a row; it is written before the row's first chunk is there.
struct RingRow {
  i64 to, y, item;
};

struct RingSlots {
  float* values;
  u32 barriers;
  RingRow* rows;  // of even and odd turns
  MERCER_METHOD float* slot(int stage) const { return values + stage * (Phase0::P_A * RING_STEP); }
  MERCER_METHOD u32 full(int stage) const { return barriers + stage * 16; }
  MERCER_METHOD u32 empty(int stage) const { return full(stage) + 8; }
  MERCER_METHOD u32 tile_read() const { return full(RING_SLOTS); }
};

#define RING_AHEAD 3  // chunks that the second-level cache is asked for before there is a slot for them

MERCER_INLINE u32 chunk_bytes(int column) {
  const int left = ROW_COLUMNS - column;
  return (left < RING_COLUMNS ? left : RING_COLUMNS) * 4;
}

// All rows of the block, by one warp.
MERCER_STEP void fill_ring(const KronArguments& k, const RingSlots& slots) {
  const int lane = threadIdx.x % 32;
  const i64 tiles = chain_tiles(k);
  Ring<RING_SLOTS> ring = {0, 0};
  int turn = 0;
  for (i64 index = blockIdx.x; index < tiles; index += gridDim.x, turn ^= 1) {
    const ChainPlace at = chain_place(k, index);
    const float* const row = (const float*)k.from.data + kron_place(k, k.from, at.item, at.b) + lane * ROW_COLUMNS;
    RingRow own = {kron_place(k, k.to, at.item, at.b), 0, at.item};
    if (FINAL && k.y.data) own.y = kron_place(k, k.y, at.item, at.b);
#pragma unroll 1
    for (int column = 0; column < ROW_COLUMNS; column += RING_COLUMNS, ring.advance()) {
      const u32 bytes = chunk_bytes(column);
      const int later = column + RING_AHEAD * RING_COLUMNS;
      if (lane < Phase0::P_A && later < ROW_COLUMNS) prefetch_bulk(row + later, chunk_bytes(later));
      barrier_wait(slots.empty(ring.stage), ring.parity ^ 1);
      if (lane == 0) {
        if (column == 0) slots.rows[turn] = own;
        barrier_expect(slots.full(ring.stage), bytes * Phase0::P_A);
      }
      __syncwarp();
      if (lane < Phase0::P_A)
        copy_bulk(shared_address(slots.slot(ring.stage) + lane * RING_STEP), row + column, bytes,
                  slots.full(ring.stage));
    }
  }
}

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
  const KronEnd end(k);
  OUT* const to = (OUT*)k.to.data + row.to;
  const auto store = [&](int e, int more, float first, float second) {
    Pack<OUT, 2> out;
    kron_store(out.value[0], FINAL ? end(first, row.y + e + more) : first);
    kron_store(out.value[1], FINAL ? end(second, row.y + e + more + 1) : second);
    *(Pack<OUT, 2>*)(to + e + more) = out;
  };
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
    for (int stage = 0; stage < RING_SLOTS; ++stage) {
      barrier_init(slots.full(stage), 1);
      barrier_init(slots.empty(stage), CHAIN_WARPS);
    }
    barrier_init(slots.tile_read(), CHAIN_WARPS);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x >= CHAIN_THREADS) return fill_ring(k, slots);
  i64 item = -1;
  const int turns = (int)((chain_tiles(k) - blockIdx.x + gridDim.x - 1) / gridDim.x);
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
