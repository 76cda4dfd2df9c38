// Sums that are products of matrices, on tensor cores in split precision: every kind of data keeps the contract,
// whether it is carried by pieces or not, cancels or not. Small problems take the path too where a test asks for it.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/emulated.h"
#include "mercer/pairwise.h"
#include "ops/device_arrays.h"
#include "ops/drawn_data.h"
#include "ops/testing.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/plan.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kL2 = "sum((x-z)^2)^0.5";
constexpr const char* kSquare = "sum((x-z)^2)";
constexpr const char* kGauss = "exp(-sum((x-z)^2)/(2*b^2))";

double value_at(const Tensor& t, std::int64_t row, std::int64_t k) {
  return static_cast<const float*>(t.data)[row * t.strides[0] + k * t.strides[1]];
}

double square_distance(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n) {
  double sum = 0;
  for (std::int64_t k = 0; k < x.shape[1]; ++k) {
    const double d = value_at(x, m, k) - value_at(z, n, k);
    sum += d * d;
  }
  return sum;
}

double dot(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n) {
  double sum = 0;
  for (std::int64_t k = 0; k < x.shape[1]; ++k) sum += value_at(x, m, k) * value_at(z, n, k);
  return sum;
}

using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
Pairs pairs_of(std::int64_t m, std::int64_t n, int sampled) {
  std::mt19937_64 random(3);
  Pairs pairs;
  for (std::int64_t j = 0; j < n; j += 7) pairs.emplace_back(j % m, j);
  for (int i = 0; i < sampled; ++i)
    pairs.emplace_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(m)),
                       static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)));
  return pairs;
}

/// Distances within 1e-6, duplicates exactly 0. Squares below the smallest normal number have steps.
void expect_distances(const Array& out, const Tensor& x, const Tensor& z, int sampled, const std::string& what) {
  for (const auto& [i, j] : pairs_of(x.shape[0], z.shape[0], sampled)) {
    const double square = square_distance(x, z, i, j), wanted = std::sqrt(square), value = out(i, j);
    if (square > 1e38) continue;  // the last sum is infinite or not, by rounding
    if (square > 0 && square < 1e-36) continue;
    ASSERT_TRUE(within(value, wanted, 1e-6 * wanted, Dtype::float32))
        << what << " at " << i << "," << j << ": " << value << " for " << wanted << ", off by "
        << std::abs(value / wanted - 1);
  }
}

void expect_products(const Array& out, const Tensor& x, const Tensor& z, int sampled, const std::string& what) {
  for (const auto& [i, j] : pairs_of(x.shape[0], z.shape[0], sampled)) {
    const double bound = std::sqrt(dot(x, x, i, i) * dot(z, z, j, j));
    if (bound > 1e38) continue;
    ASSERT_NEAR(out(i, j), dot(x, z, i, j), 1e-6 * bound + 1e-37) << what << " at " << i << "," << j;
  }
}

constexpr std::array<std::int64_t, 3> kShapes[] = {
    {300, 333, 40}, {257, 128, 300}, {129, 700, 32}, {65, 700, 21}, {1700, 1543, 1025}};

TEST(TensorCores, EveryKindOfData) {
  on_tensor_cores([](TestContext& context) {
    for (const Kind& kind : kinds())
      for (auto [m, n, k] : kShapes) {
        PointPair points{drawn(m, k, 1, kind.draw), drawn(n, k, 2, kind.draw)};
        add_neighbours(points);
        Array out(Dtype::float32, {m, n}), again(Dtype::float32, {m, n});
        const Tensor z = points.z;
        const std::string what = kind.name + (" of " + std::to_string(k));
        pairwise(kL2, points.x, &z, out, {}, context);
        expect_distances(out, points.x, points.z, 2000, what);
        pairwise(kL2, points.x, &z, again, {}, context);
        EXPECT_TRUE(same_bits(out, again)) << kind.name;
        pairwise("sum(x*z)", points.x, &z, out, {}, context);
        expect_products(out, points.x, points.z, 2000, what);
        if (::testing::Test::HasFailure()) return;
      }
  });
}

