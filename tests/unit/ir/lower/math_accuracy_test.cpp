// Errors of the lowered elementary functions, in units in the last place of the true value (long double libm), over
// random sweeps; and their values at edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "ir/expr/prim_semantics.h"
#include "ir/expr/program.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class T>
Program program_of(const Expr& e, bool finite = false, bool short_tables = false) {
  LowerOptions options;
  options.short_tables = short_tables;
  options.type = dtype_of<T>();
  options.assume_finite = options.assume_coarse = finite;
  return lower({e}, options);
}

// Distance from `got` to `want` in ulp of `want`. Below twice the smallest normal number, an absolute error of up to
// that number counts as one ulp: some functions flush there.
template <class T>
double ulp_error(T got, long double want) {
  const T nearest = static_cast<T>(want);
  if (std::isnan(nearest)) return std::isnan(got) ? 0 : kInf;
  if (std::isinf(nearest) || std::isinf(got)) {
    if (got == nearest) return 0;
    // One of them just below the overflow.
    const long double edge = std::ldexp(1.0L, std::numeric_limits<T>::max_exponent);
    const long double g =
        std::isinf(got) ? std::copysign(edge, static_cast<long double>(got)) : static_cast<long double>(got);
    const long double w = std::isinf(nearest) ? std::copysign(edge, want) : want;
    return static_cast<double>(std::fabs(g - w) /
                               std::ldexp(1.0L, std::numeric_limits<T>::max_exponent - std::numeric_limits<T>::digits));
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
      {"expm1",
       EXPRESSION(expm1(e)),
       REFERENCE(std::expm1(x)),
       2,
       2,
       {{-1, 1}, {-90, 88.8}, {1e-30, 1, true}, {-1e-30, 1, true}}},
      {"log",
       EXPRESSION(log(e)),
       REFERENCE(std::log(x)),
       1.5,
       2,
       {{0.5, 2}, {1e-44, 1e38, true}, {1e-320, 1e308, true}, {0.999, 1.001}}},
      {"log2",
       EXPRESSION(log2(e)),
       REFERENCE(std::log2(x)),
       2,
       2,
       {{0.5, 2}, {1e-44, 1e38, true}, {1e-320, 1e308, true}, {0.999, 1.001}}},
      {"log1p",
       EXPRESSION(log1p(e)),
       REFERENCE(std::log1p(x)),
       2,
       2,
       {{-0.999, 2}, {1e-30, 1e38, true}, {-1e-30, -0.99, true}}},
      {"tanh", EXPRESSION(tanh(e)), REFERENCE(std::tanh(x)), 3.5, 3.5, {{-1, 1}, {-20, 20}, {1e-30, 1, true}}},
      {"sin", EXPRESSION(sin(e)), REFERENCE(std::sin(x)), 2, 2, {{-4, 4}, {-1e5, 1e5}, {1e-30, 3e38, true}}},
      {"cos", EXPRESSION(cos(e)), REFERENCE(std::cos(x)), 2, 2, {{-4, 4}, {-1e5, 1e5}, {1e-30, 3e38, true}}},
      {"asin", EXPRESSION(asin(e)), REFERENCE(std::asin(x)), 2.25, 2.25, {{-1, 1}, {1e-30, 1, true}}},
      {"acos", EXPRESSION(acos(e)), REFERENCE(std::acos(x)), 2, 2, {{-1, 1}, {1e-30, 1, true}, {0.99, 1}}},
      {"erf", EXPRESSION(erf(e)), REFERENCE(std::erf(x)), 2.25, 2.25, {{-1, 1}, {-7, 7}, {1e-30, 1, true}}},
      {"atan2", EXPRESSION(atan2(e, 0.75)), REFERENCE(std::atan2(x, 0.75L)), 2.5, 2.5, {{-2, 2}, {1e-30, 1e30, true}}},
      {"atan2-",
       EXPRESSION(atan2(0.75, e)),
       REFERENCE(std::atan2(0.75L, x)),
       2.5,
       2.5,
       {{-2, 2}, {-1e-30, -1e30, true}}},
      {"rsqrt", EXPRESSION(rsqrt(e)), REFERENCE(1 / std::sqrt(x)), 1.6, 1.6, {{1e-30, 1e30, true}}},
      {"xlogy", EXPRESSION(xlogy(0.75, e)), REFERENCE(0.75L * std::log(x)), 2.5, 3, {{1e-30, 1e30, true}}},
  };
  return table;
}

