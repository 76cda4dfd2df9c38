// pairwise against the oracle: formulas by targets by types, and the edges of shapes and strides.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ir/evaluate.h"
#include "mercer/mercer.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using testing_support::Matrix;

struct Case {
  const char* text;
  std::map<std::string, double> params;
  bool positive = false;  // data in (0.1, 1.1) instead of normal
  double tolerance = 1e-6;
  bool kernel = false;    // exp(-s/b): the error of s is amplified by |s f'(s) / f(s)| = |log f|
};

const Case kCases[] = {
    {"sum(abs(x-z))", {}},
    {"sqrt(sum((x-z)^2))", {}},
    {"sum((x-z)^2)", {}, false, 2e-6},
    {"sum(x*z)", {}, true},
    {"max(abs(x-z))", {}},
    {"sum(abs(x-z)^3)^(1/3)", {}},
    {"sum(abs(x-z)^p)^(1/p)", {{"p", 1.3}}},
    {"sum(abs(x-z)^p)^(1/p)", {{"p", 2.5}}},
    {"sum(abs(x-z)^p)^(1/p)", {{"p", 0.7}}},
    {"exp(-sum(abs(x-z))/b)", {{"b", 7.0}}, false, 1e-6, true},
    {"exp(-sum((x-z)^2)/(2*b^2))", {{"b", 5.0}}, false, 2e-6, true},
    {"sum(max(abs(x-z)-c,0)^2)", {{"c", 0.5}}, false, 4e-6},
    {"1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))", {}, true, 2e-5},
    {"sum(abs(x-z)/(abs(x)+abs(z)))", {}, true},
    {"sqrt(sum((sqrt(x)-sqrt(z))^2))", {}, true},
    {"where(i==j, 1+r, exp(-sum(abs(x-z))/b))", {{"b", 9.0}, {"r", 0.5}}, false, 1e-6, true},
    {"logsumexp(x*z)", {}, true, 2e-6},
    {"prod(1 + x*z/10)", {}, true, 4e-6},
    {"min(abs(x-z)) + max(x+z)", {}, false, 2e-6},
    {"sum(x != z)/K", {}},
};

class PairwiseCases : public ::testing::TestWithParam<std::tuple<Target, Dtype, int>> {};

TEST_P(PairwiseCases, MatchesOracle) {
  const auto [target, dtype, index] = GetParam();
  const Case& c = kCases[index];
  Context context;
  testing_support::set_target_or_skip(context, target);
  for (auto [m, n, k] : {std::array{1, 1, 1}, {7, 5, 3}, {23, 61, 70}, {100, 97, 131}, {9, 50, 0}}) {
    Matrix x(dtype, m, k, 1, c.positive), z(dtype, n, k, 2, c.positive), out(dtype, m, n, 3);
    out.poison();
    Arguments arguments;
    for (const auto& [name, value] : c.params) arguments.params[name] = value;
    const Tensor zt = z.tensor();
    pairwise(parse(c.text), x.tensor(), &zt, out.tensor(), arguments, context);
    const Expr expression = parse(c.text);
    const double tolerance = dtype == Dtype::float64 ? 1e-12 : c.tolerance;
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        const double expected = testing_support::oracle(expression, x, i, z, j, c.params);
        const double bound = tolerance * (c.kernel ? 1 + std::abs(std::log(expected)) : 1);
        ASSERT_TRUE(testing_support::close(out.at(i, j), expected, bound))
            << c.text << " " << m << "x" << n << "x" << k << " at " << i << "," << j << ": " << out.at(i, j) << " for "
            << expected;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PairwiseCases,
                         ::testing::Combine(::testing::Values(Target::x86_avx512, Target::x86_avx2, Target::interpreter),
                                            ::testing::Values(Dtype::float32, Dtype::float64),
                                            ::testing::Range(0, static_cast<int>(std::size(kCases)))));

}  // namespace
}  // namespace mercer
