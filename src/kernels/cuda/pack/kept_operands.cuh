// The columns of v as points of a product, n as its features, in pieces of 16 bits (split_pieces.cuh), which stored
// values are multiplied with (bilinear_kept.cuh). For each part of n an image [32 columns][unit of 32 n][32]
// [128 bytes], in which a column has a power of two of its own. Zeros lie after the last point and column.
//
// Values of a column far below its largest one lose digits. What they lose beyond a part of themselves is added up: it
// is multiplied with f(0) at most, the sum of magnitudes with LEAST_PART f(0) at least (bilinear_kept.cuh). A column
// where it could matter counts as infinite, and no values are kept.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"

#define KEPT_THREADS 256
#define KEPT_LANES 8  // of a column's unit, four points each
// The largest exponent of pieces of v: its inverse times the factors that kept values may have is a normal number.
#define MOST_KEPT_EXPONENT 100
#define LOST_OF_ITSELF 0x1p-22f
#define MOST_LOST (LEAST_PART * 0x1p-20f)  // of the sum of magnitudes

// A warp takes a column of a part.
extern "C" __global__ void __launch_bounds__(KEPT_THREADS) write_kept(const __grid_constant__ KeptArguments a) {
  wait_for_kernel_ahead();
  // Values are kept until a tile finds that they cannot be; both pieces are there.
  if (blockIdx.x == 0 && blockIdx.y == 0) {
    if (threadIdx.x == 0) a.split->rated = 1;
    for (i64 i = threadIdx.x; i < a.states; i += KEPT_THREADS) a.state[i] = {1, 0, 0, 0, 0, 0};
  }
  const i64 column = (i64)blockIdx.x * (KEPT_THREADS / 32) + threadIdx.x / 32, part = blockIdx.y;
  const int lane = threadIdx.x % 32, place = lane % KEPT_LANES;
  const i64 first = part * a.units * 32, left = a.n - first, count = left < a.units * 32 ? left : a.units * 32;
  const i64 units = (count + 31) / 32;
  const float* v = a.v + column * a.v_ld + first;
  u32 most = 0;
  if (column < a.columns) {
#pragma unroll 8
    for (i64 n = lane; n < count; n += 32) {
      const u32 bits = bits_of(fabsf(v[n]));
      most = bits > most ? bits : most;
    }
  }
  most = __reduce_max_sync(0xffffffffu, most);
  const int wanted = piece_exponent(float_of(most));
  const int exponent = wanted < MOST_KEPT_EXPONENT ? wanted : MOST_KEPT_EXPONENT;
  const float power = power_of_two(exponent);
  float lost = 0, sum = 0;
  const int row = quad_row((int)(column % 32));
  u8* image = a.image + part * a.padded * a.units * 128 + column / 32 * units * 4096 + row * 128;
#pragma unroll 4
  for (i64 unit = lane / KEPT_LANES; unit < units; unit += 32 / KEPT_LANES) {
    const i64 n = unit * 32 + place * 4;
    Pack<float, 4> values = {};
    if (column < a.columns && n < count) values = *(const Pack<float, 4>*)(v + n);
    u32 high[2], low[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float pair[2] = {n + 2 * c < count ? values.value[2 * c] * power : 0.0f,
                             n + 2 * c + 1 < count ? values.value[2 * c + 1] * power : 0.0f};
      split_pair(pair[0], pair[1], high[c], low[c]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float rest = pair[i] - half_value(high[c], i) - half_value(low[c], i), size = fabsf(pair[i]);
        lost += fmaxf(mul_add(-LOST_OF_ITSELF, size, fabsf(rest)), 0.0f);
        sum += size;
      }
    }
    write_both(image + unit * 4096, row, place, high, low);
  }
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    lost += __shfl_xor_sync(0xffffffffu, lost, lanes);
    sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
  }
  if (lane != 0) return;
  a.scale[part * a.padded + column] = power_of_two(-exponent);
  atomicMax(&a.split->most_v, lost <= MOST_LOST * sum ? most : max(most, bits_of(INFINITY)));
}