template <class T>
void check_all_patterns(const Function& f, double limit) {
  using U = Pattern<T>;
  constexpr U kStep = static_cast<U>(~U(0) / 55000) | 1;
  const Program program = program_of<T>(f.expression(leaf(Op::x)));
  double worst = 0;
  T worst_at = 0;
  for (U pattern = 12345, n = 0; n < 55000; pattern += kStep, ++n) {
    const T x = std::bit_cast<T>(pattern);
    const double error = ulp_error(run<T>(program, {x})[0], f.reference(static_cast<long double>(x)));
    if (error > worst) worst = error, worst_at = x;
  }
  EXPECT_LE(worst, limit) << f.name << " at " << worst_at;
}

// Every exponent of either sign, infinities' and NaN's too: the sweeps draw from where a function varies.
TEST(MathAccuracy, FunctionsHoldForAllPatterns) {
  for (const Function& f : functions()) {
    check_all_patterns<float>(f, f.float_ulp);
    check_all_patterns<double>(f, f.double_ulp);
  }
}

TEST(MathAccuracy, FunctionsStayWithinTheirBounds) {
  for (const Function& f : functions()) {
    check_sweeps<float>(f, f.float_ulp);
    check_sweeps<double>(f, f.double_ulp);
  }
}

template <class T>
double power_error(double base_limit, double exponent_limit, bool finite) {
  const Expr base = finite ? abs(leaf(Op::x)) : leaf(Op::x);
  const Program program = program_of<T>(pow(base, leaf(Op::z)), finite);
  const bool x_first = program.inputs[0].site == Site::x;
  std::mt19937_64 random(11);
  double worst = 0;
  for (int i = 0; i < 40000; ++i) {
    const T x = draw<T>({1 / base_limit, base_limit, true}, random),
            p = draw<T>({-exponent_limit, exponent_limit}, random);
    const long double want = std::pow(static_cast<long double>(x), static_cast<long double>(p));
    const T got = run<T>(program, x_first ? std::vector<T>{x, p} : std::vector<T>{p, x})[0];
    worst = std::max(worst, ulp_error(got, want));
  }
  std::printf("  pow %s%s base within %g, |p| < %g: %.3f ulp, %zu instructions\n",
              sizeof(T) == 4 ? "float32" : "float64", finite ? " finite" : "", base_limit, exponent_limit, worst,
              program.code.size());
  return worst;
}

TEST(MathAccuracy, GeneralPower) {
  for (bool finite : {false, true}) {
    EXPECT_LE(power_error<float>(1e30, 1, finite), 1.6);
    EXPECT_LE(power_error<float>(1e4, 9, finite), 1.6);
    EXPECT_LE(power_error<float>(1.03, 4000, finite), 2.5);
    EXPECT_LE(power_error<double>(1e200, 1, finite), 2);
    EXPECT_LE(power_error<double>(1e30, 9, finite), 2);
    EXPECT_LE(power_error<double>(1.03, 30000, finite), 16);
  }
}

// Special values of C's pow, for each pair of a base and an exponent.
template <class T>
void check_power_edges() {
  const Program program = program_of<T>(pow(leaf(Op::x), leaf(Op::z)));
  const T values[] = {T(0),    T(-0.0),  T(1),      T(-1),   T(2),    T(-2),   T(0.5),
                      T(-0.5), T(3),     T(-3),     T(1.5),  T(-2.5), T(kInf), T(-kInf),
                      T(kNaN), T(1e-38), T(-1e-40), T(1e37), T(1e9),  T(1e30), T(4.0e6 + 1)};
  const bool x_first = program.inputs[0].site == Site::x;
  for (T base : values) {
    for (T p : values) {
      const T want = static_cast<T>(std::pow(static_cast<long double>(base), static_cast<long double>(p)));
      const T got = run<T>(program, x_first ? std::vector<T>{base, p} : std::vector<T>{p, base})[0];
      EXPECT_LE(ulp_error(got, static_cast<long double>(want)), 4)
          << base << " ^ " << p << " = " << got << " for " << want;
      EXPECT_TRUE(std::isnan(want) || std::signbit(got) == std::signbit(want)) << base << " ^ " << p << " = " << got;
      for (double constant : {0.5, -0.5, 1.5, 2.0, 3.0, -1.0, -2.0, -3.0, 0.3, -0.3, 11.0, 12.0}) {
        const T by_constant = run<T>(program_of<T>(pow(leaf(Op::x), constant)), {base})[0];
        // A constant exponent counts as written, not as rounded to the type.
        const long double exact = std::pow(static_cast<long double>(base), static_cast<long double>(constant));
        EXPECT_LE(ulp_error(by_constant, exact), 5) << base << " ^ " << constant << " = " << by_constant;
      }
    }
  }
}

