// Sums of absolute differences on mixed pipes: every kind of data, whether it is quantised, repaired or refused, keeps
// the contract. Small problems take the path too where a test asks for it.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ir/passes/passes.h"
#include "ops/context.h"
#include "ops/drawn_data.h"
#include "ops/testing.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/plan.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kL1 = "sum(abs(x-z))";
constexpr const char* kLaplace = "exp(-sum(abs(x-z))/b)";

double distance(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n) {
  const float* a = static_cast<const float*>(x.data) + m * x.strides[0];
  const float* b = static_cast<const float*>(z.data) + n * z.strides[0];
  double sum = 0;
  for (std::int64_t k = 0; k < x.shape[1]; ++k)
    sum += std::abs(static_cast<double>(a[k * x.strides[1]]) - static_cast<double>(b[k * z.strides[1]]));
  return sum;
}

void expect_distances(const Array& out, const Tensor& x, const Tensor& z, int sampled, const std::string& what) {
  const std::int64_t m = x.shape[0], n = z.shape[0];
  std::mt19937_64 random(3);
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  for (std::int64_t j = 0; j < n; j += 7) pairs.emplace_back(j % m, j);
  for (int i = 0; i < sampled; ++i)
    pairs.emplace_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(m)),
                       static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)));
  for (const auto& [i, j] : pairs) {
    const double wanted = distance(x, z, i, j), value = out(i, j);
    // Near the largest number sums end in infinity, near the smallest in steps.
    ASSERT_TRUE(within(value, wanted, 1e-6 * wanted + 1e-44 * static_cast<double>(x.shape[1]), Dtype::float32))
        << what << " at " << i << "," << j << ": " << value << " for " << wanted << ", off by "
        << std::abs(value / wanted - 1);
  }
}

template <class Body>
void on_mixed_pipes(const Body& body, double much = 0) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().much_mixed_work = much;
    body(context);
  });
}

TEST(MixedPipes, EveryKindOfData) {
  on_mixed_pipes([](TestContext& context) {
    for (const Kind& kind : kinds())
      for (auto [m, n, k] : {std::array{300, 333, 40}, {257, 128, 300}, {1700, 1543, 1025}}) {
        PointPair points{drawn(m, k, 1, kind.draw), drawn(n, k, 2, kind.draw)};
        add_neighbours(points);
        Array out(Dtype::float32, {m, n});
        const Tensor z = points.z;
        pairwise(kL1, points.x, &z, out, {}, context);
        expect_distances(out, points.x, points.z, 2000, kind.name + (" of " + std::to_string(k)));
        Array again(Dtype::float32, {m, n});
        pairwise(kL1, points.x, &z, again, {}, context);
        EXPECT_TRUE(same_bits(out, again)) << kind.name;
        if (::testing::Test::HasFailure()) return;
      }
  });
}

/// Sums of chunks have totals of their own.
TEST(MixedPipes, ThousandsOfFeatures) {
  on_mixed_pipes([](TestContext& context) {
    PointPair points{drawn(70, 8500, 1, kUniform), drawn(66, 8500, 2, kUniform)};
    add_neighbours(points);
    const Array out(Dtype::float32, {70, 66});
    const Tensor z = points.z;
    pairwise(kL1, points.x, &z, out, {}, context);
    expect_distances(out, points.x, points.z, 500, "thousands of features");
  });
}

TEST(MixedPipes, OutliersAndSpecialValues) {
  on_mixed_pipes([](TestContext& context) {
    for (double special : {1e5, -1e30, kNan, kInf, -kInf}) {
      PointPair points{drawn(300, 100, 1, kUniform), drawn(400, 100, 2, kUniform)};
      points.x.set({17, 3}, special);
      points.z.set({18, 3}, special);
      Array out(Dtype::float32, {300, 400});
      const Tensor z = points.z;
      pairwise(kL1, points.x, &z, out, {}, context);
      expect_distances(out, points.x, points.z, 2000, std::to_string(special));
      for (std::int64_t j = 0; j < 400; ++j) {
        const double wanted = distance(points.x, points.z, 17, j);
        EXPECT_TRUE(within(out(17, j), wanted, 1e-6 * wanted, Dtype::float32)) << special << " at " << j;
      }
    }
  });
}

