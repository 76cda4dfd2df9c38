#include "ir/expr/evaluate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "mercer/error.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const auto [x, z] = points();

Pair small() { return {.x = {1, 2, 4}, .z = {3, -1, 4}, .w = {2, 0.5, 1}, .params = {{"p", 3.0}}}; }

TEST(Evaluate, ByTheDefinition) {
  const Pair p = small();
  EXPECT_EQ(p.at(sum(square(x - z))), 13);
  EXPECT_EQ(p.at(sqrt(sum(weights() * square(x - z)))), std::sqrt(12.5));
  EXPECT_EQ(p.at(prod(x)), 8);
  EXPECT_EQ(p.at(max(abs(x - z))), 3);
  EXPECT_EQ(p.at(min(x - z)), -2);
  EXPECT_EQ(p.at(sum(pow(abs(x - z), param("p"))) + param("b", 0.5)), 35.5);
  EXPECT_EQ(p.at(row_value() + col_value() + index_i() * index_j() + feature_count()), 0.7 + 1.9 + 15 + 3);
  EXPECT_NEAR(p.at(logsumexp(x)), std::log(std::exp(1) + std::exp(2) + std::exp(4)), 1e-15);
  EXPECT_EQ(p.at(sum((x - sum(x) / feature_count()) * z)), 3 * (1 - 7. / 3) - (2 - 7. / 3) + 4 * (4 - 7. / 3));
  EXPECT_EQ(p.at(2.0 * (x - z), 1), 6);
  EXPECT_EQ(p.at(sum(x) * x, 2), 28);
}

TEST(Evaluate, NoFeatures) {
  const Pair p{.x = {}, .z = {}, .w = {}, .params = {}};
  EXPECT_EQ(p.at(sum(x)), 0);
  EXPECT_EQ(p.at(prod(x)), 1);
  EXPECT_EQ(p.at(max(x)), -kInf);
  EXPECT_EQ(p.at(min(x)), kInf);
  EXPECT_EQ(p.at(logsumexp(x)), -kInf);
  EXPECT_EQ(p.at(exp(-sum(x))), 1);
}

TEST(Evaluate, NaNAndInf) {
  Pair p = small();
  p.x[1] = std::nan("");
  for (const Expr& r : {sum(x), prod(x), max(x), min(x), logsumexp(x)}) EXPECT_TRUE(std::isnan(p.at(r)));
  for (const Expr& r : {sum(x), prod(x), max(x), min(x), logsumexp(x)}) EXPECT_TRUE(std::isnan(p.wide_at(r)));
  p.x = {kInf, 1, 2};
  EXPECT_EQ(p.at(sum(x)), kInf);
  EXPECT_EQ(p.at(logsumexp(x)), kInf);
  EXPECT_EQ(p.wide_at(sum(x)), kInf);
  EXPECT_EQ(p.at(max(x)), kInf);
  p.z = {kInf, 1, 2};
  EXPECT_TRUE(std::isnan(p.at(sum(abs(x - z)))));
  p.x = {-kInf, -kInf, -kInf};
  EXPECT_EQ(p.at(logsumexp(x)), -kInf);
  p.x = {1000, 1000, 1000};
  EXPECT_NEAR(p.at(logsumexp(x)), 1000 + std::log(3.0), 1e-12);
}

TEST(Evaluate, SumsAreCompensated) {
  const Pair p{.x = {1, 1e100, 1, -1e100}, .z = {0, 0, 0, 0}, .w = {}, .params = {}};
  EXPECT_EQ(evaluate(sum(x), {.x = p.x.data(), .features = 4}), 2);
}

TEST(Evaluate, WideHasThirtyDigits) {
  const Pair p{.x = {1, 0x1p-80, 3}, .z = {3, 1, 7}, .w = {1, 1, 1}, .params = {}};
  EXPECT_EQ(p.wide_at(1.0 + x - 1.0, 1), 0x1p-80L);
  EXPECT_NEAR(static_cast<double>(p.wide_at(x / z * z - x, 0)), 0, 1e-31);
  EXPECT_NEAR(static_cast<double>(p.wide_at(square(sqrt(x)) - x, 2)), 0, 1e-30);
  EXPECT_NEAR(static_cast<double>(p.wide_at(rcp(z) * z - 1.0, 2)), 0, 1e-31);
}

TEST(Evaluate, CustomReductionsKeepTheOrderOfK) {
  const Expr horner = fold({x}, {state() * z + incoming()}, {param("start", 0.0)});
  const Pair p = small();
  EXPECT_EQ(p.at(horner), ((0 * 3 + 1) * -1 + 2) * 4 + 4);
  // Both states are read before either is written.
  const Expr swap = fold({x, z}, {state(1), state(0) + incoming(1)}, {1.0, 2.0}, 10.0 * state(0) + state(1));
  double a = 1, b = 2;
  for (double v : p.z) std::tie(a, b) = std::pair(b, a + v);
  EXPECT_EQ(p.at(swap), 10 * a + b);
}

TEST(Evaluate, RefusesWhatIsMissing) {
  const Pair p = small();
  EXPECT_THROW(p.at(param("missing")), Error);
  EXPECT_THROW(p.at(x - z), Error);
  EXPECT_THROW(p.at(leaf(Op::accumulator, 0)), Error);
}

}  // namespace
}  // namespace mercer::ir