TEST(TensorCores, OutliersAndSpecialValues) {
  on_tensor_cores([](TestContext& context) {
    Turns turns(2);
    for (const auto& [special, features] : {std::pair{1e6, 100}, {-1e30, 100}, {3e38, 100}, {kNan, 100}, {kInf, 100},
                                            {-kInf, 100}, {1e6, 40}, {3e38, 40}, {kNan, 40}, {-kInf, 40}}) {
      if (turns.leaves_out()) continue;
      PointPair points{drawn(300, features, 1, kUniform), drawn(400, features, 2, kUniform)};
      points.x.set({17, 3}, special);
      points.z.set({18, 3}, special);
      for (std::int64_t k = 0; k < features; ++k) points.x.set({40, k}, 0.25);
      Array out(Dtype::float32, {300, 400});
      const Tensor z = points.z;
      for (const char* f : {kSquare, "sum(x*z)"}) {
        pairwise(f, points.x, &z, out, {}, context);
        for (std::int64_t i = 0; i < 300; ++i)
          for (std::int64_t j = 0; j < 400; ++j) {
            const bool squares = f == kSquare;
            const double wanted = squares ? square_distance(points.x, z, i, j) : dot(points.x, z, i, j);
            double bound = squares ? 2e-6 * wanted
                                   : 1e-6 * std::sqrt(dot(points.x, points.x, i, i) * dot(z, z, j, j));
            if (std::isinf(wanted) || std::isnan(wanted)) bound = 0;
            if (std::isfinite(wanted) && std::abs(wanted) > 1e38) continue;
            ASSERT_TRUE(within(out(i, j), wanted, bound, Dtype::float32))
                << f << " with " << special << " of " << features << " at " << i << "," << j << ": " << out(i, j)
                << " for " << wanted;
          }
      }
    }
  });
}

/// Points of float32 are read where they lie, whatever their strides.
TEST(TensorCores, PointsAsTheyLie) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 150, kN = 140;
    for (const std::int64_t k : {20, 64, 129}) {
      const Array x = drawn(kM, k, 1, kinds()[0].draw), other = drawn(kN, k, 2, kinds()[0].draw);
      const Tensor z = other;
      for (const char* f : {kSquare, "sum(x*z)"}) {
        Array wanted(Dtype::float32, {kM, kN});
        pairwise(f, x, &z, wanted, {}, context);
        for (std::int64_t i = 0; i < kM; ++i)
          for (std::int64_t j = 0; j < kN; ++j) {
            const double sum = f == kSquare ? square_distance(x, z, i, j) : dot(x, z, i, j);
            const double bound =
                f == kSquare ? 2e-6 * sum : 1e-6 * std::sqrt(dot(x, x, i, i) * dot(z, z, j, j));
            ASSERT_TRUE(within(wanted(i, j), sum, bound, Dtype::float32))
                << f << " of " << k << " at " << i << "," << j;
          }
        for (const Shape& strides : {Shape{1, kM}, {k + 10, 1}, {-k, 1}, {2, 2 * kM}, {k, -1}}) {
          const Array view = copy(x, Dtype::float32, strides);
          Array out(Dtype::float32, {kM, kN});
          pairwise(f, view, &z, out, {}, context);
          EXPECT_TRUE(same_bits(out, wanted)) << f << " of " << k << ", " << strides[0] << "," << strides[1];
        }
      }
      Array own(Dtype::float32, {kM, kM}), alias = own;
      const Tensor again = x;
      pairwise(kSquare, x, nullptr, own, {}, context);
      pairwise(kSquare, x, &again, alias, {}, context);
      EXPECT_TRUE(same_bits(own, alias));
      for (std::int64_t m = 0; m < kM; ++m) {
        EXPECT_EQ(own(m, m), 0);
        for (std::int64_t n = 0; n < m; ++n) EXPECT_EQ(own(m, n), own(n, m));
      }
    }
  });
}

/// Points that the call before writes, by a long kernel that lets the next one start early: nobody reads them too soon.
TEST(TensorCores, PointsOfTheCallBefore) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 1024, kK = 16384, kN = 300;
    const DeviceStream stream;
    DeviceArrays arrays(stream, 1 << 28);
    const Tensor x = arrays.take(Dtype::float32, {kM, kK}), out = arrays.take(Dtype::float32, {kM, kN});
    Arguments arguments;
    arguments.queue.stream = static_cast<CuStream>(stream);
    for (const std::int64_t features : {64, 128}) {
      const Tensor z = arrays.take(drawn(features, kK, 2, kinds()[0].draw));
      const Tensor points = arrays.take(Dtype::float32, {kM, features});
      Tensor few = points;
      few.shape[0] = kN;
      for (int trial = 0; trial < 3; ++trial) {
        arrays.upload(x, drawn(kM, kK, 10 + trial, kinds()[0].draw));
        std::vector<Array> results;
        for (const bool waits : {true, false}) {
          arrays.poison(points);
          mercer::pairwise("max(abs(x-z))*8", x, &z, points, arguments, context);
          if (waits) arrays.download(points);
          mercer::pairwise(kL2, points, &few, out, arguments, context);
          results.push_back(arrays.download(out));
        }
        ASSERT_TRUE(same_bits(results[0], results[1])) << features << ", trial " << trial;
      }
    }
  });
}

