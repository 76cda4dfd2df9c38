// Whether rounds of conjugate gradients go on, told to a conditional node of a CUDA graph. A module of its own: drivers
// without such nodes cannot load it, since the function below is theirs.
#pragma once

#include "common/prelude.cuh"
#include "linalg/cg_state.h"

extern "C" __device__ void cudaGraphSetConditional(u64 condition, u32 value);

// One warp. While a column is live and rounds are left.
extern "C" __global__ void __launch_bounds__(32) cg_go_on(const __grid_constant__ CgConditionArguments a) {
  bool live = false;
  for (i64 column = threadIdx.x; column < a.columns; column += 32) live = live || a.flags[column] == kCgLive;
  live = __any_sync(0xffffffffu, live);
  if (threadIdx.x != 0) return;
  const i64 left = a.begins ? a.rounds : *a.left - 1;
  *a.left = left;
  cudaGraphSetConditional(a.condition, live && left > 0 ? 1 : 0);
}
