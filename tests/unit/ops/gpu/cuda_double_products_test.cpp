// Products of matrices in float64, on tensor cores: against sums in extended precision, of every kind of data.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/drawn_data.h"
#include "ops/expected_folds.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kL2 = "sqrt(sum((x-z)^2))";
constexpr const char* kGauss = "exp(-sum((x-z)^2)/(2*b^2))";
constexpr double kUnit = 0x1p-53;

double at(const Tensor& t, std::int64_t row, std::int64_t k) {
  return static_cast<const double*>(t.data)[row * t.strides[0] + k * t.strides[1]];
}

struct Sums {
  long double square = 0, dot = 0, of_magnitudes = 0;
};
Sums sums_of(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n) {
  Sums sums;
  for (std::int64_t k = 0; k < x.shape[1]; ++k) {
    const long double a = at(x, m, k), b = at(z, n, k);
    sums.square += (a - b) * (a - b);
    sums.dot += a * b;
    sums.of_magnitudes += std::abs(a * b);
  }
  return sums;
}

/// x · z in K roundings; a square that is kept, at least an eighth of |x|^2 + |z|^2, from three such sums and two
/// roundings of each centred value.
void expect_pairs(const Array& distances, const Array& dots, const Tensor& x, const Tensor& z,
                  const std::string& what) {
  const double features = static_cast<double>(x.shape[1]);
  for (std::int64_t i = 0; i < x.shape[0]; i += 3)
    for (std::int64_t j = i % 5; j < z.shape[0]; j += 5) {
      const Sums wanted = sums_of(x, z, i, j);
      const double distance = static_cast<double>(std::sqrt(wanted.square));
      // Squares below the smallest normal number have steps.
      if (wanted.square < 1e308L && (wanted.square == 0 || wanted.square > 1e-290L))
        ASSERT_NEAR(distances(i, j), distance, (8 * features + 20) * kUnit * distance) << what << " " << i << "," << j;
      if (wanted.of_magnitudes < 1e308L)
        ASSERT_NEAR(dots(i, j), static_cast<double>(wanted.dot),
                    static_cast<double>(features * kUnit * wanted.of_magnitudes + 1e-300L))
            << what << " " << i << "," << j;
    }
}

void add_near_neighbours(PointPair& points) {
  const Tensor x = points.x, z = points.z;
  for (std::int64_t n = 0; n < z.shape[0]; n += 7)
    for (std::int64_t k = 0; k < z.shape[1]; ++k)
      points.z.set({n, k}, at(x, n % x.shape[0], k) * (n % 2 == 0 ? 1 : 1 + 1e-9 * static_cast<double>(k % 3)));
}

PointPair drawn_pair(std::int64_t m, std::int64_t n, std::int64_t k, const Draw& draw) {
  return {drawn(m, k, 1, draw, Dtype::float64), drawn(n, k, 2, draw, Dtype::float64)};
}

TEST(DoubleProducts, EveryKindOfData) {
  constexpr std::array<std::int64_t, 3> kShapes[] = {{300, 333, 40}, {129, 70, 32}, {64, 64, 300}, {700, 643, 1025}};
  std::vector<Kind> all = kinds();
  all.push_back({"far", [](double g, double, auto, auto) { return 1e9 + g; }});
  all.push_back({"far beyond float32", [](double g, double, auto, auto) { return g * 1e120; }});
  all.push_back({"far below float32", [](double g, double, auto, auto) { return g * 1e-120; }});
  on_tensor_cores([&](TestContext& context) {
    for (const Kind& kind : all)
      for (auto [m, n, k] : kShapes) {
        PointPair points = drawn_pair(m, n, k, kind.draw);
        add_near_neighbours(points);
        Array distances(Dtype::float64, {m, n}), again(Dtype::float64, {m, n}), dots(Dtype::float64, {m, n});
        const Tensor z = points.z;
        pairwise(kL2, points.x, &z, distances, {}, context);
        pairwise("sum(x*z)", points.x, &z, dots, {}, context);
        expect_pairs(distances, dots, points.x, z, kind.name + (" of " + std::to_string(k)));
        pairwise(kL2, points.x, &z, again, {}, context);
        EXPECT_TRUE(same_bits(distances, again)) << kind.name;
        for (std::int64_t j = 0; j < n; j += 14) ASSERT_EQ(distances(j % m, j), 0) << kind.name;
        if (::testing::Test::HasFailure()) return;
      }
  });
}

