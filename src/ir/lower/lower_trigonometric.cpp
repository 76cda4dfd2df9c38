// sin, cos, asin, acos, atan2.
//
//   x = k pi/2 + r, |r| <= pi/4:   sin x = ± sin r or ± cos r, by the two low bits of k
//
// pi/2 is subtracted in three parts, with fused multiplications: at most 1.6 ulp for |x| <= 1e5 (float64: 1e9). Beyond
// kLargeAngle the primitive large_sine replaces the result, which costs a comparison for others.
// asin, acos: at most 2 ulp; atan2: 2.5 ulp.
#include <limits>
#include <numbers>

#include "ir/lower/lower_math.h"
#include "ir/lower/math_coefficients.h"

namespace mercer::ir {
namespace {

using namespace coefficients;

constexpr double kPi = std::numbers::pi;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct TrigonometricConstants {
  std::span<const double, 3> half_pi;
  std::span<const double> sine, cosine, arcsine, arctangent;
  double magic;  // ulp 1
};

const TrigonometricConstants kFloat = {kHalfPiFloat, kSinFloat, kCosFloat, kAsinFloat, kAtanFloat, 0x1.8p23};
const TrigonometricConstants kDouble = {kHalfPiDouble, kSinDouble, kCosDouble, kAsinDouble, kAtanDouble, 0x1.8p52};

const TrigonometricConstants& constants_of(Value x) { return x.builder->wide() ? kDouble : kFloat; }

// sin(x + quarter pi/2).
Value sine_shifted(Value x, int quarter, bool moderate) {
  const TrigonometricConstants& k = constants_of(x);
  const Value t = fma(x, 2 / kPi, k.magic);
  const Value n = t - k.magic;
  const Value r = fnma(n, k.half_pi[2], fnma(n, k.half_pi[1], fnma(n, k.half_pi[0], x)));
  const Value s = r * r;
  const Value sine = fma(s * r, horner(s, k.sine), r);
  const Value cosine = fma(s * s, horner(s, k.cosine), fma(s, -0.5, 1.0));
  // Bit 0 of k becomes the highest exponent bit, 2.0, and bit 1 the sign.
  const Value quadrant = shift_left(quarter == 0 ? t : int_add(t, std::uint64_t(quarter)), x.builder->wide() ? 62 : 30);
  const Value result = bit_xor(select(equal(quadrant, 0.0), sine, cosine), sign_of(quadrant));
  return moderate ? result : x.builder->emit(Prim::large_sine, x, result, {}, std::uint64_t(quarter));
}

struct ArcSine {
  Value large;  // mask: |x| > 1/2
  Value angle;  // asin |x|, or asin sqrt((1 - |x|) / 2), which is (pi/2 - asin |x|) / 2
};

ArcSine arc_sine(Value x) {
  const Value m = magnitude(x);
  const Value large = less(0.5, m);
  const Value s = select(large, fma(m, -0.5, 0.5), m * m);
  const Value r = select(large, sqrt(s), m);
  return {large, fma(r * s, horner(s, constants_of(x).arcsine), r)};
}

}  // namespace

Value lower_sin(Value x, bool moderate) { return sine_shifted(x, 0, moderate); }
Value lower_cos(Value x, bool moderate) { return sine_shifted(x, 1, moderate); }

Value lower_asin(Value x) {
  const ArcSine a = arc_sine(x);
  const TrigonometricConstants& k = constants_of(x);
  const Value large = k.half_pi[0] - fma(a.angle, 2.0, -k.half_pi[1]);
  return bit_or(magnitude(select(a.large, large, a.angle)), sign_of(x));
}

// x > 1/2: 2 angle; x < -1/2: pi - 2 angle; between: pi/2 - asin x.
Value lower_acos(Value x) {
  Builder& b = *x.builder;
  const ArcSine a = arc_sine(x);
  const TrigonometricConstants& k = constants_of(x);
  const Value twice = a.angle + a.angle;
  const Value negative = less(x, 0.0);
  const Value signed_angle = bit_xor(select(a.large, twice, negated(a.angle)), sign_of(x));
  const Value turn = select(negative, 2.0, 0.0);
  const Value quarters = select(a.large, turn, b.number(1.0));
  return fma(quarters, k.half_pi[0], fma(quarters, k.half_pi[1], signed_angle));
}

// Let m = min(|x|, |y|) / max: atan m, or pi/4 + atan((m - 1)/(m + 1)) past tan(pi/8); one division serves both.
Value lower_atan2(Value y, Value x) {
  Builder& b = *x.builder;
  const TrigonometricConstants& k = constants_of(x);
  const Value ay = magnitude(y), ax = magnitude(x);
  const Value steep = less(ax, ay);
  // Selecting by one comparison, not min and max, lets NaN of either through.
  const Value small = select(steep, ax, ay), large = select(steep, ay, ax);
  const Value both_infinite = mask_and(equal(small, kInfinity), equal(large, kInfinity));
  const Value past = mask_or(both_infinite, less(large * 0.41421356237309503, small));
  const Value numerator = select(past, small - large, small);
  const Value denominator = select(past, small + large, select(equal(large, 0.0), 1.0, large));
  const Value q = select(both_infinite, b.number(0), numerator / denominator);
  const Value s = q * q;
  const Value angle = fma(q * s, horner(s, k.arctangent), q);
  // Quarters of pi to start from; mirrored twice: at the diagonal, then at the vertical axis.
  const Value eighths = select(past, 0.5, 0.0);
  const Value up = select(steep, 1.0 - eighths, eighths);
  const Value angle_up = select(steep, negated(angle), angle);
  const Value left = less(bit_or(sign_of(x), b.pattern_of_number(1.0)), 0.0);
  const Value quarters = select(left, 2.0 - up, up);
  const Value rest = select(left, negated(angle_up), angle_up);
  const Value total = fma(quarters, k.half_pi[0], fma(quarters, k.half_pi[1], rest));
  return bit_or(magnitude(total), sign_of(y));
}

}  // namespace mercer::ir
