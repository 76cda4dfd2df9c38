// pairwise against the oracle: formulas by targets by types on ragged sizes.
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Case {
  const char* text;
  Values params = {};
  bool positive = false;   // data in (0.1, 1.1) instead of normal
  double factor = 1;       // of the unit of the contract
  const char* scale = "";  // what the error is relative to; the value itself when empty
};

// The factors beyond 1: f = s^q has |s f'/f| = q next to 1, and each other sum or product adds its own share.
const Case kCases[] = {
    {"sum(abs(x-z))"},
    {"sqrt(sum((x-z)^2))"},
    {"sum((x-z)^2)"},
    {"sum(x*z)", {}, false, 1, "sqrt(sum(x*x)*sum(z*z))"},
    {"max(abs(x-z))"},
    {"sum(abs(x-z)^3)^(1/3)"},
    {"sum(abs(x-z)^p)^(1/p)", {{"p", 1.3}}},
    {"sum(abs(x-z)^p)^(1/p)", {{"p", 2.5}}},
    {"sum(abs(x-z)^p)^(1/p)", {{"p", 0.7}}, false, 1 / 0.7},
    {"exp(-sum(abs(x-z))/b)", {{"b", 7.0}}, false, 1, "s = sum(abs(x-z))/b; exp(-s)*(1+s)"},
    {"exp(-sum((x-z)^2)/(2*b^2))", {{"b", 5.0}}, false, 1, "s = sum((x-z)^2)/(2*b^2); exp(-s)*(1+s)"},
    {"sum(max(abs(x-z)-c,0)^2)", {{"c", 0.5}}, false, 1, "sum(max(abs(x-z)-c,0)*(abs(x-z)+c))"},
    {"1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))", {}, true, 1, "2 + 0*K"},
    {"sum(abs(x-z)/(abs(x)+abs(z)))", {}, true},
    {"sqrt(sum((sqrt(x)-sqrt(z))^2))", {}, true},
    {"where(i==j, 1+r, exp(-sum(abs(x-z))/b))",
     {{"b", 9.0}, {"r", 0.5}},
     false,
     1,
     "s = sum(abs(x-z))/b; 1.5*(i==j) + exp(-s)*(1+s)"},
    {"logsumexp(x*z)", {}, true, 1, "1 + logsumexp(x*z)"},
    {"prod(1 + x*z/10)", {}, true, 4},
    {"min(abs(x-z)) + max(x+z)", {}, false, 1, "min(abs(x-z)) + max(abs(x)+abs(z))"},
    {"sum(x != z)/K"},
    {"sum(x)*sum(z) + K", {}, false, 1, "sum(abs(x))*sum(abs(z)) + K"},
    {"sum(x) + 0*sum(z)", {}, true},
    {"sqrt(sum(abs(x)))", {}, true},
    {"exp(p)*K + q", {{"p", 0.3}, {"q", 2.0}}, false, 2},
};

class PairwiseCases : public ::testing::TestWithParam<std::tuple<Dtype, int>> {};

TEST_P(PairwiseCases, MatchesOracle) {
  const auto [dtype, index] = GetParam();
  const Case& c = kCases[index];
  const Expr f = parse(c.text), scale = *c.scale ? parse(c.scale) : Expr();
  const Extra extra{c.params, {}, {}, {}, 0, 0};
  for (auto [m, n, k] : {std::array{1, 1, 1}, {7, 5, 3}, {23, 61, 70}, {50, 49, 131}, {9, 50, 0}}) {
    const Shape xs{m, k}, zs{n, k};
    const Array x = c.positive ? uniform(dtype, xs, 1) : normal(dtype, xs, 1);
    const Array z = c.positive ? uniform(dtype, zs, 2) : normal(dtype, zs, 2);
    const Expected expected = expected_pairs(f, x, z, c.factor * unit(dtype), scale, extra);
    const Tensor zt = z;
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {m, n});
      pairwise(f, x, &zt, out, arguments_of(extra), context);
      expect_pairs(out, expected, c.text);
      if (!context.on_cuda() || c.params.empty()) return;
      context.params = ParamPlace::device_with_numbers;
      pairwise(f, x, &zt, out, arguments_of(extra), context);
      expect_pairs(out, expected, std::string(c.text) + ", parameters on the device");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, PairwiseCases,
                         ::testing::Combine(::testing::Values(Dtype::float32, Dtype::float64),
                                            ::testing::Range(0, static_cast<int>(std::size(kCases)))));

}  // namespace
}  // namespace mercer
