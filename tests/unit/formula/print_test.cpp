// Text and expression are two views of one thing: what is printed parses back to the same nodes.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "ir/expr/syntax.h"
#include "mercer/error.h"
#include "mercer/formula.h"
#include "random_expr.h"

namespace mercer {
namespace {

void expect_round_trip(const Expr& e) {
  const std::string text = e.to_text();
  try {
    const Expr back = parse(text);
    EXPECT_TRUE(same(back, e)) << text << "\n" << back.to_text();
    EXPECT_EQ(back.to_text(), text);
  } catch (const Error& error) {
    ADD_FAILURE() << text << "\n" << error.what();
  }
}

struct Case {
  const char* text;
  const char* printed;  // nullptr: as written
};

class Text : public ::testing::TestWithParam<Case> {};

TEST_P(Text, PrintsMinimalParentheses) {
  const Case& c = GetParam();
  const Expr e = parse(c.text);
  EXPECT_EQ(e.to_text(), c.printed ? c.printed : c.text);
  expect_round_trip(e);
}

INSTANTIATE_TEST_SUITE_P(
    Precedence, Text,
    ::testing::Values(
        Case{"exp(-sum(abs(x-z)^p)/bandwidth)", "exp(-sum(abs(x - z)^p)/bandwidth)"}, Case{"a - b - c", nullptr},
        Case{"a - (b - c)", nullptr}, Case{"(a - b) - c", "a - b - c"}, Case{"a/b/c", nullptr},
        Case{"a/(b/c)", nullptr},
        Case{"a*(b*c)", nullptr}, Case{"a + (b + c)", nullptr}, Case{"a*b + c*d", nullptr}, Case{"(a + b)*c", nullptr},
        Case{"a^b^c", nullptr}, Case{"(a^b)^c", nullptr}, Case{"a^(b^c)", "a^b^c"}, Case{"-a^b", nullptr},
        Case{"(-a)^b", nullptr}, Case{"a^-b", nullptr}, Case{"a^-b^c", nullptr}, Case{"-a*b", nullptr},
        Case{"-(a*b)", nullptr}, Case{"a*-b", nullptr}, Case{"a - -b", nullptr}, Case{"--a", nullptr},
        Case{"a < b", nullptr}, Case{"(a < b) < c", nullptr}, Case{"(a < b) == (c < d)", nullptr},
        Case{"a < b && b < c || !d", nullptr}, Case{"(a || b) && c", nullptr}, Case{"!(a && b)", nullptr},
        Case{"!a && b", nullptr}, Case{"a + b < c - d", nullptr}, Case{"(a < b)*c", nullptr}, Case{"!a^b", nullptr},
        Case{"-!a", nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, Text,
    ::testing::Values(Case{"0.1", nullptr}, Case{"1e3", "1000"}, Case{"1e-7", "1e-07"}, Case{"-2", nullptr},
                      Case{"-(2)", nullptr}, Case{"--2", nullptr}, Case{"-2^2", nullptr}, Case{"(-2)^2", nullptr},
                      Case{"2^-1", nullptr}, Case{"a - -2", nullptr}, Case{"a*-2", nullptr}, Case{"-0", nullptr},
                      Case{"-(0)", nullptr}, Case{"inf", nullptr}, Case{"-inf", nullptr}, Case{"nan", nullptr},
                      Case{"-nan", nullptr}, Case{"pi", "3.141592653589793"}, Case{".5", "0.5"}, Case{"5.", "5"},
                      Case{"5e-324", nullptr}, Case{"1.7976931348623157e308", "1.7976931348623157e+308"}));

INSTANTIATE_TEST_SUITE_P(
    Calls, Text,
    ::testing::Values(
        Case{"max(x)", nullptr}, Case{"max(x, z)", nullptr}, Case{"min(a, b, c)", "min(min(a, b), c)"},
        Case{"where(a < b, a, b)", nullptr}, Case{"fma(a, b, c)", nullptr}, Case{"square(x - z)", nullptr},
        Case{"(x - z)*(x - z)", "square(x - z)"}, Case{"square(x)", "x*x"}, Case{"mean(x)", "sum(x)/K"},
        Case{"x[k] + z[k]*w[k] + row[m] - col[n]", "x + z*w + row - col"}, Case{"i == j", nullptr},
        Case{"param(bandwidth, 2)", nullptr}, Case{"param(bandwidth)", "bandwidth"}, Case{"param(p, -inf)", nullptr},
        Case{"param(sum)*param(x, 1)", nullptr}, Case{"$row0*$col1 + $acc2 - $pair3", nullptr},
        Case{"$a0 + $t1", nullptr},
        Case{"d = x - z; d = d*d; sqrt(sum(d))", "sqrt(sum(square(x - z)))"},
        Case{"p = param(p, 2); p + p", "param(p, 2) + param(p, 2)"}, Case{"a + t + a0", nullptr},
        Case{"  \n\tx\r\n", "x"}));

INSTANTIATE_TEST_SUITE_P(
    Reduce, Text,
    ::testing::Values(
        Case{"reduce(x*z, a + t, 0)", nullptr}, Case{"reduce(x*z, a0 + t0, 0, finish=a)", "reduce(x*z, a + t, 0)"},
        Case{"reduce((x)*z, (a + t), (0))", "reduce(x*z, a + t, 0)"},
        Case{"reduce(x*z, a + t, 0, merge=a + t, finish=sqrt(a), associative=true)", nullptr},
        Case{"reduce((x*z, z), (a0 + t0, max(a1, t1)), (0, -inf), merge=(a0 + t0, max(a1, t1)), finish=a0/a1, "
             "associative=true)", nullptr},
        Case{"reduce((x, z), (a0, a1), (0, 0), associative=false, finish=a1)",
             "reduce((x, z), (a0, a1), (0, 0), finish=a1)"},
        Case{"a*reduce(x, a*t + param(a), t)", nullptr}, Case{"reduce(x, a + $t3, 0, finish=$t0)", nullptr},
        Case{"reduce(x, reduce(t, a*t, a), 0)", nullptr}));

TEST(Print, BindsNamesOnlyInLargeExpressions) {
  const Points p = points();
  const Expr small = sqrt(p.x * p.z + 1) / (sqrt(p.x * p.z + 1) + 2);
  EXPECT_EQ(small.to_text(), "sqrt(x*z + 1)/(sqrt(x*z + 1) + 2)");
  Expr e = p.x + param("s1");
  for (int i = 0; i < 10; ++i) e = sin(e) + e;
  EXPECT_TRUE(e.to_text().starts_with("s_1 = sin(x + s1) + (x + s1); s_2 = sin(s_1) + s_1; ")) << e.to_text();
  expect_round_trip(e);
}

TEST(Print, SharingDoesNotExplode) {
  Expr e = points().x;
  for (int i = 0; i < 600; ++i) e = i % 2 ? e * e : e - sin(e);
  EXPECT_LT(e.to_text().size(), 50'000u);
  expect_round_trip(e);
}

TEST(Print, DeepChains) {
  for (int form = 0; form < 7; ++form) {
    Expr e = points().x;
    for (std::uint32_t i = 0; i < ir::kMaxDepth; ++i) {
      const Expr one = 1.0;
      e = form == 0 ? exp(e) : form == 1 ? -e : form == 2 ? e + one : form == 3 ? one - e : form == 4 ? pow(one, e)
          : form == 5 ? pow(e, one) : one * (1.0 < e);
      if (form == 6 && e->depth + 1 >= ir::kMaxDepth) break;
    }
    expect_round_trip(e);
  }
}

TEST(Print, StateInsideBindings) {
  Reduce sums;
  sums.term = {points().x};
  Expr e = state() + incoming();
  for (int i = 0; i < 40; ++i) e = sin(e) + e;
  sums.combine = {e};
  sums.identity = {0.0};
  const Expr r = reduce(sums);
  EXPECT_NE(r.to_text().find("$a0 + $t0"), std::string::npos);
  expect_round_trip(r);
}

TEST(Print, RandomExpressions) {
  testing::RandomExpr random(20260101);
  for (int i = 0; i < 3000; ++i) {
    expect_round_trip(random.make(1 + i % 60));
    if (HasFailure()) break;
  }
}

TEST(Print, Ptx) {
  for (const char* text : {
           "sum(ptx(\"sub.f32 {out}, {0}, {1};\", x, z; x - z))",
           "sum(-ptx(\"{ .reg .f32 t; abs.f32 t, {0}; mov.f32 {out}, t; }\", x - z; abs(x - z))^2)",
           "sum(ptx(\"mov.f32 {out0}, {0}; neg.f32 {out1}, {0};\", x*z; out1=-(x*z)))",
           "reduce(x, ptx(\"add.f32 {out}, {0}, {1};\", a, t; a + t), 0)",
           "ptx(\"mul.f32 {out}, {0}, {1};\", sum(x), b; (b < 1 || b > 2)*sum(x))",
       }) {
    const Expr e = parse(text);
    EXPECT_EQ(e.to_text(), text);
    expect_round_trip(e);
  }
  EXPECT_EQ(parse("s = x; d = ptx ( \"sub.f32\t{out},\n{0}, {1}\" , s , z ; s-z ) ; sum(d)").to_text(),
            "sum(ptx(\"sub.f32 {out}, {0}, {1};\", x, z; x - z))");
  expect_round_trip(param("ptx"));
}

TEST(Print, Empty) { EXPECT_EQ(Expr().to_text(), ""); }

}  // namespace
}  // namespace mercer
