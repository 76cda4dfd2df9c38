#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "unit/ir/pair_fixture.h"

namespace mercer::ir {
namespace {

const auto [x, z] = points();
const Expr w = weights(), p = param("p"), K = feature_count(), i = index_i(), j = index_j();

Expr centred(const Expr& v) { return v - sum(v) / K; }
Expr shared(const Expr& v) { return v / sum(v); }

TEST(Symmetric, Yes) {
  const Expr m = 0.5 * (shared(x) + shared(z));
  const Expr cases[] = {
      sum(abs(x - z)), sum(square(x - z)), sum(pow(abs(x - z), p)), pow(sum(pow(abs(z - x), p)), 1.0 / p), sum(x * z),
      sum(x + z), max(abs(x - z)), exp(-sum(square(x - z)) / param("b")), sum(w * x * z), sum(x * w * z),
      sum(abs(x - z) / (abs(x) + abs(z))), sum(abs(x - z)) / sum(abs(x + z)), sum((x - z) * (x - z)),
      where(equal(i, j), 1.0 + p, exp(-sum(abs(x - z)))), where(equal(i - j, 0.0), 1.0, 0.0),
      1.0 - sum(x * z) / sqrt(sum(x * x) * sum(z * z)), 1.0 - sum(x * z) / (sqrt(sum(x * x)) * sqrt(sum(z * z))),
      1.0 - sum(x * z) / sqrt(sum(x * x)) / sqrt(sum(z * z)), sum(x * z) * rsqrt(sum(x * x)) * rsqrt(sum(z * z)),
      1.0 - sum(centred(x) * centred(z)) / sqrt(sum(square(centred(x))) * sum(square(centred(z)))),
      sqrt((sum(xlogy(shared(x), shared(x) / m)) + sum(xlogy(shared(z), shared(z) / m))) / 2.0),
      sum(x * x) + sum(z * z) - 2.0 * sum(x * z), sum(not_equal(x, z)) / K, sum(min(x, z)) / sum(max(x, z)),
      row_value() * sum(x * z) * col_value(), sum(pow(x - z, 4.0)), cos(sum(x - z)), max(x - z) - min(x - z),
      sum(fma(x, z, 0.5)), abs(i - j), sum(where(equal(x, z), 0.0, abs(x - z))), Expr(1.0), p,
      fold({abs(z - x)}, {max(state(), incoming())}, {0.0}), logical_or(i < j, j < i),
      pow(sum(x * z) + param("c", 1.0), 3.0), sum(tanh(x - z) * (x - z))};
  for (const Expr& e : cases) EXPECT_TRUE(is_symmetric(e)) << e.to_text();
}

TEST(Symmetric, No) {
  const Expr cases[] = {
      sum(x - z), sum(xlogy(x, x / z)), where(i < j, 1.0, 0.0), sum(x), sum(x * x), sum(abs(x - 2.0 * z)), row_value(),
      i, sum(pow(x - z, 3.0)), sum(max(x - z, 0.0)), sum(x * z) / sum(x * x), i - j, sum(x / z), sum(pow(x, z)),
      max(x - z), sum(x * z) + row_value(), sum(exp(x - z)), prod(x - z), sum(atan2(x, z))};
  for (const Expr& e : cases) EXPECT_FALSE(is_symmetric(e)) << e.to_text();
}

}  // namespace
}  // namespace mercer::ir
