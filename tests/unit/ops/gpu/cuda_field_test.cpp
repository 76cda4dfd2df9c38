// Gradient fields on tensor cores: signs by ranks, other factors in split precision. Small problems take the path too.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/emulated.h"
#include "ops/call/call.h"
#include "ops/drawn_data.h"
#include "ops/expected_fields.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/field.h"

namespace mercer {
namespace {

using namespace testing_support;

/// φ = amplitude(pair) times a sign, a power, a difference; without an amplitude; weighted; of one side.
constexpr const char* kFormulas[] = {"sum(abs(x-z))",          "exp(-sum(abs(x-z))/40)", "sum(abs(x-z)^1.3)^(1/1.3)",
                                     "exp(-sum((x-z)^2)/900)", "-2*sum(w*abs(z-x))",     "sum(w*abs(x-z)^3)^(1/3)",
                                     "(sum(x*z)/K + 1)^3"};

TEST(TensorCoreFields, FormulasAndSizes) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (auto [m, n, k, outputs] : {std::array{9, 130, 200, 16}, {3, 65, 33, 1}, {5, 700, 17, 40}, {1, 1, 1, 3}})
      for (const char* f : kFormulas) {
        expect_gradient(f, {m, n, k, outputs}, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// Each way serves this gradient whatever its sizes are; the last one where a device lacks what another needs.
TEST(TensorCoreFields, WaysThatAreForced) {
  on_cuda([](TestContext& context) {
    for (const char* way : {"grad_lowrank", "grad_gemm", "grad_contract", "stored_values"}) {
      context.set_ways("kernel_gradient:" + std::string(way) + ",kernel_gradient:stored_values");
      for (const std::int64_t k : {5, 20}) {
        const Array x = normal(Dtype::float32, {6, k}, 1), z = normal(Dtype::float32, {70, k}, 2);
        expect_gradient("exp(-sum((x-z)^2)/30)", x, z, normal(Dtype::float32, {2, 70}, 3), way, context);
      }
    }
  });
}

/// Ranks know ties, and differences below what their values' pieces could tell apart.
TEST(TensorCoreFields, EveryKindOfData) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const Kind& kind : kinds()) {
      PointPair points{drawn(6, 70, 1, kind.draw), drawn(150, 70, 2, kind.draw)};
      add_neighbours(points);
      const Array coef = normal(Dtype::float32, {2, points.z.tensor().shape[0]}, 3);
      expect_gradient("sum(abs(x-z))", points.x, points.z, coef, kind.name, context);
      expect_gradient("sum(w*abs(x-z))", points.x, points.z, coef, kind.name, context);
      if (std::string(kind.name) != "huge" && std::string(kind.name) != "tiny")
        expect_gradient("sum(abs(x-z)^1.5)", points.x, points.z, coef, kind.name, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// More points than ranks have codes, more than sums have digits; ranges of n.
TEST(TensorCoreFields, ManyPoints) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const Array x = normal(Dtype::float32, {2, 20}, 1), z = normal(Dtype::float32, {12100, 20}, 2);
    for (const char* f : {"sum(abs(x-z))", "sum((x-z)^2)"})
      expect_gradient(f, x, z, uniform(Dtype::float32, {12100}, 3), "many points", context);
  });
}

/// Tensor cores truncate, which adds up where all terms have one sign.
TEST(TensorCoreFields, SumsOfOneSign) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    Array x = uniform(Dtype::float32, {3, 20}, 1);
    const Array z = uniform(Dtype::float32, {700, 20}, 2);
    for (std::int64_t k = 0; k < 20; ++k) x.set({1, k}, 5);
    const Array coef = uniform(Dtype::float32, {2, 700}, 3);
    for (const char* f : {"sum(abs(x-z))", "sum((x-z)^2)", "sum(abs(x-z)^1.5)", "sum(abs(x-z)^1.4)"})
      expect_gradient(f, x, z, coef, "one sign", context);
  });
}

