// Every row of the op table: its value against libm, its derivative against central differences.
#include "ir/expr/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "ir/passes/passes.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");
const std::vector<double> kSpecial = {0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 1e-310, 1e300, kInf, -kInf, kNaN};

bool identical(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

double ieee_min(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kNaN;
  if (a == 0 && b == 0) return std::signbit(a) ? a : b;
  return std::min(a, b);
}

using F1 = double (*)(double);
using F2 = double (*)(double, double);

const std::vector<std::pair<Op, F1>> kOne = {
    {Op::neg, [](double a) { return -a; }}, {Op::abs, std::fabs}, {Op::sqrt, std::sqrt},
    {Op::sign, [](double a) { return std::isnan(a) ? a : double((a > 0) - (a < 0)); }},
    {Op::rsqrt, [](double a) { return 1 / std::sqrt(a); }}, {Op::rcp, [](double a) { return 1 / a; }},
    {Op::exp, std::exp}, {Op::exp2, std::exp2}, {Op::expm1, std::expm1}, {Op::log, std::log}, {Op::log2, std::log2},
    {Op::log1p, std::log1p}, {Op::sin, std::sin}, {Op::cos, std::cos}, {Op::asin, std::asin}, {Op::acos, std::acos},
    {Op::tanh, std::tanh}, {Op::erf, std::erf}, {Op::floor, std::floor}, {Op::ceil, std::ceil},
    {Op::round, std::nearbyint}, {Op::logical_not, [](double a) { return double(a == 0); }}};

const std::vector<std::pair<Op, F2>> kTwo = {
    {Op::add, [](double a, double b) { return a + b; }}, {Op::sub, [](double a, double b) { return a - b; }},
    {Op::mul, [](double a, double b) { return a * b; }}, {Op::div, [](double a, double b) { return a / b; }},
    {Op::min, ieee_min}, {Op::max, [](double a, double b) { return -ieee_min(-a, -b); }},
    {Op::pow, std::pow}, {Op::atan2, std::atan2}, {Op::copysign, std::copysign},
    {Op::xlogy, [](double a, double b) { return std::isnan(b) ? b : a == 0 ? 0 : a * std::log(b); }},
    {Op::less, [](double a, double b) { return double(a < b); }},
    {Op::less_equal, [](double a, double b) { return double(a <= b); }},
    {Op::greater, [](double a, double b) { return double(a > b); }},
    {Op::greater_equal, [](double a, double b) { return double(a >= b); }},
    {Op::equal, [](double a, double b) { return double(a == b); }},
    {Op::not_equal, [](double a, double b) { return double(a != b); }},
    {Op::logical_and, [](double a, double b) { return double(a != 0 && b != 0); }},
    {Op::logical_or, [](double a, double b) { return double(a != 0 || b != 0); }}};

TEST(OpValues, AgreeWithLibm) {
  EXPECT_EQ(kOne.size() + kTwo.size() + 2, op_table().size()) << "a row without a test of its value";
  for (const auto& [op, f] : kOne) {
    for (double a : kSpecial) EXPECT_TRUE(identical(info(op).eval(&a), f(a))) << info(op).name << "(" << a << ")";
  }
  for (const auto& [op, f] : kTwo) {
    for (double a : kSpecial) {
      for (double b : kSpecial) {
        const double args[] = {a, b};
        EXPECT_TRUE(identical(info(op).eval(args), f(a, b))) << info(op).name << "(" << a << ", " << b << ")";
        const double swapped[] = {b, a};
        EXPECT_TRUE(!info(op).commutative || identical(info(op).eval(args), info(op).eval(swapped))) << info(op).name;
      }
    }
  }
  for (double a : kSpecial) {
    const double args[] = {a, 2.0, 3.0};
    EXPECT_EQ(info(Op::where).eval(args), a != 0 ? 2.0 : 3.0);
    EXPECT_TRUE(identical(info(Op::fma).eval(args), std::fma(a, 2.0, 3.0)));
  }
}

// What a row says of signs, parity, bounds and poles holds for the values of its op.
TEST(OpTraits, AreThoseOfTheValues) {
  const std::vector<double> values = {0.0, 1e-310, 1e-3, 0.5, 1.0, 2.5, 30.0};
  const auto is_negative = [](double value) { return !std::isnan(value) && std::signbit(value); };
  for (const OpInfo& row : op_table()) {
    for (int n = 0; n < 1 << 2; ++n) {
      for (double a : values) {
        for (double b : values) {
          const double args[] = {n & 1 ? -a : a, n & 2 ? -b : b, 0.25}, mirrored[] = {-args[0], args[1], args[2]};
          const double value = row.eval(args);
          const bool first = std::signbit(args[0]), second = row.arity > 1 && std::signbit(args[1]);
          const bool promised = row.boolean || row.sign == Sign::nonnegative ||
                                (row.sign == Sign::as_argument && !first) ||
                                (row.sign == Sign::as_arguments && !first && !second);
          EXPECT_FALSE(promised && is_negative(value)) << row.name << " " << args[0] << " " << args[1];
          if (row.parity != Parity::none) {
            const double expected = row.parity == Parity::even ? value : -value;
            const double found = row.eval(mirrored);  // sign(0) is +0 of both zeros
            EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
                << row.name << " " << args[0] << " " << args[1];
          }
          EXPECT_TRUE(row.bound == 0 || std::fabs(value) <= row.bound) << row.name << " " << args[0] << " " << args[1];
          EXPECT_TRUE(!row.pole_free || std::isfinite(value)) << row.name << " " << args[0] << " " << args[1];
        }
      }
    }
  }
}

// A function that Python binds has a sentence of help.
TEST(OpTraits, FunctionsHaveTheirHelp) {
  for (const OpInfo& row : op_table()) {
    const bool is_named = row.name[0] >= 'a' && row.name[0] <= 'z' && row.arity < 3;
    EXPECT_EQ(is_named, *row.doc != '\0') << row.name;
    EXPECT_TRUE(is_named || *row.numpy == '\0') << row.name << " has operators, which say NumPy's names themselves";
  }
}

TEST(OpValues, WideAgreesWithDouble) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> value(0.05, 0.95);
  Pair pair{.x = {0}, .z = {0}, .w = {0}, .params = {}};
  for (const OpInfo& row : op_table()) {
    const std::vector<Expr> leaves = {points().x, points().z, weights()};
    const Expr e = make(row.op, {leaves.begin(), leaves.begin() + row.arity});
    for (int n = 0; n < 20; ++n) {
      pair.x[0] = value(random);
      pair.z[0] = value(random);
      pair.w[0] = value(random);
      const double narrow = pair.at(e, 0);
      EXPECT_NEAR(narrow, static_cast<double>(pair.wide_at(e, 0)), 2e-15 * std::abs(narrow)) << row.name;
    }
  }
}

