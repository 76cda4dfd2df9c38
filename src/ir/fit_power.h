// Polynomials for powers, fitted while planning.
#pragma once

#include <vector>

namespace mercer::ir {

using Real = long double;

struct Fit {
  std::vector<double> coefficients;
  double error;  // relative
};

/// Minimax fit of (centre + s)^q, |s| <= half, in relative error.
Fit fit_power(Real q, Real centre, Real half, int degree);

/// |d|^p of float32 by a table over the exponent and two bits of the mantissa, and a cubic:
///   |d|^p = T c(|d| S), {S, T} = entry[index(d)], S the reciprocal of the cell's centre, T = S^-p
/// with an error of at most 5e-7 for p <= 4. 0^p = 0; Inf and NaN stay.
struct PowerTable {
  std::vector<float> entries;  // 1024 pairs: T, S
  float coefficients[4];
  static constexpr int kMantissaBits = 2;
};
inline constexpr double kLargestTablePower = 4;
inline constexpr int kPowerTableBytes = 8192;
PowerTable power_table(double p);

}  // namespace mercer::ir
