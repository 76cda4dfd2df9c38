#include "ir/passes/point_form.h"

#include <gtest/gtest.h>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr own_norm = sqrt(sum(x * x));
Expr reciprocal(const Expr& e) { return where(equal(e, 0.0), 0.0, rcp(e)); }

TEST(PointForm, ValuesOfPoints) {
  const PointForm form = point_form(parse("sum(x*z)/sqrt(sum(x*x)*sum(z*z))"));
  ASSERT_TRUE(form);
  EXPECT_TRUE(same(form.formula, simplify(sum(x * z) * row_value() * col_value()))) << form.formula.to_text();
  for (const Expr& value : {form.x.value, form.z.value})
    EXPECT_TRUE(same(value, reciprocal(own_norm))) << value.to_text();
  EXPECT_TRUE(form.x.shift.empty() && form.x.scale.empty() && form.z.shift.empty() && form.z.scale.empty());
}

TEST(PointForm, ScaledPoints) {
  const PointForm form = point_form(parse("nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); sum(square(x/nx - z/nz))/2"));
  ASSERT_TRUE(form);
  EXPECT_TRUE(same(form.formula, simplify(sum(square(x - z)) / 2.0))) << form.formula.to_text();
  EXPECT_TRUE(same(form.x.scale, reciprocal(own_norm))) << form.x.scale.to_text();
  EXPECT_TRUE(same(form.z.scale, reciprocal(own_norm)) && form.x.value.empty() && form.x.shift.empty());
}

TEST(PointForm, CentredPoints) {
  const PointForm form = point_form(parse("cx = x - mean(x); sum(cx*z)/sqrt(sum(square(cx)))"));
  ASSERT_TRUE(form);
  EXPECT_EQ(uses(form.formula).row, true);
  EXPECT_FALSE(form.x.shift.empty());
  EXPECT_TRUE(form.z.is_plain());
}

/// A value that is read in several ways, and where it is zero.
TEST(PointForm, OneValueOfAll) {
  const PointForm form = point_form(
      parse("nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); "
            "q = sum(square(x/where(nx == 0, 1, nx) - z/where(nz == 0, 1, nz))); "
            "where(nx == 0 || nz == 0, 0, nx*nz*exp(-q))"));
  ASSERT_TRUE(form);
  EXPECT_TRUE(same(form.x.value, own_norm)) << form.x.value.to_text();
  EXPECT_FALSE(form.x.scale.empty());
  EXPECT_TRUE(uses(form.formula).row && uses(form.formula).col);
}

TEST(PointForm, WeightsAndParameters) {
  const PointForm form = point_form(parse("sum(w*x*z)/sqrt((sum(w*x*x) + c)*sum(w*z*z))*b"));
  ASSERT_TRUE(form);
  EXPECT_TRUE(same(form.formula, simplify(parse("sum(w*x*z)*row*col*b")))) << form.formula.to_text();
  const Expr square = sum(weights() * z * z);  // of either sign
  const Expr of_z = swap_sides(reciprocal(copysign(sqrt(abs(square)), square)));
  EXPECT_TRUE(same(form.z.value, of_z)) << form.z.value.to_text();
  EXPECT_TRUE(uses(form.x.value).param && uses(form.x.value).w && !uses(form.z.value).param);
  const PointForm scaled = point_form(parse("sum((x/sum(w*abs(x)) - z)^2/w)"));
  ASSERT_TRUE(scaled);
  EXPECT_TRUE(same(scaled.formula, simplify(parse("sum((x - z)^2/w)")))) << scaled.formula.to_text();
  EXPECT_TRUE(same(scaled.x.scale, reciprocal(sum(weights() * abs(x)))) && scaled.z.is_plain());
}

TEST(PointForm, None) {
  for (const char* f : {"exp(-sum((x-z)^2)/h)", "sum(abs(x-z))", "sum(sqrt(x)*sqrt(z))", "row*sum(x*z)/sum(x*x)",
                        "sum(w*x*z)", "sum((x/h - z/h)^2)", "sum(w*(x-z)^2) + sum(h*x*z)", "sum(2*x*z)",
                        "sum(x*z) + sum(x/sum(x*x) - z)", "sum(x*z)*sum(w*x)*sum(x)", "sum(x*z)*sum(x)*max(x)"})
    EXPECT_FALSE(point_form(parse(f))) << f;
}

}  // namespace
}  // namespace mercer::ir