// Every op is smooth in (0, 1) but for ties; negative arguments too where the op has them.
TEST(OpDerivatives, AgreeWithDifferences) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> value(0.1, 0.9);
  const std::vector<Op> positive = {Op::sqrt, Op::rsqrt, Op::log, Op::log2, Op::pow, Op::xlogy};
  Pair pair{.x = {0}, .z = {0}, .w = {0}, .params = {}};
  std::vector<double>* const places[] = {&pair.x, &pair.z, &pair.w};
  for (const OpInfo& row : op_table()) {
    const bool signs = std::find(positive.begin(), positive.end(), row.op) == positive.end();
    std::vector<Expr> args = {points().x, points().z, weights()};
    args.resize(row.arity);
    const Expr e = make(row.op, args);
    for (int n = 0; n < 40; ++n) {
      for (auto* place : places) (*place)[0] = value(random) * (signs && random() % 2 ? -1 : 1);
      if (std::abs(pair.x[0] - pair.z[0]) < 0.01 || std::abs(std::abs(pair.x[0]) - 0.5) < 0.01) continue;  // tie, step
      for (int i = 0; i < row.arity; ++i) {
        const Expr partial = row.derivative ? row.derivative(args, e)[i] : Expr(0.0);
        const long double expected = slope([&] { return pair.wide_at(e, 0); }, (*places[i])[0]);
        // h^4 f^(5) / 30 with |f^(5)| up to 5! / 0.1^6 for the singularities at 0 and 1: 1e-6 at worst, times itself.
        EXPECT_NEAR(pair.at(partial, 0), static_cast<double>(expected), 1e-6 * (1 + std::abs(expected)))
            << row.name << " by argument " << i << " at " << pair.x[0] << " " << pair.z[0];
      }
    }
  }
}

