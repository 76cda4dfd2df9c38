// Gradient fields of linear factors in float64, as products of matrices on tensor cores. Small problems take the path.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/emulated.h"
#include "ops/call/call.h"
#include "ops/drawn_data.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/field.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr Dtype kType = Dtype::float64;
constexpr const char* kWay = "kernel_gradient:grad_gemm_float64";

/// A call that the way does not serve throws.
template <class Body>
void by_doubles(const Body& body) {
  on_cuda([&](TestContext& context) {
    context.set_ways(kWay);
    body(context);
  });
}

Array gradient_of(const char* text, const Tensor& x, const Tensor& z, const Tensor& coef, TestContext& context) {
  Arguments arguments;
  const Array w = uniform(kType, {x.shape[1]}, 5);
  if (parse(text)->uses.w) arguments.w = w;
  const Array out(kType, {coef.shape[0], x.shape[0], x.shape[1]});
  kernel_gradient(text, x, &z, coef, out, arguments, context);
  return out;
}

void expect_doubles(const char* text, const Tensor& x, const Tensor& z, const Tensor& coef, const std::string& what,
                    TestContext& context) {
  Extra extra;
  const Array w = uniform(kType, {x.shape[1]}, 5);
  for (std::int64_t k = 0; k < x.shape[1] && parse(text)->uses.w; ++k) extra.w.push_back(w(k));
  const Array out = gradient_of(text, x, z, coef, context);
  expect_field(out, expected_field(differentiate(parse(text), points().x), x, z, coef, extra), what + ", " + text, 8);
  EXPECT_TRUE(same_bits(out, gradient_of(text, x, z, coef, context))) << what;
}

