// Distances whose sums of powers leave the range of normal numbers before they do: points of all sizes in one call.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/emulated.h"
#include "ops/context.h"
#include "ops/drawn_data.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// Points of one size after the other. Some are twice there, some are close to another.
Array points_of_sizes(std::int64_t count, std::int64_t features, unsigned seed, Dtype type) {
  const std::vector<double> sizes = type == Dtype::float64
                                        ? std::vector<double>{1e-250, 1e-30, 1, 1e40, 1e250}
                                        : std::vector<double>{1e-30, 3e-20, 1e-6, 1, 2e4, 1e18, 1e30};
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Array points(type, {count, features});
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t k = 0; k < features; ++k)
      points.set({i, k}, normal(random) * sizes[static_cast<std::size_t>(i) % sizes.size()]);
  for (std::int64_t i = 20; i < count; i += 11)
    for (std::int64_t k = 0; k < features; ++k)
      points.set({i, k}, points(i - 20, k) * (i % 2 == 0 ? 1 : 1 + 1e-4 * normal(random)));
  return points;
}

struct Norm {
  double p;
  std::string text() const {
    return p == 2 ? "sqrt(sum((x-z)^2))" : "sum(abs(x-z)^" + std::to_string(p) + ")^(1/" + std::to_string(p) + ")";
  }
  double bound(Dtype type) const {
    if (type == Dtype::float64) return 2e-13;
    // Fractional powers have the errors of logarithms, a unit of the last place of numbers up to 32.
    return p == std::floor(p) ? 1e-6 : p < 1 ? 1e-6 * (1 + 1 / p) : 2e-6;
  }
};

double value_at(const Tensor& t, std::int64_t i, std::int64_t k) {
  const std::int64_t place = i * t.strides[0] + k * t.strides[1];
  if (t.dtype == Dtype::float64) return static_cast<const double*>(t.data)[place];
  return static_cast<const float*>(t.data)[place];
}
double distance(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n, double p) {
  std::vector<long double> gaps;
  for (std::int64_t k = 0; k < x.shape[1]; ++k)
    gaps.push_back(std::abs(static_cast<long double>(value_at(x, m, k)) - value_at(z, n, k)));
  const long double most = *std::max_element(gaps.begin(), gaps.end());
  long double sum = 0;
  for (const long double gap : gaps) sum += std::pow(gap / most, static_cast<long double>(p));
  return most == 0 ? 0 : static_cast<double>(most * std::pow(sum, 1 / static_cast<long double>(p)));
}

void expect_distance(double value, const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n, const Norm& norm,
                     const std::string& what) {
  const double wanted = distance(x, z, m, n, norm.p);
  ASSERT_LE(std::abs(value - wanted), norm.bound(x.dtype) * wanted)
      << what << ", p = " << norm.p << " at " << m << "," << n << ": " << value << " for " << wanted;
}

void expect_distances(const Array& out, const Tensor& x, const Tensor& z, const Norm& norm, const std::string& what) {
  for (std::int64_t m = 0; m < x.shape[0]; ++m)
    for (std::int64_t n = 0; n < z.shape[0]; ++n) {
      expect_distance(out(m, n), x, z, m, n, norm, what);
      if (::testing::Test::HasFatalFailure()) return;
    }
}

constexpr Norm kNorms[] = {{2}, {10}, {1.3}, {20}, {3}, {0.5}};

void expect_pairwise(const Norm& norm, std::int64_t m, std::int64_t n, std::int64_t k, Dtype type,
                     TestContext& context) {
  const Array x = points_of_sizes(m, k, 1, type), z = points_of_sizes(n, k, 2, type);
  const std::string what = std::to_string(k) + " features, " + std::string(name_of(type));
  const Tensor other = z;
  Array out(type, {m, n}), square(type, {m, m});
  pairwise(norm.text().c_str(), x, &other, out, {}, context);
  expect_distances(out, x, z, norm, what);
  pairwise(norm.text().c_str(), x, nullptr, square, {}, context);
  expect_distances(square, x, x, norm, what + ", symmetric");
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < i; ++j) ASSERT_EQ(square(i, j), square(j, i)) << what << " at " << i << "," << j;
}