/// More pairs to repair than the list holds: none of the sampled ones need be among them.
TEST(MixedPipes, ManyNearDuplicates) {
  on_mixed_pipes([](TestContext& context) {
    for (std::int64_t copies : {2, 3, 10, 400}) {
      PointPair points{drawn(400, 64, 1, kUniform), drawn(400, 64, 2, kUniform)};
      std::mt19937 random(4);
      std::normal_distribution<double> noise(0, 1e-5);
      for (std::int64_t m = 0; m < copies; ++m)
        for (std::int64_t k = 0; k < 64; ++k) {
          points.x.set({m, k}, points.x(0, k) + noise(random));
          points.z.set({399 - m, k}, points.x(0, k) + noise(random));
        }
      Array out(Dtype::float32, {400, 400});
      const Tensor z = points.z;
      pairwise(kL1, points.x, &z, out, {}, context);
      for (std::int64_t i = 0; i < 400; ++i)
        for (std::int64_t j = 0; j < 400; ++j) {
          const double wanted = distance(points.x, points.z, i, j);
          ASSERT_NEAR(out(i, j), wanted, 1e-6 * wanted) << copies << " copies, " << i << "," << j;
        }
    }
  });
}

/// The sample takes every second strip of 32 rows here, so that pairs of the others are found by the tile alone.
TEST(MixedPipes, AListThatOverflows) {
  on_mixed_pipes([](TestContext& context) {
    constexpr std::int64_t kM = 4000, kK = 40;
    for (std::int64_t strips : {1, 3}) {
      PointPair points{drawn(kM, kK, 1, kUniform), drawn(kM, kK, 2, kUniform)};
      const Tensor x = points.x, z = points.z;
      std::mt19937 random(4);
      std::normal_distribution<double> noise(0, 1e-5);
      const auto near = [&](const Tensor& t, std::int64_t row) {
        for (std::int64_t k = 0; k < kK; ++k)
          static_cast<float*>(t.data)[row * kK + k] =
              static_cast<float>(static_cast<const float*>(x.data)[k] + noise(random));
      };
      for (std::int64_t n = 0; n < kM; ++n) near(z, n);
      for (std::int64_t strip = 1; strip <= strips; ++strip)
        for (std::int64_t m = 0; m < 32; ++m) near(x, 64 * strip + m);
      for (std::int64_t m = 0; m < 32; ++m)
        for (std::int64_t k = 0; k < kK; ++k) points.x.set({m, k}, points.x(32 + m, k));
      Array out(Dtype::float32, {kM, kM});
      pairwise(kL1, points.x, &z, out, {}, context);
      expect_distances(out, points.x, points.z, 5000, "overflow");
      for (std::int64_t m = 64; m < 68; ++m)
        for (std::int64_t n = 0; n < kM; ++n) {
          const double wanted = distance(x, z, m, n);
          ASSERT_NEAR(out(m, n), wanted, 1e-6 * wanted) << m << "," << n;
        }
    }
  });
}

TEST(MixedPipes, SymmetricHalves) {
  on_mixed_pipes([](TestContext& context) {
    for (std::int64_t m : {65, 129, 500}) {
      PointPair points{drawn(m, 70, 1, kUniform), drawn(m, 70, 1, kUniform)};
      for (std::int64_t k = 0; k < 70; ++k) points.x.set({m - 1, k}, points.x(3, k));
      Array out(Dtype::float32, {m, m});
      pairwise(kL1, points.x, nullptr, out, {}, context);
      expect_distances(out, points.x, points.x, 2000, "symmetric");
      EXPECT_EQ(out(m - 1, 3), 0);
      for (std::int64_t i = 0; i < m; ++i) {
        EXPECT_EQ(out(i, i), 0);
        for (std::int64_t j = 0; j < i; ++j) ASSERT_EQ(out(i, j), out(j, i)) << i << "," << j;
      }
    }
  });
}

/// Parameters, pair values, offsets, output types and layouts pass through the tile and through the repairs alike.
TEST(MixedPipes, EpiloguesAndLayouts) {
  on_mixed_pipes([](TestContext& context) {
    PointPair points{drawn(200, 90, 1, kUniform), drawn(180, 90, 2, kUniform)};
    add_neighbours(points);
    const Array x_columns = copy(points.x, Dtype::float32, {1, 200}), row = normal(Dtype::float32, {200}, 3);
    const Tensor z = points.z;
    Arguments arguments;
    arguments.row = row.tensor();
    arguments.i_offset = 5;
    arguments.params["b"] = 40.0;
    const Expr f = parse("exp(-sum(abs(x-z))/b)*(2 + tanh(row)) + 0.01*i - 0.02*j");
    Extra extra{{{"b", 40}}, {}, {}, {}, 5, 0};
    for (std::int64_t m = 0; m < 200; ++m) extra.row.push_back(row(m));
    const Expected expected = expected_pairs(f, points.x, z, 1e-6, parse("3*(2 + 0.01*i + 0.02*j)"), extra);
    for (const Shape& strides : {Shape{180, 1}, {1, 200}, {400, 2}}) {
      Array out(Dtype::float32, {200, 180}, strides);
      pairwise(f, x_columns, &z, out, arguments, context);
      expect_pairs(out, expected, "float32");
    }
    Array narrow(Dtype::float16, {200, 180}), wide(Dtype::float32, {200, 180});
    pairwise(kL1, points.x, &z, narrow, {}, context);
    pairwise(kL1, points.x, &z, wide, {}, context);
    const Array rounded = copy(wide, Dtype::float16);
    EXPECT_TRUE(same_bits(narrow, rounded));
  });
}

