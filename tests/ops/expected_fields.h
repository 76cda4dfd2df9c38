// Gradients and gradient fields against sums of the oracle's values.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "ir/expr/expr.h"
#include "ops/context.h"
#include "ops/testing.h"

namespace mercer::testing_support {

/// g[o][m][k] = sum_n coef[o, n] field(m, n, k) and the norm of the terms of every output row.
struct Field {
  std::vector<double> values;
  std::vector<double> norms;  // of row (o, m), of what is finite
};

inline Field expected_field(const Expr& field, const Tensor& x, const Tensor& z, const Tensor& coef,
                            const Extra& extra = {}, const Tensor* amplitude = nullptr) {
  Reference reference(field, x, z, extra);
  const std::int64_t outputs = coef.ndim() == 1 ? 1 : coef.shape[0], features = reference.features();
  Field result;
  result.values.assign(outputs * reference.m() * features, 0);
  result.norms.assign(outputs * reference.m(), 0);
  for (std::int64_t m = 0; m < reference.m(); ++m)
    for (std::int64_t k = 0; k < features; ++k) {
      std::vector<double> size(outputs, 0);
      for (std::int64_t n = 0; n < reference.n(); ++n) {
        const double phi = reference(m, n, k) * (amplitude ? read(*amplitude, {m, n}) : 1);
        for (std::int64_t o = 0; o < outputs; ++o) {
          const double term = phi * (coef.ndim() == 1 ? read(coef, {n}) : read(coef, {o, n}));
          result.values[(o * reference.m() + m) * features + k] += term;
          size[o] += std::abs(term);
        }
      }
      for (std::int64_t o = 0; o < outputs; ++o)
        if (std::isfinite(size[o])) result.norms[o * reference.m() + m] += size[o] * size[o];
    }
  // NOTE: the contract names the norm of the row; coefficients of mixed signs cancel in it, so that the norm of the
  // sums of absolute terms is what rounding can be held to.
  for (double& norm : result.norms) norm = std::sqrt(norm);
  return result;
}

inline void expect_field(const Tensor& out, const Field& expected, const std::string& what, double factor = 1,
                         double floor = 0) {
  const bool single = out.ndim() == 2;
  const std::int64_t outputs = single ? 1 : out.shape[0], rows = out.shape[single ? 0 : 1], features = out.shape.back();
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t m = 0; m < rows; ++m)
      for (std::int64_t k = 0; k < features; ++k) {
        const double value = single ? read(out, {m, k}) : read(out, {o, m, k});
        const double wanted = expected.values[(o * rows + m) * features + k];
        const double bound = unit(out.dtype) * (factor * expected.norms[o * rows + m] + floor);
        ASSERT_TRUE(within(value, wanted, bound, out.dtype))
            << what << " at " << o << "," << m << "," << k << ": " << value << " for " << wanted << ", off by "
            << std::abs(value - wanted) / bound;
      }
}

/// kernel_gradient against the oracle, `factor` units of the last place of the terms' norm, and the same bits twice. A
/// formula with weights gets some.
inline void expect_gradient(const char* text, const Tensor& x, const Tensor& z, const Tensor& coef,
                            const std::string& what, TestContext& context, double factor = 8) {
  Extra extra;
  Arguments arguments;
  const Array w = uniform(Dtype::float32, {x.shape[1]}, 5);
  if (parse(text)->uses.w) {
    for (std::int64_t k = 0; k < x.shape[1]; ++k) extra.w.push_back(w(k));
    arguments.w = w;
  }
  const Expr f = parse(text);
  Shape shape = {x.shape[0], x.shape[1]};
  if (coef.ndim() == 2) shape.insert(shape.begin(), coef.shape[0]);
  const Array out(Dtype::float32, shape), again(Dtype::float32, shape);
  kernel_gradient(f, x, &z, coef, out, arguments, context);
  expect_field(out, expected_field(differentiate(f, points().x), x, z, coef, extra), what + ", " + text, factor);
  kernel_gradient(f, x, &z, coef, again, arguments, context);
  EXPECT_TRUE(same_bits(out, again)) << what << ", " << text;
}

/// m points x, n points z of k features, and coefficients of so many outputs.
struct FieldShape {
  std::int64_t m, n, k, outputs;
};

/// Compares as above, for normally distributed points in float32.
inline void expect_gradient(const char* text, const FieldShape& shape, TestContext& context) {
  const auto& [m, n, k, outputs] = shape;
  const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
  expect_gradient(text, x, z, normal(Dtype::float32, {outputs, n}, 3), std::to_string(outputs) + " outputs", context);
}

}  // namespace mercer::testing_support
