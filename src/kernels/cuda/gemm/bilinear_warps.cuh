// The tiles of bilinear_tile.cuh for tensor cores that work by the warp (compute capability 8.0 and newer): mma.sync
// from registers in place of wgmma from shared memory.
//
//             128 columns
//            ┌──────────────┐   warp w has rows 16 w … 16 w + 15 of all columns: its sums lie as wgmma leaves them, so
//   128 rows │ 8 x 16 rows  │   what becomes of them is the same text. Units of both images come by cp.async into a
//            └──────────────┘   ring of STAGES, all threads fetch.
//
// Steps over (tile, unit) form one pipeline. Sums go to float registers after every unit of 32 features (64 where there
// are no low pieces): 64 accumulators and 64 sums a thread.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_walk.cuh"

#define WARP_THREADS 256

// The next unit to be fetched.
struct Fetch {
  Walk walk;
  int unit, stage;
  bool left;
  MERCER_METHOD Fetch(const BilinearArguments& a) : walk(a) {
    unit = stage = 0;
    left = next_tile();
  }
  MERCER_METHOD bool next_tile() {
    while (walk.next())
      if (!walk.is_below()) return true;
    return false;
  }
  // A group of copies, empty after the last unit.
  MERCER_METHOD void issue(const BilinearArguments& a, u8* stages, int units) {
    if (left) {
      constexpr int kBlock = MERCER_IMAGE_ROWS * ROW_BYTES, kBlocksX = TILE_M / MERCER_IMAGE_ROWS,
                    kBlocks = kBlocksX + TILE_N / MERCER_IMAGE_ROWS;
      const i64 block_bytes = a.units * kBlock;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const i64 from = b < kBlocksX
                             ? image_block(walk.m0 / MERCER_IMAGE_ROWS + b, a.x_end)
                             : image_block(walk.n0 / MERCER_IMAGE_ROWS + b - kBlocksX, a.z_end);
        const u8* image = b < kBlocksX ? a.x.image : a.z.image;
        copy_16(stages + stage * STAGE_BYTES + b * kBlock + threadIdx.x * 16,
                image + from * block_bytes + (i64)unit * kBlock + threadIdx.x * 16);
      }
      if (++stage == STAGES) stage = 0;
      if (++unit == units) {
        unit = 0;
        left = next_tile();
      }
    }
    commit_copies();
  }
};

// Pieces of 16 features of the warp's rows, from 16-byte chunk `chunk` on.
MERCER_INLINE void load_x(u32 (&x)[4], u32 unit, int chunk) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
  load_matrices(x, unit + row * ROW_BYTES + ((chunk + lane / 16 ^ row & 7) << 4));
}
// As `load_x`, for 16 columns: those of eight in each pair of registers.
MERCER_INLINE void load_z(u32 (&z)[4], u32 unit, int column, int chunk) {
  const int lane = threadIdx.x % 32, row = column + lane % 8 + lane / 16 * 8;
  load_matrices(z, unit + (TILE_M + row) * ROW_BYTES + ((chunk + lane / 8 % 2 ^ row & 7) << 4));
}

// 16 rows times 16 columns, 16 features.
MERCER_INLINE void multiply_16x16(float* d, const u32 (&x)[4], const u32 (&z)[4]) {
  multiply_16x8(d, x, z[0], z[1]);
  multiply_16x8(d + 4, x, z[2], z[3]);
}

// A unit into accumulators that start at zero. What of z is in registers is used for all products; small ones come
// first: what truncation takes grows with the sum.
MERCER_INLINE void add_unit(float (&acc)[SUMS], u32 unit) {
  u32 x_high[2][4], x_low[2][4];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    load_x(x_high[s], unit, 2 * s);
    load_x(x_low[s], unit, 4 + 2 * s);
  }
#pragma unroll
  for (int i = 0; i < SUMS; ++i) acc[i] = 0;
