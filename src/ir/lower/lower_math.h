// Elementary functions as programs of primitives. Each takes values of the builder's type, float32 or float64.
// Bounds on the error stand at the functions; tests/unit/ir/lower/math_accuracy_test.cpp measures them.
#pragma once

#include "ir/lower/lower_builder.h"

namespace mercer::ir {

enum class Range : std::uint8_t {
  any,
  nonnegative,  // or NaN; never -0
  nonpositive,  // or NaN
};

// lower_exponential.cpp
Value lower_exp(Value x, Range range = Range::any);
Value lower_exp2(Value x, Range range = Range::any);
Value lower_expm1(Value x, Range range = Range::any);
Value lower_tanh(Value x);

/// 2^(high + low) where low is a correction below the rounding of high.
Value exp2_of_sum(Value high, Value low);

// lower_logarithm.cpp
Value lower_log(Value x, Range range = Range::any);
Value lower_log2(Value x, Range range = Range::any);
Value lower_log1p(Value x, Range range = Range::any);
/// log2 |x| = high + low to twice the precision, for x that is not 0, Inf or NaN; without `subnormals`, for normal |x|.
struct TwoPart {
  Value high, low;
};
TwoPart log2_in_two_parts(Value x, bool subnormals);

// lower_trigonometric.cpp
/// `moderate`: |x| is known not to exceed kLargeAngle.
Value lower_sin(Value x, bool moderate = false);
Value lower_cos(Value x, bool moderate = false);
Value lower_asin(Value x);
Value lower_acos(Value x);
Value lower_atan2(Value y, Value x);

// lower_erf.cpp
Value lower_erf(Value x);

// lower_power.cpp
struct PowFacts {
  Range base = Range::any;
  bool base_finite = false;  // no NaN, no Inf; then subnormal bases may count as 2^-127 (2^-1023)
  double exponent_rest = 0;  // what rounding a known exponent to the program's type took from it
};
/// base^exponent as C's pow, for any exponent.
Value lower_pow(Value base, Value exponent, PowFacts facts);
/// base^p within 6e-7 by the special-function unit, base >= 0 and 0 < p <= kLargestUnitRoot, in float32. Roots of
/// subnormal numbers are then normal.
inline constexpr double kLargestUnitRoot = 0.84;
Value lower_unit_root(Value base, double p);
/// base^n by multiplications, n >= 1.
Value integer_power(Value base, int n);

// lower_fixed_power.cpp
inline constexpr double kLargestFixedPower = 16;
using Product = std::pair<Value, Value>;
enum class PowerBase : std::uint8_t {
  any,
  narrow,  // 0, or from 2^-kNarrowBits (float64: 2^-76) to 2^9
  scaled,  // the same, given times kNarrowScale
};
/// |base|^p as a product, for 0 < p <= kLargestFixedPower: the exponent through tables, the mantissa through a
/// polynomial. `short_tables`: of eight entries, in float32.
Product fixed_power(Value base, double p, bool short_tables, PowerBase is);
/// Whether that holds for all bases; otherwise not for subnormal ones.
bool fixed_power_takes_all(double p);

}  // namespace mercer::ir
