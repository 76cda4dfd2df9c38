// Values in three pieces, from which tensor cores make differences (pair_differences.cuh).
//
//   pieces[panel of 128 points][two features][point][two features x 4 numbers of 16 bits]
//
// The upper, the middle and the lower eight digits of a float are numbers of bfloat16, which has its exponents; the
// fourth number is 0. Numbers of z are negated, and after the last feature there are zeros. Points lie where the
// tile's threads want them: of 16 rows, those of a thread are neighbours, of 16 columns four.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

MERCER_INLINE int place_of_row(int p) { return p / 16 * 16 + p % 2 * 8 + p % 16 / 2; }
MERCER_INLINE int place_of_column(int p) { return p / 16 * 16 + p / 2 % 2 * 8 + p % 16 / 4 * 2 + p % 2; }

MERCER_INLINE uint2 pieces_of(float value) {
  const u32 high = bits_of(value) & 0xffff0000u;
  const float rest = value - float_of(high);
  const u32 middle = bits_of(rest) & 0xffff0000u;
  return {high >> 16 | middle, bits_of(rest - float_of(middle)) >> 16};
}

// Stores pieces of a point's features 2 pair and 2 pair + 1, where there are `pairs` of them.
template <bool OF_Z>
MERCER_INLINE void store_pieces(void* pieces, i64 point, i64 pair, i64 pairs, float first, float second) {
  const int in_panel = (int)(point % MERCER_DIFFERENCE_PANEL);
  const int place = OF_Z ? place_of_column(in_panel) : place_of_row(in_panel);
  const uint2 one = pieces_of(first), other = pieces_of(second);
  constexpr u32 kSigns = OF_Z ? 0x80008000u : 0, kSign = OF_Z ? 0x8000u : 0;
  ((uint4*)pieces)[(point / MERCER_DIFFERENCE_PANEL * pairs + pair) * MERCER_DIFFERENCE_PANEL + place] = {
      one.x ^ kSigns, one.y ^ kSign, other.x ^ kSigns, other.y ^ kSign};
}
