// Distances whose sums of powers leave the range of normal numbers before they do: points of all sizes in one call.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

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

/// One norm of all sizes; the others, which differ in their powers and roots, of one each. A kernel takes seconds to
/// compile.
TEST(CudaRange, StoredDistances) {
  on_cuda([](TestContext& context) {
    constexpr std::array<std::int64_t, 3> kSizes[] = {{90, 133, 5}, {70, 45, 39}, {40, 50, 270}};
    constexpr std::size_t kCount = std::size(kSizes);
    Turns turns(4);
    std::size_t next = 0;
    for (const Norm& norm : kNorms)
      for (Dtype type : {Dtype::float32, Dtype::float64}) {
        const std::size_t own = next++ % kCount;
        for (std::size_t s = 0; s < kCount; ++s) {
          if ((norm.p != 2 && s != own) || turns.leaves_out()) continue;
          const auto [m, n, k] = kSizes[s];
          expect_pairwise(norm, m, n, k, type, context);
          if (::testing::Test::HasFailure()) return;
        }
      }
  });
}

/// Each reduction next to the norm has states of its own, which lanes merge where they share the features of a pair.
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

TEST(CudaRange, NormsAndOtherReductions) {
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
    context.state().own_costs().differences = context.state().own_costs().everywhere().differences;
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
  bool maximum = true, nearest = true;
};

void expect_folds(const Norm& norm, std::int64_t k, Dtype type, TestContext& context, const Folds& folds = {}) {
  const std::int64_t m = 75, n = 140, count = 3;
  const Array x = points_of_sizes(m, k, 1, type), z = points_of_sizes(n, k, 1, type);
  const std::string what = std::to_string(k) + " features, " + std::string(name_of(type));
  const Tensor other = z;
  for (std::int64_t columns : folds.columns) expect_products(norm, x, z, columns, what, context);
  Array most(type, {m}), values(type, {m, count}), indices(Dtype::int64, {m, count});
  if (folds.maximum) kernel_reduce(norm.text().c_str(), x, &other, ReduceKind::max, most, {}, context);
  if (folds.nearest) knn(norm.text().c_str(), x, &other, count, values, indices, {}, context);
  for (std::int64_t i = 0; i < m; ++i) {
    std::vector<double> row;
    for (std::int64_t j = 0; j < n; ++j) row.push_back(distance(x, z, i, j, norm.p));
    std::sort(row.begin(), row.end());
    if (folds.maximum) {
      ASSERT_NEAR(most(i), row.back(), norm.bound(type) * row.back()) << what << ", row " << i;
    }
    for (std::int64_t c = 0; folds.nearest && c < count; ++c)
      ASSERT_LE(std::abs(values(i, c) - row[c]), 2 * norm.bound(type) * row[c])
          << what << ", p = " << norm.p << ", row " << i << ": " << values(i, c) << " for " << row[c];
  }
}

/// Each verb in both types, with few features or with many; norms, which differ in their powers and roots, with one
/// verb each. Norms of p < 1 have no other way to values of pairs. A kernel takes seconds to compile.
TEST(CudaRange, Folds) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().candidates_from = 0;
    struct Case {
      Norm norm;
      std::int64_t features;
      Dtype type;
      Folds folds;
    };
    constexpr Dtype kSingle = Dtype::float32, kDouble = Dtype::float64;
    const Case cases[] = {{{2}, 4, kSingle, {{1}, false, true}},  {{10}, 40, kSingle, {{5}, false, false}},
                          {{20}, 40, kDouble, {{}, true, false}}, {{1.3}, 4, kSingle, {{}, true, false}},
                          {{3}, 4, kDouble, {{5}, false, false}}, {{2}, 40, kDouble, {{}, false, true}}};
    Turns turns(2);
    for (const Case& own : cases)
      if (!turns.leaves_out() && !::testing::Test::HasFailure())
        expect_folds(own.norm, own.features, own.type, context, own.folds);
  });
}

/// What a derivative by x[m][f] is made of: t in units of the distance. Neither a power of t nor one of the distance
/// need be a number of the type.
double gap_of_feature(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n, std::int64_t f, double p) {
  const long double d = distance(x, z, m, n, p), t = static_cast<long double>(value_at(x, m, f)) - value_at(z, n, f);
  return d > 0 ? static_cast<double>(t / d) : 0;
}
double derivative(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n, std::int64_t f, double p) {
  const double gap = gap_of_feature(x, z, m, n, f, p);
  return std::copysign(std::pow(std::abs(gap), p - 1), gap);
}

