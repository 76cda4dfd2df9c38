// Gradients of formulas with a mask on CUDA: fields are made in strips of rows, with the columns that these need.
#include "mercer/formula.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "ops/masked_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kTriangle = "where(j <= i, exp(-sum((x-z)^2)/8), 0)";
constexpr const char* kBand = "where(abs(i-j) < 20, exp(-sum((x-z)^2)/8), 0)";
constexpr const char* kFields[] = {kTriangle,
                                   kBand,
                                   "where(i < 140 && j >= 200, sum(x*z), 3)",
                                   "where(abs(i-j) > 150, 1/(1 + sum((x-z)^2)), 0)",
                                   "where(abs(i-j) < 9, exp(-sum(abs(x-z))/8), 0)",
                                   "where(j < i, sum(max(x-z, 0)^2), 1)"};

/// Of few features and of more, one output and several, where all is finite and where something that strips leave out
/// is not: zero times that is NaN.
TEST(CudaMaskedFields, Gradients) {
  on_masked_cuda([&](TestContext& context) {
    std::size_t turn = 0;
    for (const char* text : kFields)
      for (const bool is_finite : {true, false}) {
        const Dtype dtype = turn % 5 == 4 ? Dtype::float64 : Dtype::float32;
        const std::int64_t m = 290, n = turn % 2 == 0 ? 431 : 260, k = turn % 3 == 0 ? 3 : 20;
        const std::int64_t outputs = turn % 4 < 2 ? 1 : 3;
        Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2), coef = normal(dtype, {outputs, n}, 3);
        if (!is_finite) {
          x.set({2, 1}, kNan);
          z.set({250, 0}, kInf);
          coef.set({outputs - 1, 255}, kNan);
        }
        const Tensor zt = z;
        const Expr f = parse(text);
        const Array out(dtype, {outputs, m, k});
        kernel_gradient(f, x, &zt, coef, out, {}, context);
        const Field expected = expected_field(differentiate(f, points().x), x, z, coef);
        expect_field(out, expected, std::string(text) + (is_finite ? "" : ", with NaN"), 8, 1e-2);
        ++turn;
      }
  });
}

/// The weights of the pairs are products of two factors; sums by a parameter and the product with v go along.
TEST(CudaMaskedFields, BackwardsOfProducts) {
  on_masked_cuda([&](TestContext& context) {
    for (const char* text : {"where(j <= i, exp(-sum((x-z)^2)/h), 0)", "where(abs(i-j) < 20, exp(-sum((x-z)^2)/h), 0)"})
      for (const auto& [k, columns] : {std::pair<std::int64_t, std::int64_t>{3, 1}, {3, 4}, {20, 1}, {20, 3}})
        for (const bool is_finite : {true, false}) {
          constexpr std::int64_t kM = 290, kN = 310;
          const Array x = normal(Dtype::float32, {kM, k}, 1), z = normal(Dtype::float32, {kN, k}, 2);
          Array weights = normal(Dtype::float32, {kM, columns}, 3), v = normal(Dtype::float32, {kN, columns}, 4);
          if (!is_finite) {
            weights.set({7, columns - 1}, kNan);
            v.set({300, 0}, kInf);
          }
          const Tensor zt = z;
          const Expr f = parse(text);
          Arguments arguments;
          arguments.params["h"] = 8.0;
          const Extra extra{{{"h", 8}}, {}, {}, {}, 0, 0};
          Array of_pairs(Dtype::float64, {kM, kN});
          each_index({kM, kN}, [&](const Shape& i) {
            double sum = 0;
            for (std::int64_t e = 0; e < columns; ++e) sum += weights(i[0], e) * v(i[1], e);
            of_pairs.set(i, sum);
          });
          const Tensor amplitude = of_pairs;
          const Array ones = Array(Dtype::float64, {kN}).fill([] { return 1.0; });
          const Field expected = expected_field(differentiate(f, points().x), x, z, ones, extra, &amplitude);
          const Array out(Dtype::float32, {kM, k}), again(Dtype::float32, {kM, k}), sums(Dtype::float32, {1, kM}),
              product(Dtype::float32, {kM, columns});
          const std::string what = std::string(text) + ", " + std::to_string(k) + " features, " +
                                   std::to_string(columns) + " columns" + (is_finite ? "" : ", with NaN");
          product_gradient(f, x, &zt, weights, v, out, arguments, context);
          expect_field(out, expected, what, 16, 1e-2);
          const Tensor sums_view = sums, product_view = product;
          ASSERT_TRUE(
              product_backward(f, x, &zt, weights, v, again, {{"h"}, &sums_view, &product_view}, arguments, context));
          expect_field(again, expected, what + ", backward", 16, 1e-2);
          expect_product(product, table(f, x, z, extra), v, what);
          const auto derivatives = table(differentiate(f, param("h")), x, z, extra);
          for (std::int64_t m = 0; m < kM; ++m) {
            double sum = 0, size = 0;
            for (std::int64_t n = 0; n < kN; ++n) {
              sum += of_pairs(m, n) * derivatives[m][n];
              size += std::abs(of_pairs(m, n) * derivatives[m][n]);
            }
            ASSERT_TRUE(within(sums(0, m), sum, 32 * unit(Dtype::float32) * (size + 1e-2), Dtype::float32))
                << what << " at " << m << ": " << sums(0, m) << " for " << sum;
          }
        }
  });
}

/// A strip has the items of a batch, their parameters, and the indices of its own rows and columns.
TEST(CudaMaskedFields, BatchesAndOffsets) {
  on_masked_cuda([&](TestContext& context) {
    const Array x = normal(Dtype::float32, {2, 270, 6}, 1), z = normal(Dtype::float32, {300, 6}, 2),
                coef = normal(Dtype::float32, {2, 1, 300}, 3);
    const Tensor zt = z;
    Arguments arguments;
    arguments.params["b"] = 17.5;
    arguments.i_offset = 40;
    arguments.j_offset = -30;
    const Expr f = parse("where(abs(i - j) <= b, exp(-sum((x-z)^2)/4), 0)");
    const Array out(Dtype::float32, {2, 1, 270, 6});
    kernel_gradient(f, x, &zt, coef, out, arguments, context);
    for (std::int64_t b = 0; b < 2; ++b) {
      const Extra extra{{{"b", 17.5}}, {}, {}, {}, 40, -30};
      const Field expected = expected_field(differentiate(f, points().x), item(x, {b}), z, item(coef, {b}), extra);
      expect_field(item(out, {b}), expected, "batch", 8, 1e-2);
    }
  });
}

}  // namespace
}  // namespace mercer