/// Copies with a little noise: a few cancelling pairs, whole regions of them, more than the list holds, all pairs.
TEST(TensorCores, CancellingPairs) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 900, kN = 1000, kK = 96;
    Turns turns(5);
    for (std::int64_t clusters : {1, 2, 5, 10, 30, 300})
      for (bool sorted : {true, false})
        for (double spread : {1e-4, 0.3, 0.6}) {
          if (turns.leaves_out()) continue;
          const Array centres = drawn(clusters, kK, 9, kinds()[0].draw);
          PointPair points{drawn(kM, kK, 1, kinds()[0].draw), drawn(kN, kK, 2, kinds()[0].draw)};
          std::mt19937 random(4);
          for (Array* side : {&points.x, &points.z}) {
            const std::int64_t count = side->tensor().shape[0];
            for (std::int64_t m = 0; m < count; ++m) {
              const auto any = static_cast<std::int64_t>(random() % static_cast<unsigned>(clusters));
              const std::int64_t c = sorted ? m * clusters / count : any;
              for (std::int64_t k = 0; k < kK; ++k) side->set({m, k}, centres(c, k) + spread * (*side)(m, k));
            }
          }
          for (std::int64_t k = 0; k < kK; ++k) points.z.set({5, k}, points.x(7, k));
          Array out(Dtype::float32, {kM, kN});
          const Tensor z = points.z;
          pairwise(kL2, points.x, &z, out, {}, context);
          const std::string what = std::to_string(clusters) + " clusters of " + std::to_string(spread);
          expect_distances(out, points.x, z, 20000, what);
          ASSERT_EQ(out(7, 5), 0);
        }
  });
}

/// What norms and tests of cancelling pairs are scaled by is far larger than most of the data. Near and equal points
/// are among them.
TEST(TensorCores, OffsetsAndFarPoints) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 300, kN = 333;
    for (const std::int64_t features : {24, 64, 200})
      for (const char* data : {"an offset", "an offset of one feature", "a far point"}) {
        PointPair points{drawn(kM, features, 1, kinds()[0].draw), drawn(kN, features, 2, kinds()[0].draw)};
        for (Array* side : {&points.x, &points.z})
          for (std::int64_t m = 0; m < side->tensor().shape[0]; ++m)
            for (std::int64_t k = 0; k < features; ++k) {
              if (data == std::string("an offset")) side->set({m, k}, 2000 + (*side)(m, k));
              if (data == std::string("an offset of one feature") && k == 5) side->set({m, k}, 1e5 + (*side)(m, k));
            }
        if (data == std::string("a far point")) points.x.set({11, 3}, 1e4);
        std::mt19937 random(5);
        std::normal_distribution<double> noise(0, 1e-2);
        for (std::int64_t n = 0; n < kN; n += 3)
          for (std::int64_t k = 0; k < features; ++k)
            points.z.set({n, k}, points.x(n % kM, k) + (n % 2 == 0 ? 0 : noise(random)));
        const Tensor z = points.z;
        Array out(Dtype::float32, {kM, kN});
        pairwise(kL2, points.x, &z, out, {}, context);
        const std::string what = std::string(data) + ", " + std::to_string(features);
        expect_distances(out, points.x, z, 20000, what);
        for (std::int64_t n = 0; n < kN; n += 3) {
          const double wanted = std::sqrt(square_distance(points.x, z, n % kM, n));
          ASSERT_TRUE(within(out(n % kM, n), wanted, 1e-6 * wanted, Dtype::float32)) << what << " near " << n;
        }
      }
  });
}

