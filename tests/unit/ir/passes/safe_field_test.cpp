#include "ir/passes/safe_field.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ir/expr/evaluate.h"
#include "ir/passes/passes.h"
#include "ir/passes/safe_norm.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), h = param("h", 2.0), d = x - z;

Expr norm(double p) { return pow(sum(pow(abs(d), p)), 1 / p); }
Expr field_of(const Expr& f, const Expr& by = x) { return simplify(differentiate(simplify(f), by)); }

/// The field with the values of pairs within the range in place, or of those beyond it.
Expr with_values(const ScaledFields& scaled, bool beyond) {
  ExprMap<Expr> values;
  for (const ScaledFields::Value& value : scaled.values) values[value.leaf] = beyond ? value.beyond : value.plain;
  return simplify(substitute(scaled.fields[0], values));
}

double value(const Expr& e, const std::vector<double>& a, const std::vector<double>& b, int k) {
  static const std::vector<double> weights{1, 2, 0.5, 3};
  const std::map<std::string, double> params{{"h", 2.0}};
  PairInputs in;
  in.x = a.data();
  in.z = b.data();
  in.w = weights.data();
  in.features = static_cast<std::int64_t>(a.size());
  in.params = &params;
  in.k = k;
  return evaluate(e, in);
}

TEST(SafeField, KeepsValues) {
  const std::vector<double> a{0.3, -2, 5, 1.75}, b{0.25, 1, 5, -2};
  for (const Expr& e :
       {field_of(norm(2.5)), field_of(norm(3)), field_of(norm(4)), field_of(norm(10)), field_of(exp(-norm(10) / h)),
        field_of((1.0 + norm(7)) * exp(-norm(7))), field_of(log(sum(pow(abs(d), 10.0)))),
        field_of(sqrt(sum(pow(d, 4.0)))), field_of(pow(sum(w * pow(abs(d), 5.0)), 0.2)),
        field_of(pow(sum(w * pow(abs(d), 5.0)), 0.2), w), field_of(pow(sum(pow(d / w, 10.0)), 0.1)),
        field_of(sqrt(sum(square(d) * w)), w), field_of(norm(3) + norm(5)), field_of(norm(3) * norm(5))}) {
    const ScaledFields scaled = scaled_fields({e}, most_scale(Dtype::float64));
    ASSERT_FALSE(scaled.values.empty()) << e.to_text();
    for (int k = 0; k < 4; ++k) {
      const double expected = value(e, a, b, k);
      EXPECT_NEAR(value(with_values(scaled, false), a, b, k), expected, 1e-14 * std::abs(expected)) << e.to_text();
      EXPECT_NEAR(value(with_values(scaled, true), a, b, k), expected, 1e-13 * std::abs(expected)) << e.to_text();
      EXPECT_EQ(value(with_values(scaled, true), a, a, k), 0) << e.to_text();
    }
  }
}

TEST(SafeField, TakesParametersAsLargeAsNorms) {
  for (const double p : {1.3, 2.0})
    EXPECT_FALSE(scaled_fields({field_of(exp(-norm(p) / h))}, most_scale(Dtype::float64)).values.empty()) << p;
}

TEST(SafeField, LeavesWhatStaysWithinTheRange) {
  for (const Expr& e : {field_of(norm(2)), field_of(norm(1.3)), field_of(norm(0.5)), field_of(sum(pow(abs(d), 10.0))),
                        field_of(exp(-sum(pow(abs(d), 3.0)) / h)), field_of(max(abs(d)))})
    EXPECT_TRUE(scaled_fields({e}, most_scale(Dtype::float64)).values.empty()) << e.to_text();
}

TEST(SafeField, ServesTheWholeRange) {
  const std::vector<double> none(4, 0.0);
  for (const double p : {2.5, 3.0, 10.0, 20.0, 100.0}) {
    const Expr e = field_of(norm(p));
    const Expr safe = safe_norms(with_values(scaled_fields({e}, most_scale(Dtype::float64)), true));
    for (const double scale : {0x1p-1000, 0x1p-100, 1.0, 0x1p100, 0x1p1000}) {
      const double at_one = value(e, {-0.25, 1, 0, 0.5}, none, 3);
      EXPECT_NEAR(value(safe, {-0.25 * scale, scale, 0, 0.5 * scale}, none, 3), at_one, 1e-13 * at_one) << p;
    }
  }
}

TEST(SafeField, OneFeatureOfRowAndColumn) {
  const Expr e = field_of(norm(10));
  ExprMap<Expr> sides{{x, row_value()}, {z, col_value()}};
  for_each(e, [&](const Expr& part) {
    if (is_reduction(part->op)) sides[part] = part;
  });
  const Expr formula = simplify(substitute(e, sides)), safe = safe_powers(formula);
  ASSERT_FALSE(same(safe, formula));
  EXPECT_TRUE(same(safe_powers(safe), safe));
  EXPECT_TRUE(same(safe_powers(e), e));
}

}  // namespace
}  // namespace mercer::ir
