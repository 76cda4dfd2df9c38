// Derivatives of formulas against central differences of the oracle; singular points; second order.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/passes/passes.h"
#include "mercer/error.h"
#include "unit/ir/differentiation_checks.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), p = param("p"), b = param("b"), K = feature_count(), d = x - z;

Expr centred(const Expr& v) { return v - sum(v) / K; }
Expr shared(const Expr& v) { return v / sum(v); }
Expr lp(double power) { return pow(sum(pow(abs(d), power)), 1.0 / power); }
Expr l2() { return sqrt(sum(square(d))); }

std::vector<Expr> formulas() {
  const Expr r3 = std::sqrt(3.0) * l2() / b, r5 = std::sqrt(5.0) * l2() / b, m = 0.5 * (shared(x) + shared(z));
  return {
      sum(square(d)), l2(), lp(0.5), lp(1), lp(1.3), lp(3), pow(sum(pow(abs(d), p)), 1.0 / p),
      sum(w * square(d)), sqrt(sum(w * square(d))), exp(-sum(pow(abs(d), p)) / b), exp(-l2() / b),
      exp(-sum(square(d)) / (2.0 * b * b)), (1.0 + r3) * exp(-r3), (1.0 + r5 + r5 * r5 / 3.0) * exp(-r5),
      pow(1.0 + sum(square(d)) / (2.0 * p * b * b), -p), pow(sum(x * z) * p + 1.0, 3.0), tanh(p * sum(x * z)),
      1.0 - sum(x * z) / sqrt(sum(x * x) * sum(z * z)), acos(sum(x * z) * rsqrt(sum(x * x)) * rsqrt(sum(z * z))),
      1.0 - sum(centred(x) * centred(z)) / sqrt(sum(square(centred(x))) * sum(square(centred(z)))),
      sum(abs(d) / (abs(x) + abs(z))), sum(abs(d)) / sum(abs(x + z)), sum(xlogy(x, x / z)),
      sqrt(0.5 * (sum(xlogy(shared(x), shared(x) / m)) + sum(xlogy(shared(z), shared(z) / m)))),
      max(abs(d)), min(p * abs(d)), prod(1.0 + p * square(d)), prod(x - z), logsumexp(p * x * z), logsumexp(d) / b,
      max(p * centred(x) * z), min(centred(x) * centred(z)), prod(2.0 + p * centred(x) * z),
      logsumexp(p * centred(x) * z),
      sum(exp(p * abs(d) / sum(w))), where(equal(index_i(), index_j()), 1.0 + p, exp(-sum(abs(d)))),
      row_value() * col_value() * sum(x * z) + row_value() / col_value(), sum(fma(x, z, w)),
      sum(log1p(square(d)) * erf(x)),
      sum(max(x, z) * min(x, p)), sum(atan2(x, z)) * sum(sin(x * z))};
}

TEST(Differentiate, ByFeaturesAndWeights) {
  for (const Expr& f : formulas()) {
    for (const Expr& v : {x, z, w}) check_field(f, v, pair_for(5, 11));
  }
}

/// Every feature moves by its weight: the slope is the sum of the field times the weights.
TEST(Differentiate, AlongADirection) {
  for (const Expr& f : formulas())
    for (const Expr& v : {x, z}) {
      const Pair pair = pair_for(5, 15);
      const Expr field = differentiate(f, v), along = differentiate_along(f, v, w);
      ASSERT_NO_THROW(verify(along)) << along.to_text();
      double expected = 0, largest = 1;
      for (std::size_t k = 0; k < pair.w.size(); ++k) {
        expected += pair.w[k] * pair.at(field, static_cast<std::int64_t>(k));
        largest += std::abs(pair.w[k] * pair.at(field, static_cast<std::int64_t>(k)));
      }
      EXPECT_NEAR(pair.at(along), expected, 1e-12 * largest) << "d/d" << v.to_text() << " " << f.to_text();
    }
}

TEST(Differentiate, ByParametersRowAndCol) {
  for (const Expr& f : formulas()) {
    check_value(f, p, nullptr, pair_for(5, 12));
    check_value(f, b, nullptr, pair_for(5, 13));
    check_value(f, row_value(), &Pair::row, pair_for(5, 14));
    check_value(f, col_value(), &Pair::col, pair_for(5, 15));
  }
}

TEST(Differentiate, TwiceGivesTheDiagonal) {
  for (const Expr& f : formulas()) {
    check_field(differentiate(f, x), x, pair_for(4, 16));
    check_field(differentiate(f, z), z, pair_for(4, 17));
  }
}

