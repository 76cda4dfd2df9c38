// Elementary functions as programs of primitives. Each takes values of the builder's type, float32 or float64.
// Bounds on the error stand at the functions; tests/unit/ir/math_accuracy_test.cpp measures them.
#pragma once

#include "ir/lower_builder.h"

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

// lower_logarithm.cpp
Value lower_log(Value x, Range range = Range::any);
Value lower_log2(Value x, Range range = Range::any);
Value lower_log1p(Value x, Range range = Range::any);

// lower_trigonometric.cpp
Value lower_sin(Value x);
Value lower_cos(Value x);
Value lower_asin(Value x);
Value lower_acos(Value x);
Value lower_atan2(Value y, Value x);

// lower_erf.cpp
Value lower_erf(Value x);

// lower_power.cpp
/// base^exponent as C's pow, for any exponent.
Value lower_pow(Value base, Value exponent, Range base_range = Range::any);
/// base^n by multiplications, n >= 1.
Value integer_power(Value base, int n);

// lower_fixed_power.cpp
/// y with y * y = |base|^p for |base| <= kFixedPowerBound and 0 < p <= kLargestFixedPower: the exponent through tables,
/// the mantissa through a polynomial.
inline constexpr double kFixedPowerBound = 1e19;
inline constexpr double kLargestFixedPower = 16;
Value root_of_fixed_power(Value base, double p);

}  // namespace mercer::ir