TEST(CudaRange, StoredDistances) {
  on_cuda([](TestContext& context) {
    Turns turns(7);
    for (const Norm& norm : kNorms)
      for (Dtype type : {Dtype::float32, Dtype::float64})
        for (auto [m, n, k] : {std::array{90, 133, 5}, {70, 45, 39}, {40, 50, 270}}) {
          if (turns.leaves_out()) continue;
          expect_pairwise(norm, m, n, k, type, context);
          if (::testing::Test::HasFailure()) return;
        }
  });
}

/// Each reduction beside the norm has states of its own, which lanes merge where they share the features of a pair.
void expect_other_reductions(Dtype type, double h, double bound, TestContext& context) {
  constexpr std::int64_t m = 5, n = 3, features = 33;
  Array x(type, {m, features}), z(type, {n, features}), out(type, {m, n});
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (std::int64_t k = 0; k < features; ++k) {
    for (std::int64_t i = 0; i < m; ++i) x.set({i, k}, h * normal(random));
    for (std::int64_t j = 0; j < n; ++j) z.set({j, k}, j == 0 ? x(0, k) : h * normal(random));
  }
  const Tensor other = z;
  Arguments arguments;
  arguments.params["h"] = h;
  pairwise("sqrt(sum((x-z)^2))/h + max(abs(x+z)/h) + sum(abs(x+z)/h) + sum(z/h*sum(z/h)*x/h)", x, &other, out,
           arguments, context);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double squares = 0, most = 0, sum = 0, products = 0, own = 0, sizes = 0;
      for (std::int64_t k = 0; k < features; ++k) {
        const double a = x(i, k) / h, b = z(j, k) / h;
        squares += (a - b) * (a - b);
        most = std::max(most, std::abs(a + b));
        sum += std::abs(a + b);
        products += a * b;
        sizes += std::abs(a * b);
        own += b;
      }
      const double wanted = std::sqrt(squares) + most + sum + own * products;
      EXPECT_NEAR(out(i, j), wanted, bound * (std::sqrt(squares) + most + sum + features * sizes)) << i << "," << j;
    }
}

TEST(CudaRange, NormsBesideOtherReductions) {
  on_cuda([](TestContext& context) {
    // 33 terms and h as the type has it, 2^-24 and 2^-53 each.
    expect_other_reductions(Dtype::float32, 1e-25, 2e-6, context);
    expect_other_reductions(Dtype::float64, 1e-170, 4e-15, context);
  });
}

TEST(CudaRange, StoredOnTensorCores) {
  on_tensor_cores([](TestContext& context) {
    for (Dtype type : {Dtype::float32, Dtype::float64}) expect_pairwise({2}, 90, 133, 70, type, context);
  });
}

TEST(CudaRange, StoredDifferencesOfTensorCores) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().much_mixed_work = 0;
    context.state().own_costs().fills_waves_always = true;
    Turns turns(2);
    for (const Norm& norm : {Norm{3}, {2}})
      if (!turns.leaves_out()) expect_pairwise(norm, 90, 133, 161, Dtype::float32, context);
  });
}

/// Columns of v choose one point each: an infinite value of another would show.
void expect_products(const Norm& norm, const Array& x, const Array& z, std::int64_t columns, const std::string& what,
                     TestContext& context) {
  const std::int64_t m = x.tensor().shape[0], n = z.tensor().shape[0];
  const Dtype type = x.tensor().dtype;
  const Tensor other = z;
  Array v(type, {n, columns}), out(type, {m, columns});
  v.fill([] { return 0; });
  for (std::int64_t e = 0; e < columns; ++e) v.set({e * 37 % n, e}, 1);
  kernel_product(norm.text().c_str(), x, &other, v, out, {}, context);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t e = 0; e < columns; ++e) {
      expect_distance(out(i, e), x, z, i, e * 37 % n, norm, what + ", product");
      if (::testing::Test::HasFatalFailure()) return;
    }
}

struct Folds {
  std::vector<std::int64_t> columns = {1, 5};  // of products
  bool has_maximum = true;                     // beside the nearest
};

