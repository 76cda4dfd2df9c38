// HALVES (field_products.cuh): powers of |x - z| and G in two pieces of 16-bit floats.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "gradient/field_flush.cuh"
#include "gradient/field_shape.cuh"

// A value of G, as write_g takes it, and that of no point.
typedef float Made;
#define NOTHING 0.0f

MERCER_INLINE void start_factors() {
#if TABLE_EIGHTHS > 0
  load_power_table();
#endif
}

// Points are taken in the order in which a lane has them of the left operand: four in a row.
// Writes two pieces, the low one first: k as of signs (field_of_signs.cuh).
MERCER_INLINE void write_g(u32 to, const float (&g)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u32 high[4], low[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) split_pair(g[w * 4 + half * 2], g[w * 4 + half * 2 + 1], high[w], low[w]);
    const u32 at = to + half * (PRODUCT_COLUMNS * 16);
    store_words(at, low);
    store_words(at + COLUMNS * 16, high);
  }
}
// From a value of the pair, its coefficient, and the scale of its row and column.
MERCER_INLINE Made made_of(float value, float coef, float scale, int) { return value * scale * coef; }

template <bool BY_TABLE>
MERCER_INLINE float power(float d, const PowerSize& size) {
  const float base = BOUNDED ? fmaxf(fabsf(d), LEAST) : fabsf(d);  // NaN is refused by measure_points
  if (IS_ROOT) return copysignf(sqrt_unit(base) * size.scale, d);
#if TABLE_EIGHTHS > 0
  if (BY_TABLE) return copysignf(power_scale(base) * size.scale * power_poly(base), d);
#endif
  return copysignf(exp2_unit(mul_add(EXPONENT, log2_unit(base), size.shift)), d);
}
// Element i of eight, an even one: so many by table and polynomial keep the special-function unit and the other pipes
// equally busy.
MERCER_INLINE constexpr bool is_by_table(int i) { return i * TABLE_EIGHTHS % 8 < TABLE_EIGHTHS; }

// Left operands of one step: element i of four has feature i % 2 of the lane, and points as write_g puts them.
struct LeftOperands {
  float points[2][4];
  u32 high[SLOTS][4], low[SLOTS][4];
  MERCER_METHOD void load(u32 z, int step) {
    constexpr int kSteps = STEPS / 4;  // of one load
    if (step % kSteps != 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) shared_floats(points[h], z + step / kSteps * GROUP_BYTES + h * 512);
  }
  MERCER_METHOD void make(int slot, int q, int, const FieldRows& x, const FieldValues& v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float own = float_of(x.of[q][i % 2]), *const two = points[i % 2] + i / 2 * 2;
      const PowerSize& size = v.size[i % 2];
      const float first = is_by_table(2 * i) ? power<true>(own - two[0], size) : power<false>(own - two[0], size);
      split_pair(first, power<false>(own - two[1], size), high[slot][i], low[slot][i]);
    }
  }
  // Low times high joins the sums of high times low: each addition to the largest sums costs digits.
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], high[slot], g.at(at), adds);
    product_low(sums.of[q], low[slot], g.at(at + COLUMNS * 16), 1);
  }
};