/// Values are in units of a row and a column; rows that would lose too much are not.
void expect_unlike_amplitudes(const char* phi, std::initializer_list<std::int64_t> all_outputs) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 27, kN = 490, kK = 70;
    Array x = normal(Dtype::float32, {kM, kK}, 1);
    const Array z = normal(Dtype::float32, {kN, kK}, 2);
    for (std::int64_t k = 0; k < kK; k += 3) x.set({2, k}, z(5, k));  // ties
    Array amplitude = normal(Dtype::float32, {kM, kN}, 3);
    const std::function<double(std::int64_t, double)> rows[] = {
        [](auto, double) { return 0.3; },                             // equal: rounded alike
        [](auto n, double) { return n == 77 ? 12.0 : 0.9871; },       // kept of one output
        [](auto n, double) { return n == 77 ? 1e6 : 0.9871; },        // not
        [](auto n, double) { return std::exp(-0.1 * static_cast<double>(n)); },
        [](auto, double) { return 0.0; },
        [](auto, double v) { return 1e-35 * v; },
        [](auto, double v) { return 1e15 * v; },
        [](auto n, double) { return n % 2 == 0 ? 1.0 : -0.7; },
        [](auto, double v) { return v; }};
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n)
        amplitude.set({m, n}, rows[static_cast<std::size_t>(m) % std::size(rows)](n, amplitude(m, n)));
    const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
    for (std::int64_t outputs : all_outputs) {
      Array coef = normal(Dtype::float32, {outputs, kN}, 4);
      for (std::int64_t o = 0; o < outputs; ++o)
        for (std::int64_t n = 0; n < kN; ++n) {
          const double scales[] = {1, 1e-12, 0, 1e18};
          double value = coef(o, n) * scales[o / 3 % 4];
          if (o == 1) value = 1;
          if (o == 2) value = n == 300 ? 50 : 0.01 * value;
          coef.set({o, n}, value);
        }
      const Tensor a = amplitude;
      const Array out(Dtype::float32, {outputs, kM, kK}), again(Dtype::float32, {outputs, kM, kK});
      gradient_field(field, x, z, amplitude, coef, out, {}, context);
      expect_field(out, expected_field(field, x, z, coef, {}, &a), std::to_string(outputs) + " outputs", 8,
                   1e-35);  // below the normal numbers there are steps
      gradient_field(field, x, z, amplitude, coef, again, {}, context);
      EXPECT_TRUE(same_bits(out, again));
      if (::testing::Test::HasFailure()) return;
    }
  });
}

/// G of 8, 16, 32 and 64 columns, which two blocks make together, and one that has all features; of several passes.
TEST(TensorCoreFields, ColumnsOfSigns) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    Turns turns(2);
    for (std::int64_t k : {580, 100})
      for (std::int64_t outputs : {7, 16, 30, 45, 70}) {
        if (turns.leaves_out()) continue;
        const Array x = normal(Dtype::float32, {3, k}, 1), z = normal(Dtype::float32, {213, k}, 2);
        Array amplitude = normal(Dtype::float32, {3, 213}, 3);
        amplitude.set({1, 0}, 100);  // its row is not in digits
        const Array coef = normal(Dtype::float32, {outputs, 213}, 4), out(Dtype::float32, {outputs, 3, k});
        const Expr field = parse("sum(sign(x-z))")->args[0];
        const Tensor a = amplitude;
        gradient_field(field, x, z, amplitude, coef, out, {}, context);
        expect_field(out, expected_field(field, x, z, coef, {}, &a), std::to_string(outputs) + " outputs");
        if (::testing::Test::HasFailure()) return;
      }
  });
}

TEST(TensorCoreFields, SignsOfUnlikeAmplitudes) {
  expect_unlike_amplitudes("sign(x-z)", {1, 5, 13, 20});
  expect_unlike_amplitudes("copysign(1, x-z)", {5});
}
TEST(TensorCoreFields, PowersOfUnlikeAmplitudes) {
  expect_unlike_amplitudes("sign(x-z)*abs(x-z)^0.3", {5, 20});
  expect_unlike_amplitudes("sign(z-x)*sqrt(abs(z-x))", {1});
  expect_unlike_amplitudes("copysign(max(abs(x-z), 1e-8)^0.3, x-z)", {5});
  expect_unlike_amplitudes("copysign(sqrt(max(0.01, abs(x-z))), x-z)", {1});
}