TEST(Differentiate, TwiceByParameters) {
  for (const Expr& f : formulas()) {
    check_value(differentiate(f, p), p, nullptr, pair_for(4, 18));
    check_field(differentiate(f, p), x, pair_for(4, 19));
  }
}

/// Formulas of a distance: at coincident points their gradient is 0.
std::vector<Expr> radial() {
  const Expr r = std::sqrt(5.0) * l2() / b;
  std::vector<Expr> found = {l2(), exp(-l2() / b), exp(-sum(square(d))), (1.0 + r) * exp(-r), max(abs(d)),
                             sqrt(max(abs(d))), (1.0 + r + r * r / 3.0) * exp(-r), sum(abs(d) / (abs(x) + abs(z))),
                             log1p(l2()), pow(1.0 + sum(square(d)), -0.5), xlogy(sum(square(d)), l2()),
                             rcp(1.0 + sum(abs(d)))};
  for (double power : {0.5, 1.0, 1.3, 2.0, 3.0}) {
    found.push_back(lp(power));
    found.push_back(exp(-lp(power) / b));
    found.push_back(sum(pow(abs(d), power)));
    found.push_back(bind(pow(sum(pow(abs(d), p)), 1.0 / p), {{"p", power}}));
  }
  found.push_back(pow(sum(pow(abs(d), p)), 1.0 / p));
  found.push_back(exp(-sum(pow(abs(d), p)) / b));
  return found;
}

TEST(Differentiate, CoincidentPointsContributeNothing) {
  for (const Expr& f : radial()) {
    const Expr gradient = differentiate(f, x), diagonal = differentiate(gradient, x);
    const Expr by_parameter = differentiate(f, p), mixed = differentiate(gradient, p);
    for (double power : {0.5, 1.0, 1.3, 2.0, 3.0}) {
      Pair same_point = pair_for(3, 20);
      same_point.params["p"] = power;
      Pair same_feature = same_point;
      same_point.z = same_point.x;
      same_feature.z[1] = same_feature.x[1];
      for (int k = 0; k < 3; ++k) {
        EXPECT_EQ(same_point.at(gradient, k), 0) << f.to_text() << "\n" << gradient.to_text();
        for (const Pair& pair : {same_point, same_feature}) {
          EXPECT_TRUE(std::isfinite(pair.at(gradient, k))) << f.to_text() << "\n" << gradient.to_text();
          EXPECT_TRUE(std::isfinite(pair.at(diagonal, k))) << f.to_text() << "\n" << diagonal.to_text();
          EXPECT_TRUE(std::isfinite(pair.at(by_parameter))) << f.to_text() << "\n" << by_parameter.to_text();
          EXPECT_TRUE(std::isfinite(pair.at(mixed, k))) << f.to_text() << "\n" << mixed.to_text();
        }
      }
    }
  }
}

TEST(Differentiate, FiniteClassicalValuesAreKept) {
  Pair pair = pair_for(3, 21);
  pair.z = pair.x;
  const auto diagonal = [&](const Expr& f) { return pair.at(differentiate(differentiate(f, x), x), 1); };
  EXPECT_EQ(diagonal(sum(square(d))), 2);
  EXPECT_EQ(diagonal(sum(pow(abs(d), 2.0))), 2);
  EXPECT_EQ(diagonal(sum(pow(d, 2.0))), 2);
  EXPECT_EQ(diagonal(exp(-sum(pow(abs(d), 2.0)))), -2);
  EXPECT_EQ(diagonal(sum(pow(abs(d), 4.0 / 2.0))), 2);
  EXPECT_EQ(diagonal(sum(pow(abs(d), 3.0))), 0);
}

/// All derivatives of functions with an asymptote are 0 where their argument is infinite, as a sum that overflows.
TEST(Differentiate, AsymptotesHaveNoSlope) {
  Pair pair = pair_for(3, 28);
  for (const double far : {1.5e308, -1.5e308}) {
    pair.x = {far, far, 1};
    for (Expr field : {erf(sum(x)), tanh(sum(x)), sum(erf(1e10 * x)), sum(tanh(1e10 * x))})
      for (int order = 1; order <= 4; ++order) {
        field = differentiate(field, x);
        EXPECT_EQ(pair.at(field, 0), 0) << "order " << order << ": " << field.to_text();
      }
  }
}