// Where the textbook's form cancels, overflows or loses all of a small value.
TEST(OpDerivatives, KeepTheirDigits) {
  Pair pair{.x = {0}, .z = {0}, .w = {0}, .params = {}};
  const Expr slope_of_tanh = info(Op::tanh).derivative({points().x}, tanh(points().x))[0];
  const Expr curvature = differentiate(differentiate(tanh(sum(points().x)), points().x), points().x);
  for (double a : {-300.0, -40.0, -9.0, -1.0, 0.0, 1e-3, 5.8, 20.0, 350.0}) {
    pair.x[0] = a;
    const double expected = 1 / (std::cosh(a) * std::cosh(a));
    EXPECT_NEAR(pair.at(slope_of_tanh, 0), expected, 1e-15 * expected) << a;
    EXPECT_NEAR(pair.at(curvature, 0), -2 * std::tanh(a) * expected, 1e-14 * expected) << a;
  }
  pair.x[0] = 0;
  const Expr third = differentiate(curvature, points().x);
  EXPECT_NEAR(pair.at(third, 0), -2, 1e-14);
  const std::vector<Expr> args = {points().x, points().z};
  const auto partials = info(Op::atan2).derivative(args, make(Op::atan2, args));
  for (double scale : {1e-200, 1.0, 1e200}) {
    pair.x[0] = 3 * scale, pair.z[0] = -4 * scale;
    EXPECT_NEAR(pair.at(partials[0], 0) * scale, -4 / 25.0, 1e-15);
    EXPECT_NEAR(pair.at(partials[1], 0) * scale, -3 / 25.0, 1e-15);
  }
}

TEST(OpDerivatives, ZeroAtSingularPoints) {
  struct Case {
    Op op;
    double a, b;
    int argument;
  };
  const std::vector<Case> cases = {
      {Op::abs, 0, 0, 0},   {Op::sqrt, 0, 0, 0},  {Op::rsqrt, 0, 0, 0},   {Op::rcp, 0, 0, 0},   {Op::log, 0, 0, 0},
      {Op::log2, 0, 0, 0},  {Op::log1p, -1, 0, 0}, {Op::asin, 1, 0, 0},   {Op::asin, -1, 0, 0}, {Op::acos, 1, 0, 0},
      {Op::acos, -1, 0, 0}, {Op::div, 2, 0, 0},   {Op::div, 2, 0, 1},     {Op::pow, 0, 0.5, 0}, {Op::pow, 0, 1.5, 0},
      {Op::pow, 0, 0, 0},   {Op::pow, 0, 2, 1},   {Op::xlogy, 2, 0, 0},   {Op::xlogy, 2, 0, 1}, {Op::atan2, 0, 0, 0},
      {Op::atan2, 0, 0, 1}, {Op::copysign, 0, 2, 0}};
  for (const Case& c : cases) {
    std::vector<Expr> args = {points().x, points().z};
    args.resize(info(c.op).arity);
    const Expr e = make(c.op, args);
    const Pair pair{.x = {c.a}, .z = {c.b}, .w = {1}, .params = {}};
    EXPECT_EQ(pair.at(info(c.op).derivative(args, e)[c.argument], 0), 0.0) << info(c.op).name << " " << c.argument;
  }
  const Pair tie{.x = {2}, .z = {2}, .w = {1}, .params = {}};
  for (Op op : {Op::min, Op::max}) {
    const std::vector<Expr> args = {points().x, points().z};
    for (const Expr& partial : info(op).derivative(args, make(op, args))) EXPECT_EQ(tie.at(partial, 0), 0.5);
  }
}

}  // namespace
}  // namespace mercer::ir
