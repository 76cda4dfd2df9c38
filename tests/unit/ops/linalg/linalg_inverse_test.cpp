// Inverses from Cholesky's factor and triangular systems, by their residuals, in every layout of memory. Bounds are
// those of linalg_test.cpp; that of an inverse, |a X - 1| <= 8 n u |a| |X|, is from section 14.2 of the same book.
#include "device/lapack.h"
#include "ops/context.h"
#include "ops/dense_checks.h"

namespace mercer {
namespace {

using namespace testing_support;

class LinalgInverse : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_wanted("cpu")) MERCER_NEEDS_LAPACK();  // CUDA does without
  }
};

/// L M - 1 and its square are small by the condition of L, below 1e2 n here.
void expect_inverse(const Array& factor, const Array& inverse, const Array& diagonal, bool lower, Dtype dtype) {
  Array triangle = factor;
  const std::int64_t n = factor.shape()[0];
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      if (lower ? j > i : j < i) triangle.set({i, j}, 0);
  const Dense t(triangle.tensor()), x(inverse.tensor());
  Dense identity(n, n);
  for (std::int64_t i = 0; i < n; ++i) identity(i, i) = 1;
  const Dense a = lower ? t * t.transposed() : t.transposed() * t;
  const double bound = 8 * static_cast<double>(n) * rounding(dtype) * a.norm() * x.norm();
  EXPECT_LE((a * x - identity).norm(), bound);
  EXPECT_EQ((x - x.transposed()).norm(), 0);
  for (std::int64_t i = 0; i < n; ++i) EXPECT_NEAR(diagonal(i), x(i, i), bound * x(i, i));
}

TEST_F(LinalgInverse, InversesOfEveryLayout) {
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_out) {
    for (const std::int64_t n : context.on_cuda() ? Shape{7, 90} : Shape{7, 70, 140})
      for (const bool lower : {true, false}) {
        Array factor(dtype, {n, n}, of_a.strides(n, n));
        cholesky(kernel_matrix_of(dtype, n, of_a, 1), factor, {.lower = lower}, context);
        spoil_triangle(factor, lower);
        const Array out(dtype, {n, n}, of_out.strides(n, n)), diagonal(dtype, {n}, {3});
        context.state().own_costs().dense.part_bytes = n * 40 * 8;  // blocks of columns
        cho_inverse(factor, out, {.lower = lower}, context);
        cho_inverse_diagonal(factor, diagonal, {.lower = lower}, context);
        expect_inverse(factor, out, diagonal, lower, dtype);
        const Array before = factor;
        cho_inverse(factor, factor, {.lower = lower}, context);
        expect_inverse(before, factor, diagonal, lower, dtype);  // in place
        // A pivot of zero, in the last place.
        Array singular = before;
        singular.set({n - 1, n - 1}, 0);
        cho_inverse(singular, out, {.lower = lower}, context);
        cho_inverse_diagonal(singular, diagonal, {.lower = lower}, context);
        EXPECT_TRUE(std::isnan(out(0, 0)) && std::isnan(out(0, n - 1)) && std::isnan(diagonal(0)));
        context.state().own_costs().dense.part_bytes = plan::costs_of(90).dense.part_bytes;
      }
  });
}

TEST_F(LinalgInverse, InversesOfBatches) {
  on_both([](TestContext& context) {
    constexpr std::int64_t n = 50;
    Array a(Dtype::float64, {2, 3, n, n}), factors(Dtype::float64, {2, 3, n, n}), out(Dtype::float64, {3, 2, n, n});
    each_index(a.shape(), [&](const Shape& at) { a.set(at, kernel_value(at[2], at[3], 0.1 * (1 + at[0] + at[1]))); });
    cholesky(a, factors, {}, context);
    factors.set({1, 1, 20, 3}, kNan);
    Tensor turned = out;  // the batch the other way round
    std::swap(turned.shape[0], turned.shape[1]);
    std::swap(turned.strides[0], turned.strides[1]);
    const Array diagonals(Dtype::float64, {2, 3, n});
    const std::int64_t all = plan::costs_of(90).dense.part_bytes;
    for (const std::int64_t bytes : {all, std::int64_t{2 * n * n * 8}, std::int64_t{n * 30 * 8}}) {
      context.state().own_costs().dense.part_bytes = bytes;
      cho_inverse(factors, turned, {}, context);
      cho_inverse_diagonal(factors, diagonals, {}, context);
      each_index({2, 3}, [&](const Shape& at) {
        const Array inverse = copy(item(out, {at[1], at[0]}), Dtype::float64);
        const Array values = copy(item(diagonals, at), Dtype::float64);
        if (at == Shape{1, 1})
          EXPECT_TRUE(std::isnan(inverse(0, 0)) && std::isnan(values(n - 1)));
        else
          expect_inverse(copy(item(factors, at), Dtype::float64), inverse, values, true, Dtype::float64);
      });
    }
    context.state().own_costs().dense.part_bytes = plan::costs_of(90).dense.part_bytes;
  });
}

TEST_F(LinalgInverse, TriangularSystemsOfEveryLayout) {
  constexpr std::int64_t n = 34, k = 3;
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_b) {
    const Array b = normal(dtype, {n, k}, 3, 1, of_b.strides(n, k));
    for (const bool lower : {true, false})
      for (const TriangleUse use : {TriangleUse{false, false}, {true, false}, {false, true}, {true, true}}) {
        Array a = kernel_matrix_of(dtype, n, of_a, 1);
        spoil_triangle(a, lower);
        Dense t(a.tensor());
        for (std::int64_t i = 0; i < n; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            if (i == j ? use.unit_diagonal : (i < j) == lower) t(i, j) = i == j;
        for (std::int64_t i = 0; i < n && use.unit_diagonal; ++i) a.set({i, i}, kNan);
        if (use.transposed) t = t.transposed();
        const Array x(dtype, {n, k}, of_b.strides(n, k));
        solve_triangular(a, b, x, use, {.lower = lower}, context);
        expect_solution(t, Dense(x.tensor()), Dense(b.tensor()), rounding(dtype), "triangle");
        const Array again = copy(b, dtype, of_b.strides(n, k));
        solve_triangular(a, again, again, use, {.lower = lower}, context);
        EXPECT_EQ((Dense(again.tensor()) - Dense(x.tensor())).norm(), 0) << "in place";
      }
  });
}

}  // namespace
}  // namespace mercer