TEST(MathAccuracy, PowerEdges) {
  check_power_edges<float>();
  check_power_edges<double>();
}

struct Edge {
  Expr (*expression)(const Expr&);
  double argument, value;
};

template <class T>
void check_edges() {
  const double huge = sizeof(T) == 4 ? 1e30 : 1e200;
  const Edge edges[] = {
      {exp, 0, 1},        {exp, kInf, kInf},  {exp, -kInf, 0},     {exp, kNaN, kNaN},   {exp, 1000, kInf},
      {exp, -1000, 0},    {exp, huge, kInf},  {exp, -huge, 0},     {exp2, 0, 1},        {exp2, 10, 1024},
      {exp2, -3, 0.125},  {exp2, kInf, kInf}, {exp2, -kInf, 0},    {exp2, 2000, kInf},  {exp2, kNaN, kNaN},
      {expm1, 0, 0},      {expm1, -kInf, -1}, {expm1, kInf, kInf}, {expm1, kNaN, kNaN}, {expm1, 5000, kInf},
      {log, 1, 0},        {log, 0, -kInf},    {log, -0.0, -kInf},  {log, -1, kNaN},     {log, -kInf, kNaN},
      {log, kInf, kInf},  {log, kNaN, kNaN},  {log2, 1, 0},        {log2, 8, 3},        {log2, 0.25, -2},
      {log2, 0, -kInf},   {log2, -2, kNaN},   {log2, kInf, kInf},  {log2, kNaN, kNaN},  {log1p, 0, 0},
      {log1p, -1, -kInf}, {log1p, -2, kNaN},  {log1p, kInf, kInf}, {log1p, kNaN, kNaN}, {sin, 0, 0},
      {sin, kInf, kNaN},  {sin, -kInf, kNaN}, {sin, kNaN, kNaN},   {cos, 0, 1},         {cos, kInf, kNaN},
      {cos, kNaN, kNaN},  {asin, 0, 0},       {asin, 1.5, kNaN},   {asin, kNaN, kNaN},  {acos, 1, 0},
      {acos, -1.5, kNaN}, {acos, kNaN, kNaN}, {tanh, 0, 0},        {tanh, kInf, 1},     {tanh, -kInf, -1},
      {tanh, kNaN, kNaN}, {tanh, huge, 1},    {erf, 0, 0},         {erf, kInf, 1},      {erf, -kInf, -1},
      {erf, kNaN, kNaN},  {erf, huge, 1},     {rsqrt, 0, kInf},    {rsqrt, -1, kNaN},   {rcp, 0, kInf},
      {rcp, kInf, 0},     {sign, 0, 0},       {sign, -3, -1},      {sign, kNaN, kNaN},  {sqrt, -1, kNaN},
      {floor, -1.5, -2},  {ceil, -1.5, -1},   {round, 2.5, 2},     {round, kNaN, kNaN},
  };
  for (const Edge& edge : edges) {
    const T got = run<T>(program_of<T>(edge.expression(leaf(Op::x))), {static_cast<T>(edge.argument)})[0];
    const T want = static_cast<T>(edge.value);
    EXPECT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
        << edge.expression(leaf(Op::x)).to_text() << " at " << edge.argument << ": " << got << " for " << want;
  }
  for (double big : {1e6, 1e12, 1e18, 1e30}) {
    const T s = run<T>(program_of<T>(sin(leaf(Op::x))), {static_cast<T>(big)})[0];
    EXPECT_LE(std::fabs(s), 1) << big;
  }
}

