#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ir/lower/fit_power.h"
#include "ir/passes/passes.h"
#include "unit/ir/pair_fixture.h"
#include "unit/ir/random_formula.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), p = param("p");

TEST(Simplify, Table) {
  const std::pair<Expr, Expr> cases[] = {
      {-(-x), x}, {x + -0.0, x}, {x - 0.0, x}, {x * 1.0, x}, {x / 1.0, x}, {pow(x, 1.0), x}, {-1.0 * x, -x},
      {x + -z, x - z}, {-x + z, z - x}, {x - -z, x + z}, {-x * -z, x * z}, {-x / -z, x / z}, {x + x, 2.0 * x},
      {pow(x, 2.0), x * x}, {pow(x, -1.0), rcp(x)}, {1.0 / x, rcp(x)}, {x / 2.0, 0.5 * x}, {x / 0.125, 8.0 * x},
      {pow(abs(x), 2.0), x * x}, {pow(abs(x), 4.0), square(x * x)}, {pow(x, 3.0), x * (x * x)},
      {pow(abs(x), 0.5), sqrt(abs(x))}, {pow(abs(x), 1.5), abs(x) * sqrt(abs(x))}, {pow(abs(x), -0.5), rsqrt(abs(x))},
      {abs(abs(x)), abs(x)}, {abs(-x), abs(x)}, {abs(x * x), x * x}, {abs(sqrt(x)), abs(sqrt(x))},
      {abs(z - x), abs(x - z)}, {square(z - x), square(x - z)}, {abs(x) * abs(x), x * x}, {rcp(sqrt(x)), rsqrt(x)},
      {x > z, z < x}, {x >= z, z <= x}, {logical_not(equal(x, z)), not_equal(x, z)},
      {where(1.0, x, z), x}, {where(0.0, x, z), z}, {where(x < z, w, w), w}, {where(x < z, 1.0, 0.0), x < z},
      {where(not_equal(x, z), 1.0, w), where(equal(x, z), w, 1.0)}, {abs(x) < 0.0, 0.0}, {max(0.0, abs(x)), abs(x)},
      {log(Expr(2.0)), std::log(2.0)}, {Expr(2.0) * 3.0 + 1.0, 7.0}, {Expr(1.0) / 0.0, HUGE_VAL},
      {abs(x) + 0.0, abs(x)}, {sum(abs(x)) + 0.0, sum(abs(x))}, {z * x, x * z}, {x * 2.0, 2.0 * x},
      {where(equal(x, 0.0), sign(x) * p, w), where(equal(0.0, x), 0.0 * p, w)},
      {where(x < z, 0.0, w) + where(x < z, 0.0, p), where(x < z, 0.0, w + p)}};
  for (const auto& [given, expected] : cases) {
    EXPECT_TRUE(same(simplify(given), expected)) << given.to_text() << " gives " << simplify(given).to_text();
  }
}

TEST(Simplify, LeavesWhatNaNInfAndZerosForbid) {
  for (const Expr& e : {0.0 * x, 0.0 + x, x - z, pow(x, 0.5), pow(x, 1.5), equal(x, x), sqrt(x * x), x / x,
                        sum(Expr(1.0)), 0.0 / x, rcp(rcp(x)), exp(log(x)), x / 3.0, logical_not(x < z), abs(sqrt(x)),
                        x / 0x1p-1074}) {
    EXPECT_TRUE(same(simplify(e), e)) << e.to_text() << " gives " << simplify(e).to_text();
  }
}

TEST(Simplify, EqualPartsBecomeOneNode) {
  const Expr e = simplify(sqrt(abs(x - z)) + exp(abs(z - x)));
  EXPECT_EQ(e->args[0]->args[0].node(), e->args[1]->args[0].node());
}

bool identical(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

TEST(Simplify, RandomExpressionsKeepEveryBit) {
  RandomFormula random(7);
  for (int n = 0; n < 12000; ++n) {
    const Expr e = random(2 + n % 4);
    const Expr s = simplify(e);
    EXPECT_TRUE(same(simplify(s), s)) << e.to_text() << "\n" << s.to_text() << "\n" << simplify(s).to_text();
    const bool nonnegative = is_nonnegative(e);
    Oracle before(e), after(s);
    for (int trial = 0; trial < 6; ++trial) {
      Pair pair;
      for (auto* values : {&pair.x, &pair.z, &pair.w}) *values = {random.number(), random.number()};
      if (random.chance(3)) pair.z = pair.x;
      pair.row = random.number();
      pair.params["p"] = random.number();
      const double a = before(pair.inputs(0)), b = after(pair.inputs(0));
      ASSERT_TRUE(identical(a, b)) << e.to_text() << " = " << a << "\n" << s.to_text() << " = " << b << "\nx "
                                   << pair.x[0] << " z " << pair.z[0] << " w " << pair.w[0] << " p "
                                   << pair.params["p"];
      ASSERT_TRUE(!nonnegative || std::isnan(a) || !std::signbit(a)) << e.to_text() << " = " << a;
    }
  }
}

// Each short form against the exact power, with the bound that simplify.cpp states.
TEST(Simplify, ShortPowersAreAccurate) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-10, 10);
  for (double power = -8; power <= 8; power += 0.5) {
    const bool integer = power == std::floor(power);
    const double n = std::floor(std::abs(power));
    const double bound = (std::max(n - 1, 0.0) + (integer ? 0 : 2) + (power < 0 ? 1 : 0)) * 0x1p-53;
    const Expr e = simplify(pow(integer ? x : abs(x), power));
    EXPECT_TRUE(e->op != Op::pow) << power;
    for (int trial = 0; trial < 200; ++trial) {
      const Pair pair{.x = {std::exp2(exponent(random)) * (random() % 2 ? -1 : 1)}, .z = {0}, .w = {1}, .params = {}};
      const long double exact = std::pow(static_cast<long double>(integer ? pair.x[0] : std::abs(pair.x[0])), power);
      EXPECT_LE(std::abs(pair.at(e, 0) - exact), (bound * 1.0001L + 0x1p-62L) * std::abs(exact)) << power;
    }
    for (double u : {0.0, -0.0, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      const Pair pair{.x = {u}, .z = {0}, .w = {1}, .params = {}};
      EXPECT_TRUE(identical(pair.at(e, 0), std::pow(integer ? u : std::abs(u), power))) << u << "^" << power;
    }
  }
}

