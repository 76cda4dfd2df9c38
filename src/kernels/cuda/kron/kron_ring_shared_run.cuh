// The kernel of kron_ring.cuh for rows of six axes of eight elements, which the blocks of a cluster share. A block has
// an eighth of the second axis on the way in, and one element of the first axis from there on:
//
//   x [axis 0][axis 1 = rank]  ---> ring ---> axis 0 ---> tile of block q  [axis 1][axis 2] ... [axis 5] ---> out
//                                                  \___ st.async, 7 of 8 into other blocks
//
// A chunk is one element of axis 2, for the tile, too. While a row's last two axes are multiplied and written, chunk by
// chunk, the next row's chunks take their places as soon as all blocks have read them:
//
//   last axes of row i      0 1 2 3 4 5 6 7
//   first axis of row i+1       0 1 2 3 4 5 6 7       RING_DELAY chunks later
//   second axis of that             0 1 2 3 4 5 6 7   RING_LATER chunks later, when a chunk has come from all blocks
//
// Floor: bytes at 4.2 TB/s; 7 of 8 values cross the cluster's network.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_phases.cuh"
#include "kron/kron_ring.cuh"
#include "kron/kron_ring_rows.cuh"
#include "kron/kron_values.cuh"

#define RING_DELAY 2
#define RING_LATER 2
#define CHUNK_VECTORS (RING_COLUMNS / 4)
// Matrices of the last two axes: of a chunk for each element of axis 1, and of all chunks.
#define CHUNK_ITEMS (RING_COLUMNS / (RingLast::P_A * RingLast::P_B))
#define ROW_ITEMS (CHUNK_ITEMS * ROW_CHUNKS)
#define CHUNK_BYTES (RING_COLUMNS * CHAIN_CLUSTER * 4)
#define WARP_ITEMS (CHUNK_ITEMS * CHAIN_CLUSTER / CHAIN_WARPS)  // of a chunk
static_assert(Phase0::ADDS && RingLast::ADDS, "places of a chunk and of what is in it add up");
static_assert(Phase0::Q_A == CHAIN_CLUSTER && RING_COLUMNS * ROW_CHUNKS == ROW_COLUMNS,
              "a chunk is an element of axis 2, a block an element of axes 0 and 1");
static_assert(CHAIN_WARPS % CHUNK_ITEMS == 0 && WARP_ITEMS % 2 == 0, "a warp has pairs of matrices");

struct RingBarriers {
  u64 read[ROW_CHUNKS];  // all warps of the cluster have read a chunk of the tiles
  u64 written[ROW_CHUNKS];  // a chunk has come into this block's tile
};

// 16 bytes into another block's memory, counted by its barrier.
MERCER_INLINE void send_four(u32 to, u32 barrier, const Four& v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(bits_of(v.value[0])), "r"(bits_of(v.value[1])), "r"(bits_of(v.value[2])), "r"(bits_of(v.value[3])),
               "r"(barrier)
               : "memory");
}

// The first axis: a lane has rows t and t + 4 of a vector's results, which are other blocks' elements.
struct RingSender {
  u32 to[2], written[2];
  Four f;
  RingVectors next;

  MERCER_METHOD RingSender(const float* tile, const u64* barrier) {
    const int place = Phase0::place(chain_rank() * (ROW_COLUMNS / 4)) + Phase0::place(threadIdx.x / 4);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int block = threadIdx.x % 4 + 4 * e;
      to[e] = address_in_block(shared_address(tile + place), block);
      written[e] = address_in_block(shared_address(barrier), block);
    }
  }
  MERCER_METHOD void take(const RingSlots& slots, const Ring<RING_SLOTS>& ring) {
    barrier_wait(slots.full(ring.stage), ring.parity);
    next.load<Phase0>(slots.slot(ring.stage) + threadIdx.x / 4 * 4, RING_STEP, true);
  }
  // Sends what was taken. `read`: the barrier of the chunk's place, and its parity. What is sent has been read, so no
  // fence comes before the arrival: it would wait for all that is on its way to memory and to other blocks.
  MERCER_METHOD void send(int chunk, u32 read, u32 parity, const RingSlots& slots, Ring<RING_SLOTS>& ring) const {
    Four out[2];
    next.multiply(f, out);
    barrier_wait(read, parity);
#pragma unroll
    for (int e = 0; e < 2; ++e)
      send_four(to[e] + chunk * (Phase0::place(CHUNK_VECTORS) * 4), written[e] + chunk * 8, out[e]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(slots.empty(ring.stage));
    ring.advance();
  }
};

