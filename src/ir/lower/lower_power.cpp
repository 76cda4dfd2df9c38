// Powers with any exponent:  |base|^p = 2^(p log2 |base|), logarithm and product in two parts, so that the error does
// not grow with the size of the product: at most 1.2 ulp. Where base is within 3 % of 1 and |p| in the thousands, 2.5
// ulp (float64, |p| = 30000: 16 ulp). Special values are those of C's pow.
#include <cmath>
#include <limits>

#include "ir/lower/lower_math.h"

namespace mercer::ir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Value rounded_down(Value x) { return x.builder->emit(Prim::floor, x); }

// Gives powers of negative bases their sign: that of base where p is odd, NaN where p is no integer.
Value with_sign(Value base, Value p, Value y) {
  Builder& b = *base.builder;
  const Value fractional = not_equal(rounded_down(p), p);
  const Value half = p * 0.5;
  const Value odd = mask_and(not_equal(rounded_down(half), half), mask_not(fractional));
  const Value with = select(odd, bit_or(y, sign_of(base)), y);
  const Value outside = mask_and(fractional, mask_and(less(base, 0.0), less(-kInfinity, base)));
  return select(outside, b.number(std::numeric_limits<double>::quiet_NaN()), with);
}

Value with_sign_of_constant(Value base, double p, Value y) {
  if (p != std::floor(p)) {
    const Value outside = mask_and(less(base, 0.0), less(-kInfinity, base));
    return select(outside, base.builder->number(std::numeric_limits<double>::quiet_NaN()), y);
  }
  return std::fmod(p, 2.0) != 0 ? bit_or(y, sign_of(base)) : y;
}

}  // namespace

Value integer_power(Value base, int n) {
  if (n == 1) return base;
  const Value half = integer_power(base, n / 2);
  return n % 2 == 0 ? half * half : half * half * base;
}

// base = 2^E m:  base^p = 2^n 2^(p E - n + p log2 m), n the nearest integer of p E. The unit's errors, 2^-22 of log2 m
// and as much of 2^f, then do not grow with the base.
Value lower_unit_root(Value base, double p) {
  constexpr double kMagic = 0x1.8p23;  // a sum with it keeps an integer in its last bits
  constexpr int kLifted = 24;          // places that subnormal bases are lifted by
  Builder& b = *base.builder;
  const Value subnormal = less(base, 0x1p-126);
  const Value normal = select(subnormal, base * std::exp2(kLifted), base);
  const Value bias = select(subnormal, 0x1p23 + b.bias() + kLifted, 0x1p23 + b.bias());
  const Value log2 = b.emit(Prim::log2_unit, bit_or(bit_and(normal, 0x7fffffu), b.pattern_of_number(1.0)));
  const Value exponent = bit_or(shift_right(normal, 23), b.pattern_of_number(0x1p23)) - bias;
  const double high = static_cast<float>(p);
  const Value with_magic = fma(exponent, high, kMagic), n = with_magic - kMagic;
  const Value rest = fma(exponent, p - high, log2 * high);
  const Value power = b.emit(Prim::exp2_unit, fma(exponent, high, negated(n)) + rest);
  const Value ordinary = mask_and(less(0.0, base), less(base, kInfinity));
  return select(ordinary, int_add(power, shift_left(with_magic, 23)), base);
}

Value lower_pow(Value base, Value exponent, PowFacts facts) {
  Builder& b = *base.builder;
  const bool any_sign = facts.base != Range::nonnegative;
  const Value m = any_sign ? magnitude(base) : base;
  // Larger exponents change no result: the smallest logarithm but 0 is 2^-24 (2^-53). They would overflow.
  const double limit = b.wide() ? 0x1p70 : 0x1p35;
  const Value p = at_least(-limit, at_most(limit, exponent));
  const TwoPart log2 = log2_in_two_parts(m, !facts.base_finite);
  const Value high = p * log2.high;
  Value low = fma(p, log2.low, fma(p, log2.high, negated(high)));
  // An exponent such as 1/1.7 is off by up to 2^-25 of itself in float32: far from 1 that alone would be 1e-6.
  if (facts.exponent_rest != 0) low = fma(log2.high, b.number(facts.exponent_rest), low);
  Value y = exp2_of_sum(high, low);

  // 0 and Inf: the same or, for negative exponents, the other of the two. The difference of patterns keeps NaN as well.
  const Value infinity = b.number(kInfinity);
  const Value special = select(less(p, 0.0), int_sub(infinity, m), m);
  const Value ordinary = facts.base_finite ? less(0.0, m) : mask_and(less(0.0, m), less(m, infinity));
  y = select(ordinary, y, special);
  double known = 0;
  if (b.constant_of(exponent, known) && known != 0 && known == known) {
    return any_sign ? with_sign_of_constant(base, known, y) : y;
  }
  if (any_sign) y = with_sign(base, p, y);
  y = select(is_nan(p), p, y);
  return select(mask_or(equal(exponent, 0.0), equal(base, 1.0)), 1.0, y);
}

}  // namespace mercer::ir