/// PyTorch's issues 42479, two numbers that differ in their fourth digit, whose distance came out as 0, and 57690,
/// distances of points from themselves that did not.
TEST(TensorCores, DataWhoseDistancesOthersLose) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 150, kN = 140;
    for (const std::int64_t k : {20, 70}) {
      Array x(Dtype::float32, {kM, k}), z(Dtype::float32, {kN, k});
      const Array noise = normal(Dtype::float32, {kM, k}, 5);
      each_index({kM, k}, [&](const Shape& at) { x.set(at, at[0] % 2 == 0 ? 512695 : 5000 + at[0] % 7); });
      each_index({kN, k}, [&](const Shape& at) { z.set(at, at[0] % 2 == 0 ? 512804 : 6500); });
      Array out(Dtype::float32, {kM, kN}), own(Dtype::float32, {kM, kM});
      const Tensor zt = z;
      pairwise(kL2, x, &zt, out, {}, context);
      for (std::int64_t m = 0; m < kM; ++m)
        for (std::int64_t n = 0; n < kN; ++n) {
          const double wanted = std::sqrt(square_distance(x, zt, m, n));
          ASSERT_TRUE(within(out(m, n), wanted, 1e-6 * wanted, Dtype::float32)) << m << "," << n << ": " << out(m, n);
        }
      each_index({kM, k}, [&](const Shape& at) { x.set(at, 40 + 0.05 * noise(at[0], at[1])); });
      const Tensor xt = x;
      for (const Tensor* second : {static_cast<const Tensor*>(nullptr), &xt}) {
        pairwise(kL2, x, second, own, {}, context);
        for (std::int64_t m = 0; m < kM; ++m) ASSERT_EQ(own(m, m), 0) << m;
        for (std::int64_t n = 1; n < kM; n += 3) {
          const double wanted = std::sqrt(square_distance(x, xt, 0, n));
          ASSERT_TRUE(within(own(0, n), wanted, 1e-6 * wanted, Dtype::float32)) << n << ": " << own(0, n);
        }
      }
    }
  });
}

/// Each area of 384 x 384 has a thousand pairs that cancel and more, scattered: they are repaired from shared memory.
/// What products say of them is off by a tenth and more.
TEST(TensorCores, AreasOfManyRepairs) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 500, kN = 450, kClusters = 60;
    for (const std::int64_t k : {72, 200}) {
      const Array centres = drawn(kClusters, k, 9, kinds()[0].draw);
      PointPair points{drawn(kM, k, 1, kinds()[0].draw), drawn(kN, k, 2, kinds()[0].draw)};
      const auto cluster = [](std::int64_t point) { return point * 37 % kClusters; };
      for (Array* side : {&points.x, &points.z})
        for (std::int64_t m = 0; m < side->tensor().shape[0]; ++m)
          for (std::int64_t i = 0; i < k; ++i) side->set({m, i}, centres(cluster(m), i) + 1e-3 * (*side)(m, i));
      Array w(Dtype::float32, {k});
      for (std::int64_t i = 0; i < k; ++i) w.set({i}, 0.25 * static_cast<double>(1 + i % 5));
      Arguments weighted;
      weighted.w = w.tensor();
      const Tensor z = points.z;
      Array plain(Dtype::float32, {kM, kN}), of_weights(Dtype::float32, {kM, kN}), own(Dtype::float32, {kM, kM});
      pairwise(kL2, points.x, &z, plain, {}, context);
      pairwise("sum(w*(x-z)^2)^0.5", points.x, &z, of_weights, weighted, context);
      pairwise(kL2, points.x, nullptr, own, {}, context);
      const auto distance = [&](const Tensor& other, std::int64_t m, std::int64_t n, bool weighs) {
        double sum = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const double d = points.x(m, i) - value_at(other, n, i);
          sum += (weighs ? w(i) : 1) * d * d;
        }
        return std::sqrt(sum);
      };
      for (std::int64_t m = 0; m < kM; ++m) {
        for (std::int64_t n = 0; n < kN; ++n) {
          if (cluster(m) != cluster(n)) continue;
          for (const bool weighs : {false, true}) {
            const double value = (weighs ? of_weights : plain)(m, n), wanted = distance(z, m, n, weighs);
            ASSERT_TRUE(within(value, wanted, 1e-6 * wanted, Dtype::float32)) << weighs << " " << m << "," << n;
          }
        }
        for (std::int64_t n = 0; n < kM; ++n) {
          ASSERT_EQ(own(m, n), own(n, m)) << m << "," << n;
          if (cluster(m) != cluster(n)) continue;
          const double wanted = distance(points.x, m, n, false);
          ASSERT_TRUE(within(own(m, n), wanted, 1e-6 * wanted, Dtype::float32)) << "own " << m << "," << n;
        }
      }
    }
  });
}

