// What a call with values c exp(-s / h) finds out beforehand: how many pairs cancel although such values may lose
// something whatever s is (split_precision.cuh); of a sample, as in split_operands.cuh. Where values are powers of two,
// whether the rate is a number that they can be made with.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/rates.cuh"
#include "pairs/row_sums.cuh"

extern "C" __global__ void __launch_bounds__(256) sample_values(const __grid_constant__ BilinearArguments a) {
  wait_for_kernel_ahead();
  const PairArguments& p = a.pairs;
  const float* params = member_params(p, 0);
  if (blockIdx.x == 0 && threadIdx.x == 0) p.split.state->at_zero = value_at_zero(p, params);
  float rate = 0;
  if constexpr (HAS_RATE) {
    rate = rate_of_squares(params);
    if (blockIdx.x == 0 && threadIdx.x == 0) p.split.state->rate = rate;
    if (!(rate <= -LEAST_RATE && rate >= -MOST_RATE)) {
      if (blockIdx.x == 0 && threadIdx.x == 0) p.split.state->sampled = MERCER_NO_PRODUCTS;
      return;
    }
  }
  const u32 pair = (blockIdx.x * 256 + threadIdx.x) / 32;
  const i64 m = (i64)((u64)pair * (u64)p.m / MERCER_SAMPLED_PAIRS);
  const i64 n = (i64)((u64)((pair + 1) * 2654435761u) * (u64)p.n >> 32);
  const float square = (float)direct_sum<1>(p, m, n) / FACTOR;
  const float norms = (a.x.norm[m] + a.z.norm[n]) + (a.x.norm_tail[m] + a.z.norm_tail[n]);
  const bool cancels = !(square + slack_of_pairs(params) >= CANCELS_BELOW * norms);
  if constexpr (HAS_RATE) {
    // Some of all pairs are farther out than those of a sample.
    const bool is_beyond = fabsf(rate * (norms - square)) > MOST_POWER / 1.6f;
    if (threadIdx.x % 32 == 0 && is_beyond) p.split.state->rated = MERCER_RATED_NEVER;
  }
  if (threadIdx.x % 32 == 0 && cancels && p.split.state->sampled != MERCER_NO_PRODUCTS)
    atomicAdd(&p.split.state->sampled, 1u);
}
