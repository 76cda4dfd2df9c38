// A float as two of 16 bits, and where both lie in an operand image: units of 32 points x 128 bytes, in which 16-byte
// chunk c of point p is at c ^ (p % 8). A unit has 32 features, high pieces in chunks 0 … 3 and low ones in 4 … 7.
#pragma once

#include "common/prelude.cuh"

// Powers of two are pieces times two to this power, which carry 2^-8 to 2^10 to 2^-22 of itself (bilinear_values.cuh).
#define VALUE_EXPONENT 5
#define EXPANDED_EXPONENT 15  // of expanded squares, whose powers of two are exact (expanded.cuh)

#define LEAST_PART 0x1p-14f  // of f(0), that values must have which are kept (bilinear_kept.cuh)

// Two floats as 16-bit floats, the first in the lower half.
MERCER_INLINE u32 half_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
MERCER_INLINE float half_value(u32 pair, int which) {
  half_bits half = {(u16)(which ? pair >> 16 : pair)};
  return to_float(half);
}
// Two floats as 16-bit pairs: what the high ones leave has 11 digits more.
MERCER_INLINE void split_pair(float first, float second, u32& high, u32& low) {
  high = half_pair(first, second);
  low = half_pair(first - half_value(high, 0), second - half_value(high, 1));
}
// Bits of a magnitude; 0 where it is not finite, so that the largest one is.
MERCER_INLINE u32 finite_bits(float v) {
  const u32 bits = bits_of(v) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;
}
MERCER_INLINE float power_of_two(int exponent) { return float_of((u32)(exponent + 127) << 23); }
// Exponent of the power of two by which the largest value of a point comes to lie between 2^14 and 2^15.
MERCER_INLINE int piece_exponent(float largest) {
  return largest > 0 ? 14 - (int)(bits_of(largest) >> 23) + 127 : 0;
}

// rate |point|^2, at most 0, and what its rounding leaves.
struct PointExponent {
  float value, rest;
  MERCER_METHOD PointExponent(float rate, float norm, float tail) {
    const float both = norm + tail, left = fabsf(norm) >= fabsf(tail) ? tail - (both - norm) : norm - (both - tail);
    value = rate * both;
    rest = mul_add(rate, both, -value) + rate * left;
  }
  MERCER_METHOD float factor(float whole) const { return exp2_unit(value - whole) * mul_add(0.6931472f, rest, 1.0f); }
};

// Where points lie among the 32 of a block whose products are stored: of a row, the values of a lane are then four
// neighbours (bilinear_pairs.cuh).
MERCER_INLINE constexpr int quad_row(int point) { return (point & 17) | (point & 2) << 2 | (point >> 1 & 6); }

// One half of a chunk: four pieces. `unit`: where its point begins.
MERCER_INLINE u8* chunk_half(u8* unit, int point, int chunk, int half) {
  return unit + half * 8 + ((chunk ^ (point & 7)) << 4);
}
MERCER_INLINE void write_chunk(u8* unit, int point, int chunk, int half, const u32 (&pieces)[2]) {
  *(uint2*)chunk_half(unit, point, chunk, half) = {pieces[0], pieces[1]};
}
// Both pieces of features 4 `place` … of the unit.
MERCER_INLINE void write_both(u8* unit, int point, int place, const u32 (&high)[2], const u32 (&low)[2]) {
  write_chunk(unit, point, place / 2, place % 2, high);
  write_chunk(unit, point, place / 2 + 4, place % 2, low);
}