/// Points are read where they lie: values that are the same have the same results, in any dtype and layout.
TEST(MixedPipes, PointsAsTheyLie) {
  on_mixed_pipes([](TestContext& context) {
    constexpr std::int64_t m = 150, n = 140, k = 300;  // more features than a block reads at once
    for (Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16}) {
      const Array x = copy(drawn(m, k, 1, kUniform), dtype), z = copy(drawn(n, k, 2, kUniform), dtype);
      const Array plain_x = copy(x, Dtype::float32), plain_z = copy(z, Dtype::float32);
      const Tensor zt = z, plain_zt = plain_z;
      Array wanted(Dtype::float32, {m, n});
      pairwise(kL1, plain_x, &plain_zt, wanted, {}, context);
      for (const Shape& strides : {Shape{k, 1}, {1, m}, {k + 10, 1}, {-k, 1}, {2, 2 * m}, {k, -1}}) {
        const Array view = copy(x, dtype, strides);
        Array out(Dtype::float32, {m, n});
        pairwise(kL1, view, &zt, out, {}, context);
        EXPECT_TRUE(same_bits(out, wanted)) << name_of(dtype) << " " << strides[0] << "," << strides[1];
      }
    }
  });
}

TEST(MixedPipes, ItemsOfABatchAreAlone) {
  on_mixed_pipes([](TestContext& context) {
    for (std::int64_t features : {12, 90}) expect_items_alone(kLaplace, 30, features, context);
  });
}

/// |k - wanted| <= 1e-6 (1 + s / b) k, of values that a width lets lose more than their sums may, or as little.
TEST(MixedPipes, ValuesOfFewFeaturesAndManyWidths) {
  on_mixed_pipes([](TestContext& context) {
    for (const Kind& kind : kinds())
      for (auto [m, n, k] : {std::array{70, 133, 12}, {129, 65, 32}, {66, 70, 40}}) {
        PointPair points{drawn(m, k, 1, kind.draw), drawn(n, k, 2, kind.draw)};
        add_neighbours(points);
        const Tensor z = points.z;
        double middle = 0;
        for (std::int64_t i = 0; i < 50; ++i) middle += distance(points.x, z, i, i + 1) / 50;
        for (double width : {1e-3, 1.0, 100.0}) {
          const double b = width * (middle > 0 && std::isfinite(middle) ? middle : 1);
          if (b < 1e-35 || b > 1e35) continue;
          const double rounded = static_cast<double>(static_cast<float>(b));
          Arguments arguments;
          arguments.params["b"] = rounded;
          Array out(Dtype::float32, {m, n});
          pairwise(kLaplace, points.x, &z, out, arguments, context);
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              const double power = distance(points.x, z, i, j) / rounded, wanted = std::exp(-power);
              // Numbers below the least normal one become 0.
              ASSERT_NEAR(out(i, j), wanted, 1e-6 * (1 + power) * wanted + 1.2e-38)
                  << kind.name << " of " << k << ", width " << width << " at " << i << "," << j;
            }
        }
      }
  });
}

