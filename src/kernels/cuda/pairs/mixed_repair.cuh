// Listed pairs of sums on two sets of pipes that could break the contract (mixed.cuh), again from the values
// themselves, sums in double: by the tile of the values, which has nothing else to do then.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/store_pair.cuh"

MERCER_INLINE double direct_sum(const PairArguments& a, i64 m, i64 n) {
  const float* x = (const float*)a.x.points + m / MERCER_PANEL * a.k * MERCER_PANEL + m % MERCER_PANEL;
  const float* z = (const float*)a.z.points + n / MERCER_PANEL * a.k * MERCER_PANEL + n % MERCER_PANEL;
  double sum = 0;
#pragma unroll 8
  for (int k = threadIdx.x % 32; k < a.k; k += 32)
    sum += fabs((double)x[(i64)k * MERCER_PANEL] - (double)z[(i64)k * MERCER_PANEL]);
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

// All blocks of the grid, a warp a pair: a short list goes to as many warps.
MERCER_STEP void repair_listed(const PairArguments& a) {
  const u32 warps = gridDim.x * (blockDim.x / 32), count = a.mixed.state->listed;
  for (u32 at = (blockIdx.x * blockDim.x + threadIdx.x) / 32; at < count; at += warps) {
    const i64 m = (i64)(a.mixed.repairs[at] >> 32), n = (i64)(u32)a.mixed.repairs[at];
    const REAL sum = (REAL)direct_sum(a, m, n);
    if (threadIdx.x % 32 == 0) store_pair(a, sum, m, n);
  }
}
