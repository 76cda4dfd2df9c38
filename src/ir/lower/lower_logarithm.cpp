// log, log2, log1p.
//
//   x = 2^e m,  m in [0.72, 1.44),   r = m r_j - 1,   log x = e ln 2 - log r_j + log(1 + r)
//
// j is the nearest sixteenth of the mantissa; r_j is close to its reciprocal and chosen such that -log r_j is a number
// of the type to seven more bits, so the table adds no error. r_j = 1 around m = 1, where r is exact and the sum of the
// first two terms zero: the relative accuracy holds there too. At most 1.1 ulp (log1p, log2: 1.6).
#include <cmath>
#include <limits>

#include "ir/lower/lower_math.h"
#include "ir/lower/math_coefficients.h"

namespace mercer::ir {
namespace {

using namespace coefficients;

struct LogConstants {
  std::span<const double, 16> rcp, table;
  std::span<const double> polynomial;
  std::span<const double, 2> high_low;  // log: ln 2; log2: log2(e)
};

const LogConstants kNatural[] = {{kLogRcpFloat, kLogTableFloat, kLogFloat, kLn2Float},
                                 {kLogRcpDouble, kLogTableDouble, kLogDouble, kLn2Double}};
const LogConstants kBinary[] = {{kLog2RcpFloat, kLog2TableFloat, kLog2Float, kLog2EFloat},
                                {kLog2RcpDouble, kLog2TableDouble, kLog2Double, kLog2EDouble}};

struct PowConstants {
  std::span<const double, 16> rcp, high, low;
  std::span<const double> polynomial;
  std::span<const double, 2> log2_e;
};

const PowConstants kPow[] = {{kPowRcpFloat, kPowHighFloat, kPowLowFloat, kPowLogFloat, kLog2EFloat},
                             {kPowRcpDouble, kPowHighDouble, kPowLowDouble, kPowLogDouble, kLog2EDouble}};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Parts {
  Value exponent;        // e as a float
  Value exponent_field;  // e in the exponent field, for scaling by 2^-e
  Value mantissa;
  Value index;  // j in the low four bits
};

// Subnormal numbers are scaled up by 2^lift.
constexpr int kLift[] = {32, 64};

double smallest_normal(const Builder& b) { return b.wide() ? 0x1p-1022 : 0x1p-126; }

// The parts of a positive normal x.
Parts split_normal(Value x, Value exponent_zero) {
  Builder& b = *x.builder;
  const int bits = b.mantissa_bits();
  const std::uint64_t one = std::uint64_t(b.bias()) << bits;
  // Nine sixteenths and half a step more: mantissas from 1.4375 on carry into the exponent.
  const Value shifted = int_add(x, (std::uint64_t(9) << (bits - 4)) + (std::uint64_t(1) << (bits - 5)));
  const Value field = int_sub(bit_and(shifted, b.all_bits() << bits), one);
  const Value as_number = bit_or(shift_right(shifted, bits), b.pattern_of_number(std::ldexp(1.0, bits)));
  return {as_number - exponent_zero, field, int_sub(x, field), shift_right(shifted, bits - 4)};
}

// What as_number above reads for e = 0.
Value exponent_zero(Builder& b, int lift = 0) { return b.number(std::ldexp(1.0, b.mantissa_bits()) + b.bias() + lift); }

// The parts of a positive x.
Parts split_positive(Value x) {
  Builder& b = *x.builder;
  const int lift = kLift[b.wide()];
  const Value subnormal = less(x, smallest_normal(b));
  return split_normal(select(subnormal, x * std::ldexp(1.0, lift), x),
                      select(subnormal, exponent_zero(b, lift), exponent_zero(b)));
}

// Replaces y where x has no logarithm of the normal kind: 0, Inf, NaN and, when possible, negative numbers.
Value with_edges(Value x, Value y, Range range) {
  Builder& b = *x.builder;
  const Value finite = select(less(x, kInfinity), y, x);
  if (range == Range::nonnegative) return select(equal(x, 0.0), -kInfinity, finite);
  const Value outside = select(equal(x, 0.0), b.number(-kInfinity), b.number(kNaN));
  return select(b.emit(Prim::less_equal, x, b.number(0)), outside, finite);
}

}  // namespace

Value lower_log(Value x, Range range) {
  Builder& b = *x.builder;
  const LogConstants& k = kNatural[b.wide()];
  const Parts parts = split_positive(x);
  const Value r = fma(parts.mantissa, b.table(k.rcp, parts.index), -1.0);
  const Value coarse = fma(parts.exponent, k.high_low[0], b.table(k.table, parts.index));
  const Value tail = fma(r * r, horner(r, k.polynomial.subspan(1)), r);
  return with_edges(x, coarse + tail, range);
}

Value lower_log2(Value x, Range range) {
  Builder& b = *x.builder;
  const LogConstants& k = kBinary[b.wide()];
  const Parts parts = split_positive(x);
  const Value r = fma(parts.mantissa, b.table(k.rcp, parts.index), -1.0);
  const Value coarse = parts.exponent + b.table(k.table, parts.index);
  const Value tail = r * fma(r, horner(r, k.polynomial), b.number(k.high_low[1]));
  return with_edges(x, coarse + fma(r, k.high_low[0], tail), range);
}

// high = e - log2 r_j is exact up to the last sum; the product m r_j and r log2(e) are split by fused multiplications.
TwoPart log2_in_two_parts(Value x, bool subnormals) {
  Builder& b = *x.builder;
  const PowConstants& k = kPow[b.wide()];
  const Value m = magnitude(x);
  const Parts parts = subnormals ? split_positive(m) : split_normal(m, exponent_zero(b));
  const Value rcp = b.table(k.rcp, parts.index);
  const Value product = parts.mantissa * rcp;
  const Value r = product - 1.0;
  const Value rounding = fma(parts.mantissa, rcp, negated(product));
  const Value product_low = fnma(rounding, r, rounding);  // log(1 + r + d) = log(1 + r) + d (1 - r) + …
  const Value linear = r * k.log2_e[0];
  const Value linear_low = fma(product_low, k.log2_e[0], fma(r, k.log2_e[1], fma(r, k.log2_e[0], negated(linear))));
  const Value curved = fma(r * r, horner(r, k.polynomial), b.table(k.low, parts.index));
  const Value exact = parts.exponent + b.table(k.high, parts.index);
  // Two sums with their rounding errors; the first argument is the larger one.
  const Value rest = linear + curved;
  const Value rest_low = curved - (rest - linear);
  const Value high = exact + rest;
  const Value high_low = rest - (high - exact);
  return {high, high_low + (linear_low + rest_low)};
}

// u = 1 + x rounded, c what the rounding lost; log(u + c) = log u + c / u, and c / u joins r.
Value lower_log1p(Value x, Range range) {
  Builder& b = *x.builder;
  const LogConstants& k = kNatural[b.wide()];
  const Value u = 1.0 + x;
  const Value back = u - 1.0;
  const Value lost = (1.0 - (u - back)) + (x - back);
  const Parts parts = split_normal(u, exponent_zero(b));
  // 2^128 (2^1024), to which the largest u are scaled, has no inverse.
  const Value inverse_scale = at_least(0.0, int_sub(b.number(1.0), parts.exponent_field));
  const Value rcp = b.table(k.rcp, parts.index);
  const Value r = fma(lost * inverse_scale, rcp, fma(parts.mantissa, rcp, -1.0));
  const Value coarse = fma(parts.exponent, k.high_low[0], b.table(k.table, parts.index));
  const Value tail = fma(r * r, horner(r, k.polynomial.subspan(1)), r);
  const Value y = coarse + tail;
  return range == Range::nonnegative ? select(less(u, kInfinity), y, u) : with_edges(u, y, range);
}

}  // namespace mercer::ir
