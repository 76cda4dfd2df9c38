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

/// |d|^p of float32 by a table over the exponent and some bits of the mantissa, and a cubic:
///   |d|^p = T c(|d| S), {S, T} = entry[index(d)], S the reciprocal of the cell's centre, T = S^-p
/// with two bits an error of at most 8e-7 for p <= 3 before rounding, which the edges of cells have, as small integers
/// are; a sixteenth of it with three. 0^p = 0; Inf and NaN stay.
struct PowerTable {
  std::vector<float> entries;  // 256 * 2^mantissa_bits pairs: T, S
  float coefficients[4];
};
inline constexpr double kLargestTablePower = 3;
constexpr int power_table_bytes(int mantissa_bits) { return 2048 << mantissa_bits; }
PowerTable power_table(double p, int mantissa_bits);

/// What such a table is made from where its exponent is known on the device alone (kernels/cuda/pairs/power_table.cuh):
///   S = scale[cell] 2^(bias - exponent),   T = 2^(p (exponent - bias + log2[cell])),
///   c[k] = sum over j of polynomial[k][j] (p - kMiddlePower)^j
/// The cubic takes the power itself at four places, the same for all p; its error is at most 9e-7.
struct PowerFamily {
  static constexpr int kTerms = 9;
  std::vector<float> scale, log2, log2_rest;  // for each cell of the mantissa
  double polynomial[4][kTerms];
};
inline constexpr double kMiddlePower = kLargestTablePower / 2;
PowerFamily power_family(int mantissa_bits);

}  // namespace mercer::ir
