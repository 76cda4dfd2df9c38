// Masks: what rectangles of pairs say, compared with every pair of them by the oracle.
#include "plan/forms/pair_mask.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "ir/expr/evaluate.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"
#include "mercer/formula.h"

namespace mercer::plan {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Masked {
  explicit Masked(const std::string& text, Dtype type = Dtype::float32)
      : formula(ir::simplify(parse(text))), params(ir::split({formula}).params), mask({formula}, type, params) {}

  Expr formula;
  std::vector<Expr> params;
  PairMask mask;
};

Interval range(double least, double most) { return {least, most}; }

TEST(PairMask, FormulasThatHaveOne) {
  for (const char* text :
       {"where(i <= j, exp(-sum((x-z)^2)), 0)", "where(abs(i-j) < b, sum(x*z), 0)", "where(i == j, sum(x), 0)",
        "where(row == col, sum(x*z), -1)", "where(floor(i/16) == floor(j/16), sum(x*z), 0)",
        "2*where((i-j)^2 < b*b, sum(x*z), 1)", "where(i < j && sum(x) < 1, sum(x*z), 0)",
        "where(i < j, sum(x*z), 0) + where(j > 9, sum(x*z), 0)", "i < j", "where(i < j, sum(x*z), nan)",
        "where(!(i <= j || sum(x) > 0), sum(x*z), 0)", "max(where(i < j, sum(x*z), 0), 0)"})
    EXPECT_TRUE(Masked(text).mask) << text;
  for (const char* text :
       {"exp(-sum((x-z)^2))", "where(i == j, 1 + r, exp(-sum((x-z)^2)))", "(i <= j)*sum(x*z)", "i*sum(x*z)",
        "where(sum(x) < i, sum(x*z), 0)", "where(i < j || sum(x) < 1, sum(x*z), 0)", "where(b > 0, sum(x*z), 0)",
        "where(i < j, sum(x*z), sum(x))", "where(exp(i) < j, sum(x*z), 0)", "0"})
    EXPECT_FALSE(Masked(text).mask) << text;
}

TEST(PairMask, AnswersOfATriangle) {
  const Masked below("where(i <= j, sum(x*z), 0)");
  double value = kNan;
  EXPECT_EQ(below.mask.of({range(8, 15), range(0, 7), {}, {}}, {}, 3, &value), MaskAnswer::known);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(below.mask.of({range(8, 15), range(0, 8), {}, {}}, {}, 3, &value), MaskAnswer::open);
  EXPECT_EQ(below.mask.of({range(8, 15), range(15, 20), {}, {}}, {}, 3, &value), MaskAnswer::computed);
}

TEST(PairMask, WhatPointsDecideIsComputedAtOnce) {
  const Masked both("where(sum(x) < 1, where(i < j, sum(x*z), 2), 2)");
  double value = kNan;
  EXPECT_EQ(both.mask.of({range(5, 9), range(6, 9), {}, {}}, {}, 3, &value), MaskAnswer::open);
  EXPECT_EQ(both.mask.of({range(5, 9), range(10, 19), {}, {}}, {}, 3, &value), MaskAnswer::computed);
  EXPECT_EQ(both.mask.of({range(5, 9), range(0, 4), {}, {}}, {}, 3, &value), MaskAnswer::known);
  EXPECT_EQ(value, 2);
}

TEST(PairMask, PartsOfPairs) {
  const Masked triangle("where(i <= j, sum(x*z), 0)"), band("where(abs(i-j) < b, sum(x*z), 0)");
  EXPECT_NEAR(triangle.mask.computed_part(0, 1000, 0, 1000, {}, 3, 16), 0.5, 1e-12);
  EXPECT_EQ(triangle.mask.computed_part(1000, 1000, 0, 1000, {}, 3, 16), 0);
  EXPECT_EQ(triangle.mask.computed_part(0, 1000, 1000, 1000, {}, 3, 16), 1);
  const std::vector<double> width{100};
  EXPECT_NEAR(band.mask.computed_part(0, 4000, 0, 4000, width, 3, 16), 0.05, 0.005);
  EXPECT_EQ(Masked("where(row < col, sum(x*z), 0)").mask.computed_part(0, 100, 0, 100, {}, 3, 16), 1);
}

/// Values of pairs in the rectangle agree with an answer: bit for bit where it is known.
void check_pairs(const Masked& masked, const std::vector<double>& params, Dtype type, int i0, int i1, int j0, int j1) {
  double known = kNan;
  const MaskAnswer answer = masked.mask.of({range(i0, i1), range(j0, j1), range(i0 / 5, i1 / 5), range(j0 / 7, j1 / 7)},
                                           params, 2, &known);
  if (answer != MaskAnswer::known) return;
  std::map<std::string, double> values;
  for (std::size_t p = 0; p < params.size(); ++p) values[masked.params[p]->name] = params[p];
  const double x[] = {kNan, 1}, z[] = {1, kInf};
  for (int i = i0; i <= i1; ++i)
    for (int j = j0; j <= j1; ++j) {
      ir::PairInputs inputs;
      inputs.x = x;
      inputs.z = z;
      inputs.features = 2;
      inputs.i = i;
      inputs.j = j;
      inputs.row = i / 5;
      inputs.col = j / 7;
      inputs.params = &values;
      double value = ir::evaluate(masked.formula, inputs);
      if (type == Dtype::float32) value = static_cast<float>(value);
      if (std::isnan(value) && std::isnan(known)) continue;
      ASSERT_EQ(std::memcmp(&value, &known, sizeof value), 0)
          << masked.formula.to_text() << " at " << i << "," << j << ": " << value << " is not " << known;
    }
}

TEST(PairMask, KnownValuesAreThoseOfEveryPair) {
  for (Dtype type : {Dtype::float32, Dtype::float64})
    for (const char* text :
         {"where(i <= j, sum(x*z), -0)", "where(abs(i-j) < b, sum(x*z), nan)", "where(i*0.1 < j*b, sum(x*z), b)",
          "where(floor(i/8) == floor(j/8), sum(x*z), 3)", "where(floor(i/10) == floor(j/10), sum(x*z), 3)",
          "where(ceil(i/b) <= round(j/b), sum(x*z), inf)", "where((i-j)*(i-j) < b*b, sum(x*z), 0.1)",
          "where(row == col, sum(x*z), 4)", "where(row < col, 2, sum(x*z))", "where(min(i, 20) == 20, 1, sum(x*z))",
          "where(i/j < 2, sum(x*z), 0)", "-where(i < j, sum(x*z), 0)", "where(sign(i-j) == 1, sum(x*z), 7)",
          "where(i < 20 && (j > 30 || i > j), sum(x*z), 0)", "3*where(i < j, sum(x*z), 0.1) - 1",
          "where(fma(i, b, j) < 60, sum(x*z), 0)", "where(i <= j && cos(i) < 0.5, sum(x*z), 0)",
          "where(i - 3 != j, 2, sum(x*z))"}) {
      const Masked masked(text, type);
      ASSERT_TRUE(masked.mask) << text;
      for (double b : {0.3, 5.0, 1e30, -2.0, kNan}) {
        if (masked.params.empty() && b != 5) continue;
        const std::vector<double> params(masked.params.size(), b);
        for (int side : {1, 5, 8})
          for (int i = 0; i < 40; i += side)
            for (int j = 0; j < 40; j += side)
              ASSERT_NO_FATAL_FAILURE(check_pairs(masked, params, type, i, i + side - 1, j, j + side - 1));
      }
    }
}

/// A rectangle is known as soon as all its pairs are, where conditions compare whole numbers.
TEST(PairMask, WholeNumbersLeaveNoRectangleOpen) {
  for (const char* text : {"where(i <= j, sum(x*z), 0)", "where(abs(i-j) < 5, sum(x*z), 0)",
                           "where(floor(i/8) == floor(j/8), sum(x*z), 0)", "where(2*i - j > 3, sum(x*z), 0)"}) {
    const Masked masked(text);
    for (int i = 0; i < 64; i += 8)
      for (int j = 0; j < 64; j += 8) {
        bool all = true;
        const double x[] = {kNan}, z[] = {1};
        for (int a = i; a < i + 8; ++a)
          for (int b = j; b < j + 8; ++b) {
            ir::PairInputs inputs;
            inputs.x = x;
            inputs.z = z;
            inputs.features = 1;
            inputs.i = a;
            inputs.j = b;
            all = all && ir::evaluate(masked.formula, inputs) == 0;
          }
        double known = kNan;
        const MaskAnswer answer = masked.mask.of({range(i, i + 7), range(j, j + 7), {}, {}}, {}, 1, &known);
        EXPECT_EQ(answer == MaskAnswer::known, all) << text << " at " << i << "," << j;
      }
  }
}

}  // namespace
}  // namespace mercer::plan
