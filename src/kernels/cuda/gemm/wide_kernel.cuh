// The kernel of products with many columns of v whose values are none of products: wide_tile.cuh and wide_stored.cuh
// have `multiply`, `feed` and what lies in shared memory. Registers: as bilinear_tile.cuh.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WIDE_THREADS, BLOCKS)
    wide_tile(const __grid_constant__ BilinearArguments a) {
  extern __shared__ __align__(1024) u8 memory[];
  if constexpr (EXPANDED != 0)
    if (a.pairs.expanded.state->stands != (EXPANDED == 1)) return;
  const WideShared shared(shared_address(memory));
  if (threadIdx.x == 0) {
    for (int s = 0; s < V_STAGES; ++s) {
      barrier_init(shared.v_full(s), 1);
      barrier_init(shared.v_empty(s), CLUSTER * FEED_WARP);
    }
    shared.start();
    barrier_init_done();
  }
  const int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;
  if (CLUSTER > 1)
    cluster_barrier();
  else
    __syncthreads();
  if (threadIdx.x / 32 >= FEED_WARP) {
    if constexpr (BLOCKS == 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (threadIdx.x == FEED_WARP * 32) feed(a, shared, rank);
  } else {
    if constexpr (BLOCKS == 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    multiply(a, shared, rank);
  }
  if (CLUSTER > 1) cluster_barrier();
}