#pragma unroll
  for (int j = 0; j < TILE_N / 16; ++j) {
    u32 z_high[2][4], z_low[2][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      load_z(z_high[s], unit, j * 16, 2 * s);
      load_z(z_low[s], unit, j * 16, 4 + 2 * s);
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) multiply_16x16(acc + j * 8, x_low[s], z_high[s]);
#pragma unroll
    for (int s = 0; s < 2; ++s) multiply_16x16(acc + j * 8, x_high[s], z_low[s]);
#pragma unroll
    for (int s = 0; s < 2; ++s) multiply_16x16(acc + j * 8, x_high[s], z_high[s]);
  }
}

// As `add_unit`, where there are no low pieces: 64 features.
MERCER_INLINE void add_high_unit(float (&acc)[SUMS], u32 unit) {
  u32 x[4][4];
#pragma unroll
  for (int s = 0; s < 4; ++s) load_x(x[s], unit, 2 * s);
#pragma unroll
  for (int i = 0; i < SUMS; ++i) acc[i] = 0;
#pragma unroll
  for (int j = 0; j < TILE_N / 16; ++j)
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      u32 z[4];
      load_z(z, unit, j * 16, 2 * s);
      multiply_16x16(acc + j * 8, x[s], z);
    }
}

#define PLANE_VALUES ((COLUMN_PLANES * TILE_N + WARP_THREADS - 1) / WARP_THREADS)

MERCER_INLINE void multiply(const BilinearArguments& a, const BilinearShared& shared, u8* stages, bool high,
                            int units) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Fetch fetch(a);
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fetch.issue(a, stages, units);
  Walk walk(a);
  Consumer consumer;
  int stage = 0;
#pragma unroll 1
  while (walk.next()) {
    if (walk.is_below()) continue;
    const i64 m = walk.m0 + warp * 16;
    PointNorm norms[2];
    load_norms(norms, a, m);
    consumer.start(a, m);
    float planes[PLANE_VALUES];
#pragma unroll
    for (int p = 0; p < PLANE_VALUES; ++p) {
      const int place = p * WARP_THREADS + threadIdx.x, column = place % TILE_N;
      const bool is_there = place < COLUMN_PLANES * TILE_N && walk.n0 + column < a.z_end;
      planes[p] = is_there ? column_plane(a, place / TILE_N, walk.n0)[column] : 0.0f;
    }
    float sum[SUMS], acc[SUMS];
    volatile float total[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] = 0;
#pragma unroll 1
    for (int unit = 0; unit < units; ++unit) {
      wait_copies<STAGES - 2>();
      __syncthreads();
      fetch.issue(a, stages, units);
      const u32 unit_at = shared.stages + stage * STAGE_BYTES;
      if (high)
        add_high_unit(acc, unit_at);
      else
        add_unit(acc, unit_at);
      if (++stage == STAGES) stage = 0;
      add_sums(sum, acc);
      if (unit % UNITS_OF_SUM == UNITS_OF_SUM - 1 && unit + 1 < units) put_away(total, sum, unit < UNITS_OF_SUM);
    }
    if (units > UNITS_OF_SUM) add_sums(sum, total);
    // The tile before has been left by all: they have met since.
#pragma unroll
    for (int p = 0; p < PLANE_VALUES; ++p) {
      const int place = p * WARP_THREADS + threadIdx.x;
      const int at = place / TILE_N * PLANE_ROW + place % TILE_N;
      if (place < COLUMN_PLANES * TILE_N) ((float*)(stages + (shared.columns - shared.stages)))[at] = planes[p];
    }
    __syncthreads();
    consumer.take(a, shared, sum, m, walk, norms);
  }
  consumer.finish(a.pairs.found);
  wait_copies<0>();
}

extern "C" __global__ void __launch_bounds__(WARP_THREADS, 1)
    bilinear_tile(const __grid_constant__ BilinearArguments a) {
  extern __shared__ __align__(128) u8 memory[];
  wait_for_kernel_ahead();
  if (!products_stand(*a.pairs.split.state)) return;
  const bool high = a.pairs.split.state->low == 0;
  multiply(a, BilinearShared(shared_address(memory)), memory, high, (int)(high ? (a.units + 1) / 2 : a.units));
}