TEST(TensorCores, SymmetricHalves) {
  on_tensor_cores([](TestContext& context) {
    for (std::int64_t m : {65, 129, 385, 1000}) {
      PointPair points{drawn(m, 70, 1, kinds()[0].draw), drawn(m, 70, 1, kUniform)};
      for (std::int64_t k = 0; k < 70; ++k) points.x.set({m - 1, k}, points.x(3, k));
      Array out(Dtype::float32, {m, m});
      pairwise(kL2, points.x, nullptr, out, {}, context);
      expect_distances(out, points.x, points.x, 4000, "symmetric");
      EXPECT_EQ(out(m - 1, 3), 0);
      for (std::int64_t i = 0; i < m; ++i) {
        ASSERT_EQ(out(i, i), 0);
        for (std::int64_t j = 0; j < i; ++j) ASSERT_EQ(out(i, j), out(j, i)) << i << "," << j;
      }
    }
  });
}

Arguments of_row_and_column(const Array& row, const Array& col, double b) {
  Arguments arguments;
  arguments.row = row.tensor();
  arguments.col = col.tensor();
  arguments.params["b"] = b;
  return arguments;
}

/// Parameters, pair values, offsets, weights, output types and layouts pass through products and repairs alike.
TEST(TensorCores, EpiloguesAndLayouts) {
  on_tensor_cores([](TestContext& context) {
    PointPair points{drawn(200, 90, 1, kUniform), drawn(180, 90, 2, kUniform)};
    add_neighbours(points);
    const Array x_columns = copy(points.x, Dtype::float32, {1, 200}), row = normal(Dtype::float32, {200}, 3);
    const Array col = normal(Dtype::float32, {180}, 4);
    const Tensor z = points.z;
    Arguments arguments = of_row_and_column(row, col, 7);
    arguments.i_offset = 5;
    const Expr f = parse("exp(-sum((x-z)^2)/b)*(2 + tanh(row)) + 0.01*i - 0.02*j*col");
    Extra extra{{{"b", 7}}, {}, {}, {}, 5, 0};
    for (std::int64_t m = 0; m < 200; ++m) extra.row.push_back(row(m));
    for (std::int64_t n = 0; n < 180; ++n) extra.col.push_back(col(n));
    const Expected expected = expected_pairs(f, points.x, z, 2e-6, parse("9*(2 + 0.01*i + 0.02*j*abs(col))"), extra);
    for (const Shape& strides : {Shape{180, 1}, {1, 200}, {400, 2}, {181, 1}}) {
      Array out(Dtype::float32, {200, 180}, strides);
      pairwise(f, x_columns, &z, out, arguments, context);
      expect_pairs(out, expected, "float32");
    }
    Array narrow(Dtype::float16, {200, 180}), wide(Dtype::float32, {200, 180});
    pairwise(kL2, points.x, &z, narrow, {}, context);
    pairwise(kL2, points.x, &z, wide, {}, context);
    const Array rounded = copy(wide, Dtype::float16);
    EXPECT_TRUE(same_bits(narrow, rounded));
  });
}

/// Brief tiles: aligned rows go in vectors, edges and other layouts one by one, with the same bits.
TEST(TensorCores, RowsOfFewFeatures) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 150, kN = 292;
    const Array row = normal(Dtype::float32, {kM}, 3), col = normal(Dtype::float32, {kN}, 4);
    Arguments arguments = of_row_and_column(row, col, 7);
    arguments.j_offset = 3;
    const Expr f = parse("exp(-sum((x-z)^2)/b)*(2 + row) + 0.01*i - 0.02*j*col");
    for (const std::int64_t features : {33, 20}) {
      PointPair points{drawn(kM, features, 1, kUniform), drawn(kN, features, 2, kUniform)};
      add_neighbours(points);
      const Tensor z = points.z;
      Array distances(Dtype::float32, {kM, kN});
      pairwise(kL2, points.x, &z, distances, {}, context);
      expect_distances(distances, points.x, z, 4000, std::to_string(features));
      for (const Dtype type : {Dtype::float32, Dtype::float16}) {
        const Array by_rows(type, {kM, kN}, {kN + 4, 1}), by_lanes(type, {kM, kN}, {kN + 1, 1});
        for (const Array* out : {&by_rows, &by_lanes}) pairwise(f, points.x, &z, *out, arguments, context);
        EXPECT_TRUE(same_bits(copy(by_rows, type), copy(by_lanes, type))) << features;
      }
    }
  });
}

