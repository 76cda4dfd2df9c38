// Panels of distances from a centre: sums of maxima within the bounds that they state, and refusals.
#include "backend/cpu/pack/centre.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace mercer::cpu {
namespace {

constexpr int kWidth = 7;
constexpr double kTolerance = 5e-14;

std::vector<double> normal_values(std::int64_t features, unsigned seed, double shift, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<std::size_t>(features * kWidth));
  for (double& value : values) value = shift + scale * normal(random);
  return values;
}

std::vector<double> packed(const Centring& centring, const std::vector<double>& values, bool rows) {
  std::vector<double> panel(static_cast<std::size_t>(centring.lines() * kWidth));
  EXPECT_TRUE(centring(values.data(), kWidth, rows, panel.data()));
  return panel;
}

double bound_of(const std::vector<double>& panel, int r) {
  return panel[panel.size() - kWidth + static_cast<std::size_t>(r)];
}

/// |x - z| summed as the kernels do, a chunk at a time.
double sum_of(const Centring& centring, std::int64_t features, const std::vector<double>& x,
              const std::vector<double>& z, int r, int c, double factor) {
  double total = 0;
  std::int64_t line = 0;
  for (std::int64_t first = 0; first < features; first += centring.chunk()) {
    const auto at = [&](const std::vector<double>& panel, int p) {
      return panel[static_cast<std::size_t>(line * kWidth + p)];
    };
    double sum = at(z, c) + at(x, r);
    ++line;
    for (std::int64_t k = first; k < std::min(features, first + centring.chunk()); ++k, ++line)
      sum = std::fma(std::max(at(z, c), at(x, r)), 1.0, sum);
    total += sum * factor;
  }
  return total;
}

TEST(Centring, SumsAreWithinTheirBounds) {
  for (std::int64_t features : {1, 15, 128, 129, 1000})
    for (double shift : {0.0, 3.0, 1e5})
      for (double scale : {1.0, 1e-200, 1e-310})
        for (double factor : {1.0, 0.7}) {
          const std::int64_t chunk = std::min<std::int64_t>(features, 128);
          // A centre far from the points makes large errors, beyond the contract, and the bounds with them.
          const std::vector<double> centres(static_cast<std::size_t>(features), shift == 1e5 ? 0.0 : 0.3 * scale);
          const Centring centring(features, chunk, factor, centres);
          const std::vector<double> x = normal_values(features, 1, shift * scale, scale),
                                    z = normal_values(features, 2, shift * scale, scale);
          const std::vector<double> xs = packed(centring, x, true), zs = packed(centring, z, false);
          for (int r = 0; r < kWidth; ++r) {
            EXPECT_EQ(bound_of(xs, r), bound_of(xs, 0)) << "of rows there is one bound";
            for (int c = 0; c < kWidth; ++c) {
              long double wanted = 0;
              for (std::int64_t k = 0; k < features; ++k)
                wanted += std::abs(static_cast<long double>(x[static_cast<std::size_t>(k * kWidth + r)]) -
                                   z[static_cast<std::size_t>(k * kWidth + c)]);
              const long double sum = sum_of(centring, features, xs, zs, r, c, factor);
              // A sum as large as the bounds may be off by the tolerance. Denormal products end in steps.
              const double size = std::max(bound_of(xs, r) + bound_of(zs, c), static_cast<double>(sum));
              const double steps = 1e-323 * static_cast<double>(features);
              EXPECT_LE(std::fabs(static_cast<double>(sum - factor * wanted)), kTolerance * size + steps)
                  << features << " " << shift << " " << scale << " " << factor;
            }
          }
          EXPECT_GT(bound_of(zs, 0), 0);
        }
}

TEST(Centring, BoundsArePartOfTheDistanceOfPointsAboutTheCentre) {
  const Centring centring(256, 128, 1, std::vector<double>(256, 0.0));
  const std::vector<double> x = normal_values(256, 1, 0, 1), z = normal_values(256, 2, 0, 1);
  const std::vector<double> xs = packed(centring, x, true), zs = packed(centring, z, false);
  for (int c = 0; c < kWidth; ++c)
    EXPECT_LT(bound_of(xs, 0) + bound_of(zs, c), 0.7 * sum_of(centring, 256, xs, zs, 0, c, 1));
}

TEST(Centring, RefusesWhatIsTooLarge) {
  const Centring centring(75, 40, 1, std::vector<double>(75, 0.0));
  std::vector<double> panel(static_cast<std::size_t>(centring.lines() * kWidth));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  for (double special : {2e300, -2e300, 1e308, kInf, -kInf, kNan})
    for (int r = 0; r < kWidth; ++r) {
      std::vector<double> values = normal_values(75, 1, 0, 1);
      EXPECT_TRUE(centring(values.data(), kWidth, false, panel.data()));
      values[static_cast<std::size_t>(50 * kWidth + r)] = special;
      EXPECT_FALSE(centring(values.data(), kWidth, false, panel.data())) << special << " at " << r;
    }
  // Each value fits, their sum does not.
  const std::vector<double> values(75 * kWidth, 0.9e299);
  EXPECT_FALSE(centring(values.data(), kWidth, false, panel.data()));
}

}  // namespace
}  // namespace mercer::cpu