TEST(Differentiate, ProductsWithZeros) {
  Pair pair = pair_for(3, 22);
  const auto gradient = [&](std::vector<double> values) {
    pair.x = std::move(values);
    std::vector<double> g;
    for (int k = 0; k < 3; ++k) g.push_back(pair.at(differentiate(prod(x), x), k));
    return g;
  };
  EXPECT_EQ(gradient({2, 3, 5}), (std::vector<double>{15, 10, 6}));
  EXPECT_EQ(gradient({0, 3, 5}), (std::vector<double>{15, 0, 0}));
  EXPECT_EQ(gradient({0, 3, 0}), (std::vector<double>{0, 0, 0}));
  pair.x = {0, 3, 5};
  EXPECT_EQ(pair.at(bind(differentiate(prod(x + p), p), {{"p", 0.0}})), 15);
  pair.x = {0, 3, 0};
  EXPECT_EQ(pair.at(bind(differentiate(prod(x + p), p), {{"p", 0.0}})), 0);
}

TEST(Differentiate, TiesShareEvenly) {
  Pair pair = pair_for(3, 23);
  pair.x = {2, -2, 1};
  pair.z = {0, 0, 0};
  const auto at = [&](const Expr& e) { return std::vector{pair.at(e, 0), pair.at(e, 1), pair.at(e, 2)}; };
  EXPECT_EQ(at(differentiate(max(abs(d)), x)), (std::vector{0.5, -0.5, 0.0}));
  EXPECT_EQ(at(differentiate(min(-abs(d)), x)), (std::vector{-0.5, 0.5, 0.0}));
  pair.params["p"] = 1;
  EXPECT_EQ(pair.at(differentiate(max(abs(d) + p * x), p)), 2);
}

TEST(Differentiate, NaNReachesTheGradient) {
  Pair pair = pair_for(3, 24);
  pair.x[1] = std::nan("");
  for (const Expr& f : {l2(), max(abs(d)), min(abs(d)), prod(d), logsumexp(d), lp(1.3), exp(-sum(abs(d)))}) {
    EXPECT_TRUE(std::isnan(pair.at(differentiate(f, x), 0))) << f.to_text();
  }
}

/// Neither a value nor a derivative of a branch that is not taken, NaN or infinite here, reaches the gradient.
TEST(Differentiate, BranchesThatAreNotTakenCountForNothing) {
  Pair pair = pair_for(3, 25);
  pair.x = {-0.5, 0.25, 0};
  const Expr taken = sum(x * z), positive = 0.0 < min(x), below = sum(w) < 0.0;
  const std::vector<Expr> branches = {sum(sqrt(x) * z), sum(log(x)), sum(rcp(square(x))), sum(pow(x, p)), prod(log(x)),
                                      max(asin(x - 9.0)), min(rsqrt(x)), logsumexp(log(x) * z), log(sum(log(x)))};
  for (const Expr& branch : branches) {
    const std::vector<Expr> formulas = {
        where(positive, branch, taken), where(logical_not(positive), taken, branch),
        exp(where(positive, branch, taken) / b), taken + where(below, 2.0 * branch, 0.0),
        where(positive, branch * branch, where(below, branch, taken)),
        where(positive, branch, taken) * where(1.0 < min(x), branch, taken),
        square(where(positive, branch, taken) * taken + where(1.0 < min(x), branch, 2.0))};
    const std::vector<Expr> same_values = {taken, taken, exp(taken / b), taken, taken, square(taken),
                                           square(taken * taken + 2.0)};
    for (std::size_t i = 0; i < formulas.size(); ++i) {
      for (const Expr& v : {x, z, w}) {
        const Expr field = differentiate(formulas[i], v), expected = differentiate(same_values[i], v);
        const Expr twice = differentiate(field, x), expected_twice = differentiate(expected, x);
        const Expr along = differentiate(differentiate_along(formulas[i], v, w), x);
        const Expr expected_along = differentiate(differentiate_along(same_values[i], v, w), x);
        for (int k = 0; k < 3; ++k) {
          EXPECT_DOUBLE_EQ(pair.at(field, k), pair.at(expected, k)) << formulas[i].to_text() << "\n" << field.to_text();
          EXPECT_DOUBLE_EQ(pair.at(twice, k), pair.at(expected_twice, k)) << formulas[i].to_text();
          EXPECT_DOUBLE_EQ(pair.at(along, k), pair.at(expected_along, k)) << formulas[i].to_text();
        }
      }
      for (const Expr& v : {p, b})
        EXPECT_DOUBLE_EQ(pair.at(differentiate(formulas[i], v)), pair.at(differentiate(same_values[i], v)))
            << formulas[i].to_text();
    }
  }
}