// The second axis, in place.
MERCER_INLINE void multiply_chunk(float* tile, const u8* operands, int chunk) {
  float* const at = tile + Phase1::place(threadIdx.x / 4) + chunk * Phase1::place(CHUNK_VECTORS);
  RingVectors vectors;
  vectors.load<Phase1>(at, Phase1::STEP_A, true);
  __syncwarp();
  vectors.multiply<Phase1>(ring_operand(operands, Phase1::OPERAND_A), at, true);
}

// The last two axes, to memory.
struct RingWriter {
  const float* from;
  int to;
  float next[WARP_ITEMS][2];

  MERCER_METHOD explicit RingWriter(const float* tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4, n = fifth(lane / 4);
    const int item = warp / CHUNK_ITEMS * ROW_ITEMS + warp % CHUNK_ITEMS;
    from = tile + RingLast::place(item) + t * RingLast::STEP_A + n;
    to = (item * RingLast::Q_A + n) * RingLast::Q_B + 2 * t;
  }
  MERCER_METHOD static constexpr int item_after(int m) { return m * (CHAIN_WARPS / CHUNK_ITEMS) * ROW_ITEMS; }
  MERCER_METHOD void load(int chunk) {
    const float* const of_chunk = from + chunk * RingLast::place(CHUNK_ITEMS);
#pragma unroll
    for (int m = 0; m < WARP_ITEMS; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) next[m][h] = of_chunk[RingLast::place(item_after(m)) + 4 * h * RingLast::STEP_A];
  }
  // read(): after the chunk's values have been read, by all lanes, and stored.
  template <class Read>
  MERCER_METHOD void write(const u8* operands, const RingResults& results, int chunk, const Read& read) {
    const Four left = ring_operand(operands, RingLast::OPERAND_A), right = ring_operand(operands, RingLast::OPERAND_B);
    float d[WARP_ITEMS / 2][4];
#pragma unroll
    for (int pair = 0; pair < WARP_ITEMS / 2; ++pair) {
      const float x[2][2] = {{next[2 * pair][0], next[2 * pair][1]}, {next[2 * pair + 1][0], next[2 * pair + 1][1]}};
      multiply_both(d[pair], left, right, x);
    }
    if (chunk + 1 < ROW_CHUNKS) load(chunk + 1);
    constexpr int MATRIX = RingLast::Q_A * RingLast::Q_B;
#pragma unroll
    for (int m = 0; m < WARP_ITEMS; ++m)
      results(to + chunk * (CHUNK_ITEMS * MATRIX), item_after(m) * MATRIX, d[m / 2][m % 2 * 2],
              d[m / 2][m % 2 * 2 + 1]);
    __syncwarp();
    read();
  }
};

// What threads that multiply have of all rows.
struct RingThread {
  const RingSlots& slots;
  float* tile;
  const u8* operands;
  u32 read, written;  // the barriers of chunk 0
  Ring<RING_SLOTS> ring;
  RingSender sender;
  RingWriter writer;

  MERCER_METHOD RingThread(const RingSlots& slots, const RingBarriers& barriers, float* tile, const u8* operands)
      : slots(slots), tile(tile), operands(operands), read(shared_address(barriers.read)),
        written(shared_address(barriers.written)), ring{0, 0}, sender(tile, barriers.written), writer(tile) {}

