// Derivatives of reductions of users against central differences of the oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "../ir/differentiation_checks.h"
#include "ir/passes/passes.h"
#include "mercer/error.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), p = param("p"), b = param("b");

/// States that each follow themselves alone.
std::vector<Expr> separable() {
  return {
      parse("reduce((p*(x-z)^2, w), (a0 + t0, t1 + a1), (1, 0.5), finish=a0/a1)"),
      parse("reduce((x*z, x-z), (max(a0, t0), min(t1, a1)), (-inf, inf), finish=a0*a1)"),
      parse("reduce(p*x*z, max(a, t), 100)"), parse("reduce(x-z, a - t*w, 0.5)"), parse("reduce(x, fma(t, z, a), 2)"),
      parse("reduce(2 + p*x*z, a*t, 3)"), parse("reduce(2 + x*z, a/t, 1)"),
      parse("reduce(abs(x-z), (a^3 + t^3)^(1/3), 0)"), parse("reduce(abs(x-z), (a^4 + t^4)^(1/4), 0)"),
      parse("reduce(abs(x-z), (a^1.3 + t^1.3)^(1/1.3), 1)"),
      parse("reduce(abs(x-z), (a^p + t^p)^(1/p), 0.5)"), parse("reduce(x-z, sqrt(a*a + t*t), 2)/b"),
      parse("reduce(p*x*z, max(a, t) + log1p(exp(-abs(a-t))), -inf)"), parse("reduce(x-z, log(exp(a) + exp(t)), -inf)"),
      parse("reduce((x*z, x), (a0 + t0, t1), (0, 0), finish=a0*b)"),
      parse("c = x - sum(x)/K; reduce(c*z*p, a + t*t, 0)")};
}

/// Reductions whose steps depend on what came before.
std::vector<Expr> ordered() {
  return {parse("reduce(p*x*z, 0.9*a + t, 0)"), parse("reduce(x-z, p*a + tanh(t), 1, finish=exp(-a*a/b))"),
          parse("reduce((x*z, w), (a0*t1 + sin(a1*t0), a1 + p*t0*a0), (1, 0), finish=a0*a1 + row)"),
          parse("reduce(row*x*z, tanh(a*col + t), 0.5)"),
          parse("c = x - sum(x)/K; reduce(c*z/b, where(t > 0, a*a + t*p, a - t), 1)"),
          parse("reduce((p*x, x*z), (a0*t0, a1*t0 + t1), (1, 0), merge=(a0*t0, a1*t0 + t1), finish=a1, "
                "associative=true)")};
}

TEST(OwnReductions, OfStatesThatFollowThemselves) {
  for (const Expr& f : separable()) {
    for (const Expr& v : {x, z, w}) check_field(f, v, pair_for(5, 11));
    check_value(f, p, nullptr, pair_for(5, 12));
    check_value(f, b, nullptr, pair_for(5, 13));
    check_field(simplify(f), x, pair_for(5, 21));  // as verbs have it
    check_field(differentiate(f, x), x, pair_for(4, 16));
    check_field(differentiate(f, p), x, pair_for(4, 19));
  }
}

TEST(OwnReductions, OrderedByParametersRowAndCol) {
  for (const Expr& f : ordered()) {
    check_value(f, p, nullptr, pair_for(5, 12));
    check_value(f, b, nullptr, pair_for(5, 13));
    check_value(f, row_value(), &Pair::row, pair_for(5, 14));
    check_value(f, col_value(), &Pair::col, pair_for(5, 15));
    check_value(differentiate(f, p), p, nullptr, pair_for(4, 18));
    check_value(differentiate(f, p), b, nullptr, pair_for(4, 18));
  }
}

TEST(OwnReductions, OrderedAlongADirection) {
  for (const Expr& f : ordered())
    for (const Expr& v : {x, z}) {
      const Expr along = differentiate_along(f, v, w);
      Pair pair = pair_for(5, 15);
      auto& values = v->op == Op::x ? pair.x : pair.z;
      const std::vector<double> at = values;
      double step = 0;
      const long double expected = slope(
          [&] {
            for (std::size_t k = 0; k < at.size(); ++k) values[k] = at[k] + step * pair.w[k];
            return pair.wide_at(f);
          },
          step);
      values = at;
      if (f->uses.w) continue;  // the weights are the direction here
      EXPECT_NEAR(pair.at(along), static_cast<double>(expected), 1e-8 * (1 + std::abs(expected))) << f.to_text();
    }
}

TEST(OwnReductions, PartialStatesMergeAsTheyAreCombined) {
  const Expr derivative = differentiate(ordered().back(), p);
  ASSERT_EQ(derivative->op, Op::reduce);
  ASSERT_TRUE(derivative->associative);
  const int states = derivative->slot;
  for (int s = 0; s < states; ++s)
    EXPECT_TRUE(same(derivative->args[states + s], derivative->args[3 * states + s])) << derivative.to_text();
}

TEST(OwnReductions, OrderedByFeaturesAreRefused) {
  for (const Expr& f : ordered())
    for (const Expr& v : {x, z}) {
      try {
        differentiate(f, v);
        ADD_FAILURE() << f.to_text();
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::unsupported);
        EXPECT_NE(std::string(e.what()).find("the states must each follow themselves alone"), std::string::npos);
      }
    }
  // Only what is reduced by one side inside the terms varies: the weight of a feature is not asked for.
  const Expr inner = parse("reduce(z*sum(x*x), 0.9*a + t, 0)");
  check_field(inner, x, pair_for(5, 20));
  EXPECT_THROW(differentiate(inner, z), Error);
}

}  // namespace
}  // namespace mercer::ir
