// The end of a spectrum by products: on operators whose eigenpairs are known. Its properties on kernel matrices are
// tested from Python, against a whole spectrum.
#include <cmath>
#include <cstdint>
#include <vector>

#include "device/lapack.h"
#include "mercer/linalg.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// diag(1, 2, …, n), and how many columns it was multiplied with.
linalg::Operator ramp(std::int64_t n, Dtype dtype, std::int64_t* products) {
  return {n, dtype, [products](const Tensor& v, const Tensor& out) {
            *products += v.shape[1];
            each_index(v.shape, [&](const Shape& at) { write(out, at, static_cast<double>(at[0] + 1) * read(v, at)); });
          }};
}

class EighTop : public ::testing::Test {
 protected:
  void SetUp() override { MERCER_NEEDS_LAPACK(); }
};

TEST_F(EighTop, EndsOfARamp) {
  // A residual of tol bounds the error of its eigenvalue, and that of its vector by tol / gap = tol n.
  constexpr std::int64_t n = 600, k = 3;
  constexpr double kTolerance = 1e-5;
  for (const Dtype dtype : kWide)
    for (const linalg::Which which : {linalg::Which::largest, linalg::Which::smallest, linalg::Which::magnitude}) {
      std::int64_t products = 0;
      const Array w(dtype, {k}, {2}), v(dtype, {n, k}, {k + 1, 1});
      linalg::eigh_top(ramp(n, dtype, &products), w, v, {.which = which, .tolerance = kTolerance});
      const std::int64_t first = which == linalg::Which::smallest ? 0 : n - k;
      for (std::int64_t j = 0; j < k; ++j) {
        EXPECT_NEAR(w(j), static_cast<double>(first + j + 1), kTolerance * n);
        EXPECT_NEAR(std::abs(v(first + j, j)), 1, kTolerance * n);
      }
      EXPECT_LT(products, 20 * n);
    }
}

TEST_F(EighTop, SmallOperatorsAreDecomposedAsTheyAre) {
  std::int64_t products = 0;
  const Array w(Dtype::float64, {4}), v(Dtype::float64, {4, 4});
  linalg::eigh_top(ramp(4, Dtype::float64, &products), w, v);
  for (std::int64_t j = 0; j < 4; ++j) EXPECT_NEAR(w(j), static_cast<double>(j + 1), 1e-14);
  EXPECT_EQ(products, 4);
}

TEST_F(EighTop, KernelOperatorsMultiplyWithoutTheMatrix) {
  const Array x = normal(Dtype::float64, {50, 3}, 1), v = normal(Dtype::float64, {50, 2}, 2);
  Array k(Dtype::float64, {50, 50});
  const Array by_points(Dtype::float64, {50, 2});
  const Formula f("exp(-sum(square(x-z)))");
  pairwise(f, x, nullptr, k);
  for (std::int64_t i = 0; i < 50; ++i) k.set({i, i}, 1.25);
  linalg::kernel_operator(f, x, 0.25).multiply(v, by_points);
  const Array columns = copy(v, Dtype::float64, column_major({50, 2}));
  Array out(Dtype::float64, {50, 2}, column_major({50, 2}));
  linalg::matrix_operator(k).multiply(columns, out);
  for (std::int64_t i = 0; i < 50; ++i)
    for (std::int64_t j = 0; j < 2; ++j) EXPECT_NEAR(out(i, j), by_points(i, j), 1e-12);
}

TEST_F(EighTop, MissesAreCounted) {
  std::int64_t products = 0, missed = 0;
  const Array w(Dtype::float64, {2}), v(Dtype::float64, {3000, 2});
  linalg::TopOptions options{.tolerance = 1e-16, .most_basis = 20, .unconverged = &missed};
  linalg::eigh_top(ramp(3000, Dtype::float64, &products), w, v, options);
  EXPECT_GE(missed, 1);
  options.unconverged = nullptr;
  EXPECT_EQ(message_of([&] { linalg::eigh_top(ramp(3000, Dtype::float64, &products), w, v, options); }).substr(0, 50),
            "eigh_top: residuals must meet the tolerance. Recei");
}

TEST_F(EighTop, BrokenRulesAreTold) {
  std::int64_t products = 0;
  const linalg::Operator a = ramp(5, Dtype::float64, &products);
  const Array w(Dtype::float64, {2}), v(Dtype::float64, {5, 2});
  const auto row = [&](const std::string& expected, const std::function<void()>& call) {
    EXPECT_NE(message_of(call).find(expected), std::string::npos) << expected << "\n" << message_of(call);
    EXPECT_TRUE(w.untouched() && v.untouched() && products == 0);
  };
  row("eigh_top: k must be from 1 to the order of the operator (5). Received 6.",
      [&] { linalg::eigh_top(a, Array(Dtype::float64, {6}), v); });
  row("eigh_top: v must have shape (5, 2). Received (2, 5).",
      [&] { linalg::eigh_top(a, w, Array(Dtype::float64, {2, 5})); });
  row("eigh_top: w must be float64. Received float32.", [&] { linalg::eigh_top(a, Array(Dtype::float32, {2}), v); });
  row("eigh_top: tol must not be negative. Received -1.", [&] { linalg::eigh_top(a, w, v, {.tolerance = -1}); });
  row("the formula must be symmetric", [&] { linalg::kernel_operator("sum(x-z)", v); });
}

}  // namespace
}  // namespace mercer
