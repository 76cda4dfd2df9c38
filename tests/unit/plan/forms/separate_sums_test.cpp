// Sums whose terms are products of matrices, each by itself: what becomes a sum of its own.
#include "plan/forms/separate_sums.h"

#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "mercer/mercer.h"

namespace mercer::plan {
namespace {

std::string separated(const char* text) {
  const Expr given = ir::simplify(parse(text)), made = separate_sums(given);
  return same(given, made) ? "the same" : ir::simplify(made).to_text();
}
std::string simplified(const char* text) { return ir::simplify(parse(text)).to_text(); }

TEST(SeparateSums, EachTermHasItsOwn) {
  EXPECT_EQ(separated("sum((x-z)^2+x*z)"), simplified("sum((x-z)^2)+sum(x*z)"));
  EXPECT_EQ(separated("sum(w*((x-z)^2-3*x*z)/4)"), simplified("sum(w*(x-z)^2/4)+sum(-(w*(3*x*z)/4))"));
  EXPECT_EQ(separated("exp(-sum((x-z)^2/h+x*z/h))"), simplified("exp(-(sum((x-z)^2/h)+sum(x*z/h)))"));
}

TEST(SeparateSums, TermsOfOneSideAreValuesOfAPoint) {
  EXPECT_EQ(separated("sum(x*x-2*x*z+z*z)"), simplified("sum(-(2*x*z))+sum(x*x)+sum(z*z)"));
  EXPECT_EQ(separated("sum(1-x*z)"), simplified("sum(-(x*z))+K*1"));
  EXPECT_EQ(separated("sum(x*z+w)"), simplified("sum(x*z)+sum(w)"));
}

TEST(SeparateSums, SumsOfPointsAreDifferences) {
  const Expr made = separate_sums(ir::simplify(parse("sum((x+z)^2)")));
  ASSERT_EQ(made->op, ir::Op::sum);
  const Expr& difference = made->args[0]->args[0];
  EXPECT_EQ(difference->op, ir::Op::sub);
  EXPECT_EQ(difference->args[1]->op, ir::Op::neg);
}

/// Differences of values keep digits that sums of either side would lose.
TEST(SeparateSums, WhatStaysAsItIs) {
  for (const char* text :
       {"sum((x-z)^2)", "sum(x-z)", "sum(x+z+x*z)", "sum(abs(x-z)+x*z)", "sum((x-z)*(x+z))", "max(x*z+1)",
        "sum((x-z)^2*(1+x*z))", "sum(x*z+row)", "sum((x-z)^2)+sum(x*z)", "sum(x*x+1)"})
    EXPECT_EQ(separated(text), "the same") << text;
}

}  // namespace
}  // namespace mercer::plan
