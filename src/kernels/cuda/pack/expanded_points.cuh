// The operands of expanded squares (expanded.cuh), from panels: start_expanded → expand_points → both tiles. For many
// columns of v bound_rows (expanded_rows.cuh) and write_chunks (expanded_chunks.cuh) come between.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "pack/centre.cuh"
#include "pairs/expanded.cuh"
#include "pairs/pair_params.cuh"

#define EXPANDED_THREADS 256
#define EXPANDED_TOLERANCE (TIMES_MANY ? 1.8e-6f : 1.5e-6f)  // of the 2e-6 that products may lose
#define MOST_EXPONENT (TIMES_MANY ? 1000.0f : 60.0f)  // of the factors of a point; 16-bit floats have it exactly
#define MOST_TERM 40.0f             // of 2^t: EXPANDED_TOLERANCE keeps t below 37
#define MOST_VALUE 0x1p60f          // of v and f(0), and the inverse of f(0): sums of 2^30 terms stay finite

// The largest magnitude of a whole power, EXPANDED_EXPONENT with it, where there are many columns.
MERCER_INLINE float whole_power(const ExpandedState& s) {
  return fabsf(s.rate) * fmaxf(float_of(s.most[0]), float_of(s.most[1])) + 1 + EXPANDED_EXPONENT;
}

// |u|^2 of an expanded point of x, as its operands are rounded, times the rate.
MERCER_INLINE double power_of(const ExpandedState& s, const float* features) {
  const double times = -2 * s.rate;
  double norm = 0;
#pragma unroll
  for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) {
    const double rounded = (double)features[k * MERCER_PANEL] / times;
    norm += rounded * rounded;
  }
  return (double)s.rate * norm;
}
MERCER_INLINE float whole_power_of(const ExpandedState& s, const float* features) {
  return (float)floor(power_of(s, features));
}

// What pieces of 16 bits lose at most of the sums of a row with many columns, where |u| is its norm.
MERCER_INLINE float pieces_lose(const ExpandedState& s, float u) {
  const float g = fabsf(s.rate);
  const float exponent = g * (u * u + 2 * u * float_of(s.offset) + float_of(s.spread));
  return exp2_unit(exponent - 23 - EXPANDED_EXPONENT) + float_of(s.peaks) * exp2_unit(exponent - 39);
}

// What the exponent of a pair loses, and with it the pair.
MERCER_INLINE float exponents_lose(const ExpandedState& s) {
  if (!TIMES_MANY)
    return 0.6931472f * 0x1p-24f *
           (2 * fabsf(s.rate) * sqrtf(float_of(s.most_partial[0])) * sqrtf(float_of(s.most_partial[1])));
  // An exponent is truncated by the product of rests, or rounded, to 24 digits of itself; that of a small value loses
  // no more than the value may. Rests lose 2^-24 of themselves, and 2^-34 of the product of both norms.
  const float of_pair = 2 * fabsf(s.rate) * sqrtf(float_of(s.most[0])) * sqrtf(float_of(s.most[1]));
  return 0.6931472f * ((RESTS_APART ? 0x1p-21f : 0x1p-20f) + 0x1p-31f * of_pair);
}

MERCER_INLINE bool expanded_stands(const ExpandedState& s) {
  const float lost = exponents_lose(s);
  const float exponent = fabsf(s.rate) * fmaxf(float_of(s.most[0]), float_of(s.most[1]));
  const bool carries_v = TIMES_MANY || float_of(s.least_v) >= 0x1p-126f * exp2_unit(exponent + MOST_TERM);
  const bool carries_f = fabsf(s.at_zero) <= MOST_VALUE && fabsf(s.at_zero) >= 1 / MOST_VALUE;
  return s.rate < 0 && lost <= EXPANDED_TOLERANCE && exponent <= MOST_EXPONENT && carries_v &&
         float_of(s.most_v) <= MOST_VALUE && carries_f;
}

// A warp takes a feature. Points at both sides are sampled for the centre.
extern "C" __global__ void start_expanded(const __grid_constant__ PairArguments a) {
  const int lane = threadIdx.x % 32, k = threadIdx.x / 32;
  const REAL* params = params_of(a, 0);
  if (threadIdx.x == 0) {
    REAL states[STATES] = {}, outputs[OUTPUTS], slots[1] = {};
    epilogue(outputs, states, slots, slots, params, 0, 0, (REAL)a.features);
    ExpandedState& state = *a.expanded.state;
    state.at_zero = outputs[0];
    state.rate = rate_of_squares(params);
    state.least_v = bits_of(1.0f);
    state.most_v = state.spread = state.peaks = state.offset = state.arrived = 0;
    for (int side = 0; side < 2; ++side) state.most[side] = state.most_partial[side] = 0;
  }
  if (k >= FEATURES_OF_EXPANDED) return;
  REAL samples[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const i64 drawn = (a.m + a.n) * (lane + 32 * s) / CENTRE_SAMPLES;
    const bool of_x = drawn < a.m;
    const i64 point = of_x ? drawn : drawn - a.m;
    const i64 place = (point / MERCER_PANEL * a.k + k) * MERCER_PANEL + point % MERCER_PANEL;
    samples[s] = ((const REAL*)(of_x ? a.x.points : a.z.points))[place];
  }
  const REAL median = median_of(samples);
  if (lane == 0) a.expanded.state->centre[k] = median;
}

