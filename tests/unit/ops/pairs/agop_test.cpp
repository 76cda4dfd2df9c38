// Outer products of gradients against those of the oracle's gradients.
#include <gtest/gtest.h>

#include "ops/call/call.h"
#include "ops/expected_fields.h"

namespace mercer {
namespace {

using namespace testing_support;

/// g_k g_l errs by |g_k| and |g_l| times the other's bound, which is 8 units of its row's norm.
void expect_agop(const char* text, const Tensor& x, const Tensor& z, const Tensor& coef, const Tensor& out,
                 TestContext& context, const Arguments& arguments = {}, const Extra& extra = {}) {
  kernel_agop(text, x, &z, coef, out, arguments, context);
  const Field field = expected_field(differentiate(parse(text), points().x), x, z, coef, extra);
  const std::int64_t k = x.shape[1], rows = static_cast<std::int64_t>(field.norms.size());
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      double sum = 0, bound = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        const double a = field.values[r * k + i], b = field.values[r * k + j];
        sum += a * b;
        bound += std::abs(a * b) + 8 * field.norms[r] * (std::abs(a) + std::abs(b) + field.norms[r] * unit(out.dtype));
      }
      ASSERT_TRUE(within(read(out, {i, j}), sum, 2 * unit(out.dtype) * bound, out.dtype))
          << text << " at " << i << "," << j << ": " << read(out, {i, j}) << " for " << sum;
      ASSERT_EQ(read(out, {i, j}), read(out, {j, i})) << text << " at " << i << "," << j;
    }
}

TEST(Agop, FormulasSizesAndParts) {
  on_each_target([](TestContext& context) {
    for (auto [m, n, k, outputs] : {std::array{50, 20, 7, 3}, {1, 1, 1, 1}, {37, 65, 33, 1}}) {
      const Array x = normal(Dtype::float32, {m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
      const Array coef = normal(Dtype::float32, {outputs, n}, 3);
      for (std::int64_t bytes : {std::int64_t{1}, std::int64_t{5000}, std::int64_t{1} << 28}) {
        context.state().own_costs().part_bytes = bytes;
        const Array out(Dtype::float32, {k, k}, column_major({k, k}));
        expect_agop("exp(-sum((x-z)^2)/9)", x, z, coef, out, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST(Agop, IndicesRowsTypesAndOneOutput) {
  on_each_target([](TestContext& context) {
    constexpr std::int64_t kM = 40, kN = 15, kK = 5;
    context.state().own_costs().part_bytes = 300;  // many parts
    for (Dtype dtype : {Dtype::float32, Dtype::float64}) {
      const Array x = normal(dtype, {kM, kK}, 1), z = normal(dtype, {kN, kK}, 2), row = normal(dtype, {kM}, 3);
      const Array out(dtype, {kK, kK});
      Arguments arguments;
      arguments.row = row;
      arguments.i_offset = 2;
      Extra extra;
      for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(row(m));
      extra.i_offset = 2;
      expect_agop("sum((x-z)^2)*row/(1 + i)", x, z, normal(dtype, {kN}, 4), out, context, arguments, extra);
    }
  });
}

TEST(Agop, BatchesAndNothing) {
  on_each_target([](TestContext& context) {
    context.state().own_costs().part_bytes = 4000;
    const Array x = normal(Dtype::float32, {2, 30, 6}, 1), z = normal(Dtype::float32, {2, 11, 6}, 2);
    const Array coef = normal(Dtype::float32, {3, 1, 2, 11}, 3), out(Dtype::float32, {3, 2, 6, 6});
    const Tensor zt = z;
    kernel_agop("sum(abs(x-z))", x, &zt, coef, out, {}, context);
    for (std::int64_t c = 0; c < 3; ++c)
      for (std::int64_t s = 0; s < 2; ++s) {
        const Array alone(Dtype::float32, {6, 6});
        expect_agop("sum(abs(x-z))", item(x, {s}), item(z, {s}), item(coef, {c, 0}), alone, context);
        for (std::int64_t i = 0; i < 36; ++i)
          ASSERT_NEAR(out(c, s, i / 6, i % 6), alone(i / 6, i % 6), 1e-5 * std::abs(alone(i / 6, i / 6)) + 1e-4);
      }
    const Array none(Dtype::float32, {0, 6}), zeros(Dtype::float32, {6, 6});
    const Tensor z0 = item(z, {0});
    kernel_agop("sum(abs(x-z))", none, &z0, item(coef, {0, 0}), zeros, {}, context);
    for (std::int64_t i = 0; i < 36; ++i) ASSERT_EQ(zeros(i / 6, i % 6), 0);
    const Array no_points(Dtype::float32, {0, 6}), no_outputs(Dtype::float32, {0, 11}), nothing(Dtype::float32, {3, 0});
    const Tensor z_of_none = no_points;
    for (const bool outputs : {false, true}) {
      const Array sums(Dtype::float32, {6, 6});
      kernel_agop("sum(abs(x-z))", item(x, {0}), outputs ? &z_of_none : &z0, outputs ? nothing : no_outputs, sums, {},
                  context);
      for (std::int64_t i = 0; i < 36; ++i) ASSERT_EQ(sums(i / 6, i % 6), 0) << (outputs ? "no points" : "no outputs");
    }
  });
}

}  // namespace
}  // namespace mercer