TEST(MathAccuracy, Edges) {
  check_edges<float>();
  check_edges<double>();
}

// atan2 over all quadrants, zeros and infinities.
template <class T>
void check_atan2() {
  const Program program = program_of<T>(atan2(leaf(Op::x), leaf(Op::z)));
  const T values[] = {T(0),    T(-0.0),  T(1),    T(-1),    T(0.3),  T(-0.3),
                      T(1e20), T(-1e20), T(kInf), T(-kInf), T(kNaN), T(1e-30)};
  const bool x_first = program.inputs[0].site == Site::x;
  for (T y : values)
    for (T x : values) {
      const T got = run<T>(program, x_first ? std::vector<T>{y, x} : std::vector<T>{x, y})[0];
      const T want = static_cast<T>(std::atan2(static_cast<long double>(y), static_cast<long double>(x)));
      EXPECT_LE(ulp_error(got, static_cast<long double>(want)), 2.5) << "atan2(" << y << ", " << x << ") = " << got;
      EXPECT_TRUE(std::isnan(want) || std::signbit(got) == std::signbit(want)) << y << " " << x;
    }
}

TEST(MathAccuracy, Atan2) {
  check_atan2<float>();
  check_atan2<double>();
}

// The sum of one term acc + |x|^p, against long double.
template <class T>
void check_fixed_power(double p, double limit, bool short_tables = false) {
  const Expr term = leaf(Op::accumulator, 0) + pow(abs(leaf(Op::x)), p);
  const Program program = program_of<T>(term, true, short_tables);
  ASSERT_EQ(program.inputs.size(), 2u);
  const std::size_t at_x = program.inputs[0].site == Site::x ? 0 : 1;
  const auto value = [&](T x) {
    std::vector<T> inputs(2, T(0));
    inputs[at_x] = x;
    return run<T>(program, inputs)[0];
  };
  std::mt19937_64 random(3);
  double worst = 0, worst_at = 0;
  const double least = kCoarse.least * std::numeric_limits<T>::epsilon();  // of differences
  for (int i = 0; i < 6000; ++i) {
    const T x = draw<T>(i % 3 == 0 ? Sweep{1e-6, 1e6, true} : i % 3 == 1 ? Sweep{-3, 3} : Sweep{least, 2e18, true},
                        random);
    const long double want = std::pow(std::fabs(static_cast<long double>(x)), static_cast<long double>(p));
    if (want < std::numeric_limits<T>::min() || want > std::numeric_limits<T>::max()) continue;
    const double error = static_cast<double>(std::fabs(value(x) / want - 1));
    if (error > worst) worst = error, worst_at = x;
  }
  EXPECT_LE(worst, limit) << "p = " << p << " at " << worst_at;
  EXPECT_EQ(value(T(0)), T(0)) << p;
  EXPECT_EQ(value(T(-0.0)), T(0)) << p;
  std::printf("  |x|^%.2f %s %.2e, %zu instructions\n", p, sizeof(T) == 4 ? "float32" : "float64", worst,
              program.code.size());
}

TEST(MathAccuracy, FixedPowers) {
  for (double p : {0.1, 0.5, 0.7, 1.3, 1.5, 1.9, 2.5, 3.0, 3.3, 4.7, 5.0, 6.1, 7.7, 9.7}) {
    check_fixed_power<float>(p, 7e-7);
    check_fixed_power<float>(p, 8e-7, true);
    check_fixed_power<double>(p, p < 1 ? 2e-15 : 1.5e-15);
  }
  for (double p : {10.0, 12.5, 16.0}) {  // their roots divide the error by p
    check_fixed_power<float>(p, 1.5e-6);
    check_fixed_power<float>(p, 1.5e-6, true);
    check_fixed_power<double>(p, 3e-15);
  }
}

