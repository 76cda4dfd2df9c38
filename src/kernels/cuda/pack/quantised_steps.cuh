// What makes integers of values (quantise.cuh, quantise_points.cuh): their scale, errors, and pairs of a sample.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/mixed.cuh"

#define SAMPLE_POINTS 32

MERCER_INLINE double width_of(const PanelRange& s) {
  return (double)float_in_order(s.high) - (double)float_in_order(s.low);
}

// A step of which all values are multiples reaches them in 23 bits.
MERCER_INLINE bool loses_nothing(const PanelRange& s) { return width_of(s) < scalbn(8388608.0, s.place); }

// That step, otherwise the finest; 0 where there is none.
MERCER_INLINE float step_of(const PanelRange& s) {
  constexpr u32 kMinusInfinity = 0x007fffffu, kInfinity = 0xff800000u;
  if (s.low <= kMinusInfinity || s.high >= kInfinity) return 0;
  const double width = width_of(s);
  if (!(width > 0)) return 0;
  const float step = loses_nothing(s) ? (float)scalbn(1.0, s.place) : __double2float_ru(width * (1 / 8388607.0));
  return step >= 1.17549435e-38f ? step : 0;
}

// Integers q of value = origin + q * step + residual, as floats 2^23 + q.
struct Steps {
  double origin, step, per_step;

  MERCER_METHOD float nearest(float value, double& residuals) const {
    constexpr double kWhole = 6755399441055744.0;  // 1.5 2^52, added to which fractions round off
    constexpr u32 kFloats = 0x4b000000u;           // bits of 2^23
    const double offset = (double)value - origin, q = fma(offset, per_step, kWhole);
    residuals += fabs(fma(kWhole - q, step, offset));
    return float_of((u32)bits_of(q) + kFloats);
  }
};

MERCER_INLINE Steps steps_of(const PanelRange& range) {
  const double step = step_of(range);
  return {(double)float_in_order(range.low), step, 1 / step};
}

MERCER_INLINE void keep_step(const MixedArguments& a, const PanelRange& range) {
  a.state->origin = float_in_order(range.low);
  a.state->step = step_of(range);
}

// A warp's lanes have the sums of residuals of 32 points from `first` on. The side is that of blockIdx.y.
MERCER_INLINE void keep_errors(const MixedArguments& a, const MixedSide& side, i64 first, double sum) {
  const float error = __double2float_ru(sum);
  side.errors[first + threadIdx.x] = error;
  const u32 worst = __reduce_max_sync(0xffffffffu, bits_of(error));
  if (threadIdx.x != 0) return;
  side.errors[side.ld + first / MERCER_QUANTISED] = float_of(worst);
  for (int s = blockIdx.y; s < (a.sides == 1 ? 2 : blockIdx.y + 1); ++s) atomicMax(&a.state->worst[s], worst);
}

// Pairs spread over rows and columns: a block takes 32 neighbouring rows, each with a column of as many neighbouring
// ones. Whether a pair would be doubtful is told by the mean of errors, a quarter of a step. One doubtful pair is
// enough to turn to the tile of the values: the list of repairs has room for a few in a thousand.
struct SampledPair {
  i64 m, n;
};

MERCER_INLINE SampledPair sampled_pair(const MixedArguments& a, int block, int point) {
  const MixedSide &x = a.side[0], &z = a.side[a.sides - 1];
  const i64 strips = (x.count + SAMPLE_POINTS - 1) / SAMPLE_POINTS;
  const i64 m_wanted = strips * block / a.sampled_blocks * SAMPLE_POINTS + point;
  const i64 m = m_wanted < x.count ? m_wanted : x.count - 1;
  const u32 drawn = ((u32)block + 1) * 2654435761u;  // where its columns start, which of them a row takes
  i64 n = ((i64)((u64)drawn * (u64)z.count >> 32) / SAMPLE_POINTS * SAMPLE_POINTS + (point ^ drawn % SAMPLE_POINTS));
  if (n >= z.count) n = z.count - 1;
  if (a.sides == 1 && n == m) n = (n + 1) % z.count;
  return {m, n};
}

// Whether the pair of this sum counts.
MERCER_INLINE void judge_pair(const MixedArguments& a, const PanelRange& range, float sum) {
  const float errors = loses_nothing(range) ? 0 : 0.5f * step_of(range) * (float)a.k;
  if (is_doubtful(errors, sum, a.state->allowance)) atomicAdd(&a.state->doubtful, 1u);
}