/// As derivatives want them. What may be negative has a root of its own: pow(-Inf, 0.5) is Inf.
TEST(Simplify, KeptPowersAreFoundAgain) {
  EXPECT_TRUE(same(simplify_keeping_powers(abs(x) * sqrt(abs(x))), pow(abs(x), 1.5)));
  EXPECT_TRUE(same(simplify_keeping_powers(sqrt(abs(x)) * abs(x)), pow(abs(x), 1.5)));
  EXPECT_TRUE(same(simplify_keeping_powers(x * sqrt(x)), x * sqrt(x)));
}

/// The relative error of a cubic; its table and its steps round eight times.
TEST(PowerTables, AreAsAccurateAsTheySay) {
  for (const auto& [bits, most] : {std::pair(2, 8e-7), {3, 8e-7 / 16}})
    for (double p : {0.05, 0.3, 0.4, 0.5, 1.3, 2.5, 3.0}) {
      const PowerTable table = power_table(p, bits);
      ASSERT_EQ(table.entries.size() * sizeof(float), static_cast<std::size_t>(power_table_bytes(bits)));
      const float* c = table.coefficients;
      for (float a = 1e-3f; a < 100; a *= 1.0007f)
        for (const float d : {a, std::ldexp(std::round(std::ldexp(a, 6)), -6)}) {
          if (d == 0) continue;
          const std::size_t entry = std::bit_cast<std::uint32_t>(d) >> (23 - bits);
          const float m = d * table.entries[2 * entry + 1];
          const float poly = std::fma(std::fma(std::fma(c[3], m, c[2]), m, c[1]), m, c[0]);
          const double power = std::pow(static_cast<double>(d), p);
          EXPECT_NEAR(poly * table.entries[2 * entry] / power, 1, most + 8 * 0x1p-24) << d << "^" << p;
        }
    }
}

/// A cubic for all exponents at once, but for the rounding of the coefficients.
TEST(PowerTables, ACubicOfEveryExponent) {
  const PowerFamily family = power_family(2);
  const auto coefficient = [&](int k, double p) {
    double sum = 0;
    for (int j = PowerFamily::kTerms; j-- > 0;) sum = sum * (p - kMiddlePower) + family.polynomial[k][j];
    return sum;
  };
  for (double p = 0x1p-9; p <= kLargestTablePower; p += 0x1p-7) {
    const double c[4] = {coefficient(0, p), coefficient(1, p), coefficient(2, p), coefficient(3, p)};
    for (double m = 8.0 / 9; m <= 10.0 / 9; m += 1e-3)
      EXPECT_NEAR((((c[3] * m + c[2]) * m + c[1]) * m + c[0]) / std::pow(m, p), 1, 9e-7) << m << "^" << p;
  }
  for (double p : {1.0, 2.0, 3.0})
    for (int k = 0; k < 4; ++k) EXPECT_NEAR(coefficient(k, p), k == p ? 1 : 0, 1e-10) << p;
  for (std::size_t cell = 0; cell < 4; ++cell)
    EXPECT_NEAR(double(family.log2[cell]) + family.log2_rest[cell], -std::log2(double(family.scale[cell])), 1e-14);
}

TEST(Nonnegative, Table) {
  for (const Expr& e : {abs(x), x * x, exp(x), sum(square(x)), sqrt(sum(abs(x))), prod(exp(x)), min(abs(x - z)),
                        Expr(0.0), where(x < z, abs(x), 2.0), pow(abs(x), p), max(0.0, x), abs(x) / (abs(x) + abs(z)),
                        x < z}) {
    EXPECT_TRUE(is_nonnegative(e)) << e.to_text();
  }
  for (const Expr& e : {x, x * z, Expr(-0.0), -abs(x), sqrt(x), abs(x) - abs(z), p, pow(x, p), log(abs(x)), sum(x),
                        max(abs(x))}) {
    EXPECT_FALSE(is_nonnegative(e)) << e.to_text();
  }
}

}  // namespace
}  // namespace mercer::ir
