// Every stage where the interpreter serves in place of machine code: because the system denies executable memory after
// a target was chosen, and because a formula needs more masks or registers than the target has.
#include <gtest/gtest.h>

#include "mercer/kron.h"
#include "ops/context.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

/// A where for each of many conditions that all stay alive, which no target has masks for.
std::string many_conditions(int count) {
  std::string lets, sum = "0";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    lets += "c" + n + " = x*" + n + ".25 < z + " + n + "/7; ";
    sum += " + where(c" + n + ", " + n + "*x, z)";
  }
  for (int i = 0; i < count; ++i) sum += " + where(c" + std::to_string(i) + ", z, " + std::to_string(i) + "*x)";
  return lets + "sum(" + sum + ")/" + std::to_string(count * count);
}

/// Sums, sums of maxima, states that are no sums, several terms, values of points and streams, no pair at all.
std::vector<std::string> formulas() {
  return {"exp(-sum((x-z)^2)/20)",
          "sum(abs(x-z))",
          "sum(abs(x-z)^1.3)",
          "prod(min(max(x, z), min(z, x - z)))",
          "max(abs(x-z)^1.3)",
          "logsumexp(x*z)/3",
          "sum(x*z)/sqrt(sum(x*x)*sum(z*z))",
          "sum(tanh(x)*z) + sum(z) + K",
          many_conditions(30)};
}

/// Errors relative to what may cancel in these.
constexpr double kFactor = 60;

template <class Body>
void on_each_fallback(const std::string& text, const Body& body) {
  on_each_denied_target(body);
  if (text.size() > 200) on_each_cpu_target(body);
}

TEST(Fallback, MatricesProductsAndReductions) {
  constexpr std::int64_t kM = 21, kN = 53, kK = 9;
  for (const Dtype dtype : kWide)
    for (const std::string& text : formulas()) {
      const Array x = normal(dtype, {kM, kK}, 1), z = normal(dtype, {kN, kK}, 2), v = normal(dtype, {kN, 3}, 3);
      const Tensor zt = z;
      const Expr f = parse(text);
      const Expected expected = expected_pairs(f, x, z, kFactor * unit(dtype), abs(f) + 1.0);
      on_each_fallback(text, [&](TestContext& context) {
        const Array out(dtype, {kM, kN}), product(dtype, {kM, 3}), values(dtype, {kM, 4}),
            indices(Dtype::int64, {kM, 4});
        pairwise(f, x, &zt, out, {}, context);
        expect_pairs(out, expected, text);
        kernel_product(f, x, &zt, v, product, {}, context);
        knn(f, x, &zt, 4, values, indices, {}, context);
        for (std::int64_t m = 0; m < kM; ++m) {
          for (std::int64_t e = 0; e < 3; ++e) {
            double sum = 0, size = 0;
            for (std::int64_t n = 0; n < kN; ++n) {
              sum += out(m, n) * v(n, e);
              size += std::abs(out(m, n) * v(n, e));
            }
            ASSERT_TRUE(within(product(m, e), sum, 4 * unit(dtype) * size, dtype)) << text;
          }
          std::vector<double> row;
          for (std::int64_t n = 0; n < kN; ++n) row.push_back(out(m, n));
          std::sort(row.begin(), row.end());
          for (std::int64_t i = 0; i < 4; ++i) {
            ASSERT_EQ(values(m, i), row[static_cast<std::size_t>(i)]) << text;
            ASSERT_EQ(values(m, i), out(m, static_cast<std::int64_t>(indices(m, i)))) << text;
          }
        }
        expect_reductions(text.c_str(), x, z, context);
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
}

TEST(Fallback, Gradients) {
  for (const Dtype dtype : kWide)
    for (const auto& [m, n, k, outputs] : {std::array<std::int64_t, 4>{4, 4, 3, 1}, {13, 201, 19, 1}, {9, 30, 40, 5}})
      for (const std::string& text : formulas()) {
        if (text.find("prod") == 0 && k > 3) continue;  // of such sizes that nothing is left of it in float32
        const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2), coef = normal(dtype, {outputs, n}, 3),
                    weights = normal(dtype, {m, n}, 4), ones = Array(dtype, {n}).fill([] { return 1.0; });
        const Tensor zt = z;
        const Expr f = parse(text), phi = differentiate(f, points().x);
        const Tensor amplitude = weights;
        const Field expected = expected_field(phi, x, z, coef);
        const Field weighed = expected_field(phi, x, z, ones, {}, &amplitude);
        on_each_fallback(text, [&](TestContext& context) {
          const Array out(dtype, {outputs, m, k}), field(dtype, {m, k}), back(dtype, {m, k}), outer(dtype, {k, k});
          kernel_gradient(f, x, &zt, coef, out, {}, context);
          expect_field(out, expected, text, kFactor);
          gradient_field(phi, x, zt, weights, ones, field, {}, context);
          expect_field(field, weighed, "gradient_field of " + text, kFactor);
          ASSERT_TRUE(pairwise_backward(f, x, &zt, weights, back, {}, {}, context));
          expect_field(back, weighed, "pairwise_backward of " + text, kFactor);
          kernel_agop(f, x, &zt, coef, outer, {}, context);
          for (std::int64_t i = 0; i < k; ++i)
            for (std::int64_t j = 0; j < k; ++j) {
              double sum = 0, size = 0;
              for (std::int64_t r = 0; r < outputs * m; ++r) {
                const double term = out(r / m, r % m, i) * out(r / m, r % m, j);
                sum += term;
                size += std::abs(term);
              }
              ASSERT_TRUE(within(outer(i, j), sum, 4 * unit(dtype) * size, dtype)) << "kernel_agop of " << text;
            }
        });
        if (::testing::Test::HasFatalFailure()) return;
      }
}

/// Pairs enough for sums of maxima, features enough for totals part by part.
TEST(Fallback, SumsOfMaximaAndOfVeryManyFeatures) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{150, 150, 200}, {3, 5, 70000}})
    for (const Dtype dtype : kWide) {
      const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2);
      const Tensor zt = z;
      const Expected expected = expected_pairs(parse("sum(abs(x-z))"), x, z, 2 * unit(dtype) * (k > 900 ? 80 : 1));
      on_each_denied_target([&](TestContext& context) {
        context.state().least_gain = 0;
        const Array out(dtype, {m, n});
        pairwise("sum(abs(x-z))", x, &zt, out, {}, context);
        expect_pairs(out, expected, "sum(abs(x-z))");
      });
    }
}

/// Products of small whole numbers are exact.
TEST(Fallback, KroneckerProducts) {
  for (const Dtype dtype : {Dtype::float32, Dtype::float64})
    on_each_denied_target([&](TestContext& context) {
      std::mt19937 random(1);
      std::uniform_int_distribution<int> digit(-3, 3);
      const auto whole = [&](Shape shape) -> Array {
        return Array(dtype, std::move(shape)).fill([&] { return digit(random); });
      };
      const Array x = whole({5, 6 * 7}), a = whole({6, 6}), b = whole({7, 7}), out(dtype, {5, 6 * 7});
      const std::vector<Tensor> factors{a, b};
      kron::matmul(x, factors, out, {}, context);
      each_index({5, 42}, [&](const Shape& at) {
        double sum = 0;
        for (std::int64_t i = 0; i < 6; ++i)
          for (std::int64_t j = 0; j < 7; ++j) sum += x(at[0], i * 7 + j) * a(i, at[1] / 7) * b(j, at[1] % 7);
        ASSERT_EQ(read(out, at), sum) << at[0] << "," << at[1];
      });
    });
}

}  // namespace
}  // namespace mercer
