// Sums that stand where values belong become values, each in its place (plan/gpu/sums/bare_sums.h).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"

#define FINISH_THREADS 256

extern "C" __global__ void __launch_bounds__(FINISH_THREADS) finish_stored(const __grid_constant__ PairArguments a) {
  const i64 n = (i64)blockIdx.x * FINISH_THREADS + threadIdx.x;
  if (n >= a.n) return;
  for (i64 member = blockIdx.z; member < a.members.count; member += gridDim.z) {
    const REAL* params = params_of(a, batch_offset(a.members.axes, a.members.item_step, member));
    OUT* out = (OUT*)a.out.data + batch_offset(a.members.axes, a.members.out_step, member) + n * a.out.column;
    for (i64 m = blockIdx.y; m < a.m; m += gridDim.y) {
      const REAL sum = out[m * a.out.row];
      REAL outputs[OUTPUTS];
      epilogue(outputs, &sum, nullptr, nullptr, params, 0, 0, (REAL)a.features);
      if constexpr (GUARDED) {
        REAL again[OUTPUTS];
        const i64 x_set = batch_offset(a.members.axes, a.x.step, member);
        const i64 z_set = batch_offset(a.members.axes, a.z.step, member);
        if (is_out_of_range(&sum) && has_safe_values(again, a, params, m, n, x_set, z_set)) outputs[0] = again[0];
      }
      out[m * a.out.row] = outputs[0];
    }
  }
}