/// All differences of narrow data, and 0: float32 by two tables of sixteen, or of eight from data as they are and
/// scaled; float64 by four of sixteen.
template <class T>
void check_narrow_powers(LowerOptions options, double p) {
  options.type = sizeof(T) == 4 ? Dtype::float32 : Dtype::float64;
  const Program program = lower({pow(abs(leaf(Op::x) - leaf(Op::z)), p)}, options);
  EXPECT_EQ(program.tables.size(), sizeof(T) == 4 ? 2u : 4u) << p;
  ASSERT_EQ(program.inputs.size(), 2u);
  const auto scale = static_cast<T>(options.scaled ? kNarrowScale : 1);
  const auto value = [&](T d) { return run<T>(program, {d * scale, T(0)})[0]; };  // of |d|, whichever input is x
  double worst = 0;
  const auto look = [&](T d) {
    const long double want = std::pow(std::fabs(static_cast<long double>(d)), static_cast<long double>(p));
    constexpr T kSmallest = std::numeric_limits<T>::min();
    if (want < kSmallest) EXPECT_LE(value(d), kSmallest * T(1.001));
    else if (want > std::numeric_limits<T>::max()) EXPECT_EQ(value(d), std::numeric_limits<T>::infinity());
    else worst = std::max(worst, static_cast<double>(std::fabs(value(d) / want - 1)));
  };
  const int bits = static_cast<int>(-std::log2(kNarrow.least)) + std::numeric_limits<T>::digits - 1;
  if (sizeof(T) == 4) EXPECT_EQ(bits, kNarrowBits);
  const double least = std::ldexp(1.0, -bits);
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) look(draw<T>(Sweep{i % 2 ? -least : least, 0x1p9, true}, random));
  constexpr T kUlp = std::numeric_limits<T>::epsilon();
  for (int e = -bits; e <= 8; ++e)
    for (T m : {T(1), 1 + kUlp, 2 - kUlp}) look(std::ldexp(m, e));
  EXPECT_LE(worst, (sizeof(T) == 8 ? 1.2e-15 : p < 4 ? 6.5e-7 : 8e-7) * std::max(1.0, p / 5)) << p;
  for (T zero : {T(0), T(-0.0)}) EXPECT_EQ(value(zero), 0) << p;
  std::printf("  narrow |x|^%.2f float%zu %s %.2e, %zu instructions\n", p, 8 * sizeof(T),
              options.scaled ? "scaled" : options.short_tables ? "eight" : "sixteen", worst, program.code.size());
}

TEST(MathAccuracy, FixedPowersOfNarrowData) {
  for (double p : {0.1, 0.7, 1.02, 1.3, 1.5, 1.7, 1.92, 2.2, 2.49, 2.51, 3.3, 4.7, 6.5, 7.7, 10.0, 12.5, 16.0}) {
    LowerOptions options;
    options.assume_narrow = true;
    check_narrow_powers<float>(options, p);
    check_narrow_powers<double>(options, p);
    options.short_tables = true;
    check_narrow_powers<float>(options, p);
    options.scaled = true;
    check_narrow_powers<float>(options, p);
    check_narrow_powers<double>(options, p);
  }
}

/// What else reads scaled data, next to powers of differences, takes the scale back.
TEST(MathAccuracy, ScaledDataMeanWhatTheyAre) {
  LowerOptions options;
  options.assume_narrow = options.short_tables = options.scaled = true;
  const Expr x = leaf(Op::x), z = leaf(Op::z);
  for (const Expr& e : {x * z, x - z, pow(x - z, 2.0), pow(abs(x), 1.5), abs(x - z) + pow(abs(x - z), 1.5)}) {
    const Program scaled = lower({e}, options), plain = lower({e}, LowerOptions{});
    ASSERT_EQ(scaled.inputs.size(), plain.inputs.size());
    std::vector<float> at_plain, at_scaled;
    for (std::size_t i = 0; i < plain.inputs.size(); ++i) {
      at_plain.push_back(plain.inputs[i].site == Site::x ? 3.0f : -2.5f);
      at_scaled.push_back((scaled.inputs[i].site == Site::x ? 3.0f : -2.5f) * static_cast<float>(kNarrowScale));
    }
    const float want = run<float>(plain, at_plain)[0];
    EXPECT_NEAR(run<float>(scaled, at_scaled)[0], want, 1e-6f * std::fabs(want)) << e.to_text();
  }
}

