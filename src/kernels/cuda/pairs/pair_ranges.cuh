// Few tiles of many features: a tile's features in ranges, each by a block of its own (pair_tile.cuh). The block that
// comes last merges the states of all ranges, in their order, and stores the values: equal calls give equal bits.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

// Whether the states are complete.
MERCER_INLINE bool join_ranges(Accumulators& acc, const PairArguments& a, const Block& block) {
  __shared__ u32 before;
  constexpr int kStates = THREAD_M * THREAD_N * STATES;
  volatile REAL* const ranges =
      (volatile REAL*)a.ranges.states + (i64)block.place * a.ranges.count * (kStates * THREADS) + threadIdx.x;
  volatile REAL* const own = ranges + (i64)block.range * (kStates * THREADS);
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    const int pair = i / STATES;
    own[i * THREADS] = acc.value[pair / THREAD_N][pair % THREAD_N][i % STATES];
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) before = atomicAdd(a.ranges.arrived + block.place, 1u);
  __syncthreads();
  if (before + 1 < (u32)a.ranges.count) return false;
  __threadfence();
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    const int pair = i / STATES;
    acc.value[pair / THREAD_N][pair % THREAD_N][i % STATES] = ranges[i * THREADS];
  }
#pragma unroll 1
  for (int range = 1; range < a.ranges.count; ++range) {
    volatile REAL* const next = ranges + (i64)range * (kStates * THREADS);
#pragma unroll
    for (int pair = 0; pair < THREAD_M * THREAD_N; ++pair) {
      REAL incoming[STATES];
#pragma unroll
      for (int s = 0; s < STATES; ++s) incoming[s] = next[(pair * STATES + s) * THREADS];
      merge_states(acc.value[pair / THREAD_N][pair % THREAD_N], incoming);
    }
  }
  return true;
}
