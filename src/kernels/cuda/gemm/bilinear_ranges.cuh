// Few tiles of many features: a tile's features in ranges, each by a block of its own (bilinear_tile.cuh). The range
// that comes last adds up the sums of all for a warp's rows, in order.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_walk.cuh"

// Whether the sums are complete.
template <class Walk>
MERCER_INLINE bool join_ranges(const BilinearArguments& a, const Walk& walk, int rank, float (&sum)[SUMS]) {
  if (a.ranges == 1) return true;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 tile = (walk.m0 / TILE_M + rank) * walk.columns + walk.n0 / TILE_N;
  constexpr int kWarpSums = SUMS * 32;
  volatile float* ranges = a.partial + (tile * a.ranges * 8 + warp) * kWarpSums + lane;
  volatile float* own = ranges + (i64)walk.range * 8 * kWarpSums;
#pragma unroll
  for (int i = 0; i < SUMS; ++i) own[i * 32] = sum[i];
  __threadfence();
  __syncwarp();
  u32 before = 0;
  if (lane == 0) before = atomicAdd(&a.arrived[tile * 8 + warp], 1u);
  if (__shfl_sync(0xffffffffu, before, 0) + 1 < (u32)a.ranges) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sum[i] = ranges[i * 32];
#pragma unroll 1
  for (int r = 1; r < a.ranges; ++r)
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[i] += ranges[(i64)r * 8 * kWarpSums + i * 32];
  return true;
}