/// copysign(1, x - z) of equal x and z is 1, but -1 of x = -0 and z = 0.
TEST(TensorCoreFields, SignsOfZeros) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 9, kN = 300, kK = 20;
    const double values[] = {-1, -0.0, 0.0, 1e-45, 1};
    Array x(Dtype::float32, {kM, kK}), z(Dtype::float32, {kN, kK});
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t k = 0; k < kK; ++k) x.set({m, k}, values[(m + k) % 5]);
    for (std::int64_t n = 0; n < kN; ++n)
      for (std::int64_t k = 0; k < kK; ++k) z.set({n, k}, values[(n * 7 + k) % 5]);
    const Array coef = uniform(Dtype::float32, {2, kN}, 3), amplitude = uniform(Dtype::float32, {kM, kN}, 4);
    const Tensor a = amplitude;
    for (const char* phi : {"copysign(1, x-z)", "copysign(max(abs(x-z), 1e-8)^0.3, x-z)", "copysign(1, z-x)"}) {
      const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
      const Array out(Dtype::float32, {2, kM, kK});
      gradient_field(field, x, z, amplitude, coef, out, {}, context);
      expect_field(out, expected_field(field, x, z, coef, {}, &a), phi, 8);
    }
  });
}

TEST(FieldFactors, SignsAndPowersThatBoundDifferences) {
  const auto found = [](const char* phi) { return plan::factors_of(parse("sum(" + std::string(phi) + ")")->args[0]); };
  EXPECT_EQ(found("copysign(1, x-z)").kind, plan::FieldFactors::Kind::sign);
  EXPECT_TRUE(found("copysign(1, x-z)").signs_zeros);
  EXPECT_FALSE(found("sign(x-z)").signs_zeros);
  for (const char* other : {"copysign(1, z-x)", "copysign(2, x-z)", "copysign(1, x)"})
    EXPECT_EQ(found(other).kind, plan::FieldFactors::Kind::values) << other;
  EXPECT_EQ(found("copysign(max(abs(x-z), 0.5)^0.25, x-z)").power, 0.25);
  EXPECT_EQ(found("copysign(max(abs(x-z), 0.5)^0.25, x-z)").least, 0.5);
  EXPECT_EQ(found("copysign(sqrt(max(0.25, abs(x-z))), x-z)").least, 0.25);
  EXPECT_EQ(found("copysign(abs(x-z)^0.25, x-z)").least, 0);
  // The sign of zero is not that of the other difference; sign(0) is 0 and joins no power of 0.5.
  for (const char* other : {"copysign(max(abs(x-z), 0.5)^0.25, z-x)", "sign(x-z)*max(abs(x-z), 0.5)^0.25",
                            "copysign(max(abs(x), 0.5)^0.25, x-z)", "copysign(min(abs(x-z), 0.5)^0.25, x-z)"})
    EXPECT_EQ(found(other).power, 0) << other;
}

