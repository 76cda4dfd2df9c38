// What the values of a call on mixed pipes may make of errors of their sums (mixed.cuh): the least of all members, by
// one warp; nothing for a parameter that is NaN.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"

extern "C" __global__ void allow(const __grid_constant__ PairArguments a) {
  wait_for_kernel_ahead();
  const i64 count = CONSUMER == 0 ? a.members.count : 1;
  float least = INFINITY;
  for (i64 member = threadIdx.x; member < count; member += 32) {
    const float own = allowance(params_of(a, batch_offset(a.members.axes, a.members.item_step, member)));
    least = fminf(least, own == own ? own : 0.0f);
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) least = fminf(least, __shfl_xor_sync(0xffffffffu, least, lanes));
  if (threadIdx.x == 0) a.mixed.state->allowance = least;
}
