// Numbers of the host to device memory, by value: a captured graph keeps them.
#pragma once

#include "common/arguments.h"

extern "C" __global__ void fill(const __grid_constant__ FillArguments a) {
  for (int i = threadIdx.x; i < a.count; i += blockDim.x) a.to[i] = a.numbers[i];
}