/// Powers are on the scale of a feature; where many differences could be too small for the largest one's, all are tf32.
TEST(TensorCoreFields, PowersOfUnlikePoints) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 9, kN = 300;
    const std::function<double(double, std::int64_t)> kinds[] = {
        [](double v, auto) { return v; },
        [](double v, auto) { return std::round(2 * v); },  // ties, among them many of zeros
        [](double v, auto) { return 1e-12 * v; },
        [](double v, auto) { return 1e15 * v; },
        [](double v, auto i) { return i < kM  ? 3.0
                                      : v < 0 ? 0.0
                                              : 1.0; },  // edges of the table's cells
        [](double v, auto i) { return i == 4 ? 40 : v; },                     // one point far away
        [](double v, auto i) { return i == 7 ? 1e-25 : v; },                  // a small one, with none next to it
        [](double v, auto i) { return i == 4 ? 1 : 1e-25 * v; },              // nothing but small ones that count
        [](double v, auto i) { return i % 3 == 0 ? 0
                                      : i == 7   ? 1e-25
                                                 : v; },
        [](double v, auto) { return 1e-30 * v; }};
    for (std::size_t last : {6UL, 7UL, 8UL, 9UL}) {  // what the last features are
      Array x = normal(Dtype::float32, {kM, 20}, 1), z = normal(Dtype::float32, {kN, 20}, 2);
      for (std::int64_t k = 0; k < 20; ++k) {
        const auto& kind = kinds[k == 19 ? last : static_cast<std::size_t>(k) % 7];
        for (std::int64_t m = 0; m < kM; ++m) x.set({m, k}, kind(x(m, k), m));
        for (std::int64_t n = 0; n < kN; ++n) z.set({n, k}, kind(z(n, k), n));
      }
      struct Power {
        const char* phi;
        double exponent, least;
      };
      for (const auto& [phi, exponent, least] : {Power{"sign(x-z)*abs(x-z)^0.3", 0.3, 0},
                                                 {"sign(x-z)*sqrt(abs(x-z))", 0.5, 0},
                                                 {"copysign(max(abs(x-z), 1e-3)^0.3, x-z)", 0.3, 1e-3}}) {
        const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
        Array coef = uniform(Dtype::float32, {2, kN}, 3);
        const Array amplitude = uniform(Dtype::float32, {kM, kN}, 4), out(Dtype::float32, {2, kM, 20});
        for (std::int64_t o = 0; o < 2; ++o) coef.set({o, 4}, 0);
        gradient_field(field, x, z, amplitude, coef, out, {}, context);
        const Tensor a = amplitude;
        const Field expected = expected_field(field, x, z, coef, {}, &a);
        // Each feature for itself: those of small points would be lost in the norm. Small powers may lose 2^-21 of a
        // sum, special functions and tables 3e-7 of a power, and tensor cores cut off at every of 8 additions.
        for (std::int64_t o = 0; o < 2; ++o)
          for (std::int64_t m = 0; m < kM; ++m)
            for (std::int64_t k = 0; k < 20; ++k) {
              double size = 0;
              for (std::int64_t n = 0; n < kN; ++n)
                size += std::abs(coef(o, n) * amplitude(m, n)) *
                        std::pow(std::max(std::abs(x(m, k) - z(n, k)), least), exponent);
              ASSERT_NEAR(out(o, m, k), expected.values[static_cast<std::size_t>((o * kM + m) * 20 + k)], 1.2e-6 * size)
                  << phi << ", last " << last << " at " << o << "," << m << "," << k;
            }
      }
    }
  });
}

/// Which way a call goes shows in the bits of a feature that all calls share.
TEST(TensorCoreFields, PowersAreInTf32WhereAFeatureRefuses) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 5, kN = 300, kK = 20;
    const Array coef = uniform(Dtype::float32, {kN}, 3);
    const auto first_of = [&](const char* f, double small, std::int64_t count) {
      Array x = uniform(Dtype::float32, {kM, kK}, 1), z = uniform(Dtype::float32, {kN, kK}, 2);
      for (std::int64_t n = 0; n < count; ++n) z.set({n, kK - 1}, small * z(n, kK - 1));
      const Array out(Dtype::float32, {kM, kK});
      const Tensor points = z;
      kernel_gradient(parse(f), x, &points, coef, out, {}, context);
      std::vector<double> values;
      for (std::int64_t m = 0; m < kM; ++m) values.push_back(out(m, 0));
      return values;
    };
    for (const char* f : {"sum(abs(x-z)^1.3)", "sum(abs(x-z)^1.5)"}) {
      const std::vector<double> taken = first_of(f, 1, 0), refused = first_of(f, 1e-25, 100);
      EXPECT_NE(taken, refused) << f;
      EXPECT_EQ(taken, first_of(f, 1e-25, 2)) << f << ": 1 of 128 may be small";
      EXPECT_EQ(refused, first_of(f, 1e-25, 200)) << f;
    }
  });
}

