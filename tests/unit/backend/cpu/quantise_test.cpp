// Integers of a panel: exact sums, bounds that hold, and refusals.
#include "backend/cpu/pack/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace mercer::cpu {
namespace {

constexpr std::int64_t kFeatures = 75, kChunk = 40;  // a full chunk and a rest, neither a multiple of a block
constexpr int kWidth = 7;                            // whole vectors and single points

std::vector<float> normal_values(unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kFeatures * kWidth);
  for (float& value : values) value = scale * normal(random);
  return values;
}

float bound_of(const std::vector<std::int32_t>& panel, int r) {
  float bound;
  std::memcpy(&bound, &panel[panel.size() - kWidth + static_cast<std::size_t>(r)], sizeof bound);
  return bound;
}

/// |x - z| summed as the kernels do: modulo 2^32, a chunk at a time.
double sum_of(const std::vector<std::int32_t>& x, const std::vector<std::int32_t>& z, int r, int c, float step) {
  double total = 0;
  std::size_t line = 0;
  for (std::int64_t first = 0; first < kFeatures; first += kChunk) {
    auto at = [&](const std::vector<std::int32_t>& panel, int p) {
      return panel[line * kWidth + static_cast<std::size_t>(p)];
    };
    std::uint32_t sum = static_cast<std::uint32_t>(at(x, r)) + static_cast<std::uint32_t>(at(z, c));
    ++line;
    for (std::int64_t k = first; k < std::min(kFeatures, first + kChunk); ++k, ++line)
      sum += static_cast<std::uint32_t>(std::max(at(x, r), at(z, c)));
    EXPECT_GE(static_cast<std::int32_t>(sum), 0);
    total += static_cast<double>(sum) * static_cast<double>(step);
  }
  return total;
}

TEST(Quantiser, SumsAreWithinTheirBounds) {
  for (float step : {0x1p-12f, 0x1p-20f, 0x1p-24f}) {
    const Quantiser quantiser(kFeatures, kChunk, step, 1, std::vector<float>(kFeatures, 0.25f));
    const std::vector<float> x = normal_values(1), z = normal_values(2);
    std::vector<std::int32_t> xs(quantiser.lines() * kWidth), zs(xs);
    ASSERT_TRUE(quantiser(x.data(), kWidth, true, xs.data()));
    ASSERT_TRUE(quantiser(z.data(), kWidth, false, zs.data()));
    for (int r = 0; r < kWidth; ++r) {
      EXPECT_EQ(bound_of(xs, r), bound_of(xs, 0)) << "of rows there is one bound";
      for (int c = 0; c < kWidth; ++c) {
        double wanted = 0;
        for (std::int64_t k = 0; k < kFeatures; ++k)
          wanted += std::fabs(static_cast<double>(x[k * kWidth + r]) - static_cast<double>(z[k * kWidth + c]));
        // A sum as large as the bounds may be off by the tolerance, less than 1e-6 of it.
        EXPECT_LE(std::fabs(sum_of(xs, zs, r, c, step) - wanted), 9.4e-7 * (bound_of(xs, r) + bound_of(zs, c)));
      }
    }
    EXPECT_GT(bound_of(zs, 0), 0);
  }
}

TEST(Quantiser, WhatTheStepDividesIsExact) {
  const Quantiser quantiser(kFeatures, kChunk, 0x1p-4f, 3.0, std::vector<float>(kFeatures, 100));
  std::vector<float> values = normal_values(1, 1000);
  for (float& value : values) value = std::round(value * 16) / 16;
  std::vector<std::int32_t> panel(quantiser.lines() * kWidth);
  ASSERT_TRUE(quantiser(values.data(), kWidth, false, panel.data()));
  for (int r = 0; r < kWidth; ++r) EXPECT_EQ(bound_of(panel, r), 0);
}

TEST(Quantiser, RefusesWhatDoesNotFit) {
  const Quantiser quantiser(kFeatures, kChunk, 0x1p-20f, 1, std::vector<float>(kFeatures, 0.0f));
  std::vector<std::int32_t> panel(quantiser.lines() * kWidth);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  for (float special : {1025.f, -1025.f, 2047.f, 2048.f, -2048.f, 3000.f, 4096.f, -1e9f, 1e30f, kInf, -kInf, kNan})
    for (int r = 0; r < kWidth; ++r) {
      std::vector<float> values = normal_values(1);
      EXPECT_TRUE(quantiser(values.data(), kWidth, false, panel.data()));
      values[static_cast<std::size_t>(50 * kWidth + r)] = special;
      EXPECT_FALSE(quantiser(values.data(), kWidth, false, panel.data())) << special << " at " << r;
    }
  // Each value fits, their sum does not.
  const std::vector<float> values(kFeatures * kWidth, 30.f);
  EXPECT_FALSE(quantiser(values.data(), kWidth, false, panel.data()));
}

}  // namespace
}  // namespace mercer::cpu
