// Both sides in chunks of eight 16-bit floats, from which a product of matrices makes exponents. A feature of u is
//
//   U = h + m + l, h a multiple of a step, of at most 2^11 of them, m the rest to 11 digits, l the next 11,
//
// and one of w is W = h' + m' + l'. Sums of h h' and of whole powers are multiples of the product of both steps, below
// 2^24 of them by Cauchy and Schwarz, so a tensor core loses nothing of them, truncate as it may. They come first, for
// together they are no larger than the exponent. What is left is 2^-11 of its terms at most, and is added to them,
// h m' + m h' + m m' + h l' + l h', but for 2^-34 of |u| |w|. In that l is taken times 2^12 and its partner times
// 2^-12, lest it leave 16 bits.
//
//   x: [point][chunk]                 h of all features, whole power, 1, zeros │ h, m, m, 2^-12 h, 2^12 l of every
//   z: [eight points][chunk][point]   h', 1, whole power, zeros                │ m', h', m', 2^12 l', 2^-12 h'
//                                                                                feature, zeros
//
// Steps are powers of two that bring both sides to the same size.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "pack/expanded_points.cuh"
#include "pack/expanded_rows.cuh"
#include "pairs/expanded.cuh"

struct Steps {
  float times[2], step[2];  // what u and w are multiplied with, and the steps of the products
  MERCER_METHOD explicit Steps(const ExpandedState& s) {
    const auto above = [](float size) { return (int)(bits_of(fmaxf(size, 0x1p-40f)) >> 23) - 126; };
    const int of_u = above(2 * fabsf(s.rate) * sqrtf(float_of(s.most[0]))), of_w = above(sqrtf(float_of(s.most[1])));
    const int of_power = above(whole_power(s));
    const int sum = of_u + of_w > of_power ? of_u + of_w : of_power, half = sum / 2;
    times[0] = power_of_two(half - of_u);
    times[1] = power_of_two(of_u - half);
    step[0] = power_of_two(half - 11);
    step[1] = power_of_two(sum - half - 11);
  }
};

// A thread takes a point of the side blockIdx.y.
extern "C" __global__ void __launch_bounds__(EXPANDED_THREADS) write_chunks(const __grid_constant__ PairArguments a) {
  if (!a.expanded.state->stands) return;
  const int side = blockIdx.y;
  const i64 ld = side == 0 ? a.x.ld : (a.z.ld + 127) / 128 * 128;
  const i64 point = (i64)blockIdx.x * EXPANDED_THREADS + threadIdx.x;
  if (point >= ld) return;
  const Steps steps(*a.expanded.state);
  const float times = steps.times[side], step = steps.step[side];
  const float* from =
      (side == 0 ? a.x.expanded : a.z.expanded) + point / MERCER_PANEL * a.k * MERCER_PANEL + point % MERCER_PANEL;
  float halves[CHUNKS * 8] = {};
  const float power = side == 0 ? whole_power_of(*a.expanded.state, from) : (float)a.expanded.z_powers[point];
  halves[FEATURES_OF_EXPANDED] = side == 0 ? power : 1.0f;
  halves[FEATURES_OF_EXPANDED + 1] = side == 0 ? 1.0f : power;
#pragma unroll
  for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) {
    const float value = from[k * MERCER_PANEL] * times, high = rintf(value / step) * step, rest = value - high;
    const float middle = half_value(half_pair(rest, 0), 0), low = (rest - middle) * 0x1p12f;
    const float shifted = high * 0x1p-12f;
    halves[k] = high;
    float* rests = halves + STEP_CHUNKS * 8 + 5 * k;
    rests[0] = side == 0 ? high : middle;
    rests[1] = side == 0 ? middle : high;
    rests[2] = middle;
    rests[3] = side == 0 ? shifted : low;
    rests[4] = side == 0 ? low : shifted;
  }
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const i64 place = side == 0 ? point * CHUNKS + c : point / 8 * (8 * CHUNKS) + c * 8 + point % 8;
    const float* own = halves + c * 8;
    ((uint4*)(side == 0 ? a.x.chunks : a.z.chunks))[place] = {half_pair(own[0], own[1]), half_pair(own[2], own[3]),
                                                              half_pair(own[4], own[5]), half_pair(own[6], own[7])};
  }
}
