// Reductions of constants, parameters and weights alone, formulas without one side or both, and names that
// simplification leaves nothing of: every operation takes them.
#include <gtest/gtest.h>

#include "core/emulated.h"
#include "ops/context.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr std::int64_t kM = 6, kN = 9, kK = 4;

const char* const kTexts[] = {
    "sum(2)*sum(x*z)",      "sum(w^0*x*z)",         "row^0*sum(x*z) + 0*(col < 2)", "sum(3)*prod(p) + sum(x)*sum(z)",
    "max(w)*sum(z)",        "sum(w*p)",             "prod(1.5) + col^0",            "logsumexp(p)*max(abs(x-z))",
    "exp(-sum(x*x)/sum(K))", "min(w*2)*exp(-sum(abs(x-z))/sum(p))", "max(tanh(x)*0.3)", "p^0 + sum(0.5)",
};

/// What a formula names, and the oracle's values of it.
struct Given {
  Array x, z, w, row, col;
  Arguments arguments;
  Extra extra;

  Given(const char* text, Dtype dtype)
      : x(normal(dtype, {kM, kK}, 1)), z(normal(dtype, {kN, kK}, 2)), w(uniform(dtype, {kK}, 3)),
        row(normal(dtype, {kM}, 4)), col(normal(dtype, {kN}, 5)) {
    const ir::Uses uses = parse(text)->uses;
    for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
    for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(row(m));
    for (std::int64_t n = 0; n < kN; ++n) extra.col.push_back(col(n));
    if (uses.w) arguments.w = w;
    if (uses.row) arguments.row = row;
    if (uses.col) arguments.col = col;
    if (uses.param) arguments.params["p"] = extra.params["p"] = 1.25;
  }
};

TEST(ConstantReductions, ValuesAndFolds) {
  for (const Dtype dtype : kWide)
    for (const char* text : kTexts) {
      const Given given(text, dtype);
      const Tensor z = given.z;
      const Array v = normal(dtype, {kN, 2}, 6);
      const auto values = table(parse(text), given.x, given.z, given.extra);
      const Expected expected = expected_pairs(parse(text), given.x, given.z, 4 * unit(dtype),
                                               abs(parse(text)) + 1.0, given.extra);
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {kM, kN}), product(dtype, {kM, 2}), largest(dtype, {kM}), near(dtype, {kM, 2}),
            indices(Dtype::int64, {kM, 2});
        pairwise(text, given.x, &z, out, given.arguments, context);
        expect_pairs(out, expected, text);
        kernel_product(text, given.x, &z, v, product, given.arguments, context);
        kernel_reduce(text, given.x, &z, ReduceKind::max, largest, given.arguments, context);
        knn(text, given.x, &z, 2, near, indices, given.arguments, context);
        for (std::int64_t m = 0; m < kM; ++m) {
          double sum = 0, size = 1, most = out(m, 0), least = out(m, 0);
          for (std::int64_t n = 0; n < kN; ++n) {
            sum += values[m][n] * v(n, 0);
            size += std::abs(values[m][n] * v(n, 0));
            most = std::max(most, out(m, n));
            least = std::min(least, out(m, n));
          }
          ASSERT_TRUE(within(product(m, 0), sum, 8 * unit(dtype) * size, dtype)) << text;
          ASSERT_TRUE(within(largest(m), most, unit(dtype) * (1 + std::abs(most)), dtype)) << text;
          ASSERT_TRUE(within(near(m, 0), least, unit(dtype) * (1 + std::abs(least)), dtype)) << text;
        }
      });
    }
}

TEST(ConstantReductions, GradientsAndFields) {
  Turns turns(5);
  for (const Dtype dtype : kWide)
    for (const char* text : kTexts) {
      if (turns.leaves_out()) continue;
      const Given given(text, dtype);
      const Tensor z = given.z;
      const Array coef = normal(dtype, {kN}, 6), weights = normal(dtype, {kM, kN}, 7);
      const Array ones = Array(dtype, {kN}).fill([] { return 1.0; });
      const Tensor amplitude = weights;
      const Expr phi = differentiate(parse(text), points().x);
      const Field expected = expected_field(phi, given.x, given.z, coef, given.extra);
      const Field weighed = expected_field(phi, given.x, given.z, ones, given.extra, &amplitude);
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {kM, kK}), back(dtype, {kM, kK}), outer(dtype, {kK, kK});
        kernel_gradient(text, given.x, &z, coef, out, given.arguments, context);
        expect_field(out, expected, text, 8, 1e-30);
        ASSERT_TRUE(pairwise_backward(text, given.x, &z, weights, back, {}, given.arguments, context)) << text;
        expect_field(back, weighed, text, 8, 1e-30);
        kernel_agop(text, given.x, &z, coef, outer, given.arguments, context);
        double sum = 0, size = 1e-30;
        for (std::int64_t m = 0; m < kM; ++m) {
          sum += out(m, 0) * out(m, 1);
          size += std::abs(out(m, 0) * out(m, 1));
        }
        ASSERT_TRUE(within(outer(0, 1), sum, 8 * unit(dtype) * size, dtype)) << text;
      });
    }
}

TEST(ConstantReductions, FieldsOfAUser) {
  for (const Dtype dtype : kWide)
    for (const char* text : {"sum(3)*x", "sum(p)*(x - z)", "sum(w)*x*z", "prod(2) + x", "w^0*z"}) {
      const Given given(text, dtype);
      const Expr phi = parse(text);
      const Array coef = normal(dtype, {kN}, 6), weights = normal(dtype, {kM, kN}, 7);
      const Tensor amplitude = weights;
      const Field expected = expected_field(phi, given.x, given.z, coef, given.extra, &amplitude);
      on_each_target([&](TestContext& context) {
        const Array field(dtype, {kM, kK});
        gradient_field(phi, given.x, given.z, weights, coef, field, given.arguments, context);
        expect_field(field, expected, text, 8);
      });
    }
}

/// What a name is given for is checked although nothing reads it.
TEST(ConstantReductions, NeedlessArraysAreChecked) {
  const Array x = normal(Dtype::float32, {kM, kK}, 1), w = uniform(Dtype::float32, {kK + 1}, 2),
              row = normal(Dtype::float32, {kM + 1}, 3), out(Dtype::float32, {kM, kM});
  on_each_target([&](TestContext& context) {
    Arguments weights, rows;
    weights.w = w;
    rows.row = row;
    EXPECT_EQ(message_of([&] { pairwise("sum(w^0*x*z)", x, nullptr, out, weights, context); }),
              "pairwise: w must have shape (4,), one weight per feature. Received (5,).");
    EXPECT_EQ(message_of([&] { pairwise("row^0*sum(x*z)", x, nullptr, out, rows, context); }),
              "pairwise: row must have one value per point (6 in the last axis). Received (7,).");
    EXPECT_TRUE(out.untouched());
  });
}

}  // namespace
}  // namespace mercer