/// The points of a block of an operand share a power of two: small ones below it keep their digits, or are repaired.
TEST(TensorCores, PointsOfUnlikeSizes) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 130, kN = 140, kFeatures = 35;
    for (const int exponents : {16, 41}) {
      PointPair points{drawn(kM, kFeatures, 1, kUniform), drawn(kN, kFeatures, 2, kUniform)};
      for (Array* side : {&points.x, &points.z})
        for (std::int64_t i = 0; i < side->tensor().shape[0]; ++i)
          for (std::int64_t k = 0; k < kFeatures; ++k)
            side->set({i, k}, std::ldexp((*side)(i, k), static_cast<int>(i * 7) % exponents - exponents / 2));
      const Tensor z = points.z;
      Array out(Dtype::float32, {kM, kN});
      pairwise(kL2, points.x, &z, out, {}, context);
      expect_distances(out, points.x, z, 10000, "distances");
      pairwise(parse("sum(x*z)"), points.x, &z, out, {}, context);
      expect_products(out, points.x, z, 10000, "products");
    }
  });
}

/// Blocks share the features of a tile; the one that comes last has the sums.
TEST(TensorCores, FewTilesOfManyFeatures) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, k] : {std::array{70, 66, 2100}, {140, 40, 2100}}) {
      PointPair points{drawn(m, k, 1, kUniform), drawn(n, k, 2, kUniform)};
      points.z.set({3, 100}, kNan);
      points.z.set({5, k - 1}, kInf);
      for (std::int64_t f = 0; f < k; ++f) points.z.set({7, f}, points.x(9, f));
      const Tensor z = points.z;
      const Array out(Dtype::float32, {m, n}), again(Dtype::float32, {m, n});
      for (auto [f, scale] : {std::pair{"sum(x*z)", "sum(abs(x*z))"}, {"sqrt(sum((x-z)^2))", "sqrt(sum((x-z)^2))"}}) {
        pairwise(parse(f), points.x, &z, out, {}, context);
        expect_pairs(out, expected_pairs(parse(f), points.x, z, 1e-6, parse(scale), {}), f);
        pairwise(parse(f), points.x, &z, again, {}, context);
        EXPECT_TRUE(same_bits(out, again)) << f;
      }
    }
    // The half above the diagonal: its tiles alone are counted.
    const Array x = drawn(200, 2100, 1, kUniform), out(Dtype::float32, {200, 200});
    pairwise(parse("sum((x-z)^2)"), x, nullptr, out, {}, context);
    expect_pairs(out, expected_pairs(parse("sum((x-z)^2)"), x, x, 2e-6, parse("sum((x-z)^2)"), {}), "symmetric");
  });
}

