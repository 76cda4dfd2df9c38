// The values of one pair, computed apart: its sum, through the epilogue, to all that share it.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_params.cuh"

MERCER_INLINE void store_outputs(const PairArguments& a, const REAL (&outputs)[OUTPUTS], i64 m, i64 n, i64 member) {
  OUT* out = (OUT*)a.out.data + batch_offset(a.members.axes, a.members.out_step, member);
  OUT value;
  convert(value, outputs[0]);
  out[m * a.out.row + n * a.out.column] = value;
  if (a.symmetric) out[n * a.out.row + m * a.out.column] = value;
}
MERCER_INLINE void store_pair(const PairArguments& a, REAL sum, i64 m, i64 n) {
  REAL row[ROW_SLOTS + 1], col[COL_SLOTS + 1];
#pragma unroll
  for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const REAL*)a.x.user)[s * a.x.ld + m];
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const REAL*)a.z.user)[s * a.z.ld + n];
#pragma unroll 1
  for (i64 member = 0; member < a.members.count; ++member) {
    const REAL* params = params_of(a, batch_offset(a.members.axes, a.members.item_step, member));
    REAL outputs[OUTPUTS];
    epilogue(outputs, &sum, row, col, params, (REAL)(m + a.x.offset), (REAL)(n + a.z.offset), (REAL)a.features);
    store_outputs(a, outputs, m, n, member);
  }
}

// A pair whose sum is out of range, by a whole warp.
static __device__ __noinline__ void store_safely(const PairArguments& a, i64 m, i64 n) {
  const GuardedPair pair = {m, n, 0, 0};
  const bool stands = are_equal<GUARD_LANES>(a, pair);
#pragma unroll 1
  for (i64 member = 0; member < a.members.count; ++member) {
    const REAL* params = params_of(a, batch_offset(a.members.axes, a.members.item_step, member));
    REAL outputs[OUTPUTS];
    if (!stands) safe_values<GUARD_LANES>(outputs, a, params, pair);
    if (!stands && threadIdx.x % 32 == 0) store_outputs(a, outputs, m, n, member);
  }
}