/// The tile of 256 features: with features, points m and outputs that do not fill it, and without a table.
TEST(TensorCoreFields, PowersInTheWideTile) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (auto [m, n, k, outputs] : {std::array{5, 130, 200, 16}, {3, 65, 193, 1}, {2, 257, 256, 20}, {1, 1, 450, 3}})
      for (const char* f : {"sum(abs(x-z)^1.3)^(1/1.3)", "sum(w*abs(x-z)^1.5)"}) {
        expect_gradient(f, {m, n, k, outputs}, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
    // One feature refuses, and products in tf32 compute all rows.
    const Array x = uniform(Dtype::float32, {3, 200}, 1), coef = normal(Dtype::float32, {2, 150}, 3);
    Array z = uniform(Dtype::float32, {150, 200}, 2);
    for (std::int64_t n = 0; n < 100; ++n) z.set({n, 199}, 1e-25 * z(n, 199));
    expect_gradient("sum(abs(x-z)^1.3)", x, z, coef, "refused", context);
  });
}

/// Scales of rows, columns and weights that a float holds one by one.
TEST(TensorCoreFields, ScalesOfUnits) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 4, kN = 270, kK = 20;
    const Array x = normal(Dtype::float32, {kM, kK}, 1), z = normal(Dtype::float32, {kN, kK}, 2);
    Array amplitude = uniform(Dtype::float32, {kM, kN}, 3), coef = normal(Dtype::float32, {2, kN}, 4);
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t n = 0; n < kN; ++n) amplitude.set({m, n}, 1e-15 * amplitude(m, n));
    for (std::int64_t n = 0; n < kN; ++n) coef.set({1, n}, 1e-16 * coef(1, n));
    const Tensor a = amplitude;
    for (const char* phi : {"sign(x-z)", "sign(x-z)*abs(x-z)^0.3"}) {
      const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
      const Array out(Dtype::float32, {2, kM, kK});
      gradient_field(field, x, z, amplitude, coef, out, {}, context);
      expect_field(out, expected_field(field, x, z, coef, {}, &a), phi, 8);
    }
    // Each feature for itself, of weights down to the last normal numbers.
    Arguments arguments;
    Array w(Dtype::float32, {kK});
    Extra extra;
    for (std::int64_t k = 0; k < kK; ++k) w.set({k}, k % 2 == 0 ? 1 : 1e-35);
    for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
    arguments.w = w;
    const Array ones = uniform(Dtype::float32, {kN}, 5), out(Dtype::float32, {kM, kK});
    const Tensor points = z;
    const Expr f = parse("sum(w*abs(x-z)^1.3)");
    kernel_gradient(f, x, &points, ones, out, arguments, context);
    const Field expected = expected_field(differentiate(f, mercer::points().x), x, z, ones, extra);
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t k = 0; k < kK; ++k) {
        double size = 0;
        for (std::int64_t n = 0; n < kN; ++n) size += 1.3 * ones(n) * w(k) * std::pow(std::abs(x(m, k) - z(n, k)), 0.3);
        ASSERT_NEAR(out(m, k), expected.values[static_cast<std::size_t>(m * kK + k)], 1.2e-6 * size) << m << "," << k;
      }
  });
}

