// DIGITS (field_products.cuh): G as integers of three signed bytes, S of {-64, 0, 64}.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/field_shape.cuh"
#include "gradient/row_units.cuh"

// A value of G, as write_g takes it, and that of no point.
typedef u32 Made;
#define DIGIT_OFFSET (12582912.0f + 0x8080)
#define NOTHING bits_of(DIGIT_OFFSET)

MERCER_INLINE void start_factors() {}

// Points are taken in the order in which a lane has them of the left operand: four in a row.
MERCER_INLINE u32 bytes_of(u32 first, u32 second, u32 which) {
  u32 word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(first), "r"(second), "r"(which));
  return word;
}
// A value of G as an integer of three digits of 256: bits of a float whose ulp is one, with 128 on top of both lower
// digits and 64 on top of the last. What is rounded has one of sixteen evenly spread parts of a unit added, so that of
// values that are all equal no more than 1/32 is lost on average.
MERCER_INLINE u32 integer_of(float g, float scale, int point) {
  const int order = point % 2 * 8 + point / 2 % 2 * 4 + point / 4 % 2 * 2 + point / 8;
  return bits_of(mul_add(g, scale, ((float)order + 0.5f) / 16 - 0.5f) + DIGIT_OFFSET);
}
MERCER_INLINE void write_g(u32 to, const u32 (&integers)[16]) {
  u32 words[PIECES][4];
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const u32* const four = integers + quad * 4;
    const u32 low01 = bytes_of(four[0], four[1], 0x5140), low23 = bytes_of(four[2], four[3], 0x5140);
    words[0][quad] = bytes_of(low01, low23, 0x5410) ^ 0x80808080u;
    words[1][quad] = bytes_of(low01, low23, 0x7632) ^ 0x80808080u;
    const u32 high = bytes_of(bytes_of(four[0], four[1], 0x0062), bytes_of(four[2], four[3], 0x0062), 0x5410);
    words[2][quad] = (high + 0x40404040u) ^ 0x80808080u;
  }
#pragma unroll
  for (int piece = 0; piece < PIECES; ++piece) store_words(to + piece * (GROUP_COLUMNS * 16), words[piece]);
}
// From a value of the pair, its coefficient, and the scale of its row and column.
MERCER_INLINE Made made_of(float value, float coef, float scale, int point) {
  return integer_of(value * coef, scale, point);
}

// Left operands of one step: element i of four has feature i % 2 of the lane, and points as write_g puts them.
struct LeftOperands {
  u32 codes[2][4], left[SLOTS][4];
  MERCER_METHOD void load(u32 z, int step) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(codes[half][0]), "=r"(codes[half][1]), "=r"(codes[half][2]), "=r"(codes[half][3])
                   : "r"(z + (step * 2 + half) * GROUP_BYTES)
                   : "memory");
  }
  MERCER_METHOD void make(int slot, int q, int, const FieldRows& x, const FieldValues&) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 differences[2];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair)
        asm("add.f16x2 %0, %1, %2;"
            : "=r"(differences[pair])
            : "r"(x.of[q][i % 2]), "r"(codes[i / 2][pair * 2 + i % 2]));
      left[slot][i] = bytes_of(differences[0], differences[1], 0x7531) & 0xc0c0c0c0u;
    }
  }
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], left[slot], g.at(at), adds);
  }
};

MERCER_INLINE float sum_of(const FieldSums& sums, int q, int i) {
  constexpr float kUnit = 1 / (64 * LARGEST);
  return kUnit * mul_add((float)sums.of[q][place_of(i, 2)], 65536.0f,
                         mul_add((float)sums.of[q][place_of(i, 1)], 256.0f, (float)sums.of[q][place_of(i, 0)]));
}
// Sums of integers are exact: nothing is flushed.
MERCER_INLINE void flush(FieldSums&, const FieldShared&, int, bool, bool) {}
