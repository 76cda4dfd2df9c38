// Errors of the lowered elementary functions, in units in the last place of the true value (long double libm), over
// random sweeps; and their values at edges.
#include <gtest/gtest.h>

#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ir/program.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class T>
Program program_of(const Expr& e, bool finite = false) {
  LowerOptions options;
  options.type = dtype_of<T>();
  options.assume_finite = finite;
  return lower({e}, options);
}

// Distance from `got` to `want` in ulp of `want`. Below twice the smallest normal number, an absolute error of up to that
// number counts as one ulp: some functions flush there.
template <class T>
double ulp_error(T got, long double want) {
  const T nearest = static_cast<T>(want);
  if (std::isnan(nearest)) return std::isnan(got) ? 0 : kInf;
  if (std::isinf(nearest) || std::isinf(got)) {
    if (got == nearest) return 0;
    // One of them just below the overflow.
    const long double edge = std::ldexp(1.0L, std::numeric_limits<T>::max_exponent);
    const long double g = std::isinf(got) ? std::copysign(edge, static_cast<long double>(got)) : static_cast<long double>(got);
    const long double w = std::isinf(nearest) ? std::copysign(edge, want) : want;
    return static_cast<double>(std::fabs(g - w) / std::ldexp(1.0L, std::numeric_limits<T>::max_exponent - std::numeric_limits<T>::digits));
  }
  constexpr T kTiny = std::numeric_limits<T>::min();
  if (std::fabs(want) < 2.1L * kTiny) return static_cast<double>(std::fabs(got - want) / kTiny);
  const int exponent = std::max(want == 0 ? -100000 : std::ilogb(want), std::numeric_limits<T>::min_exponent - 1);
  return static_cast<double>(std::fabs(got - want) / std::ldexp(1.0L, exponent + 1 - std::numeric_limits<T>::digits));
}

struct Sweep {
  double low, high;
  bool logarithmic = false;  // magnitudes uniform in the logarithm
};

struct Function {
  std::string name;
  Expr (*expression)(const Expr&);
  long double (*reference)(long double);
  double float_ulp, double_ulp;
  std::vector<Sweep> sweeps;
};

template <class T>
T draw(const Sweep& sweep, std::mt19937_64& random) {
  std::uniform_real_distribution<double> unit(0, 1);
  if (!sweep.logarithmic) return static_cast<T>(sweep.low + (sweep.high - sweep.low) * unit(random));
  const double low = std::log2(std::fabs(sweep.low)), high = std::log2(std::fabs(sweep.high));
  return static_cast<T>(std::copysign(std::exp2(low + (high - low) * unit(random)), sweep.low));
}

template <class T>
void check_sweeps(const Function& f, double limit) {
  const Program program = program_of<T>(f.expression(leaf(Op::x)));
  std::mt19937_64 random(7);
  double worst = 0;
  T worst_at = 0;
  for (const Sweep& sweep : f.sweeps) {
    for (int i = 0; i < 20000; ++i) {
      const T x = draw<T>(sweep, random);
      const double error = ulp_error(run<T>(program, {x})[0], f.reference(static_cast<long double>(x)));
      if (error > worst) worst = error, worst_at = x;
    }
  }
  EXPECT_LE(worst, limit) << f.name << " at " << worst_at;
  std::printf("  %-6s %-8s %.3f ulp, %zu instructions\n", f.name.c_str(), sizeof(T) == 4 ? "float32" : "float64", worst,
              program.code.size());
}

#define EXPRESSION(call) [](const Expr& e) { return call; }
#define REFERENCE(call) [](long double x) -> long double { return call; }

const std::vector<Function>& functions() {
  static const std::vector<Function> table = {
      {"exp", EXPRESSION(exp(e)), REFERENCE(std::exp(x)), 1.5, 1.5, {{-80, 88.7}, {-700, 709}, {-1e-3, 1e-3}}},
      {"exp-", EXPRESSION(exp(-abs(e))), REFERENCE(std::exp(-std::fabs(x))), 1.5, 1.5, {{0, 110}, {0, 760}, {0, 1}}},
      {"exp2", EXPRESSION(exp2(e)), REFERENCE(std::exp2(x)), 1.5, 1.5, {{-124, 128}, {-1020, 1024}, {-1e-3, 1e-3}}},
      {"expm1", EXPRESSION(expm1(e)), REFERENCE(std::expm1(x)), 2, 2, {{-1, 1}, {-90, 88.8}, {1e-30, 1, true}, {-1e-30, 1, true}}},
      {"log", EXPRESSION(log(e)), REFERENCE(std::log(x)), 1.5, 2, {{0.5, 2}, {1e-44, 1e38, true}, {1e-320, 1e308, true}, {0.999, 1.001}}},
      {"log2", EXPRESSION(log2(e)), REFERENCE(std::log2(x)), 2, 2, {{0.5, 2}, {1e-44, 1e38, true}, {1e-320, 1e308, true}, {0.999, 1.001}}},
      {"log1p", EXPRESSION(log1p(e)), REFERENCE(std::log1p(x)), 2, 2, {{-0.999, 2}, {1e-30, 1e38, true}, {-1e-30, -0.99, true}}},
      {"tanh", EXPRESSION(tanh(e)), REFERENCE(std::tanh(x)), 3.5, 3.5, {{-1, 1}, {-20, 20}, {1e-30, 1, true}}},
  };
  return table;
}

TEST(MathAccuracy, FunctionsStayWithinTheirBounds) {
  for (const Function& f : functions()) {
    check_sweeps<float>(f, f.float_ulp);
    check_sweeps<double>(f, f.double_ulp);
  }
}

// The sum of one term acc + |x|^p, against long double.
template <class T>
void check_fixed_power(double p, double limit) {
  const Expr term = leaf(Op::accumulator, 0) + pow(abs(leaf(Op::x)), p);
  const Program program = program_of<T>(term, true);
  ASSERT_EQ(program.inputs.size(), 2u);
  const std::size_t at_x = program.inputs[0].site == Site::x ? 0 : 1;
  const auto value = [&](T x) {
    std::vector<T> inputs(2, T(0));
    inputs[at_x] = x;
    return run<T>(program, inputs)[0];
  };
  std::mt19937_64 random(3);
  double worst = 0, worst_at = 0;
  for (int i = 0; i < 4000; ++i) {
    const T x = draw<T>(i % 2 ? Sweep{1e-6, 1e6, true} : Sweep{-3, 3}, random);
    const long double want = std::pow(std::fabs(static_cast<long double>(x)), static_cast<long double>(p));
    if (want < std::numeric_limits<T>::min() || want > std::numeric_limits<T>::max()) continue;
    const double error = static_cast<double>(std::fabs(value(x) / want - 1));
    if (error > worst) worst = error, worst_at = x;
  }
  EXPECT_LE(worst, limit) << "p = " << p << " at " << worst_at;
  EXPECT_EQ(value(T(0)), T(0)) << p;
  EXPECT_EQ(value(T(-0.0)), T(0)) << p;
  std::printf("  |x|^%.2f %s %.2e, %zu instructions\n", p, sizeof(T) == 4 ? "float32" : "float64", worst, program.code.size());
}

TEST(MathAccuracy, FixedPowers) {
  for (double p : {0.1, 0.5, 0.7, 1.3, 1.5, 1.9, 2.5, 3.0, 3.3, 4.7, 5.0, 6.1, 7.7, 9.7}) {
    check_fixed_power<float>(p, 7e-7);
    check_fixed_power<double>(p, 1.5e-15);
  }
}

}  // namespace
}  // namespace mercer::ir