  // Row `turn` is brought, the one before it is written, or both at once. `arrives`: a row follows the written one.
  template <bool WRITES, bool BRINGS>
  MERCER_METHOD void move(const RingResults& results, int turn, bool arrives) {
    constexpr int DELAY = WRITES ? RING_DELAY : 0, STEPS = ROW_CHUNKS + (BRINGS ? DELAY + RING_LATER : 0);
    if (WRITES) writer.load(0);
#pragma unroll(WRITES&& BRINGS ? STEPS : 1)
    for (int step = 0; step < STEPS; ++step) {
      const int sent = step - DELAY, multiplied = sent - RING_LATER;
      if (WRITES && step < ROW_CHUNKS)
        writer.write(operands, results, step, [&] {
          if (arrives && threadIdx.x % 32 < CHAIN_CLUSTER) arrive_at(read + step * 8, threadIdx.x % 32);
        });
      if (BRINGS && sent >= 0 && sent < ROW_CHUNKS) {
        sender.send(sent, read + sent * 8, turn % 2 ^ 1, slots, ring);
        if (sent + 1 < ROW_CHUNKS) sender.take(slots, ring);
      }
      if (BRINGS && multiplied >= 0) {
        barrier_wait(written + multiplied * 8, turn % 2);
        if (threadIdx.x == 0) barrier_expect(written + multiplied * 8, CHUNK_BYTES);  // of the next row
        multiply_chunk(tile, operands, multiplied);
      }
    }
  }
};

MERCER_INLINE void multiply_rows(const KronArguments& k, const RingSlots& slots, const RingBarriers& barriers,
                                 float* tile, u8* operands) {
  const int turns = ring_turns(k);
  RingThread thread(slots, barriers, tile, operands);
  RingRow row = {0, 0, -1};
#pragma unroll 1
  for (int turn = 0; turn <= turns; ++turn) {
    const RingResults results(k, row);
    if (turn == turns) return thread.move<true, false>(results, turn, false);
    thread.sender.take(slots, thread.ring);
    const i64 before = row.item;
    row = slots.rows[turn % 2];
    if (row.item == before) {
      thread.move<true, true>(results, turn, true);
    } else {  // with other operands
      if (turn > 0) thread.move<true, false>(results, turn, true);
      const i64 item = row.item;
      ring_barrier();
      RING_OPERANDS
      ring_barrier();
      thread.sender.f = ring_operand(operands, Phase0::OPERAND_A);
      thread.move<false, true>(results, turn, true);
    }
    ring_barrier();
    RING_PHASES
  }
}

extern "C" __global__ void __cluster_dims__(CHAIN_CLUSTER, 1, 1) __launch_bounds__(CHAIN_THREADS + 32, 1)
    kron_chain(const __grid_constant__ KronArguments k) {
  extern __shared__ __align__(128) u8 memory[];
  __shared__ RingRow rows[2];
  __shared__ RingBarriers barriers;
  Value* const tile = (Value*)memory;
  u8* const operands = memory + TILE_VALUES * sizeof(Value);
  float* const values = (float*)(operands + OPERAND_BYTES);
  const RingSlots slots = {values, shared_address(values + RING_SLOTS * Phase0::P_A * RING_STEP), rows};
  if (threadIdx.x == 0) {
    slots.begin();
    for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk) {
      barrier_init(shared_address(&barriers.read[chunk]), CHAIN_WARPS * CHAIN_CLUSTER);
      barrier_init(shared_address(&barriers.written[chunk]), 1);
    }
    barrier_init_done();
    for (int chunk = 0; chunk < ROW_CHUNKS; ++chunk)
      barrier_expect(shared_address(&barriers.written[chunk]), CHUNK_BYTES);
  }
  __syncthreads();
  cluster_barrier();
  // No block is left that another one still writes to or arrives at: each waits for all of both before its last row.
  if (threadIdx.x >= CHAIN_THREADS)
    fill_ring(k, slots);
  else
    multiply_rows(k, slots, barriers, tile, operands);
}
