// What operands of products are made of, in float32 (split_operands.cuh) and in float64 (double_operands.cuh): values
// of panels, less the centre of their feature, times a factor.
//
//   SQUARES 1: of (x - z)^2, centred; 0: of x z       WEIGHTED: weighed by the caller's w
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

template <class Side>
MERCER_INLINE auto panel_value(const Side& side, i64 features, i64 k, i64 point) {
  return side.values[(point / MERCER_PANEL * features + k) * MERCER_PANEL + point % MERCER_PANEL];
}

// The feature of a warp that finds its centre, of `threads` in a block.
MERCER_INLINE i64 centred_feature(int threads) { return (i64)blockIdx.x * (threads / 32) + threadIdx.x / 32; }

// Parameters that all terms of a sum are multiplied with scale the operands: of squares both sides', else of x.
struct UniformScale {
  double value = 1;
  bool stands = true;
  MERCER_METHOD double of_side(int side) const { return SQUARES || side == 0 ? value : 1.0; }
  MERCER_METHOD float largest(int sides) const {
    return fmaxf(fabsf((float)of_side(0)), fabsf((float)of_side(sides - 1)));
  }
};
template <class T>
MERCER_INLINE UniformScale scale_of(const UniformFactors& uniforms) {
  if (uniforms.count == 0) return {};
  double factor = 1;
  for (int i = 0; i < uniforms.count; ++i) {
    const double value = uniforms.params ? (double)((const T*)uniforms.params)[uniforms.slot[i]] : uniforms.numbers[i];
    factor = uniforms.divides[i] ? factor / value : factor * value;
  }
  if (!(fabs(factor) >= 0x1p-100 && fabs(factor) <= 0x1p100 && (!SQUARES || factor > 0))) return {1, false};
  return {SQUARES ? sqrt(factor) : factor, true};
}
// Where they cannot (zero, infinite, NaN; of squares negative), all pairs are left to direct differences: as if a
// sample cancelled.
MERCER_INLINE void write_scale(SplitState* state, const UniformScale& scale) {
  state->scale = scale.value;
  if (!scale.stands) state->sampled = MERCER_NO_PRODUCTS;
}

// What feature k of a side is multiplied with: the root of its weight, or, in a product, its weight on one side; and
// the scale. That function of w is `weight_of`.
template <class T, class Arguments>
MERCER_INLINE T multiplier(const Arguments& a, int side, i64 k) {
  const T scale = SQUARES || side == 0 ? (T)a.state->scale : (T)1;
  if (!WEIGHTED) return scale;
  return SQUARES || side == 0 ? weight_of(a.weights[k]) * scale : (T)1;
}