/// |out - wanted| <= sum (2e-6 + 1e-6 s / b) |k| |v|: what products may lose, and what their values may.
TEST(MixedPipes, ProductsKeepTheirContract) {
  on_mixed_pipes([](TestContext& context) {
    for (const Kind& kind : kinds())
      for (auto [m, n, k, columns] :
           {std::array{70, 133, 12, 1}, {66, 130, 16, 3}, {65, 70, 33, 1}, {70, 66, 300, 10}}) {
        PointPair points{drawn(m, k, 1, kind.draw), drawn(n, k, 2, kind.draw)};
        add_neighbours(points);
        const Tensor z = points.z;
        const Array v = normal(Dtype::float32, {n, columns}, 3);
        double middle = 0;
        for (std::int64_t i = 0; i < 50; ++i) middle += distance(points.x, z, i, i + 1) / 50;
        for (double width : {0.01, 1.0, 50.0}) {
          const double b = width * (middle > 0 && std::isfinite(middle) ? middle : 1);
          if (b < 1e-35 || b > 1e35) continue;
          const double rounded = static_cast<double>(static_cast<float>(b));
          Arguments arguments;
          arguments.params["b"] = rounded;
          Array out(Dtype::float32, {m, columns}), again(Dtype::float32, {m, columns});
          kernel_product(kLaplace, points.x, &z, v, out, arguments, context);
          kernel_product(kLaplace, points.x, &z, v, again, arguments, context);
          EXPECT_TRUE(same_bits(out, again)) << kind.name;
          for (std::int64_t i = 0; i < m; ++i)
            for (std::int64_t e = 0; e < columns; ++e) {
              double wanted = 0, most = 1e-36;
              for (std::int64_t j = 0; j < n; ++j) {
                const double power = distance(points.x, z, i, j) / rounded, value = std::exp(-power);
                wanted += value * v(j, e);
                most += (2e-6 + 1e-6 * power) * value * std::abs(v(j, e));
              }
              ASSERT_NEAR(out(i, e), wanted, most)
                  << kind.name << " of " << k << ", width " << width << " at " << i << "," << e;
            }
        }
      }
  });
}

/// The width that decides may lie on the device, one for every item of a batch; and points may hold anything.
TEST(MixedPipes, ProductsDecideForEveryItem) {
  on_mixed_pipes([](TestContext& context) {
    constexpr std::int64_t kM = 66, kN = 70, kK = 16;
    const std::array<double, 4> widths = {16, 1e-3, kNan, 1e4};
    const Array x = drawn(kM, kK, 1, kUniform), z = drawn(kN, kK, 2, kUniform), v = normal(Dtype::float32, {kN, 1}, 3);
    Array b(Dtype::float32, {4}), all(Dtype::float32, {4, kM, 1}), one(Dtype::float32, {kM, 1});
    for (std::int64_t item = 0; item < 4; ++item) b.set({item}, widths[static_cast<std::size_t>(item)]);
    const Tensor points = z;
    Arguments arguments;
    arguments.params["b"] = b.tensor();
    kernel_product(kLaplace, x, &points, v, all, arguments, context);
    for (std::int64_t item = 0; item < 4; ++item) {
      Array own(Dtype::float32, {1});
      own.set({0}, b(item));
      Array single(Dtype::float32, {1, kM, 1});
      Arguments alone;
      alone.params["b"] = own.tensor();
      kernel_product(kLaplace, x, &points, v, single, alone, context);
      for (std::int64_t i = 0; i < kM; ++i) {
        const double value = all(item, i, 0), other = single(0, i, 0);
        EXPECT_TRUE(value == other || (std::isnan(value) && std::isnan(other)))
            << item << ": " << value << " " << other;
        EXPECT_EQ(std::isnan(value), item == 2) << item;
      }
    }
    for (double special : {kNan, kInf, -1e30}) {
      const Array other = copy(x, Dtype::float32);
      Array changed = other;
      changed.set({5, 3}, special);
      Arguments wide;
      wide.params["b"] = 16.0;
      kernel_product(kLaplace, changed, &points, v, one, wide, context);
      for (std::int64_t i = 0; i < kM; ++i) {
        double wanted = 0, terms = 0;
        for (std::int64_t j = 0; j < kN; ++j) {
          const double value = std::exp(-distance(changed, points, i, j) / 16);
          wanted += value * v(j, 0);
          terms += value * std::abs(v(j, 0));
        }
        if (std::isnan(wanted))
          EXPECT_TRUE(std::isnan(one(i, 0))) << special << " at " << i;
        else
          EXPECT_NEAR(one(i, 0), wanted, 2e-6 * terms) << special << " at " << i;
      }
    }
  });
}

/// Where calls take the path by themselves.
TEST(MixedPipes, LargeProblems) {
  on_mixed_pipes(
      [](TestContext& context) {
        constexpr std::int64_t kM = 8192, kK = 1025;
        for (std::size_t kind : {0, 1, 2, 5, 6}) {
          PointPair points{drawn(kM, kK, 1, kinds()[kind].draw), drawn(kM, kK, 2, kinds()[kind].draw)};
          add_neighbours(points);
          Array out(Dtype::float32, {kM, kM});
          const Tensor z = points.z;
          pairwise(kL1, points.x, &z, out, {}, context);
          expect_distances(out, points.x, points.z, 2000, kinds()[kind].name);
        }
      },
      plan::costs_of(90).much_mixed_work);
}

