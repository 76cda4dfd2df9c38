// Products over n with few columns of v, for pairs whose squares of differences are expanded (expanded.cuh), by
// products of a warp: those of warpgroups with a left operand in registers take as long for 8 columns as for 24.
//
//            128 columns n: chunks of the points, and v
//           ┌──────────────┐
//  128 rows │ 4 x 32 rows  │   A warp has two groups of 16 rows, whose features stay in registers for a range of n.
//           └──────────────┘   Of 32 columns it makes exponents, powers of two, their pieces, and products with v.
//
// What a product leaves in registers lies as the next one takes it. A ring of STAGES tiles: thread 0 asks for the tile
// AHEAD, whose stage was read two tiles ago, so that warps seldom wait for one another.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "gemm/bilinear_walk.cuh"
#include "gemm/wide_pieces.cuh"
#include "pairs/expanded.cuh"
#include "pairs/expanded_powers.cuh"

#define WARPS 4
#define GROUPS (TILE_M / (16 * WARPS))
#define WARP_THREADS (32 * WARPS)
#define Z_BYTES (TILE_N * POINT_BYTES)
#define V_BYTES (TILE_N / 32 * V_STAGE_BYTES)
#define STAGE_BYTES (Z_BYTES + V_BYTES)
#define AHEAD (STAGES - 2)
#define STRIPS (CHUNKS <= 4 ? 2 : 1)  // of a loop's text: one's products run under the powers of the other

// total += pieces times v, of 32 columns whose v begins at `v`.
MERCER_INLINE void add_products(float (&total)[GROUPS][WIDE / 2], const Pieces (&pieces)[GROUPS], u32 v) {
  const u32 lane = threadIdx.x % 32, matrix = lane / 8;  // both halves of k of the high piece, then of the low one
  const u32 own = v + matrix / 2 * V_PIECE_BYTES + matrix % 2 * (WIDE * 16) + lane % 8 * 16;
#pragma unroll
  for (int e = 0; e < WIDE / 8; ++e) {
    u32 z[V_STEPS][4];
#pragma unroll
    for (int j = 0; j < V_STEPS; ++j) load_matrices(z[j], own + j * V_STEP_BYTES + e * 128);
    const float2 scale = shared_pair(v + V_STEPS * V_STEP_BYTES + e * 32 + lane % 4 * 8);
    float part[GROUPS][4] = {};
#pragma unroll
    for (int j = 0; j < V_STEPS; ++j)
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) {
        multiply_16x8(part[g], pieces[g].high[j], z[j][2], z[j][3]);
        multiply_16x8(part[g], pieces[g].low[j], z[j][0], z[j][1]);
      }
#pragma unroll
    for (int j = 0; j < V_STEPS; ++j)
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) multiply_16x8(part[g], pieces[g].high[j], z[j][0], z[j][1]);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        total[g][e * 4 + i] = mul_add(part[g][i], i % 2 == 0 ? scale.x : scale.y, total[g][e * 4 + i]);
  }
}

struct WarpStages {
  u32 base;
  MERCER_METHOD u32 z(int stage) const { return base + stage * STAGE_BYTES; }
  MERCER_METHOD u32 full(int stage) const { return base + STAGES * STAGE_BYTES + 8 * stage; }
  MERCER_METHOD u32 empty(int stage) const { return full(STAGES + stage); }
};

// A tile into the stage `ahead` of the ring's; by one thread.
MERCER_INLINE void fetch(const BilinearArguments& a, const WarpStages& stages, Ring<STAGES> ring, int ahead, i64 tile) {
#pragma unroll
  for (int i = 0; i < ahead; ++i) ring.advance();
  const u32 to = stages.z(ring.stage), full = stages.full(ring.stage);
  barrier_wait(stages.empty(ring.stage), ring.parity ^ 1);
  barrier_expect(full, STAGE_BYTES);
  copy_bulk(to, (const u8*)a.pairs.z.points + tile * Z_BYTES, Z_BYTES, full);
  copy_bulk(to + Z_BYTES, a.v_image + tile * V_BYTES, V_BYTES, full);
}

extern "C" __global__ void __launch_bounds__(WARP_THREADS, BLOCKS)
    wide_tile(const __grid_constant__ BilinearArguments a) {
  extern __shared__ __align__(1024) u8 memory[];
  const PairArguments& p = a.pairs;
  if (!p.expanded.state->stands) return;
  const WarpStages stages = {shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(stages.full(s), 1);
      barrier_init(stages.empty(s), WARPS);
    }
    barrier_init_done();
  }
  __syncthreads();
  Walk walk(a);
  Ring<STAGES> ring = {0, 0};
#pragma unroll 1
  while (walk.next()) {  // the first tile of a range
    const i64 m = walk.m0 + threadIdx.x / 32 * (16 * GROUPS) + threadIdx.x % 32 / 4;
    if (threadIdx.x == 0) {
#pragma unroll
      for (int ahead = 0; ahead < AHEAD; ++ahead)
        if (walk.first + ahead < walk.end) fetch(a, stages, ring, ahead, walk.first + ahead);
    }
    ExpandedRows rows[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) rows[g].load(p, m + 16 * g);
    int tile = walk.first;
#pragma unroll 1
    while (tile < walk.end) {  // a sum
      float total[GROUPS][WIDE / 2] = {};
      walk.tile = tile + Walk::kTilesOfSum < walk.end ? tile + Walk::kTilesOfSum : walk.end;
#pragma unroll 1
      for (; tile < walk.tile; ++tile) {
        if (threadIdx.x == 0 && tile + AHEAD < walk.end) fetch(a, stages, ring, AHEAD, tile + AHEAD);
        __syncwarp();
        barrier_wait(stages.full(ring.stage), ring.parity);
        const u32 z = stages.z(ring.stage);
#pragma unroll STRIPS
        for (int strip = 0; strip < TILE_N / 32; ++strip) {
          Pieces pieces[GROUPS];
#pragma unroll
          for (int g = 0; g < GROUPS; ++g) {
            float values[16];
            powers_of(values, rows[g], z + strip * (32 * POINT_BYTES));
            pieces[g].split(values);
          }
          add_products(total, pieces, z + Z_BYTES + strip * V_STAGE_BYTES);
        }
        async_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(stages.empty(ring.stage));
        ring.advance();
      }
#pragma unroll
      for (int g = 0; g < GROUPS; ++g)
        store_sums(p, m + 16 * g, walk, total[g], [&](int, i64 row) { return p.expanded.row_factors[row]; });
    }
  }
}
