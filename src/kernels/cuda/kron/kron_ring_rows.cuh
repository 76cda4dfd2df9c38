// Rows on their way through a ring (kron_ring.cuh). All that belongs to a row, and not to its elements, is found by one
// warp, which asks for its chunks as well: threads that multiply would spend a third of their instructions on it.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_ring.cuh"
#include "kron/kron_values.cuh"

#define ROW_COLUMNS (IN_SIZE / Phase0::P_A)  // of a block
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
  // By one thread.
  MERCER_METHOD void begin() const {
    for (int stage = 0; stage < RING_SLOTS; ++stage) {
      barrier_init(full(stage), 1);
      barrier_init(empty(stage), CHAIN_WARPS);
    }
    barrier_init(tile_read(), CHAIN_WARPS);
  }
};

#define RING_AHEAD 3  // chunks that the second-level cache is asked for before there is a slot for them

MERCER_INLINE u32 chunk_bytes(int column) {
  const int left = ROW_COLUMNS - column;
  return (left < RING_COLUMNS ? left : RING_COLUMNS) * 4;
}

// All rows of the block, by one warp.
MERCER_STEP void fill_ring(const KronArguments& k, const RingSlots& slots) {
  const int lane = threadIdx.x % 32;
  const i64 tiles = chain_tiles(k), step = gridDim.x / CHAIN_CLUSTER;
  const int columns_before = chain_rank() * ROW_COLUMNS, results_before = chain_rank() * (OUT_SIZE / CHAIN_CLUSTER);
  Ring<RING_SLOTS> ring = {0, 0};
  int turn = 0;
  for (i64 index = blockIdx.x / CHAIN_CLUSTER; index < tiles; index += step, turn ^= 1) {
    const ChainPlace at = chain_place(k, index);
    const float* const row = (const float*)k.from.data + kron_place(k, k.from, at.item, at.b) + columns_before +
                             lane * (ROW_COLUMNS * CHAIN_CLUSTER);
    RingRow own = {kron_place(k, k.to, at.item, at.b) + results_before, 0, at.item};
    if (FINAL && k.y.data) own.y = kron_place(k, k.y, at.item, at.b) + results_before;
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

// Rows of the block, or of its cluster.
MERCER_INLINE int ring_turns(const KronArguments& k) {
  const i64 step = gridDim.x / CHAIN_CLUSTER;
  return (int)((chain_tiles(k) - blockIdx.x / CHAIN_CLUSTER + step - 1) / step);
}

// Where a row's results go: two neighbouring ones, the first e + more after the block's first.
struct RingResults {
  KronEnd end;
  OUT* to;
  i64 y;
  MERCER_METHOD RingResults(const KronArguments& k, const RingRow& row)
      : end(k), to((OUT*)k.to.data + row.to), y(row.y) {}
  MERCER_METHOD void operator()(int e, int more, float first, float second) const {
    Pack<OUT, 2> out;
    kron_store(out.value[0], FINAL ? end(first, y + e + more) : first);
    kron_store(out.value[1], FINAL ? end(second, y + e + more + 1) : second);
    *(Pack<OUT, 2>*)(to + e + more) = out;
  }
};
