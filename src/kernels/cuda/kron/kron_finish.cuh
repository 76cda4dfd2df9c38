// to = alpha from + beta y, from of the computing type: where a pass may not write in place. Without `from`: beta y.
//
// Floor: bytes, each array once. Elements (row, l) stand before a of them; l steps by side.left.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "kron/kron_values.cuh"

#define KRON_FINISH_THREADS 256

extern "C" __global__ void __launch_bounds__(KRON_FINISH_THREADS) kron_finish(
    const __grid_constant__ KronArguments k) {
  const KronEnd end(k);
  const i64 b_count = k.row_count * k.left, count = k.item_count * b_count * k.right;
  for (i64 e = (i64)blockIdx.x * KRON_FINISH_THREADS + threadIdx.x; e < count;
       e += (i64)gridDim.x * KRON_FINISH_THREADS) {
    const i64 rest = e / k.right, a = e - rest * k.right, item = rest / b_count, b = rest - item * b_count;
    const i64 y_place = k.y.data ? kron_place(k, k.y, item, b) + kron_behind(k.y, a) : 0;
    Value value = 0;
    if (k.from.data) value = ((const IN*)k.from.data)[kron_place(k, k.from, item, b) + kron_behind(k.from, a)];
    value = end(value, y_place);
    kron_store(((OUT*)k.to.data)[kron_place(k, k.to, item, b) + kron_behind(k.to, a)], value);
  }
}
