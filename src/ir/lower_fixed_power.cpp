// |d|^p for a p known while lowering, as y * y with y = |d|^q, q = p / 2: the square happens in the accumulate, and
// halving the exponent keeps every factor within the range of the type.
//
//   |d| = 2^(E - bias) m:   y = 2^(q (E - bias)) m^q
//
// E is read four bits at a time by table lookups straight from the pattern of d (the sign bit falls outside the four
// bits or meets a repeated table), so |.| costs nothing.
//   float32: m^q is one polynomial, degree 5 to 7, fitted here. 17 instructions of which the FMA pipe carries nine.
//   float64: a reciprocal r_i for the top four bits of m leaves (1 + r)^q, |r| <= 1/32, degree 7. 26 instructions.
// The zeroth entry of the top table is 0: 0^p = 0 exactly, and |d| < 2^-111 (float64: 2^-767) counts as 0.
// Where tables of eight entries cost much less than those of sixteen (AVX2), float32 takes three of them for p > 1.18:
// 20 instructions, FMA pipe ten. None has a zero: y <= 2^-76 of d = 0 is squared into less than the smallest number.
// y errs by at most 2.6 roundings (three tables: 3.6, float64: 4) plus the fit; |d|^p by at most 7e-7 (8e-7, 1.5e-15).
#include <algorithm>
#include <cmath>
#include <vector>

#include "ir/fit_power.h"
#include "ir/lower_math.h"

namespace mercer::ir {
namespace {

// 2^(q (step * index + offset)); entries past `size` repeat those before.
std::array<double, 16> power_table(Real q, Real step, Real offset, std::size_t size = 16) {
  std::array<double, 16> table;
  for (std::size_t i = 0; i < 16; ++i)
    table[i] = static_cast<double>(std::exp2(q * (step * static_cast<Real>(i % size) + offset)));
  return table;
}

Value mantissa_of(Value d) {
  Builder& b = *d.builder;
  const std::uint64_t mantissa = (std::uint64_t(1) << b.mantissa_bits()) - 1;
  return bit_or(bit_and(d, mantissa), b.pattern_of_number(1.0));
}

Value float_scale(Value d, double q) {
  Builder& b = *d.builder;
  // Offsets centre the low table around 1: its entries then never leave the range while the product is within it.
  std::array<double, 16> high = power_table(q, 16, 8 - 127);
  high[0] = 0;
  for (double& entry : high) entry = std::min(entry, 0x1p127);  // past the promised bound
  return b.table(high, shift_right(d, 27)) * b.table(power_table(q, 1, -8), shift_right(d, 23));
}

/// Three, two and three bits of E; the sign is a fourth bit of the last index.
Value float_scale_of_short_tables(Value d, double q) {
  Builder& b = *d.builder;
  std::array<double, 16> high = power_table(q, 32, 16 - 127, 8);
  for (double& entry : high) entry = std::min(entry, 0x1p127);
  const Value low = b.table(power_table(q, 1, -4, 8), shift_right(d, 23));
  const Value middle = low * b.table(power_table(q, 8, -12, 4), shift_right(d, 26));
  return middle * b.table(high, shift_right(d, 28));
}

Value float_root(Value d, double q, bool short_tables) {
  constexpr double kFitTarget = 1.4e-7;
  constexpr double kSquaresToZero = 0.6;  // 2^(-127 * 2q) is nothing beside 2^-149
  const bool three = short_tables && q >= kSquaresToZero;
  const Value scale = three ? float_scale_of_short_tables(d, q) : float_scale(d, q);
  Fit fit = fit_power(q, 1.5, 0.5, 5);
  for (int degree = 6; degree <= 7 && fit.error > kFitTarget; ++degree) fit = fit_power(q, 1.5, 0.5, degree);
  return horner(mantissa_of(d) - 1.5, fit.coefficients) * scale;
}

Value double_root(Value d, double q) {
  Builder& b = *d.builder;
  std::array<double, 16> high = power_table(q, 256, 128 - 1023, 8);
  high[0] = high[8] = 0;
  std::array<double, 16> rcp, rcp_power;
  for (std::size_t i = 0; i < 16; ++i) {
    rcp[i] = 1 / (1 + (static_cast<double>(i) + 0.5) / 16);
    rcp_power[i] = static_cast<double>(std::pow(Real(rcp[i]), -Real(q)));
  }
  const Value low = b.table(power_table(q, 1, -8), shift_right(d, 52));
  const Value middle = b.table(power_table(q, 16, 8 - 128), shift_right(d, 56));
  const Value scale = b.table(high, shift_right(d, 60)) * middle;
  const Value top = shift_right(d, 48);
  const Value r = fma(mantissa_of(d), b.table(rcp, top), -1.0);
  const Fit fit = fit_power(q, 1, 1 / Real(32), 7);
  return horner(r, fit.coefficients) * (low * b.table(rcp_power, top)) * scale;
}

}  // namespace

Value root_of_fixed_power(Value base, double p, bool short_tables) {
  // Larger q cost digits in the fit and range in the tables; whole powers come off by multiplication. Their sign does
  // not matter: y is squared.
  constexpr double kLargestRoot = 2.5;
  const Value d = base.builder->without_sign(base);
  const double q = p / 2;
  const int whole = q > kLargestRoot ? static_cast<int>(std::ceil(q - kLargestRoot)) : 0;
  const Value root = d.builder->wide() ? double_root(d, q - whole) : float_root(d, q - whole, short_tables);
  return whole == 0 ? root : root * integer_power(d, whole);
}

}  // namespace mercer::ir