/// Few pairs are computed again where they stand, most of them by the direct tile.
TEST(DoubleProducts, CancellingPairs) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 200, kN = 300, kK = 50;
    for (std::int64_t clusters : {1, 3, 50}) {
      const Array centres = drawn(clusters, kK, 9, kinds()[0].draw, Dtype::float64);
      PointPair points = drawn_pair(kM, kN, kK, kinds()[0].draw);
      for (Array* side : {&points.x, &points.z})
        for (std::int64_t m = 0; m < side->shape()[0]; ++m)
          for (std::int64_t k = 0; k < kK; ++k)
            side->set({m, k}, centres(m % clusters, k) + 1e-7 * (*side)(m, k));
      Array distances(Dtype::float64, {kM, kN}), dots(Dtype::float64, {kM, kN});
      const Tensor z = points.z;
      pairwise(kL2, points.x, &z, distances, {}, context);
      pairwise("sum(x*z)", points.x, &z, dots, {}, context);
      expect_pairs(distances, dots, points.x, z, std::to_string(clusters) + " clusters");
    }
  });
}

TEST(DoubleProducts, OutliersAndSpecialValues) {
  on_tensor_cores([](TestContext& context) {
    for (double special : {1e6, 1.05e154, 1e200, kNan, kInf, -kInf}) {
      PointPair points = drawn_pair(70, 90, 33, kUniform);
      points.x.set({17, 3}, special);
      points.z.set({18, 3}, special);
      const Tensor z = points.z;
      for (const char* f : {"sum((x-z)^2)", "sum(x*z)"}) {
        Array out(Dtype::float64, {70, 90});
        pairwise(f, points.x, &z, out, {}, context);
        for (std::int64_t i = 0; i < 70; ++i)
          for (std::int64_t j = 0; j < 90; ++j) {
            const Sums sums = sums_of(points.x, z, i, j);
            const bool squares = f[4] == '(';
            const auto wanted = static_cast<double>(squares ? sums.square : sums.dot);
            const auto size = static_cast<double>(squares ? sums.square : sums.of_magnitudes);
            const double bound = std::isfinite(wanted) ? 600 * kUnit * size : 0;
            ASSERT_TRUE(within(out(i, j), wanted, bound, Dtype::float64))
                << f << " with " << special << " at " << i << "," << j << ": " << out(i, j) << " for " << wanted;
          }
      }
    }
  });
}

TEST(DoubleProducts, SymmetricHalves) {
  on_tensor_cores([](TestContext& context) {
    for (std::int64_t m : {65, 200}) {
      Array x = drawn(m, 70, 1, kUniform, Dtype::float64);
      for (std::int64_t k = 0; k < 70; ++k) x.set({m - 1, k}, x(3, k));
      Array out(Dtype::float64, {m, m}), dots(Dtype::float64, {m, m});
      pairwise(kL2, x, nullptr, out, {}, context);
      pairwise("sum(x*z)", x, nullptr, dots, {}, context);
      expect_pairs(out, dots, x, x, "symmetric");
      EXPECT_EQ(out(m - 1, 3), 0);
      for (std::int64_t i = 0; i < m; ++i) {
        ASSERT_EQ(out(i, i), 0);
        for (std::int64_t j = 0; j < i; ++j) {
          ASSERT_EQ(out(i, j), out(j, i)) << i << "," << j;
          ASSERT_EQ(dots(i, j), dots(j, i)) << i << "," << j;
        }
      }
    }
  });
}

/// Weights, pair values, parameters of a batch, offsets, strides and 16-bit outputs pass through.
TEST(DoubleProducts, EpiloguesBatchesAndLayouts) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 90, kN = 140, kK = 45;
    const Array x = uniform(Dtype::float64, {2, kM, kK}, 1, 0.1, 1.1, {kK * kM, 1, kM});
    const Array z = uniform(Dtype::float64, {kN, kK}, 2, 0.1, 1.1, {kK + 3, 1});
    const Array w = uniform(Dtype::float64, {kK}, 3), row = uniform(Dtype::float64, {kM}, 4),
                b = filled(Dtype::float64, {3, 1}, {0.5, 1, 2});
    const Tensor zt = z;
    Arguments arguments;
    arguments.params["b"] = b.tensor();
    arguments.w = w.tensor();
    arguments.row = row.tensor();
    arguments.j_offset = 7;
    for (const char* f : {"exp(-3*sum(w*(x-z)^2)/b)*row + j", "(sum(w*x*z)/b + 1)^2 - row"}) {
      const Array out(Dtype::float64, {3, 2, kM, kN}, {2 * kM * kN + 1, kM * kN, 1, kM});
      pairwise(f, x, &zt, out, arguments, context);
      for (std::int64_t p = 0; p < 3; ++p)
        for (std::int64_t i = 0; i < 2; ++i) {
          Extra extra{{{"b", b(p, 0)}}, {}, {}, {}, 0, 7};
          for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
          for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(row(m));
          Reference reference(parse(f), item(x, {i}), z, extra);
          for (std::int64_t m = 0; m < kM; m += 4)
            for (std::int64_t n = 0; n < kN; n += 3)
              ASSERT_NEAR(out(p, i, m, n), reference(m, n), 1e-13 * (1 + std::abs(reference(m, n)))) << f;
        }
    }
  });
}