TEST(MixedPipes, ThePlanSaysSo) {
  plan::GpuPairProblem problem;
  problem.outputs = {Formula(kLaplace).expression()};
  EXPECT_EQ(plan::plan_gpu_pairs(problem)->to_text().find("mixed pipes"), std::string::npos);
  problem.tries.mixed_work = plan::MixedWork::much;
  EXPECT_NE(plan::plan_gpu_pairs(problem)->to_text().find("mixed pipes"), std::string::npos);
  for (const char* other : {"sum(w*abs(x-z))", "sum(abs(x+z))", "sum(abs(x-z)^2)", "max(abs(x-z))",
                            "sum(abs(x-z)) + max(abs(x-z))"}) {
    problem.outputs = {Formula(other).expression()};
    EXPECT_EQ(plan::plan_gpu_pairs(problem)->to_text().find("mixed pipes"), std::string::npos) << other;
  }
  using enum plan::MixedWork;
  EXPECT_EQ(plan::mixed_work(30000, 30000, 1024, plan::costs_of(90)), much);
  EXPECT_EQ(plan::mixed_work(8192, 8192, 32, plan::costs_of(90)), more);
  EXPECT_EQ(plan::mixed_work(2048, 2048, 256, plan::costs_of(90)), some);
  EXPECT_EQ(plan::mixed_work(1024, 1024, 256, plan::costs_of(90)), little);
  EXPECT_EQ(plan::mixed_work(100000000, 100, 1024, plan::costs_of(90)), little) << "quantising takes longer";
}

/// Sums of few features, and products, need values that may lose something of small sums.
TEST(MixedPipes, ThePlanAsksForAnAllowance) {
  const auto is_mixed = [](const char* text, plan::Consumer consumer, std::int64_t features,
                           plan::MixedWork work = plan::MixedWork::much, bool numbers = true) {
    plan::GpuPairProblem problem;
    problem.params.by_value = numbers;
    problem.outputs = {ir::simplify(parse(text))};
    problem.tries.mixed_work = work;
    problem.consumer = consumer;
    problem.sizes = plan::sizes_of(30000, 30000, features, 132);
    return plan::plan_gpu_pairs(problem)->pipes.mixed_sixteenths > 0;
  };
  using enum plan::Consumer;
  for (const char* text : {kLaplace, "a*exp(-2*sum(abs(x-z))/b)", "exp(1 - g*sum(abs(x-z)))/K"}) {
    EXPECT_TRUE(is_mixed(text, product, 16)) << text;
    EXPECT_TRUE(is_mixed(text, product, 784)) << text;
    EXPECT_TRUE(is_mixed(text, store, 32)) << text;
    EXPECT_FALSE(is_mixed(text, store, 24)) << text << ": bound by its stores";
    EXPECT_FALSE(is_mixed(text, product, 8)) << text;
    EXPECT_TRUE(is_mixed(text, store, 128, plan::MixedWork::more)) << text;
    EXPECT_FALSE(is_mixed(text, store, 128, plan::MixedWork::more, false)) << text << ": several share their sums";
    EXPECT_FALSE(is_mixed(text, store, 128, plan::MixedWork::some)) << text;
    EXPECT_TRUE(is_mixed(text, store, 256, plan::MixedWork::some)) << text;
    EXPECT_FALSE(is_mixed(text, product, 256, plan::MixedWork::more)) << text;
    EXPECT_FALSE(is_mixed(text, fold, 784)) << text;
  }
  for (const char* text : {kL1, "sqrt(sum(abs(x-z)))", "exp(-sum(abs(x-z))^2)", "exp(-sum(abs(x-z))/row)",
                           "exp(-sum(abs(x-z))) + 1", "row*exp(-sum(abs(x-z)))", "1/(1 + sum(abs(x-z)))"}) {
    EXPECT_FALSE(is_mixed(text, product, 784)) << text;
    EXPECT_FALSE(is_mixed(text, store, 32)) << text;
    EXPECT_TRUE(is_mixed(text, store, 784)) << text;
    EXPECT_TRUE(is_mixed(text, store, 256, plan::MixedWork::some)) << text;
    EXPECT_TRUE(is_mixed(text, store, 128)) << text;
    EXPECT_FALSE(is_mixed(text, store, 128, plan::MixedWork::more)) << text;
  }
}

}  // namespace
}  // namespace mercer