Array weights_of(Dtype type, Shape shape) {
  int at = 0;
  return Array(type, shape).fill([&] { return 1 + at++ % 7; });
}

/// out[o][i][f] is the sum over j of weight(o, i, j) times the derivative.
template <class Weight>
void expect_gradient(const Array& out, const Tensor& x, const Tensor& z, const Norm& norm, const Weight& weight,
                     const std::string& what) {
  const std::int64_t features = x.shape[1];
  for (std::int64_t o = 0; o < out.shape()[0]; ++o)
    for (std::int64_t i = 0; i < x.shape[0]; ++i)
      for (std::int64_t f = 0; f < features; ++f) {
        double wanted = 0, size = 0;
        for (std::int64_t j = 0; j < z.shape[0]; ++j) {
          wanted += weight(o, i, j) * derivative(x, z, i, j, f, norm.p);
          size += weight(o, i, j);
        }
        ASSERT_NEAR(out(o, i, f), wanted, norm.bound(x.dtype) * size)
            << what << ", p = " << norm.p << ", " << features << " features at " << o << "," << i << "," << f;
      }
}

void expect_gradients(const Norm& norm, std::int64_t k, std::int64_t outputs, Dtype type, TestContext& context) {
  const std::int64_t m = is_emulated() ? 35 : 70, n = is_emulated() ? 70 : 90;
  const Array x = points_of_sizes(m, k, 1, type), z = points_of_sizes(n, k, 2, type);
  const Tensor other = z;
  const Array coef = weights_of(type, {outputs, n}), out(type, {outputs, m, k});
  kernel_gradient(norm.text().c_str(), x, &other, coef, out, {}, context);
  expect_gradient(out, x, z, norm, [&](auto o, auto, auto j) { return coef(o, j); }, std::string(name_of(type)));
}

TEST(CudaRange, Gradients) {
  on_cuda([](TestContext& context) {
    Turns turns(3);
    for (const Norm& norm : {Norm{3}, {2}, {10}, {1.3}})
      for (Dtype type : {Dtype::float32, Dtype::float64})
        for (std::int64_t k : {3, 20}) {
          // Types and features differ in code; norms in their powers.
          if (norm.p != 3 && (type == Dtype::float32) != (k == 20)) continue;
          if (turns.leaves_out()) continue;
          expect_gradients(norm, k, 2, type, context);
          if (::testing::Test::HasFailure()) return;
        }
  });
}

/// Products with the powers of the differences leave rows with pairs out of range to multiply-adds.
TEST(CudaRange, GradientsOnTensorCores) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().tensor_cores_from = 0;
    expect_gradients({3}, 20, 3, Dtype::float32, context);
  });
}

/// A field of the caller's, whose sum is a value of the pair, as the amplitude is.
TEST(CudaRange, Fields) {
  on_cuda([](TestContext& context) {
    for (Dtype type : {Dtype::float32, Dtype::float64}) {
      const Array x = points_of_sizes(35, 18, 1, type), z = points_of_sizes(40, 18, 2, type);
      const Array amplitude = weights_of(type, {35, 40}), coef = weights_of(type, {2, 40}), out(type, {2, 35, 18});
      const Expr phi = parse("sum(sign(x-z)*(x-z)^2*sum(abs(x-z)^3)^(-2/3))")->args[0];
      gradient_field(phi, x, z, amplitude, coef, out, {}, context);
      expect_gradient(out, x, z, {3}, [&](auto o, auto i, auto j) { return coef(o, j) * amplitude(i, j); },
                      std::string(name_of(type)));
    }
  });
}