/// What no term of a reduction reads, and third derivatives.
TEST(Differentiate, UntakenReductionsInsideOfTerms) {
  Pair pair = pair_for(3, 25);
  pair.x = {-0.5, 0.25, 0};
  const Expr positive = 0.0 < min(x), own = 0.0 < x + 9.0;
  const auto chosen = [&](const Expr& branch) { return exp(where(positive, branch, x) * z) + where(own, 1.0, branch); };
  for (const Expr& branch : {sum(sqrt(x)), prod(log(x)), max(asin(x - 9.0)), logsumexp(log(x)), log(sum(log(x)))}) {
    for (const auto over : {ir::Op::sum, ir::Op::prod, ir::Op::max_over, ir::Op::logsumexp}) {
      const Expr f = make(over, {chosen(branch)}), expected = make(over, {exp(x * z) + 1.0});
      Expr field = f, expected_field = expected;
      for (int order = 1; order <= 3; ++order) {
        field = differentiate(field, x), expected_field = differentiate(expected_field, x);
        for (int k = 0; k < 3; ++k)
          EXPECT_DOUBLE_EQ(pair.at(field, k), pair.at(expected_field, k)) << f.to_text() << " order " << order;
      }
      const Expr along = differentiate_along(differentiate_along(f, x, w), x, z);
      const Expr expected_along = differentiate_along(differentiate_along(expected, x, w), x, z);
      EXPECT_DOUBLE_EQ(pair.at(along), pair.at(expected_along)) << f.to_text();
      field = differentiate(along, x), expected_field = differentiate(expected_along, x);
      EXPECT_DOUBLE_EQ(pair.at(field, 1), pair.at(expected_field, 1)) << f.to_text();
    }
  }
}

TEST(Differentiate, ParametersChooseToo) {
  Pair pair = pair_for(3, 27);
  pair.x[0] = std::nan("");
  const Expr f = where(p, b, prod(x));
  for (const Expr& field : {differentiate(f, x), differentiate(differentiate(f, x), x)})
    EXPECT_EQ(pair.at(field, 1), 0) << field.to_text();
}

/// An extremum of many values depends on as many comparisons: their derivative stays small.
TEST(Differentiate, ManyBranches) {
  Expr largest = sum(x), nested = 0.0;
  for (int i = 2; i < 40; ++i) {
    largest = max(largest, sum(pow(x, 1.0 + i)));
    nested = where(sum(x) < i * 0.1, nested + sum(log(x)) / i, nested);
  }
  const Pair pair = pair_for(3, 26);
  EXPECT_EQ(pair.at(differentiate(largest, x), 0), 1);
  EXPECT_TRUE(std::isfinite(pair.at(differentiate(nested, x), 0)));
}

TEST(Differentiate, RefusesCustomCombines) {
  const Expr e = fold({x * z}, {max(state(), incoming()) * 0.5}, {0.0}) + p;
  EXPECT_TRUE(same(differentiate(e, p), 1.0));
  try {
    differentiate(e, x);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  }
  EXPECT_THROW(differentiate(sum(x), sum(x)), Error);
  EXPECT_THROW(differentiate(sum(x), index_i()), Error);
}

TEST(Differentiate, SharedNodesStayShared) {
  Expr e = p * x + z;
  for (int i = 0; i < 100; ++i) e = e * e * p;  // 2^100 factors if multiplied out
  const Pair pair{.x = {0.5}, .z = {0.25}, .w = {1}, .params = {{"p", 1.0}}};
  EXPECT_EQ(pair.at(differentiate(sum(e), x), 0), 0);
  Expr deep = x;
  for (int i = 0; i < 400; ++i) deep = sin(deep);
  EXPECT_NEAR(pair.at(differentiate(sum(deep), x), 0), 0.0, 1.0);
  EXPECT_FALSE(is_symmetric(sum(e + deep)));
}

// φ as the planner reads it: values of the pair in one factor, values at the feature in the other.
TEST(Differentiate, FieldsReadAsAmplitudeTimesPhi) {
  const std::pair<Expr, const char*> cases[] = {
      {sum(square(d)), "2*(x - z)"},
      {sum(abs(d)), "sign(x - z)"},
      {sum(pow(abs(d), 3.0)), "3*(sign(x - z)*square(x - z))"},
      {sum(pow(abs(d), 1.5)), "1.5*(sign(x - z)*sqrt(abs(x - z)))"},
      {sum(pow(abs(d), 0.5)), "0.5*where(0 == x - z, 0, sign(x - z)*rsqrt(abs(x - z)))"},
      {sum(pow(abs(d), p)), "p*where(0 == x - z, 0, sign(x - z)*abs(x - z)^(p - 1))"},
      {sum(x * z), "z"},
      {exp(-sum(square(d))), "(x - z)*(-2*exp(-sum(square(x - z))))"}};
  for (const auto& [f, text] : cases) EXPECT_EQ(differentiate(f, x).to_text(), text);
}

}  // namespace
}  // namespace mercer::ir
