// exp, exp2, expm1, tanh.
//
//   x = (n + j/16) ln 2 + r,  |r| <= ln(2)/32,   e^x = 2^n * 2^(j/16) * e^r
//
// Adding the magic number 1.5 * 2^(bits - 4) leaves 16 n + j in the low bits of the sum: four of them choose 2^(j/16)
// from a table, the others move up into the exponent of that entry by an integer addition. A polynomial of degree 3
// (float64: 6) remains. On a core with one FMA pipe and one adder this is seven FMA-class instructions of 14.
//
// exp and exp2 err by at most 1.1 ulp; below the smallest normal number (its double where arguments may be positive)
// they fall linearly to zero within an octave, an absolute error below the smallest normal number.
#include <cmath>

#include "ir/lower/lower_math.h"
#include "ir/lower/math_coefficients.h"

namespace mercer::ir {
namespace {

using namespace coefficients;

struct TypeConstants {
  std::span<const double> exp, exp2, expm1;
  std::span<const double, 2> ln2;
  std::span<const double, 16> table_low;
  double magic;  // ulp 1/16
  // Clamps of log2 of the result. The lower makes the scale 0. The upper lies half an octave above the overflow, where
  // the (halved) scale is still finite, so that no 0 * Inf arises, and doubling the result gives Inf.
  double lowest, highest;
};

const TypeConstants kFloat = {kExpFloat, kExp2Float, kExpm1Float, kLn2Float, kExp2TableLowFloat, 0x1.8p19, -126, 128.5};
const TypeConstants kDouble = {kExpDouble,          kExp2Double, kExpm1Double, kLn2Double,
                               kExp2TableLowDouble, 0x1.8p48,    -1022,        1024.5};

const TypeConstants& constants_of(Value x) { return x.builder->wide() ? kDouble : kFloat; }

// 2^(j/16 + shift) for j = 0 … 15.
std::array<double, 16> scaled_table(int shift) {
  std::array<double, 16> table;
  for (std::size_t j = 0; j < 16; ++j) table[j] = std::ldexp(kExp2Table[j], shift);
  return table;
}

// The part n of 16 n + j in the low bits of t, moved to the exponent field.
Value exponent_of_sixteenths(Value t) {
  Builder& builder = *t.builder;
  return shift_left(bit_and(t, builder.all_bits() ^ 15), builder.mantissa_bits() - 4);
}

// 2^(j/16) 2^n (1 + r polynomial). The scale of the largest results would overflow, so it is halved where n can be
// that large, and the sum doubled: an addition, which does not burden the FMA pipe.
Value scaled_sum(Value t, Value r, std::span<const double> polynomial, Range range) {
  const int shift = range == Range::nonpositive ? 0 : -1;
  const Value scale = int_add(t.builder->table(scaled_table(shift), t), exponent_of_sixteenths(t));
  const Value y = fma(scale, horner(r, polynomial.subspan(1)) * r, scale);
  return shift == 0 ? y : y + y;
}

Value clamped(Value x, Range range, double log2_of_base) {
  const TypeConstants& k = constants_of(x);
  if (range == Range::nonpositive) return at_least((k.lowest - 1) / log2_of_base, x);
  const Value below = at_most(k.highest / log2_of_base, x);
  return range == Range::nonnegative ? below : at_least(k.lowest / log2_of_base, below);
}

constexpr double kLog2E = 1.4426950408889634;

// Sixteenths of x / ln 2 in the low bits.
Value sixteenths(Value x) { return fma(x, kLog2E, constants_of(x).magic); }

Value reduced(Value x, Value t) {
  const TypeConstants& k = constants_of(x);
  const Value n = t - k.magic;
  return fnma(n, k.ln2[1], fnma(n, k.ln2[0], x));
}

}  // namespace

Value lower_exp(Value x, Range range) {
  const Value in = clamped(x, range, kLog2E);
  const Value t = sixteenths(in);
  return scaled_sum(t, reduced(in, t), constants_of(x).exp, range);
}

Value lower_exp2(Value x, Range range) {
  const TypeConstants& k = constants_of(x);
  const Value in = clamped(x, range, 1);
  const Value t = in + k.magic;
  return scaled_sum(t, in - (t - k.magic), k.exp2, range);
}

// Saturated sums have a `low` without meaning, so it is clamped too.
Value exp2_of_sum(Value high, Value low) {
  const TypeConstants& k = constants_of(high);
  const Value in = clamped(high, Range::any, 1);
  const Value correction = at_least(-0.03125, at_most(0.03125, low));
  const Value t = in + k.magic;
  return scaled_sum(t, (in - (t - k.magic)) + correction, k.exp2, Range::any);
}

// e^x - 1 = 2^n (2^(j/16) q + low_j) + (2^n 2^(j/16) - 1),  q = e^r - 1. The last bracket is exact where it cancels,
// and low_j restores what the table entry lost by rounding. Where n may be large everything is halved. At most 2 ulp.
Value lower_expm1(Value x, Range range) {
  const TypeConstants& k = constants_of(x);
  Builder& builder = *x.builder;
  const bool halved = range != Range::nonpositive;
  Value in = halved ? at_most(k.highest / kLog2E, x) : x;
  if (range != Range::nonnegative) in = at_least(builder.wide() ? -60 : -40, in);
  const Value t = sixteenths(in);
  const Value r = reduced(in, t);
  const Value q = fma(r * r, horner(r, k.expm1), r);
  std::array<double, 16> low;
  for (std::size_t j = 0; j < 16; ++j) low[j] = 2 * k.table_low[j];
  const Value entry = builder.table(scaled_table(1), t);
  const Value power = int_add(exponent_of_sixteenths(t), builder.pattern_of_number(halved ? 0.25 : 0.5));
  const Value y = fma(power, fma(entry, q, builder.table(low, t)), fma(power, entry, halved ? -0.5 : -1.0));
  return halved ? y + y : y;
}

// tanh |x| = -e / (e + 2),  e = expm1(-2 |x|): no overflow, exact for tiny x.
Value lower_tanh(Value x) {
  const Value e = lower_expm1(magnitude(x) * -2.0, Range::nonpositive);
  return bit_or(magnitude(e / (e + 2.0)), sign_of(x));
}

}  // namespace mercer::ir
