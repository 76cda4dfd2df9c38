// SIGN without DIGITS (field_products.cuh): G in three pieces of bfloat16, S of {-2, 0, 2}.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/field_flush.cuh"
#include "gradient/field_shape.cuh"

// A value of G, as write_g takes it, and that of no point.
typedef float Made;
#define NOTHING 0.0f

MERCER_INLINE void start_factors() {}

// Points are taken in the order in which a lane has them of the left operand: four in a row.
MERCER_INLINE u32 bfloat_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
// 16 values of a column of G in three pieces: k = 2 q + j % 2 + 8 (j / 2) of the product is point 4 q + j.
MERCER_INLINE void write_g(u32 to, const float (&g)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float rest[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rest[i] = g[i / 2 * 4 + half * 2 + i % 2];
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      u32 words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] = bfloat_pair(rest[2 * w], rest[2 * w + 1]);
        rest[2 * w] -= float_of(words[w] << 16);
        rest[2 * w + 1] -= float_of(words[w] & 0xffff0000u);
      }
      store_words(to + half * (PRODUCT_COLUMNS * 16) + piece * (GROUP_COLUMNS * 16), words);
    }
  }
}
// From a value of the pair and its coefficient.
MERCER_INLINE Made made_of(float value, float coef, float, int) { return value * coef; }

// Left operands of one step: element i of four has feature i % 2 of the lane, and points as write_g puts them.
struct LeftOperands {
  u32 codes[4], left[SLOTS][4];
  MERCER_METHOD void load(u32 z, int step) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
                 : "r"(z + step * GROUP_BYTES)
                 : "memory");
  }
  MERCER_METHOD void make(int slot, int q, int, const FieldRows& x, const FieldValues&) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 difference;
      asm("add.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(x.of[q][i % 2]), "r"(codes[i]));
      left[slot][i] = difference & 0xc000c000u;
    }
  }
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], left[slot], g.at(at), adds);
  }
};
