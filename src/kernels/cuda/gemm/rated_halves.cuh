// Values that are powers of two, in pieces of 16 bits (POWERS 1; bilinear_wide.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "common/split_precision.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/rates.cuh"
#include "pairs/row_sums.cuh"

// Values f = c 2^(rate |x|^2) 2^(rate |z|^2) 2^(-2 rate x · z): the last powers are multiplied with v times those of z,
// sums with c and those of x. Pieces of 16 bits carry them times 2^VALUE_EXPONENT while they are between 2^-MOST_POWER
// and 2^MOST_POWER: the large ones, near pairs, to 2^-22 of themselves, and the small ones, whose |x - z|^2 is larger
// than both norms, to what these may lose. A tile that finds another one tells so, and all are made again in tf32.
//
// Every 32 points share a power of two of v. What pieces of v lose beyond 2^-22 of themselves, compared with the sum of
// their magnitudes, is multiplied with 2^(2 MOST_POWER) at most. Sums of 2^30 terms stay finite where c and v are at
// most MOST_FACTOR.
#define MOST_FACTOR 0x1p60f
#define MOST_LOST_V 4e-7f
MERCER_INLINE bool halves_stand(const PairArguments& p) {
  const SplitState& s = *p.split.state;
  const float c = fabsf(s.at_zero), norms = sqrtf(float_of(s.most_norm[0])) * sqrtf(float_of(s.most_norm[1]));
  const float powers = fminf(4 * fabsf(s.rate) * norms, 2 * MOST_POWER);
  return s.rated != MERCER_RATED_NEVER && norms < INFINITY && float_of(s.lost_v) * exp2_unit(powers) <= MOST_LOST_V &&
         c <= MOST_FACTOR && c >= 1 / MOST_FACTOR && float_of(s.most_v) <= MOST_FACTOR;
}
// One thread calls this, before a tile may say that it found others.
MERCER_INLINE void tell_rated(SplitState& s, bool stands) {
  if (stands)
    atomicMax(&s.rated, MERCER_RATED_YES);
  else if (s.rated == MERCER_RATED_YES)
    s.rated = MERCER_RATED_NO;
}

// What sums of a lane's rows are multiplied with, and the largest exponents of pairs that need not be computed again,
// but for what those of their columns add.
struct RatedRows {
  static constexpr float kSlack = 0.75f * SLACK_OF_ALLOWANCE * 1.44269504f;
  float scales[2], limits[2], factors[2];
  MERCER_METHOD void start(const PointNorm (&x)[2], const float* params, float at_zero) {
    const float rate = rate_of_squares(params);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const PointExponent own(rate, x[h].norm, x[h].tail);
      scales[h] = rate * x[h].scale;
      limits[h] = mul_add(CANCELS_BELOW - 1, own.value, kSlack);
      factors[h] = at_zero * own.factor(0);
    }
  }
  MERCER_METHOD float factor(int h) const { return factors[h]; }
  // Which exponents, with POWER_EXPONENT, are those of pairs that cancel, the last one lowest.
  MERCER_METHOD u32 cancelling(const float (&exponents)[16], const StageNorms& columns) const {
    u32 mask = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 z = columns.pair(8 * j + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float limit = mul_add(1 - CANCELS_BELOW, i % 2 == 0 ? z.x : z.y, limits[i / 2]);
        mask = mask << 1 | (exponents[j * 4 + i] - POWER_EXPONENT <= limit ? 0 : 1);
      }
    }
    return mask;
  }
  // The powers of two of a strip. Few strips have a pair that cancels: the largest product of a row and the least
  // exponent of the columns tell of most that they have none.
  MERCER_METHOD void values(float (&values)[16], const float* sum, const StageNorms& columns, const PairArguments& p,
                            i64 m, i64 n) const {
    const float of_columns = columns.scale(), times[2] = {scales[0] * of_columns, scales[1] * of_columns};
    float most[2] = {};
#pragma unroll
    for (int at = 0; at < 16; ++at) {
      values[at] = mul_add(times[at / 2 % 2], sum[at], POWER_EXPONENT);
      most[at / 2 % 2] = fmaxf(most[at / 2 % 2], fabsf(sum[at]));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) most[h] *= fabsf(times[h]);
    const float bound = columns.bound() * (1 - CANCELS_BELOW);
    if (__any_sync(0xffffffffu, !(most[0] <= limits[0] + bound && most[1] <= limits[1] + bound))) {
      const u32 mask = cancelling(values, columns);
      const float rate = rate_of_squares(member_params(p, 0));
      for_pairs(values, p, m, n, mask, [&](i64 row, i64 column, int pair, int) {
        const float square = (float)direct_sum<1>(p, row, column) * (1.0f / FACTOR);
        const float2 z = columns.pair(8 * (pair / 4) + threadIdx.x % 4 * 2);
        const float of_row = (limits[pair / 2 % 2] - kSlack) * (1.0f / (1 - CANCELS_BELOW));
        return mul_add(rate, square, of_row + (pair % 2 == 0 ? z.x : z.y)) + POWER_EXPONENT;
      }, POWER_EXPONENT);
      most[0] = most[1] = 0;
#pragma unroll
      for (int at = 0; at < 16; ++at) most[0] = fmaxf(most[0], fabsf(values[at] - POWER_EXPONENT));
    }
    if (!(fmaxf(most[0], most[1]) <= MOST_POWER))
      if (p.split.state->rated != MERCER_RATED_BEYOND) atomicMax(&p.split.state->rated, MERCER_RATED_BEYOND);
#pragma unroll
    for (int at = 0; at < 16; ++at) values[at] = exp2_unit(values[at]);
  }
};

MERCER_INLINE void load_norms(RatedRows& rows, const BilinearArguments& a, i64 m) {
  PointNorm x[2];
  load_norms(x, a, m);
  rows.start(x, member_params(a.pairs, 0), a.pairs.split.state->at_zero);
}