/// Points that are x have the largest amplitudes by far and no part in the sum.
TEST(TensorCoreFields, UnitsAndDuplicates) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    constexpr std::int64_t kM = 12, kN = 480, kK = 40;
    const Array x = uniform(Dtype::float32, {kM, kK}, 1);
    Array z = uniform(Dtype::float32, {kN, kK}, 2);
    for (std::int64_t n = 0; n < 180; ++n)
      for (std::int64_t k = 0; k < kK; ++k) z.set({n, k}, x(n % 3, k));  // sixty of each of three rows
    const Array coef = normal(Dtype::float32, {3, kN}, 3);
    for (const char* f : {"exp(-sum(abs(x-z))/0.7)", "exp(-sum(abs(x-z)))", "exp(-sum(abs(x-z)^1.3)/0.4)",
                          "exp(-sum(abs(x-z)^1.3)/3)", "exp(-sum(abs(x-z)^1.5)/0.3)"})
      expect_gradient(f, x, z, coef, "duplicates", context);
  });
}

TEST(TensorCoreFields, InfinitiesAndNan) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  on_cuda([&](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (float bad : {kInf, -kInf, kNan, 3e38f})
      for (const char* phi : {"sign(x-z)", "x-z", "sign(x-z)*abs(x-z)^0.3"}) {
        if (bad == 3e38f && std::string(phi) != "sign(x-z)") continue;  // sums of such differences leave the floats
        Array x = normal(Dtype::float32, {5, 150}, 1), z = normal(Dtype::float32, {92, 150}, 2);
        Array amplitude = normal(Dtype::float32, {5, 92}, 4), coef = normal(Dtype::float32, {3, 92}, 3);
        x.set({1, 3}, bad);
        x.set({2, 149}, bad);
        z.set({7, 70}, bad);
        z.set({8, 149}, bad);
        amplitude.set({3, 50}, bad);
        if (bad != 3e38f) coef.set({1, 20}, bad);
        const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
        const Tensor a = amplitude;
        const Array out(Dtype::float32, {3, 5, 150});
        gradient_field(field, x, z, amplitude, coef, out, {}, context);
        expect_field(out, expected_field(field, x, z, coef, {}, &a), std::string(phi) + " of " + std::to_string(bad),
                     8);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// Rows of a group of 64 features that products leave, of numbers of features that blocks of 48 would have.
TEST(TensorCoreFields, FeaturesOfOneGroupAreLeft) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    for (const std::int64_t k : {70, 96, 144})
      for (const char* phi : {"sign(x-z)", "x-z", "sign(x-z)*abs(x-z)^0.3"}) {
        Array x = normal(Dtype::float32, {5, k}, 1), z = normal(Dtype::float32, {92, k}, 2);
        x.set({2, k - 1}, std::numeric_limits<double>::quiet_NaN());
        const Array amplitude = normal(Dtype::float32, {5, 92}, 4), coef = normal(Dtype::float32, {1, 92}, 3);
        const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
        const Tensor a = amplitude;
        const Array out(Dtype::float32, {1, 5, k});
        gradient_field(field, x, z, amplitude, coef, out, {}, context);
        expect_field(out, expected_field(field, x, z, coef, {}, &a), std::string(phi) + " of " + std::to_string(k), 8);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST(TensorCoreFields, RowsPartsBatchesAndStrides) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    const Array x = normal(Dtype::float16, {3, 300, 40}, 1), z = normal(Dtype::float16, {75, 40}, 2),
                coef = normal(Dtype::float32, {2, 1, 5, 75}, 3);
    const Expr f = parse("exp(-sum(abs(x-z))/30)");
    const Expr field = differentiate(f, points().x);
    Array first(Dtype::float32, {2, 3, 5, 300, 40});
    for (std::int64_t rows : {128, 1 << 20}) {
      context.state().own_costs().part_bytes = rows * 128 * 4;
      const Array out(Dtype::float32, {2, 3, 5, 300, 40}, {1, 2, 6, 30, 9000});
      const Tensor zt = z;
      kernel_gradient(f, x, &zt, coef, out, {}, context);
      each_index({2, 3}, [&](const Shape& i) {
        expect_field(item(out, i), expected_field(field, item(x, {i[1]}), z, item(coef, {i[0], 0})), "batch", 8);
      });
    }
  });
}

/// Codes of very many points do not fit at once.
TEST(TensorCoreFields, OperandsSomeRowsAtATime) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    context.state().own_costs().part_bytes = 1;  // parts of 128 rows
    const Array x = normal(Dtype::float32, {300, 40}, 1), z = normal(Dtype::float32, {70, 40}, 2);
    expect_gradient("sum(abs(x-z))", x, z, normal(Dtype::float32, {2, 70}, 3), "parts", context);
    expect_gradient("exp(-sum(abs(x-z))/30)", x, z, normal(Dtype::float32, {2, 70}, 3), "parts", context);
  });
}

