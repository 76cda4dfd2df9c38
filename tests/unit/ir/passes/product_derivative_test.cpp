// Derivatives of prod of any order where terms are 0, against polynomials.
#include <gtest/gtest.h>

#include <cmath>

#include "ir/passes/passes.h"
#include "mercer/error.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), p = param("p"), d = x - z;
constexpr int kFeatures = 4;

/// x - z is 0 at the features of `zeros`.
Pair pair_with(unsigned zeros) {
  Pair pair = smooth_pair(kFeatures, 31);
  for (int k = 0; k < kFeatures; ++k)
    if (zeros >> k & 1) pair.z[static_cast<std::size_t>(k)] = pair.x[static_cast<std::size_t>(k)];
  pair.params = {{"p", 0.0}};
  return pair;
}

/// The derivative of that order at s = 0 of the product of x - z + s w over all features but `left_out`.
double expected(const Pair& pair, int order, int left_out = -1) {
  std::vector<double> series(static_cast<std::size_t>(order) + 1, 0.0);
  series[0] = 1;
  for (int k = 0; k < kFeatures; ++k) {
    if (k == left_out) continue;
    const auto at = static_cast<std::size_t>(k);
    for (std::size_t i = series.size(); i-- > 0;)
      series[i] = series[i] * (pair.x[at] - pair.z[at]) + (i > 0 ? series[i - 1] * pair.w[at] : 0);
  }
  return series.back() * std::tgamma(order + 1);
}

template <class Check>
void for_all_zeros(Check check) {
  for (unsigned zeros = 0; zeros < 1u << kFeatures; ++zeros) check(pair_with(zeros));
}

void expect_near(double found, double value, const Expr& e) {
  EXPECT_NEAR(found, value, 1e-12 * (1 + std::abs(value))) << e.to_text();
}

TEST(ProductDerivative, ByAParameter) {
  const Expr f = prod(d + p * w);
  Expr by_parameter = f;
  for (int order = 1; order <= 4; ++order) {
    by_parameter = differentiate(by_parameter, p);
    const Expr by_feature = differentiate(by_parameter, z);
    for_all_zeros([&](const Pair& pair) {
      expect_near(pair.at(by_parameter), expected(pair, order), by_parameter);
      for (int k = 0; k < kFeatures; ++k)
        expect_near(pair.at(by_feature, k), -expected(pair, order, k), by_feature);
    });
  }
}

TEST(ProductDerivative, ByAFeatureFirst) {
  Expr field = differentiate(prod(d + p * w), x);
  for (int order = 1; order <= 3; ++order) {
    field = differentiate(field, p);
    for_all_zeros([&](const Pair& pair) {
      for (int k = 0; k < kFeatures; ++k) expect_near(pair.at(field, k), expected(pair, order, k), field);
    });
  }
}

TEST(ProductDerivative, AlongDirections) {
  Expr along = prod(d);
  for (int order = 1; order <= 3; ++order) {
    along = differentiate_along(along, order % 2 ? z : x, w);
    const double sign = order == 1 || order == 2 ? -1 : 1;
    const Expr field = differentiate(along, x);
    for_all_zeros([&](const Pair& pair) {
      expect_near(pair.at(along), sign * expected(pair, order), along);
      for (int k = 0; k < kFeatures; ++k) expect_near(pair.at(field, k), sign * expected(pair, order, k), field);
    });
  }
}

/// A value of the pair is a factor of every branch.
TEST(ProductDerivative, InsideOfAFunction) {
  const Expr f = exp(p * prod(d + p * w)), second = differentiate(differentiate(f, p), p);
  for_all_zeros([&](const Pair& pair) {
    const double value = expected(pair, 0), slope = expected(pair, 1);
    expect_near(pair.at(second), value * value + 2 * slope, second);
  });
}

TEST(ProductDerivative, OfASumOfFields) {
  const Expr slopes = differentiate_made(sum(z * differentiate(prod(x), x)), x);
  Pair pair = pair_with(0);
  pair.z = {1, 2, 3, 4};
  const std::vector<std::pair<std::vector<double>, double>> cases = {
      {{2, 3, 5, 7}, 2 * 35 + 3 * 21 + 4 * 15}, {{2, 0, 5, 7}, 2 * 35}, {{0, 3, 0, 7}, 3 * 21}, {{0, 0, 0, 7}, 0}};
  for (const auto& [values, at_0] : cases) {
    pair.x = values;
    expect_near(pair.at(slopes, 0), at_0, slopes);
  }
}

TEST(ProductDerivative, FirstOnesCountZeros) {
  EXPECT_EQ(differentiate(prod(x), x).to_text(),
            "where(0 == x, where(1 == sum(0 == x), prod(where(0 == x, 1, x)), 0), "
            "where(0 == sum(0 == x), rcp(x)*prod(where(0 == x, 1, x)), 0))");
  EXPECT_EQ(differentiate(prod(x + p), p).to_text(),
            "where(0 == sum(0 == x + p), sum(where(0 == x + p, 0, rcp(x + p)))*prod(where(0 == x + p, 1, x + p)), "
            "where(1 == sum(0 == x + p), sum(0 == x + p)*prod(where(0 == x + p, 1, x + p)), 0))");
}

TEST(ProductDerivative, RefusesHighOrders) {
  Expr e = prod(x + p * w);
  for (int order = 1; order <= 4; ++order) e = differentiate(e, p);
  try {
    differentiate(e, p);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  }
}

}  // namespace
}  // namespace mercer::ir
