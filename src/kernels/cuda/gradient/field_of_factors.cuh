// Any factor of a feature (field_products.cuh): S and G in two pieces of tf32.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/field_flush.cuh"
#include "gradient/field_shape.cuh"

// A value of G, as write_g takes it, and that of no point.
typedef float Made;
#define NOTHING 0.0f

MERCER_INLINE void start_factors() {}

MERCER_INLINE float rounded(float v) { return float_of((bits_of(v) + 0x1000u) & 0xffffe000u); }

// Points are taken in the order in which a lane has them of the left operand: four in a row.
// Writes two pieces, the low one first: k = q + 4 i of product s is point 4 q + 2 s + i.
MERCER_INLINE void write_g(u32 to, const float (&g)[16]) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    float high[4], low[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      high[q] = rounded(g[4 * q + part]);
      low[q] = g[4 * q + part] - high[q];
    }
    const u32 at = to + part / 2 * STEP_BYTES + part % 2 * (PRODUCT_COLUMNS * 16);
    store_floats(at, low);
    store_floats(at + COLUMNS * 16, high);
  }
}

// From a value of the pair and its coefficient.
MERCER_INLINE Made made_of(float value, float coef, float, int) { return value * coef; }

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
  MERCER_METHOD void make(int slot, int q, int step, const FieldRows& x, const FieldValues& v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value =
          factor(float_of(x.of[q][i % 2]), points[i % 2][step % 2 * 2 + i / 2], v.w[i % 2], v.params, v.features);
      high[slot][i] = bits_of(high_piece(value));
      low[slot][i] = bits_of(value - high_piece(value));
    }
  }
  // Low times high joins the sums of high times low: each addition to the largest sums costs digits.
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], high[slot], g.at(at), adds);
    product_low(sums.of[q], low[slot], g.at(at + COLUMNS * 16), 1);
  }
};
