#include "ir/passes/log_power.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/passes/passes.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr p = param("p"), t = abs(x);

TEST(LogPower, Table) {
  const std::pair<Expr, Expr> cases[] = {
      {exp2(1.3 * log2(t)), pow(t, 1.3)},
      {exp(1.3 * log(t)), pow(t, 1.3)},
      {exp(log(t) * -1.3), pow(t, -1.3)},
      {exp(-(1.3 * log(t))), pow(t, -1.3)},
      {exp2(-log2(t)), rcp(t)},
      {exp(log(t)), t},
      {exp2(2.0 * (0.65 * log2(t))), pow(t, 1.3)},
      {exp2(log2(t) / 3.0), pow(t, 1 / 3.0)},
      {exp2(2.0 * log2(t)), x * x},
      {exp2(0.5 * log2(t)), sqrt(t)},
      {exp(1.3 * log(sum(x * x))), pow(sum(x * x), 1.3)},
      {sum(exp2(1.3 * log2(abs(x - z)))), sum(pow(abs(x - z), 1.3))},
  };
  for (const auto& [given, expected] : cases) {
    const Expr got = with_log_powers(simplify(given));
    EXPECT_TRUE(same(got, simplify(expected))) << given.to_text() << " gives " << got.to_text();
  }
}

TEST(LogPower, LeavesWhatIsNone) {
  for (const Expr& e : {exp2(1.3 * log2(x)), exp2(1.3 * log(t)), exp(1.3 * log2(t)), exp2(0.0 * log2(t)),
                        exp2(HUGE_VAL * log2(t)), exp2(NAN * log2(t)), exp2(p * log2(t)), exp2(1.3 / log2(t)),
                        exp2(1.3 + log2(t)), exp2(x * log2(t)), exp2(log2(t) / 0.0)}) {
    const Expr simple = simplify(e);
    EXPECT_TRUE(same(with_log_powers(simple), simple)) << e.to_text();
  }
}

TEST(LogPower, ReadsAnExponentThatIsNotKnown) {
  ExprMap<bool> memo;
  const LogPower found = read_log_power(exp2(p * (2.0 * log2(t))), memo);
  EXPECT_TRUE(same(found.base, t));
  EXPECT_TRUE(same(found.exponent, p * 2.0));
  EXPECT_TRUE(read_log_power(exp2(p * log2(x)), memo).base.empty());
}

/// Special values to the bit, others to what the two functions round.
TEST(LogPower, KeepsValues) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double power : {-8.0, -2.7, -1.0, -0.5, -0.3, 0.3, 0.5, 1.0, 1.3, 2.0, 2.5, 3.0, 9.0}) {
    for (const Expr& e : {exp2(power * log2(t)), exp(power * log(t))}) {
      Oracle before(e), after(with_log_powers(simplify(e)));
      for (const double value : {0.0, -0.0, inf, -inf, double(NAN), 1.0, -1.0, 0.7, -3.0, 1e-9, 1e9, 5e-324, 1e308}) {
        Pair pair;
        pair.x = {value, value};
        const double a = before(pair.inputs(0)), b = after(pair.inputs(0));
        if (std::isnan(a) || std::isinf(a) || a == 0 || std::abs(value) == 1) {
          EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
              << e.to_text() << " at " << value << ": " << a << " " << b;
        } else if (std::isnormal(a)) {
          const double bound = 0x1p-51 * (2 + std::abs(power * std::log2(std::abs(value))));
          EXPECT_NEAR(a, b, bound * a) << e.to_text() << " at " << value;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mercer::ir