void expect_folds(const Norm& norm, std::int64_t k, Dtype type, TestContext& context, const Folds& folds = {}) {
  const std::int64_t m = 75, n = 140, count = 3;
  const Array x = points_of_sizes(m, k, 1, type), z = points_of_sizes(n, k, 1, type);
  const std::string what = std::to_string(k) + " features, " + std::string(name_of(type));
  const Tensor other = z;
  for (std::int64_t columns : folds.columns) expect_products(norm, x, z, columns, what, context);
  Array most(type, {m}), values(type, {m, count}), indices(Dtype::int64, {m, count});
  if (folds.has_maximum) kernel_reduce(norm.text().c_str(), x, &other, ReduceKind::max, most, {}, context);
  knn(norm.text().c_str(), x, &other, count, values, indices, {}, context);
  for (std::int64_t i = 0; i < m; ++i) {
    std::vector<double> row;
    for (std::int64_t j = 0; j < n; ++j) row.push_back(distance(x, z, i, j, norm.p));
    std::sort(row.begin(), row.end());
    if (folds.has_maximum)
      ASSERT_NEAR(most(i), row.back(), norm.bound(type) * row.back()) << what << ", row " << i;
    for (std::int64_t c = 0; c < count; ++c)
      ASSERT_LE(std::abs(values(i, c) - row[c]), 2 * norm.bound(type) * row[c])
          << what << ", p = " << norm.p << ", row " << i << ": " << values(i, c) << " for " << row[c];
  }
}

/// One norm with all types and features; the others, which differ in their powers and roots, once, with the verbs that
/// take values and those that take sums in their place. A kernel takes seconds to compile.
TEST(CudaRange, Folds) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().candidates_from = 0;
    Turns turns(2);
    const auto expect = [&](const Norm& norm, std::int64_t k, Dtype type, const Folds& folds) {
      if (!turns.leaves_out() && !::testing::Test::HasFailure()) expect_folds(norm, k, type, context, folds);
    };
    for (Dtype type : {Dtype::float32, Dtype::float64})
      for (std::int64_t k : {4, 40}) expect({2}, k, type, {.has_maximum = k == 4});
    expect({10}, 40, Dtype::float32, {{5}, false});
    expect({1.3}, 4, Dtype::float32, {{5}, false});
    expect({20}, 40, Dtype::float64, {{5}, false});
    expect({3}, 4, Dtype::float64, {{1}, false});
    expect({0.5}, 40, Dtype::float32, {{5}, false});
  });
}

/// The sum over n of coef[n] (x - z) / |x - z|: unit vectors, whatever the distances.
void expect_gradients(std::int64_t k, Dtype type, TestContext& context) {
  const std::int64_t m = 70, n = 90;
  const Array x = points_of_sizes(m, k, 1, type), z = points_of_sizes(n, k, 2, type);
  const Tensor other = z, here = x;
  Array coef(type, {n}), out(type, {m, k});
  double size = 0;
  for (std::int64_t j = 0; j < n; ++j) coef.set({j}, 1 + static_cast<double>(j % 7)), size += coef(j);
  kernel_gradient("sqrt(sum((x-z)^2))", x, &other, coef, out, {}, context);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t f = 0; f < k; ++f) {
      double wanted = 0;
      for (std::int64_t j = 0; j < n; ++j)
        if (const double d = distance(here, other, i, j, 2); d > 0) wanted += coef(j) * ((x(i, f) - z(j, f)) / d);
      ASSERT_NEAR(out(i, f), wanted, (type == Dtype::float64 ? 1e-13 : 1e-6) * size) << k << " features at " << i;
    }
}

TEST(CudaRange, Gradients) {
  on_cuda([](TestContext& context) {
    Turns turns(3);
    for (Dtype type : {Dtype::float32, Dtype::float64})
      for (std::int64_t k : {3, 40})
        if (!turns.leaves_out()) expect_gradients(k, type, context);
  });
}

TEST(CudaRange, FoldsOnTensorCores) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().candidates_from = 0;
    Turns turns(2);
    for (Dtype type : {Dtype::float32, Dtype::float64})
      if (!turns.leaves_out()) expect_folds({2}, 70, type, context);
  });
}

}  // namespace
}  // namespace mercer