/// φ = x - z times an amplitude of the pair, a constant one, a weighted one; φ = z times one.
TEST(LinearDoubles, FormulasAndSizes) {
  by_doubles([](TestContext& context) {
    Turns turns(2);
    for (auto [m, n, k, outputs] : {std::array{5, 66, 70, 16}, {140, 65, 9, 1}, {3, 333, 33, 20}, {2, 32, 1, 3}})
      for (const char* f : {"exp(-sum((x-z)^2)/100)", "exp(-sqrt(sum((x-z)^2))/9)", "-3*sum((z-x)^2)",
                            "exp(-sum(w*(x-z)^2)/60)", "(sum(x*z)/K + 1)^3", "sum(w*x*z)"}) {
        if (turns.leaves_out()) continue;
        const Array x = normal(kType, {m, k}, 1), z = normal(kType, {n, k}, 2);
        expect_doubles(f, x, z, normal(kType, {outputs, n}, 3), std::to_string(outputs) + " outputs", context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// Rows whose results have the bits that multiply-adds give.
std::int64_t rows_by_differences(const char* text, const Tensor& x, const Tensor& z, const Tensor& coef,
                                 TestContext& context) {
  context.set_ways("kernel_gradient:stored_values");
  const Array differences = gradient_of(text, x, z, coef, context);
  context.set_ways(kWay);
  const Array out = gradient_of(text, x, z, coef, context);
  std::int64_t rows = 0;
  for (std::int64_t m = 0; m < x.shape[0]; ++m) {
    bool same = true;
    for (std::int64_t k = 0; k < x.shape[1]; ++k) same = same && out(0, m, k) == differences(0, m, k);
    rows += same;
  }
  return rows;
}

/// One neighbour, or the point itself, has almost all the weight: digits are lost next to what cancels. Far clusters.
TEST(LinearDoubles, RowsThatCancel) {
  by_doubles([](TestContext& context) {
    constexpr std::int64_t kN = 40, kK = 50;
    const Array x = normal(kType, {kN, kK}, 1), shift = normal(kType, {kN, kK}, 2), coef = normal(kType, {2, kN}, 3);
    for (const double noise : {0.0, 1e-7, 1e-2}) {
      Array z(kType, {kN, kK});
      each_index({kN, kK}, [&](const Shape& at) { z.set(at, x(at[0], at[1]) + noise * shift(at[0], at[1])); });
      for (const char* f : {"exp(-sum((x-z)^2)/3)", "exp(-sum(w*(x-z)^2)/1)"})
        expect_doubles(f, x, noise == 0 ? x.tensor() : z.tensor(), coef, "noise of " + std::to_string(noise), context);
      if (::testing::Test::HasFatalFailure()) return;
      if (noise == 1e-7) {
        EXPECT_EQ(rows_by_differences("exp(-sum((x-z)^2)/3)", x, z, coef, context), kN);
      }
    }
    // Far from the origin, which the centre takes away; and two clusters, of which it can take one.
    for (const double apart : {0.0, 1e7}) {
      Array far_x(kType, {kN, kK}), far_z(kType, {kN, kK});
      const auto place = [&](std::int64_t i) { return 1e7 + (i % 5 == 0 ? apart : 0.0); };
      each_index({kN, kK}, [&](const Shape& at) {
        far_x.set(at, place(at[0]) + x(at[0], at[1]));
        far_z.set(at, place(at[0]) + shift(at[0], at[1]));
      });
      expect_doubles("exp(-sum((x-z)^2)/200)", far_x, far_z, coef, "apart " + std::to_string(apart), context);
      const std::int64_t left = rows_by_differences("exp(-sum((x-z)^2)/200)", far_x, far_z, coef, context);
      if (apart == 0) EXPECT_EQ(left, 0);
      else EXPECT_GE(left, kN / 5);
    }
  });
}

/// Amplitudes, coefficients and points of all sizes, and what is no number: it stays where differences have it.
TEST(LinearDoubles, ScalesAndNumbersThatAreNone) {
  by_doubles([](TestContext& context) {
    constexpr std::int64_t kM = 9, kN = 93, kK = 40;
    const Array x = normal(kType, {kM, kK}, 1);
    Array z = normal(kType, {kN, kK}, 2), amplitude = normal(kType, {kM, kN}, 4), coef = normal(kType, {3, kN}, 3);
    for (std::int64_t i = 0; i < kN; ++i) {
      amplitude.set({1, i}, 0);
      amplitude.set({2, i}, amplitude(2, i) * 1e-140);
      amplitude.set({3, i}, amplitude(3, i) * 1e120);
      amplitude.set({4, i}, std::exp(-2.0 * static_cast<double>(i)));
      coef.set({1, i}, 0);
      coef.set({2, i}, coef(2, i) * 1e-10);
    }
    for (std::int64_t k = 0; k < kK; ++k) z.set({5, k}, x(5, k));
    amplitude.set({5, 5}, 1e12);  // of a point that x is
    const auto expect = [&](const char* phi, const std::string& what) {
      const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
      const Tensor given = amplitude;
      const Array out(kType, {3, kM, kK});
      gradient_field(field, x, z, given, coef, out, {}, context);
      expect_field(out, expected_field(field, x, z, coef, {}, &given), what + ", " + phi, 8);
    };
    for (const char* phi : {"x-z", "z"}) expect(phi, "scales");
    amplitude.set({7, 3}, kNan);
    amplitude.set({8, 4}, kInf);
    for (const char* phi : {"x-z", "z"}) expect(phi, "amplitudes that are no numbers");
    z.set({6, 2}, kInf);
    for (const char* phi : {"x-z", "z"}) expect(phi, "a point at infinity");
    z.set({6, 2}, 1e120);
    for (const char* phi : {"x-z", "z"}) expect(phi, "a point far away");
  });
}

/// Memory bounds the rows of a part and the points of a range.
TEST(LinearDoubles, PartsRangesAndBatches) {
  by_doubles([](TestContext& context) {
    const Array x = normal(kType, {2, 140, 6}, 1, 1, {6, 12, 1}), z = normal(kType, {1100, 6}, 2),
                coef = normal(kType, {1, 3, 1100}, 3);
    const Tensor zt = z;
    const Expr f = parse("exp(-sum((x-z)^2)/20)"), field = differentiate(f, points().x);
    for (const std::int64_t part_bytes : {std::int64_t{1}, std::int64_t{1} << 28}) {
      context.state().own_costs().part_bytes = part_bytes;
      const Array out(kType, {2, 3, 140, 6}, {3, 1, 36, 6});
      kernel_gradient(f, x, &zt, coef, out, {}, context);
      for (const std::int64_t i : {0, 1})
        expect_field(item(out, {i}), expected_field(field, item(x, {i}), z, item(coef, {0})), "batch", 8);
    }
  });
}

/// Pairs that factors, or a matrix, weigh, and the sums of the gradient's pass.
TEST(LinearDoubles, Backwards) {
  by_doubles([](TestContext& context) {
    constexpr std::int64_t kM = 20, kN = 70, kK = 40, kColumns = 3;
    const Array x = normal(kType, {kM, kK}, 1), z = normal(kType, {kN, kK}, 2), u = normal(kType, {kM, kColumns}, 3),
                v = normal(kType, {kN, kColumns}, 4), ones = Array(kType, {kN}).fill([] { return 1.0; });
    const Tensor zt = z;
    Array weights(kType, {kM, kN});
    each_index({kM, kN}, [&](const Shape& at) {
      double sum = 0;
      for (std::int64_t e = 0; e < kColumns; ++e) sum += u(at[0], e) * v(at[1], e);
      weights.set(at, sum);
    });
    const Tensor w = weights;
    Extra extra;
    Arguments arguments;
    arguments.params["h"] = extra.params["h"] = 60;
    const Expr f = parse("exp(-sum((x-z)^2)/h)");
    const auto expect = [&](const Tensor& out, const Tensor& sums, const std::string& what) {
      expect_field(out, expected_field(differentiate(f, points().x), x, z, ones, extra, &w), what, 8);
      Reference by_h(differentiate(f, param("h")), x, z, extra);
      for (std::int64_t m = 0; m < kM; ++m) {
        double sum = 0, size = 0;
        for (std::int64_t n = 0; n < kN; ++n) {
          sum += weights(m, n) * by_h(m, n);
          size += std::abs(weights(m, n) * by_h(m, n));
        }
        ASSERT_TRUE(within(read(sums, {0, m}), sum, 8 * unit(kType) * size, kType)) << what;
      }
    };
    Array out(kType, {kM, kK}), sums(kType, {1, kM});
    const Tensor by = sums;
    ASSERT_TRUE(product_backward(f, x, &zt, u, v, out, {{"h"}, &by, nullptr}, arguments, context));
    expect(out, sums, "factors");
    const Array again(kType, {kM, kK}), other(kType, {1, kM});
    const Tensor others = other;
    ASSERT_TRUE(pairwise_backward(f, x, &zt, weights, again, {{"h"}, &others, nullptr}, arguments, context));
    expect(again, other, "a matrix");
  });
}

TEST(LinearDoubles, OuterProducts) {
  by_doubles([](TestContext& context) {
    constexpr std::int64_t kM = 12, kK = 34, kOutputs = 2;
    const Array x = normal(kType, {kM, kK}, 1), z = normal(kType, {60, kK}, 2), coef = normal(kType, {kOutputs, 60}, 3);
    const Tensor zt = z;
    const Expr f = parse("exp(-sum((x-z)^2)/50)");
    const Array out(kType, {kK, kK});
    kernel_agop(f, x, &zt, coef, out, {}, context);
    const Field g = expected_field(differentiate(f, points().x), x, z, coef);
    double size = 0;
    for (const double norm : g.norms) size += norm * norm;
    each_index({kK, kK}, [&](const Shape& at) {
      double sum = 0;
      for (std::int64_t row = 0; row < kOutputs * kM; ++row)
        sum += g.values[row * kK + at[0]] * g.values[row * kK + at[1]];
      ASSERT_TRUE(within(out(at[0], at[1]), sum, 16 * unit(kType) * size, kType)) << at[0] << "," << at[1];
    });
  });
}

TEST(LinearDoubles, SizesOfPartsAndRanges) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const plan::LinearSizes all = plan::double_sizes(8192, 8192, 784, 1, 2, kBytes);
  EXPECT_EQ(all.points, 8192);
  EXPECT_EQ(all.columns, 784);
  EXPECT_LE(all.rows * plan::double_row_bytes(all, 2), kBytes);
  EXPECT_EQ(all.rows, 1280) << "seven parts";
  const plan::LinearSizes outputs = plan::double_sizes(8192, 8192, 784, 40, 1, kBytes);
  EXPECT_EQ(outputs.columns, 10 * 784) << "columns take twice a part at most";
  const plan::LinearSizes many = plan::double_sizes(100, 1000000, 20, 1, 1, kBytes);
  EXPECT_EQ(many.points, 16192);
  EXPECT_EQ(many.rows, 100);
  EXPECT_TRUE(all.fits && outputs.fits && many.fits);
  EXPECT_FALSE(plan::double_sizes(1000, 5000, 100000, 1, 1, kBytes).fits);
  const plan::Costs& costs = plan::costs_of(90);
  EXPECT_TRUE(plan::pays_doubles(8192, 8192, 128, costs));
  EXPECT_FALSE(plan::pays_doubles(8192, 8192, 127, costs));
  EXPECT_FALSE(plan::pays_doubles(8192, 100, 3200, costs));
  EXPECT_TRUE(plan::pays_doubles(1, 1, 1, costs.everywhere()));
}

}  // namespace
}  // namespace mercer
