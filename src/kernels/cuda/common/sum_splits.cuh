// Partial results of ranges, added up in order: [split][output][m][k] become out.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

extern "C" __global__ void sum_splits(const __grid_constant__ SumArguments a) {
  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= (i64)a.outputs * a.m * a.k) return;
  REAL sum = ((const REAL*)a.partial)[at];
  for (int s = 1; s < a.splits; ++s) sum += ((const REAL*)a.partial)[s * a.split + at];
  const i64 k = at % a.k, m = at / a.k % a.m, o = at / a.k / a.m;
  REAL& out = ((REAL*)a.out)[o * a.out_output + m * a.out_row + k * a.out_feature];
  out = a.adds ? out + sum : sum;
}