TEST(TensorCoreFields, ThePlanSaysSo) {
  using plan::FieldFactors;
  const auto kind_of = [](const char* text) {
    return plan::factors_of(ir::split_field(Formula(text).prepared().field()).field).kind;
  };
  EXPECT_EQ(plan::factors_of(parse("sum(sign(z-x)*sqrt(abs(z-x)))")->args[0]).power, 0.5);
  EXPECT_EQ(kind_of("exp(-sum(w*abs(x-z))/3)"), FieldFactors::Kind::sign);
  EXPECT_EQ(kind_of("sqrt(sum((x-z)^2))"), FieldFactors::Kind::values);
  EXPECT_EQ(kind_of("exp(-sum(abs(x-z)^p)/3)"), FieldFactors::Kind::values);
  EXPECT_EQ(kind_of("sum(x*z)/sqrt(sum(x*x)*sum(z*z))"), FieldFactors::Kind::none) << "two terms";
  plan::GpuFieldProblem problem;
  problem.planes = 1;
  for (int outputs : {1, 16, 32, 64})
    for (const char* text :
         {"exp(-sum(abs(x-z))/3)", "exp(-sum(abs(x-z)^1.3)/3)", "exp(-sum(abs(z-x)^1.5)/3)", "sum(abs(x-z)^1.8)"}) {
      problem.field = ir::split_field(Formula(text).prepared().field());
      problem.contraction.product_outputs = outputs;
      const auto plan = plan::plan_gpu_field(problem);
      EXPECT_EQ(plan->of_signs(), std::string(text).find('^') == std::string::npos);
      EXPECT_EQ(plan->has_units(), std::string(text).find("1.8") == std::string::npos)
          << text << ": " << plan->factors.to_text();
      if (!plan->has_units()) continue;
      EXPECT_GT(plan->product_stages(true), plan->of_signs() ? 2 : 1);
      EXPECT_LE(plan->product_shared_bytes(plan->product_stages(true), true), problem.device.shared_per_block);
      plan::GpuFieldProblem wide = problem;
      wide.contraction.wide = true;
      wide.contraction.cluster = 2;
      const auto other = plan::plan_gpu_field(wide);
      EXPECT_EQ(other->problem.contraction.wide, !other->of_signs());
      EXPECT_EQ(other->problem.contraction.cluster, other->of_signs() ? 2 : 1);
      EXPECT_LE(other->product_shared_bytes(other->product_stages(true), true), problem.device.shared_per_block);
      EXPECT_LE(other->product_shared_bytes(other->product_stages()), problem.device.shared_per_block);
      EXPECT_GT(std::min(other->product_stages(true), other->product_stages()), 1);
    }
  EXPECT_FALSE(plan::pays_field_products(10000, 10000, 8, plan::costs_of(90)));
  for (const auto& [features, wide] : {std::pair(128, false),
                                       {192, false},
                                       {193, true},
                                       {256, true},
                                       {257, false},
                                       {384, false},
                                       {512, true},
                                       {768, false},
                                       {1024, true}})
    EXPECT_EQ(plan::pays_wide_field_tile(features, plan::costs_of(90).gradient), wide) << features;
  // Passes of 64 columns take 128 for 70 outputs, passes of 32 take 96.
  for (const auto& [outputs, of_pass] : {std::pair(5, 5), {32, 32}, {33, 33}, {64, 64}, {70, 32}, {100, 64}})
    EXPECT_EQ(plan::most_product_outputs(outputs), of_pass);
}

}  // namespace
}  // namespace mercer
