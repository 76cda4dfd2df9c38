// Parameters that lie in arrays, gathered for every batch item, and what the formula makes of parameters alone. One
// thread an item; numbers never leave the device.
//
//   PARAMS, UNIFORMS, REAL
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

extern "C" __global__ void uniforms(const __grid_constant__ UniformArguments a) {
  const i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= a.items) return;
  double param[PARAMS + UNIFORMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p)
    param[p] = a.params[p] ? load_any<double>(a.params[p], a.dtype[p], batch_offset(a.axes, a.step[p], item))
                           : a.numbers[p];
  make_uniforms(param, a.features);
#pragma unroll
  for (int p = 0; p < PARAMS + UNIFORMS; ++p) {
    a.wide[item * (PARAMS + UNIFORMS) + p] = param[p];
    ((REAL*)a.narrow)[item * (PARAMS + UNIFORMS) + p] = (REAL)param[p];
  }
}