// All threads of the block, with |v| of their points, sizes of the pieces, |w|^2 and w.
MERCER_INLINE void find_spread(ExpandedState& state, float v, float piece, float norm,
                               const float (&w)[FEATURES_OF_EXPANDED]) {
  constexpr int kSums = 2 + FEATURES_OF_EXPANDED;
  __shared__ float sums[EXPANDED_THREADS / 32][kSums + 1];
  float most = piece, own[kSums] = {v, v * norm};
#pragma unroll
  for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) own[2 + k] = v * w[k];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
#pragma unroll
    for (int i = 0; i < kSums; ++i) own[i] += __shfl_xor_sync(0xffffffffu, own[i], lanes);
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    float* of_warp = sums[threadIdx.x / 32];
    for (int i = 0; i < kSums; ++i) of_warp[i] = own[i];
    of_warp[kSums] = 32 * most;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  float all[kSums + 1] = {}, offset = 0;
  for (int warp = 0; warp < EXPANDED_THREADS / 32; ++warp)
    for (int i = 0; i <= kSums; ++i) all[i] += sums[warp][i];
  if (!(all[0] > 0)) return;
  for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) offset += all[2 + k] / all[0] * (all[2 + k] / all[0]);
  atomicMax(&state.spread, bits_of(all[1] / all[0]));
  atomicMax(&state.offset, bits_of(sqrtf(offset)));
  atomicMax(&state.peaks, bits_of(all[kSums] / all[0]));
}

// What a block found out about its points, told by one thread of it; that of the last block decides.
MERCER_INLINE void tell_points(ExpandedState& state, int side, u32 most, u32 most_partial, u32 least_v, u32 most_v) {
  atomicMax(&state.most[side], most);
  atomicMax(&state.most_partial[side], most_partial);
  atomicMin(&state.least_v, least_v);
  atomicMax(&state.most_v, most_v);
  __threadfence();
  if (atomicAdd(&state.arrived, 1u) != gridDim.x * gridDim.y - 1) return;
  __threadfence();
  state.stands = expanded_stands(state);
}

// A thread takes a point of the side blockIdx.y, those after the last one too, and all columns of v. Norms are those
// of the operands as they are rounded, so that roundings move points and lose nothing else. The last block decides.
extern "C" __global__ void __launch_bounds__(EXPANDED_THREADS) expand_points(const __grid_constant__ PairArguments a) {
  __shared__ u32 most, most_partial, least_v, most_v;
  const int side = blockIdx.y;
  // Where there are many columns, whole tiles are read.
  const i64 ld = side == 0 ? a.x.ld : TIMES_MANY ? (a.z.ld + 127) / 128 * 128 : a.z.ld, count = side == 0 ? a.m : a.n;
  const i64 point = (i64)blockIdx.x * EXPANDED_THREADS + threadIdx.x;
  if (threadIdx.x == 0) most = most_partial = most_v = 0, least_v = bits_of(1.0f);
  __syncthreads();
  double norm = 0;
  float w[FEATURES_OF_EXPANDED] = {};
  if (point < ld) {
    const auto place = [&](i64 own) { return own / MERCER_PANEL * a.k * MERCER_PANEL + own % MERCER_PANEL; };
    const REAL* from = (const REAL*)(side == 0 ? a.x.points : a.z.points) + place(point);
    REAL* to = side == 0 ? a.x.expanded + place(point) : a.z.expanded + place(point);
    const float rate = a.expanded.state->rate, times = side == 0 ? -2 * rate : 1;
    double in_sum = 0, partial = 0;
#pragma unroll
    for (int k = 0; k < FEATURES_OF_EXPANDED; ++k) {
      const float weight = WEIGHTED ? weight_of(((const REAL*)a.w)[k]) : 1;
      const float value =
          point < count ? (from[k * MERCER_PANEL] - a.expanded.state->centre[k]) * weight * times : 0.0f;
      to[k * MERCER_PANEL] = value;
      w[k] = value;
      const double rounded = (double)value / (double)times;
      norm += rounded * rounded;
      in_sum = (k == FIRST_FEATURES ? 0 : in_sum) + rounded * rounded;
      partial += in_sum;
    }
    if (FIRST_FEATURES < FEATURES_OF_EXPANDED) partial += norm;
    if (point < count) {
      atomicMax(&most, bits_of(__double2float_ru(norm)));
      atomicMax(&most_partial, bits_of(__double2float_ru(partial)));
    }
  }
  const double power = (double)a.expanded.state->rate * norm, whole = TIMES_MANY ? floor(power) : 0;
  const double factor = exp2(power - whole);
  if (side == 0 && point < ld) a.expanded.row_factors[point] = (float)((double)a.expanded.state->at_zero * factor);
  if (TIMES_MANY && side == 1 && point < ld)
    a.expanded.z_powers[point] = (int)fmax(whole, -2.0 * MOST_EXPONENT) + EXPANDED_EXPONENT;
  for (int e = 0; side == 1 && e < a.v.columns; ++e) {
    const float v = point < count ? ((const REAL*)a.v.data)[e * a.v.ld + point] : 0.0f, size = fabsf(v);
    const float piece = (float)((double)v * factor);
    if (size > 0) atomicMin(&least_v, bits_of(size));
    atomicMax(&most_v, bits_of(size));
    if (point < a.z.ld) a.expanded.v[e * a.v.ld + point] = piece;
    if constexpr (TIMES_MANY) find_spread(*a.expanded.state, size, fabsf(piece), __double2float_ru(norm), w);
  }
  __syncthreads();
  if (threadIdx.x == 0) tell_points(*a.expanded.state, side, most, most_partial, least_v, most_v);
}