TEST(DoubleProducts, ProductsAndFolds) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, clusters] : {std::array<std::int64_t, 3>{150, 700, 0}, {64, 1500, 0}, {130, 260, 1}})
      for (std::int64_t columns : {1, 3, 20}) {
        PointPair points = drawn_pair(m, n, 40, kUniform);
        if (clusters > 0)
          for (Array* side : {&points.x, &points.z})
            for (std::int64_t i = 0; i < side->shape()[0]; ++i)
              for (std::int64_t k = 0; k < 40; ++k) side->set({i, k}, 1e3 + (*side)(i, k));
        add_near_neighbours(points);
        const Array v = normal(Dtype::float64, {n, columns}, 5);
        const Tensor z = points.z;
        Arguments arguments;
        arguments.params["b"] = 1.5;
        Array out(Dtype::float64, {m, columns});
        kernel_product(kGauss, points.x, &z, v, out, arguments, context);
        const Array least(Dtype::int64, {m});
        kernel_reduce(kL2, points.x, &z, ReduceKind::argmax, least, {}, context);
        for (std::int64_t i = 0; i < m; i += 3) {
          std::vector<long double> sums(static_cast<std::size_t>(columns)), sizes(sums);
          long double farthest = -1;
          for (std::int64_t j = 0; j < n; ++j) {
            const long double square = sums_of(points.x, z, i, j).square, value = std::exp(-square / (2 * 1.5 * 1.5));
            farthest = std::max(farthest, square);
            for (std::int64_t e = 0; e < columns; ++e) {
              sums[static_cast<std::size_t>(e)] += value * v(j, e);
              sizes[static_cast<std::size_t>(e)] += std::abs(value * v(j, e));
            }
          }
          // Squares of at most 40 err by 16 (K + 2) units of themselves, and exp of them by as many of 9.
          for (std::int64_t e = 0; e < columns; ++e)
            ASSERT_NEAR(out(i, e), static_cast<double>(sums[static_cast<std::size_t>(e)]),
                        static_cast<double>((16 * 42 * 9 + n) * kUnit * sizes[static_cast<std::size_t>(e)]))
                << i << "," << e;
          const auto found = static_cast<std::int64_t>(least(i));
          ASSERT_NEAR(static_cast<double>(sums_of(points.x, z, i, found).square), static_cast<double>(farthest), 1e-12);
        }
      }
  });
}

/// Gradients take values of the pairs, some rows at a time.
TEST(DoubleProducts, ValuesOfGradientsAndNeighbours) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().part_bytes = 200 * 1024;
    PointPair points = drawn_pair(300, 200, 36, kUniform);
    add_near_neighbours(points);
    const Tensor z = points.z;
    const Array values(Dtype::float64, {300, 5}), indices(Dtype::int64, {300, 5});
    knn(kL2, points.x, &z, 5, values, indices, {}, context);
    for (std::int64_t i = 0; i < 300; i += 7) {
      std::vector<double> all;
      for (std::int64_t j = 0; j < 200; ++j)
        all.push_back(static_cast<double>(std::sqrt(sums_of(points.x, z, i, j).square)));
      std::sort(all.begin(), all.end());
      for (std::int64_t e = 0; e < 5; ++e)
        ASSERT_NEAR(values(i, e), all[static_cast<std::size_t>(e)], 300 * kUnit * all[static_cast<std::size_t>(e)]);
    }
    const Array coef = normal(Dtype::float64, {1, 200}, 5), out(Dtype::float64, {1, 300, 36});
    Arguments arguments;
    arguments.params["b"] = 1.5;
    kernel_gradient(kGauss, points.x, &z, coef, out, arguments, context);
    for (std::int64_t i = 0; i < 300; i += 11)
      for (std::int64_t k = 0; k < 36; k += 5) {
        long double sum = 0, size = 0;
        for (std::int64_t j = 0; j < 200; ++j) {
          const long double value = std::exp(-sums_of(points.x, z, i, j).square / 4.5L) *
                                    (at(points.x, i, k) - at(z, j, k)) / -2.25L * coef(0, j);
          sum += value;
          size += std::abs(value);
        }
        ASSERT_NEAR(out(0, i, k), static_cast<double>(sum), static_cast<double>(6000 * kUnit * size)) << i << "," << k;
      }
  });
}

}  // namespace
}  // namespace mercer
