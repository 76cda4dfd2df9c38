#include "ir/passes/safe_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ir/expr/evaluate.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), h = param("h", 2.0), d = x - z;
const double kInf = std::numeric_limits<double>::infinity();

TEST(SafeNorm, ReadsPowersOfOneBase) {
  struct Case {
    Expr term;
    double power;
  };
  for (const auto& [term, power] : std::vector<Case>{{square(d), 2},
                                                     {pow(abs(d), 1.3), 1.3},
                                                     {pow(abs(d), 3.0), 3},
                                                     {pow(abs(d), 2.5), 2.5},
                                                     {pow(abs(d), 7.0), 7},
                                                     {pow(abs(d), 5.5), 5.5},
                                                     {pow(d, 10.0), 10},
                                                     {w * pow(d, 4.0), 4},
                                                     {3.0 * square(d / w), 2},
                                                     {square(d) * w / h, 2},
                                                     {square(max(abs(d) - 1.0, 0.0)), 2},
                                                     {pow(square(d), 1.7), 3.4},
                                                     {abs(d), 1}}) {
    const PowerTerm read = read_power_term(simplify(term));
    ASSERT_TRUE(read) << term.to_text();
    EXPECT_EQ(read.power, power) << term.to_text();
  }
  for (const Expr& term : {d, d * abs(d), pow(d, 3.0), square(x) * z, square(d) * abs(x), square(d) / abs(x + z)})
    EXPECT_FALSE(read_power_term(simplify(term))) << term.to_text();
}

TEST(SafeNorm, LeavesWhatLeavesTheRangeAsItsSumDoes) {
  const Expr s = sum(square(d));
  for (const Expr& e : {s, exp(-s / h), s * s, rcp(s), sqrt(sum(abs(d))), sqrt(s + sum(abs(d))), sqrt(sum(square(x))),
                        sqrt(s * s), log1p(s)}) {
    const Expr simple = simplify(e);
    EXPECT_TRUE(same(safe_norms(simple), simple)) << e.to_text();
  }
}

const std::vector<Expr>& formulas() {
  static const std::vector<Expr> all = [] {
    const auto powers = [](double p) { return sum(pow(abs(d), p)); };
    return std::vector<Expr>{sqrt(powers(2)),
                             rsqrt(powers(2)),
                             pow(powers(1.3), 1 / 1.3),
                             pow(powers(3), 1 / 3.0),
                             pow(powers(10), 0.1),
                             pow(powers(10), 0.1 - 1),
                             sqrt(sum(square(d) * w)),
                             sqrt(powers(2) / h),
                             sqrt(-3.0 * powers(2)),
                             sqrt(h * sum(square(d / w))),
                             log(powers(3)),
                             log2(powers(2) * h),
                             exp(-sqrt(powers(2)) / h) + powers(2),
                             sqrt(sum(square(max(abs(d) - 1.0, 0.0))))};
  }();
  return all;
}

double value(const Expr& e, const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& of) {
  const std::map<std::string, double> params{{"h", 2.0}};
  PairInputs in;
  in.x = a.data();
  in.z = b.data();
  in.w = of.data();
  in.features = static_cast<std::int64_t>(a.size());
  in.params = &params;
  return evaluate(e, in);
}

TEST(SafeNorm, KeepsValues) {
  const std::vector<double> point{0.3, -2, 5, 1.75, -1}, weights{1, 2, 0.5, 3, 1};
  for (const Expr& e : formulas()) {
    const Expr simple = simplify(e), safe = safe_norms(simple);
    ASSERT_FALSE(same(safe, simple)) << e.to_text();
    verify(safe);
    for (const double at : {0.0, 0.7, -5.0, kInf, -kInf, std::nan("")})
      for (const double weight : {1.0, 0.0, -7.0, -100.0}) {
        std::vector<double> a = point, of = weights;
        a[2] = at;
        of[2] = weight;
        for (const std::vector<double>& b : {std::vector<double>(5, 0.0), point, a}) {
          const double before = value(simple, a, b, of), after = value(safe, a, b, of);
          if (std::isnan(before)) EXPECT_TRUE(std::isnan(after)) << e.to_text() << " at " << at << ", " << weight;
          else if (std::isinf(before)) EXPECT_EQ(after, before) << e.to_text();
          else EXPECT_NEAR(after, before, 1e-14 * std::abs(before)) << e.to_text();
        }
      }
    EXPECT_EQ(value(safe, {}, {}, {}), value(simple, {}, {}, {})) << e.to_text();
  }
}

TEST(SafeNorm, ServesTheWholeRange) {
  const std::vector<double> none(4, 0.0), ones(4, 1.0);
  for (const double p : {1.3, 2.0, 3.0, 7.0, 10.0, 20.0, 100.0}) {
    const Expr safe = safe_norms(simplify(pow(sum(pow(abs(d), p)), 1 / p)));
    const double of_three = std::pow(1 + std::pow(0.5, p) + std::pow(0.25, p), 1 / p);
    for (const double scale : {0x1p-1000, 0x1p-500, 0x1p-100, 1.0, 0x1p100, 0x1p500, 0x1p1022}) {
      const double got = value(safe, {0.25 * scale, scale, 0, -0.5 * scale}, none, ones);
      EXPECT_NEAR(got / scale, of_three, 1e-14) << p << ", " << scale;
    }
  }
}

TEST(SafeNorm, HalvesMerge) {
  const Expr safe = safe_norms(simplify(sqrt(sum(square(d)))));
  bool merges = false;
  for_each(safe, [&](const Expr& e) { merges |= e->op == Op::reduce && e->has_merge && e->associative; });
  EXPECT_TRUE(merges);
  EXPECT_TRUE(is_symmetric(safe));
}

}  // namespace
}  // namespace mercer::ir
