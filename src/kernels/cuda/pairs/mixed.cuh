// Sums of absolute differences on two sets of pipes. Values become integers q of 23 bits on one common scale,
//
//   value = origin + q * step + residual             kept as the float 2^23 + q
//
// so that float differences are exact and bit patterns differ by the same integer: a register feeds two FADDs or one
// `sad.u32`, which runs in parallel. The sum of two points' |residual| bounds what their pair can lose; pairs that
// could lose too much are listed and computed again from the values themselves (repair.cuh). What a value f of a sum s
// may lose, 1e-6 (1 + |s f' / f|) of itself, s loses as a part of s + |f / f'|: h is the allowance of exp(-s / h), and
// no pair loses too much where the worst points do not. Products with v have no list: all pairs, or none.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

// What quantising may cost a pair, of its sum and allowance: the rest of 1e-6 is for the rounding of sums. Products may
// lose 2e-6.
#define MIXED_TOLERANCE 7e-7f
#define MIXED_PRODUCT_TOLERANCE 1.2e-6f

// Whether differences of these values can come from tensor cores (difference_pieces.cuh): all are finite, and no piece
// is smaller than the least normal number.
MERCER_INLINE bool have_pieces(const PanelRange& s) {
  constexpr u32 kMinusInfinity = 0x007fffffu, kInfinity = 0xff800000u;
  return s.low > kMinusInfinity && s.high < kInfinity && s.place >= -126;
}
MERCER_INLINE bool have_pieces(const PanelRange& x, const PanelRange& z) { return have_pieces(x) && have_pieces(z); }

// Whether the quantised tile's results are kept, all or but for the listed pairs.
MERCER_INLINE bool mixed_stands(const MixedState& s) {
  return s.step > 0 && s.doubtful == 0 && s.listed <= s.capacity;
}

MERCER_INLINE bool is_doubtful(float errors, float sum, float allowance) {
  return errors > MIXED_TOLERANCE * (sum + allowance);
}

// Whether the allowance serves every pair.
MERCER_INLINE bool all_allowed(const MixedState& s, float tolerance) {
  return s.step > 0 && float_of(s.worst[0]) + float_of(s.worst[1]) <= tolerance * s.allowance;
}
// Whether it serves all values that are multiplied with v or folded.
MERCER_INLINE bool products_allowed(const MixedState& s) { return all_allowed(s, MIXED_PRODUCT_TOLERANCE); }