/// Weights (also 0, negative and NaN), functions of one side, cosines, other types of points.
TEST(TensorCores, Terms) {
  on_tensor_cores([](TestContext& context) {
    for (const auto& [m, n, features] : {std::array{150, 190, 64}, {70, 90, 100}}) {
      PointPair points{drawn(m, features, 1, kUniform), drawn(n, features, 2, kUniform)};
      const Tensor z = points.z;
      Array out(Dtype::float32, {m, n});
      const Array w = copy(drawn(1, features, 3, kUniform), Dtype::float32);
      for (int bad : {0, 1, 2, 3}) {
        Array weights(Dtype::float32, {features});
        Extra extra;
        for (std::int64_t k = 0; k < features; ++k) weights.set({k}, w(0, k));
        if (bad == 1) weights.set({5}, 0);
        if (bad == 2) weights.set({5}, -0.5);
        if (bad == 3) weights.set({5}, kNan);
        for (std::int64_t k = 0; k < features; ++k) extra.w.push_back(weights(k));
        Arguments arguments;
        arguments.w = weights.tensor();
        for (const char* f : {"sum(w*(x-z)^2)", "3*sum(2*w*x*z)"}) {
          const Expected expected = expected_pairs(parse(f), points.x, z, 2e-6, parse("100"), extra);
          pairwise(f, points.x, &z, out, arguments, context);
          expect_pairs(out, expected, f);
        }
      }
      {
        Array weights(Dtype::float32, {features});
        Extra extra;
        for (std::int64_t k = 0; k < features; ++k) weights.set({k}, 0.25 * static_cast<double>(1 + k % 5));
        for (std::int64_t k = 0; k < features; ++k) extra.w.push_back(weights(k));
        Arguments arguments;
        arguments.w = weights.tensor();
        const char* const cosine = "sum(w*x*z)/sqrt(sum(w*x*x)*sum(w*z*z))";
        pairwise(cosine, points.x, &z, out, arguments, context);
        expect_pairs(out, expected_pairs(parse(cosine), points.x, z, 2e-6, parse("1"), extra), cosine);
      }
      for (const char* f : {"sum((sqrt(x)-sqrt(z))^2)/2", "1 - sum(x*z)/sqrt(sum(x*x)*sum(z*z))",
                            "sum(square(x/sqrt(sum(x*x)) - z/sqrt(sum(z*z))))", "(0.5*sum(x*z) + 1)^3",
                            "where(i == j, 2, exp(-sqrt(sum((x-z)^2))))", "sum((x - mean(x))*(z - mean(z)))"}) {
        const Expr scale = parse("40 + 20*(0.5*sum(x*z) + 1)^2");
        const Expected expected = expected_pairs(parse(f), points.x, z, 2e-6, scale, {});
        pairwise(f, points.x, &z, out, {}, context);
        expect_pairs(out, expected, f);
      }
      for (Dtype type : {Dtype::float16, Dtype::bfloat16, Dtype::uint8}) {
        const Array x = copy(drawn(m, features, 1, kinds()[2].draw), type);
        const Array y = copy(drawn(n, features, 2, kinds()[2].draw), type);
        const Tensor yt = y;
        pairwise(kSquare, x, &yt, out, {}, context);
        const Expected expected = expected_pairs(parse(kSquare), x, yt, 2e-6, parse(kSquare), {});
        expect_pairs(out, expected, name_of(type));
      }
    }
  });
}

/// Repairs read the caller's points where these lie as rows, and copies of them elsewhere: bit by bit the same.
TEST(TensorCores, RepairsOfRowsAndOfCopies) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 150, kN = 140, kFeatures = 72;
    PointPair points{drawn(kM, kFeatures, 1, kUniform), drawn(kN, kFeatures, 2, kUniform)};
    add_neighbours(points);
    const Array x = copy(points.x, Dtype::float32, {kFeatures + 4, 1}), z = copy(points.z, Dtype::float32, {1, kN + 4});
    for (const bool symmetric : {false, true}) {
      const std::int64_t n = symmetric ? kM : kN;
      const Tensor rows_of_z = points.z, copies_of_z = z;
      const Array of_rows(Dtype::float32, {kM, n}), of_copies(Dtype::float32, {kM, n});
      pairwise(kL2, points.x, symmetric ? nullptr : &rows_of_z, of_rows, {}, context);
      pairwise(kL2, x, symmetric ? nullptr : &copies_of_z, of_copies, {}, context);
      if (!symmetric) expect_distances(of_rows, points.x, points.z, 3000, "rows");
      EXPECT_TRUE(std::equal(of_rows.bytes().begin(), of_rows.bytes().end(), of_copies.bytes().begin()));
    }
  });
}

/// Items of one accumulation are stored together; of a distance, so are the pairs that cancel.
TEST(TensorCores, ItemsOfABatchAreAlone) {
  on_tensor_cores([](TestContext& context) {
    for (const char* f : {kGauss, "b*sum((x-z)^2)^0.5"}) expect_items_alone(f, 3, 9, context);
  });
}

TEST(TensorCores, ThePlanSaysSo) {
  plan::GpuPairProblem problem;
  problem.outputs = {Formula(kGauss).expression()};
  EXPECT_EQ(plan::plan_gpu_pairs(problem)->to_text().find("tensor cores"), std::string::npos);
  problem.product = plan::bilinear_tile(30000, 30000, 1024, Precision::fp32, 132, plan::costs_of(90));
  EXPECT_NE(plan::plan_gpu_pairs(problem)->to_text().find("tensor cores"), std::string::npos);
}

}  // namespace
}  // namespace mercer
