// Gradients of largest and smallest terms, and of products with zeros: the pass of the pairs and the field must agree
// on which term that is.
#include <gtest/gtest.h>

#include "core/emulated.h"
#include "ops/context.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Case {
  const char* text;
  double factor = 4;  // of the contract
};

/// Terms that two passes would round differently: parts of one point, computed in float64 before; powers of several
/// forms; divisors; functions of which a GPU has faster ones.
const Case kCases[] = {
    {"max(abs(x-z)^1.3)"},
    {"min(2*abs(x-z)^0.7)"},
    {"max(tanh(x)+fma(z,w,x))"},
    {"max(sqrt(abs(x-z))/3)"},
    {"exp(-max(w*abs(x-z)/h))"},
    {"min(exp(x*0.1)-log(1+z*z))", 20},
    {"max(h*x-0.3*z)"},
    {"max(tanh(x))+sum(x*z)"},
    {"max(sin(x-z)-sum(x)*0.1)", 20},
    {"prod(3*tanh(x)-2*tanh(z))", 1000},
};

/// One column of z at a time: every element is that of one pair. Every other x equals z in a feature: a zero of the
/// product.
TEST(ExtremumGradient, WinnersAreFound) {
  const std::int64_t m = is_emulated() ? 40 : 200;
  Turns turns(7);
  for (const Dtype dtype : kWide)
    for (const std::int64_t k : {6, 33})
      for (const Case& c : kCases) {
        Array x = normal(dtype, {m, k}, 1);
        const Array z = normal(dtype, {1, k}, 2), w = uniform(dtype, {k}, 3), coef = filled(dtype, {1}, {1});
        for (std::int64_t i = 0; i < m; i += 2) x.set({i, i % k}, z(0, i % k));
        const Expr f = parse(c.text);
        Extra extra;
        Arguments arguments;
        const std::string text = c.text;
        if (text.find("h*") != std::string::npos || text.find("/h") != std::string::npos)
          arguments.params["h"] = extra.params["h"] = 1.7;
        if (f->uses.w) {
          arguments.w = w;
          for (std::int64_t i = 0; i < k; ++i) extra.w.push_back(w(i));
        }
        if (turns.leaves_out()) continue;
        const Tensor zt = z;
        const Expr phi = differentiate(f, points().x);
        const Field expected = expected_field(phi, x, z, coef, extra);
        const Array ones = Array(dtype, {m, 1}).fill([] { return 1.0; });
        on_each_target([&](TestContext& context) {
          const Array out(dtype, {m, k}), given(dtype, {m, k}), back(dtype, {m, k});
          kernel_gradient(f, x, &zt, coef, out, arguments, context);
          expect_field(out, expected, text, c.factor);
          gradient_field(phi, x, zt, ones, coef, given, arguments, context);
          expect_field(given, expected, "gradient_field of " + text, c.factor);
          ASSERT_TRUE(pairwise_backward(f, x, &zt, ones, back, {}, arguments, context));
          expect_field(back, expected, "pairwise_backward of " + text, c.factor);
        });
        if (::testing::Test::HasFatalFailure()) return;
      }
}

/// Equal terms share the gradient, also those that are rounded several times.
TEST(ExtremumGradient, TiesShare) {
  constexpr std::int64_t kK = 8;
  for (const Dtype dtype : kWide)
    for (const char* text : {"max(abs(x-z)^1.3)", "min(tanh(x)*0.1-z)", "max(exp(-abs(x-z))/3)"}) {
      Array x = normal(dtype, {3, kK}, 1), z = normal(dtype, {1, kK}, 2);
      for (std::int64_t k = 0; k < kK; ++k) {  // all features equal; pairs of features; a point with itself
        x.set({0, k}, 0.3);
        x.set({1, k}, x(1, k % 2));
        x.set({2, k}, 0.7);
        z.set({0, k}, 0.7);
      }
      const Array coef = filled(dtype, {1}, {1});
      const Tensor zt = z;
      const Field expected = expected_field(differentiate(parse(text), points().x), x, z, coef);
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {3, kK});
        kernel_gradient(text, x, &zt, coef, out, {}, context);
        expect_field(out, expected, text, 4);
      });
    }
}

/// Few features and many pairs, where products of values of one feature make the gradient.
TEST(ExtremumGradient, ByProductsOfAFeature) {
  constexpr std::int64_t kPoints = 130, kK = 2;
  for (const Dtype dtype : kWide)
    for (const char* text : {"max(abs(x-z)^1.3)", "max(tanh(x)-tanh(z))"}) {
      const Array x = normal(dtype, {kPoints, kK}, 1), z = normal(dtype, {kPoints, kK}, 2),
                  coef = normal(dtype, {kPoints}, 3);
      const Tensor zt = z;
      const Field expected = expected_field(differentiate(parse(text), points().x), x, z, coef);
      on_each_cpu_target([&](TestContext& context) {
        const Array out(dtype, {kPoints, kK});
        kernel_gradient(text, x, &zt, coef, out, {}, context);
        expect_field(out, expected, text, 4);
      });
    }
}

}  // namespace
}  // namespace mercer
