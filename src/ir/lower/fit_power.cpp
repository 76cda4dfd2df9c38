#include "ir/lower/fit_power.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace mercer::ir {
namespace {

Real evaluate(const std::vector<Real>& c, Real s) {
  Real sum = 0;
  for (std::size_t i = c.size(); i-- > 0;) sum = sum * s + c[i];
  return sum;
}

// Gaussian elimination with row pivoting; the last column of each row is the right side.
std::vector<Real> solve(std::vector<std::vector<Real>> rows) {
  const std::size_t n = rows.size();
  for (std::size_t k = 0; k < n; ++k) {
    const auto larger = [&](const auto& a, const auto& b) { return std::fabs(a[k]) < std::fabs(b[k]); };
    std::iter_swap(rows.begin() + static_cast<std::ptrdiff_t>(k),
                   std::max_element(rows.begin() + static_cast<std::ptrdiff_t>(k), rows.end(), larger));
    for (std::size_t i = k + 1; i < n; ++i)
      for (std::size_t j = n + 1; j-- > k;) rows[i][j] -= rows[i][k] / rows[k][k] * rows[k][j];
  }
  std::vector<Real> x(n);
  for (std::size_t k = n; k-- > 0;) {
    x[k] = rows[k][n];
    for (std::size_t j = k + 1; j < n; ++j) x[k] -= rows[k][j] * x[j];
    x[k] /= rows[k][k];
  }
  return x;
}

}  // namespace

// Remez exchange on a grid. The derivatives of a power have constant sign, so the exchange starts near its solution and
// three rounds are plenty.
Fit fit_power(Real q, Real centre, Real half, int degree) {
  constexpr int kGrid = 200, kRounds = 4;
  const auto f = [&](Real s) { return std::pow(centre + s, q); };
  const auto size = static_cast<std::size_t>(degree) + 2;
  const auto chebyshev = [&](Real part) { return -half * std::cos(std::acos(Real(-1)) * part); };
  std::vector<Real> points(size), c;
  for (std::size_t i = 0; i < size; ++i) points[i] = chebyshev(Real(i) / Real(size - 1));
  Real worst = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<Real>> rows;
    for (std::size_t i = 0; i < size; ++i) {
      std::vector<Real> row;
      Real power = 1;
      for (int k = 0; k <= degree; ++k, power *= points[i]) row.push_back(power / f(points[i]));
      row.push_back(i % 2 ? -1 : 1);
      row.push_back(1);
      rows.push_back(std::move(row));
    }
    c = solve(std::move(rows));
    c.pop_back();
    worst = 0;
    std::vector<std::pair<Real, Real>> extrema;  // error, place
    for (int i = 0; i <= kGrid; ++i) {
      const Real s = chebyshev(Real(i) / kGrid), error = evaluate(c, s) / f(s) - 1;
      worst = std::max(worst, std::fabs(error));
      if (extrema.empty() || (extrema.back().first > 0) != (error > 0))
        extrema.push_back({error, s});
      else if (std::fabs(error) > std::fabs(extrema.back().first))
        extrema.back() = {error, s};
    }
    if (extrema.size() != size) break;
    for (std::size_t i = 0; i < size; ++i) points[i] = extrema[i].second;
  }
  return {std::vector<double>(c.begin(), c.end()), static_cast<double>(worst)};
}

namespace {

/// Chebyshev's places on [low, high].
std::vector<Real> chebyshev_places(int count, Real low, Real high) {
  std::vector<Real> places;
  for (int i = 0; i < count; ++i) {
    const Real angle = std::acos(Real(-1)) * (2 * Real(i) + 1) / (2 * Real(count));
    places.push_back((low + high) / 2 + (high - low) / 2 * std::cos(angle));
  }
  return places;
}

/// The polynomial with these values at these places.
std::vector<Real> interpolate(const std::vector<Real>& places, const std::vector<Real>& values) {
  std::vector<std::vector<Real>> rows;
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::vector<Real> row;
    Real power = 1;
    for (std::size_t j = 0; j < places.size(); ++j, power *= places[i]) row.push_back(power);
    row.push_back(values[i]);
    rows.push_back(std::move(row));
  }
  return solve(std::move(rows));
}

}  // namespace

// A cubic that takes m^p at four places errs there by a product of four differences, times a power of m that p changes
// little: Chebyshev's places of log m serve all p, with 9e-7 where the best cubic of each p has 8e-7. Coefficients are
// sums of powers of these places, so short polynomials of p.
PowerFamily power_family(int mantissa_bits) {
  const int cells = 1 << mantissa_bits;
  PowerFamily family;
  for (int cell = 0; cell < cells; ++cell) {
    const float scale = static_cast<float>(1 / (1 + (cell + Real(0.5)) / cells));
    const Real log2 = -std::log2(Real(scale));
    family.scale.push_back(scale);
    family.log2.push_back(static_cast<float>(log2));
    family.log2_rest.push_back(static_cast<float>(log2 - Real(static_cast<float>(log2))));
  }
  const Real half = Real(1) / (2 * cells + 1);
  std::vector<Real> places = chebyshev_places(4, std::log(1 - half), std::log(1 + half));
  for (Real& place : places) place = std::exp(place);
  const std::vector<Real> exponents = chebyshev_places(PowerFamily::kTerms, -kMiddlePower, kMiddlePower);
  std::vector<std::vector<Real>> cubics;
  for (Real p : exponents) {
    std::vector<Real> values;
    for (Real m : places) values.push_back(std::pow(m, p + kMiddlePower));
    cubics.push_back(interpolate(places, values));
  }
  for (std::size_t k = 0; k < 4; ++k) {
    std::vector<Real> values;
    for (const std::vector<Real>& cubic : cubics) values.push_back(cubic[k]);
    const std::vector<Real> terms = interpolate(exponents, values);
    std::transform(terms.begin(), terms.end(), family.polynomial[k], [](Real c) { return static_cast<double>(c); });
  }
  return family;
}

PowerTable power_table(double p, int mantissa_bits) {
  constexpr int kBias = 127, kInfinite = 255;
  const int cells = 1 << mantissa_bits;
  // The first cell is the widest compared with its centre: of four [1, 1 + 1/4] around 1 + 1/8.
  const Fit fit = fit_power(p, 1, Real(1) / (2 * cells + 1), 3);
  PowerTable table;
  // (1 + s) → m: the polynomial of s = m - 1, expanded.
  const auto& c = fit.coefficients;
  const double expanded[4] = {c[0] - c[1] + c[2] - c[3], c[1] - 2 * c[2] + 3 * c[3], c[2] - 3 * c[3], c[3]};
  std::copy(expanded, expanded + 4, table.coefficients);
  for (int exponent = 0; exponent < 256; ++exponent)
    for (int cell = 0; cell < cells; ++cell) {
      const Real centre = std::ldexp(1 + (cell + Real(0.5)) / cells, exponent - kBias);
      float scale = static_cast<float>(1 / centre), power = static_cast<float>(std::pow(1 / Real(scale), Real(p)));
      if (exponent == 0) power = 0, scale = 1;
      // The cubic of infinity has the sign of its last coefficient.
      if (exponent == kInfinite) power = table.coefficients[3] < 0 ? -1.0f : 1.0f, scale = 1;
      table.entries.push_back(power);
      table.entries.push_back(scale);
    }
  return table;
}

}  // namespace mercer::ir