/// One pass for both derivatives, by points and by the weights of the features, of the logarithm of a sum.
TEST(CudaRange, Backwards) {
  on_cuda([](TestContext& context) {
    Turns turns(3);
    for (Dtype type : {Dtype::float32, Dtype::float64})
      for (std::int64_t k : {3, 20}) {
        if (turns.leaves_out()) continue;
        const std::int64_t m = 35, n = 70;
        const Array x = points_of_sizes(m, k, 1, type), z = points_of_sizes(n, k, 2, type);
        const Array u = weights_of(type, {m, 2}), v = weights_of(type, {n, 2}), out(type, {1, m, k}),
                    by_weights(type, {k, m}), ones = filled(type, {k}, std::vector<double>(k, 1));
        Tensor own = out, by_w = by_weights;
        const Tensor other = z, w = ones;
        own.shape.erase(own.shape.begin());
        own.strides.erase(own.strides.begin());
        const auto weight = [&](auto, auto i, auto j) { return u(i, 0) * v(j, 0) + u(i, 1) * v(j, 1); };
        product_gradient("sum(abs(x-z)^3)^(1/3)", x, &other, u, v, own, {}, context);
        expect_gradient(out, x, z, {3}, weight, std::string(name_of(type)));
        Arguments arguments;
        arguments.w = w;
        ExtraOutputs extra_outputs;
        extra_outputs.by_weights = &by_w;
        ASSERT_TRUE(
            product_backward("log(sum(w*abs(x-z)^3))", x, &other, u, v, own, extra_outputs, arguments, context));
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t f = 0; f < k; ++f) {
            double by_point = 0, size = 0, by_weight = 0, sum = 0;
            for (std::int64_t j = 0; j < n; ++j) {
              const double d = distance(x, z, i, j, 3), gap = gap_of_feature(x, z, i, j, f, 3), c = weight(0, i, j);
              if (d == 0) continue;
              by_point += c * 3 * gap * std::abs(gap) / d;
              by_weight += c * std::pow(std::abs(gap), 3);
              size += c * 3 / d;
              sum += c;
            }
            const double bound = type == Dtype::float64 ? 1e-13 : 2e-6;
            ASSERT_NEAR(out(0, i, f), by_point, bound * size) << name_of(type) << ", " << k << " features at " << i;
            ASSERT_NEAR(by_weights(f, i), by_weight, bound * sum) << name_of(type) << ", " << k << " features at " << i;
          }
      }
  });
}

/// Sums that were made again since the last call; on a GPU, where nobody counts, none.
std::optional<std::uint64_t> sums_again() {
  void* const driver = is_emulated() ? ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (driver == nullptr) return {};
  const auto events = reinterpret_cast<unsigned long long (*)()>(::dlsym(driver, "emulator_events"));
  ::dlclose(driver);
  return events();
}

/// Points of one size with one pair, the last points of both sides, so close that its sum is no number.
struct ClosePair {
  std::int64_t m = 33, n = 300, features;
  Array x, z;
  ClosePair(std::int64_t k, Dtype type) : features(k), x(type, {m, k}), z(type, {n, k}) {
    std::mt19937 random(3);
    std::normal_distribution<double> normal;
    for (Array* points : {&x, &z}) points->fill([&] { return normal(random); });
    const double size = type == Dtype::float64 ? 1e-200 : 1e-25;
    for (std::int64_t f = 0; f < k; ++f) x.set({m - 1, f}, 0), z.set({n - 1, f}, size * (1 + static_cast<double>(f)));
  }
};

/// What is no number for the data's sake costs nothing: sums are made again of the row with such a pair alone.
void expect_few_again(std::int64_t k, Dtype type, double value, bool of_z, TestContext& context) {
  const std::int64_t outputs = 2, ill = 5;
  ClosePair points(k, type);
  (of_z ? points.z : points.x).set({ill, k - 1}, value);
  const Tensor other = points.z;
  const Array coef = weights_of(type, {outputs, points.n}), out(type, {outputs, points.m, k});
  sums_again();
  kernel_gradient(Norm{3}.text().c_str(), points.x, &other, coef, out, {}, context);
  const std::string what = std::to_string(k) + " features, " + std::string(name_of(type));
  if (const auto again = sums_again()) EXPECT_EQ(*again, static_cast<std::uint64_t>(outputs * k)) << what;
  for (std::int64_t o = 0; o < outputs; ++o)
    for (std::int64_t i = 0; i < points.m; ++i) {
      if (of_z || i == ill) {
        EXPECT_TRUE(std::isnan(out(o, i, k - 1))) << what << " at " << o << "," << i;
        continue;
      }
      for (std::int64_t f = 0; f < k; ++f) {
        double wanted = 0, size = 0;
        for (std::int64_t j = 0; j < points.n; ++j) {
          wanted += coef(o, j) * derivative(points.x, other, i, j, f, 3);
          size += coef(o, j);
        }
        ASSERT_NEAR(out(o, i, f), wanted, Norm{3}.bound(type) * size) << what << " at " << o << "," << i << "," << f;
      }
    }
}

TEST(CudaRange, ValuesOfTheDataAreNotLookedFor) {
  on_cuda([](TestContext& context) {
    Turns turns(2);
    for (std::int64_t k : {3, 20})
      for (Dtype type : {Dtype::float32, Dtype::float64}) {
        if (turns.leaves_out()) continue;
        for (double value : {std::nan(""), HUGE_VAL})
          for (bool of_z : {false, true}) expect_few_again(k, type, value, of_z, context);
      }
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