/// Roots of sums on GPUs. The unit's own errors are not in here: at most 2^-22 of log2 m and of 2^f, 4.1e-7 together.
TEST(MathAccuracy, UnitRoots) {
  LowerOptions options;
  options.processor = Processor::gpu;
  for (double p : {0.1, 0.25, 1 / 3.0, 1 / 2.3, 1 / 1.3, 0.84, 1.2, 1 / 0.7, 2.6, 3.5}) {
    const Program program = lower({pow(abs(leaf(Op::x)), p)}, options);
    const bool by_unit = std::any_of(program.code.begin(), program.code.end(),
                                     [](const Instr& instr) { return instr.op == Prim::log2_unit; });
    EXPECT_TRUE(by_unit || p == 3.5) << p;  // 3.5 has a square root
    const auto value = [&](float v) { return run<float>(program, {v})[0]; };
    std::mt19937_64 random(5);
    double worst = 0, worst_at = 0;
    const auto look = [&](float v) {
      const long double want = std::pow(std::fabs(static_cast<long double>(v)), static_cast<long double>(p));
      if (want > FLT_MAX || want < FLT_MIN) return;
      const double error = static_cast<double>(std::fabs(value(v) / want - 1));
      if (error > worst) worst = error, worst_at = v;
    };
    for (int i = 0; i < 20000; ++i) look(draw<float>(Sweep{1e-45, 3e38, true}, random));
    for (int e = -149; e < 128; ++e)
      for (float m : {1.0f, 1 + FLT_EPSILON, 2 - FLT_EPSILON}) look(std::ldexp(m, e));
    EXPECT_LE(worst, 2e-7) << p << " at " << worst_at;
    for (float v : {0.0f, -0.0f}) EXPECT_EQ(value(v), 0) << p;
    EXPECT_EQ(value(static_cast<float>(kInf)), static_cast<float>(kInf)) << p;
    EXPECT_TRUE(std::isnan(value(static_cast<float>(kNaN)))) << p;
    std::printf("  |x|^%.2f unit %.2e, %zu instructions\n", p, worst, program.code.size());
  }
}

/// Powers from 1 on take one form for all data: the whole range of results, Inf and NaN.
template <class T>
void check_power_of_all_data(double p, bool short_tables) {
  using Limits = std::numeric_limits<T>;
  const Program program = program_of<T>(pow(abs(leaf(Op::x)), p), false, short_tables);
  const auto value = [&](T v) { return run<T>(program, {v})[0]; };
  std::mt19937_64 random(5);
  const double end = std::sqrt(static_cast<double>(Limits::max())), far = sizeof(T) == 4 ? 1e37 : end * end / 10;
  double worst = 0;
  for (int i = 0; i < 8000; ++i) {
    const T v = draw<T>(Sweep{1 / far, far, true}, random);
    const long double want = std::pow(std::fabs(static_cast<long double>(v)), static_cast<long double>(p));
    if (want > Limits::max() * 1.0001L) EXPECT_EQ(value(v), static_cast<T>(kInf)) << v << " to " << p;
    if (want < Limits::min()) EXPECT_LE(value(v), Limits::min() * T(1.001));
    if (want < Limits::min() || want > Limits::max()) continue;
    worst = std::max(worst, static_cast<double>(std::fabs(value(v) / want - 1)));
  }
  EXPECT_LE(worst, sizeof(T) == 8 ? 1.5e-15 : p < 4 ? 5e-7 : 8e-7) << p;
  for (T v : {T(0), T(-0.0)}) EXPECT_EQ(value(v), 0) << p;
  for (double v : {kInf, -kInf}) EXPECT_EQ(value(static_cast<T>(v)), static_cast<T>(kInf)) << p;
  EXPECT_TRUE(std::isnan(value(static_cast<T>(kNaN)))) << p;
  EXPECT_LT(value(Limits::min() / 10), Limits::min() * 10) << p;
}

TEST(MathAccuracy, FixedPowersOfAllData) {
  for (double p : {1.02, 1.3, 1.999, 2.2, 2.89, 2.91, 3.3, 6.1, 9.0, 9.7, 15.3}) {
    for (bool short_tables : {false, true}) check_power_of_all_data<float>(p, short_tables);
    check_power_of_all_data<double>(p, false);
  }
}

}  // namespace
}  // namespace mercer::ir
