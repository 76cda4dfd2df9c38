// The image of v for products over n with many columns (wide_fold.cuh): for every 32 points n, in four steps of eight,
// the high and the low piece of all columns, [step][piece][half][column][four floats]. The i-th float of half h is
// point 2 i + h of the step; of 16 points by fours point 4 i + h of the first step, two farther on of the second.
// Zeros follow the last point and column. Extra columns (wide_fold.cuh) follow the others.
//
// For products that values come from (bilinear_wide.cuh), values are powers of two, and the points' norms follow. What
// they are times, f(0), is then in v.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define IMAGE_THREADS 256

// Norms of 32 points, their scale and the largest norm that pieces carry. Points that there are not are infinitely far
// away. A part of it is a thread's.
MERCER_INLINE void write_stage_norms(const WideArguments& a, float* to, i64 block, int thread, int threads) {
  const auto norm = [&](int i) {
    const i64 n = block * 32 + i;
    return n < a.n ? a.norm[n] + a.norm_tail[n] : INFINITY;
  };
  for (int i = thread; i < 32; i += threads) to[i] = norm(i);
  if (thread == 0) to[32] = block * 32 < a.n ? a.scale[block * 32] : 0.0f;
  if (thread != threads - 1) return;
  float most = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) most = fmaxf(most, norm(i) < INFINITY ? norm(i) : 0.0f);
  to[33] = most;
}

extern "C" __global__ void __launch_bounds__(IMAGE_THREADS) write_v(const __grid_constant__ WideArguments a) {
  if (a.expanded != nullptr && a.expanded->stands) return;
  if (a.split != nullptr && a.split->rated == MERCER_RATED_YES) return;
  const i64 at = (i64)blockIdx.x * IMAGE_THREADS + threadIdx.x;
  const int wide = a.wide + a.extra_wide;
  const int column = (int)(at % wide), half = (int)(at / wide % 2), step = (int)(at / wide / 2 % 4);
  const i64 block = at / wide / 8;
  if (block >= a.blocks) return;
  Pack<float, 4> high, low;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const i64 n = block * 32 + (a.by_fours ? step / 2 * 16 + 4 * i + step % 2 * 2 : step * 8 + 2 * i) + half;
    float v = 0;
    if (n < a.n && column < a.columns)
      v = a.v[n * a.v_row + column * a.v_column];
    else if (n < a.n && column >= a.wide && column < a.wide + a.extra_columns)
      v = a.extra[(column - a.wide) * a.extra_ld + n];
    if (a.norm != nullptr) {
      const float times = v * a.split->at_zero;
      if (fabsf(v) < INFINITY && !(fabsf(times) < INFINITY)) a.split->sampled = MERCER_NO_PRODUCTS;
      v = times;
    }
    // Rounded: what the low piece has to carry is half as much. NaN stays one.
    const float rounded = float_of((bits_of(v) + 0x1000u) & 0xffffe000u);
    high.value[i] = v != v ? v : fabsf(rounded) < INFINITY ? rounded : high_piece(v);
    low.value[i] = v != v ? 0.0f : v - high.value[i];
  }
  u8* const image = (u8*)a.image + block * a.block_bytes;
  Pack<float, 4>* to = (Pack<float, 4>*)image + step * 4 * wide + half * wide + column;
  store_pack((float*)to, high);
  store_pack((float*)(to + 2 * wide), low);
  if (a.norm != nullptr)
    write_stage_norms(a, (float*)(image + 256 * wide), block, (int)(at % (8 * wide)), 8 * wide);
}
