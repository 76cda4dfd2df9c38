// Masks that formulas spell, of every verb on CPUs: tiles are skipped, and values are those of the oracle, which skips
// nothing.
#include <algorithm>
#include <numeric>

#include "mercer/explain.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kMasks[] = {
    "where(i <= j, exp(-sum((x-z)^2)/4), 0)",
    "where(abs(i-j) < 20, exp(-sum(abs(x-z))/4), 0)",
    "where(abs(i-j) > 70, exp(-sum(abs(x-z))/4), 0)",
    "where(i == j, exp(-sum(abs(x-z))/4), 0)",
    "where(floor(i/64) == floor(j/64), sum(x*z), -1)",
    "where(i < 2*j - 40, exp(-sum((x-z)^2)/4), 0.5)",
    "where(i >= j && sum(x) > 0, exp(-sum((x-z)^2)/4), 0)",
    "2*where((i-j)^2 < 900, sum(max(x-z, 0)), 1)",
    "where(i < 100, where(j < 150, sum(x*z), 3), inf)",
    "where(j >= 40 && j < 60, sum((x-z)^2), 0)",
    "where(i < 1000, 2, sum(x*z))",
};

/// Contexts in which calls of any size look for tiles that are known.
template <class Body>
void on_each_masked(const Body& body) {
  on_each_cpu_target([&](TestContext& context) {
    context.state().least_gain = 0;
    body(context);
  });
}

/// With NaN and infinities in points whose pairs are masked for the most part.
struct Points {
  Points(Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k)
      : x(normal(dtype, {m, k}, 1)), z(normal(dtype, {n, k}, 2)) {
    x.set({m - 2, 0}, kNan);
    x.set({m / 2, k - 1}, kInf);
    z.set({3, 0}, kNan);
    z.set({n / 3, 0}, -kInf);
  }
  Array x, z;
};

TEST(Masks, Pairwise) {
  for (Dtype dtype : kWide)
    for (auto [m, n, k] : {std::array{150, 230, 3}, {5, 7, 2}, {203, 97, 40}}) {
      const Points points(dtype, m, n, k);
      const Tensor z = points.z;
      for (const char* text : kMasks) {
        const Expr size = parse("1 + sum(x*x + z*z)");
        const Expected expected = expected_pairs(parse(text), points.x, z, unit(dtype) * 4, size);
        on_each_masked([&](TestContext& context) {
          for (const char* way : {"pairwise:packed_tile", "pairwise:few_points"}) {
            context.set_ways(way);
            for (const Shape& strides : {Shape{}, column_major({m, n})}) {
              const Array out(dtype, {m, n}, strides);
              const std::string refused = message_of([&] { pairwise(text, points.x, &z, out, {}, context); });
              if (refused.empty()) expect_pairs(out, expected, text);
              else EXPECT_NE(refused.find("the only reduction must be"), std::string::npos) << refused;
            }
          }
        });
      }
    }
}

TEST(Masks, PairwiseOfOneSetAndOfBytes) {
  Array x(Dtype::uint8, {170, 5});
  std::mt19937 random(1);
  x.fill([&] { return static_cast<double>(random() % 256); });
  const Tensor z = x;
  for (const char* text : {"where(abs(i-j) < 20, sum((x-z)^2), 7)", "where(abs(i-j) >= 60, sum(abs(x-z)), 0)",
                           "where(i <= j, sum(x*z), -2)"}) {
    const Expected expected = expected_pairs(parse(text), x, z, 1e-6);
    on_each_masked([&](TestContext& context) {
      for (const char* way : {"", "pairwise:byte_sums,pairwise:packed_halves", "pairwise:packed_halves"}) {
        if (*way == 'p' && std::string(text).find("abs(i-j)") == std::string::npos) continue;  // not symmetric
        context.set_ways(way);
        for (Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
          const Array out(dtype, {170, 170});
          pairwise(text, x, nullptr, out, {}, context);
          if (dtype == Dtype::float32) expect_pairs(out, expected, text);
          else EXPECT_EQ(out(169, 0), std::string(text).ends_with("-2)") ? -2 : read(out, {0, 169})) << text;
        }
      }
    });
  }
}

TEST(Masks, BatchesParametersAndOffsets) {
  const Array x = normal(Dtype::float32, {2, 1, 120, 3}, 1), z = normal(Dtype::float32, {110, 3}, 2);
  const Array b = filled(Dtype::float64, {3}, {0, 17.5, 500});
  const Tensor zt = z;
  const char* text = "where(abs(i - j) <= b, exp(-sum(abs(x-z))), b)";
  Arguments arguments;
  arguments.params["b"] = b.tensor();
  arguments.i_offset = 40;
  arguments.j_offset = -30;
  on_each_masked([&](TestContext& context) {
    const Array out(Dtype::float32, {2, 3, 120, 110});
    pairwise(text, x, &zt, out, arguments, context);
    each_index({2, 3}, [&](const Shape& i) {
      const Extra extra{{{"b", b(i[1])}}, {}, {}, {}, 40, -30};
      expect_pairs(item(out, i), expected_pairs(parse(text), item(x, {i[0], 0}), z, 2e-6, 1.0, extra), "batch");
    });
  });
}

/// float32 has infinities, and their differences, where double has numbers.
TEST(Masks, OverflowIsNotKnown) {
  const Array x = normal(Dtype::float32, {60, 3}, 1), z = normal(Dtype::float32, {300, 3}, 2);
  const Tensor zt = z;
  Array row(Dtype::float32, {60}), col(Dtype::float32, {300});
  for (auto [text, most] : {std::pair{"where(row*row - col*col < 5, 0, exp(-sum((x-z)^2)/8))", 1e30},
                            {"where(row*row*0 == 0, 0, exp(-sum((x-z)^2)/8))", 1.1e30},
                            {"where(row*row < 1e39, 5, exp(-sum((x-z)^2)/8))", 3.1e19}}) {
    for (std::int64_t i = 0; i < 60; ++i) row.set({i}, most * (1 - 1e-4 * static_cast<double>(i)));
    for (std::int64_t j = 0; j < 300; ++j) col.set({j}, most * 2);
    Arguments arguments;
    arguments.row = row;
    if (std::string(text).find("col") != std::string::npos) arguments.col = col;
    on_each_masked([&](TestContext& context) {
      context.set_ways("pairwise:packed_tile");
      const Array masked(Dtype::float32, {60, 300}), plain(Dtype::float32, {60, 300});
      pairwise(text, x, &zt, masked, arguments, context);
      context.state().least_gain = 1e300;
      pairwise(text, x, &zt, plain, arguments, context);
      EXPECT_TRUE(same_bits(masked, plain)) << text;
    });
  }
}

TEST(Masks, Products) {
  for (Dtype dtype : kWide)
    for (auto [m, n] : {std::array{150, 230}, {20, 2500}}) {
      const Array x = normal(dtype, {m, 3}, 1), z = normal(dtype, {n, 3}, 2);
      const Tensor zt = z;
      for (const char* text : kMasks) {
        if (std::string(text).find("inf") != std::string::npos) continue;
        const auto values = table(parse(text), x, z);
        for (std::int64_t e : {1, 9}) {
          Array v = normal(dtype, {n, e}, 3);
          on_each_masked([&](TestContext& context) {
            context.set_ways("kernel_product:packed_tile");
            const Array out(dtype, {m, e});
            kernel_product(text, x, &zt, v, out, {}, context);
            expect_product(out, values, v, text);
          });
        }
      }
    }
}

/// Zero times an infinity is NaN, in tiles that are skipped as in others.
TEST(Masks, ProductsWithInfinitiesInV) {
  const Array x = normal(Dtype::float32, {150, 3}, 1), z = normal(Dtype::float32, {400, 3}, 2);
  Array v = normal(Dtype::float32, {400, 2}, 3);
  v.set({5, 1}, kInf);
  v.set({390, 0}, kNan);
  const Tensor zt = z;
  on_each_masked([&](TestContext& context) {
    context.set_ways("kernel_product:packed_tile");
    const Array out(Dtype::float32, {150, 2});
    kernel_product("where(abs(i-j) < 9, exp(-sum(abs(x-z))), 0)", x, &zt, v, out, {}, context);
    for (int m = 0; m < 150; ++m) {
      EXPECT_TRUE(std::isnan(out(m, 0))) << m;
      EXPECT_EQ(std::isnan(out(m, 1)), std::abs(m - 5) >= 9) << m;
    }
  });
}

TEST(Masks, NanOfMaskedPointsDoesNotReachSums) {
  for (Dtype dtype : kWide) {
    const Points points(dtype, 150, 230, 3);
    const Array v = normal(dtype, {230, 2}, 3);
    const Tensor zt = points.z;
    const char* text = "where(i <= j, exp(-sum((x-z)^2)), 0)";
    const auto values = table(parse(text), points.x, zt);
    on_each_masked([&](TestContext& context) {
      const Array out(dtype, {150, 2});
      kernel_product(text, points.x, &zt, v, out, {}, context);
      expect_product(out, values, v, text);
      EXPECT_TRUE(std::isnan(out(0, 0)));
      EXPECT_FALSE(std::isnan(out(100, 0)));
    });
  }
}

TEST(Masks, Reductions) {
  for (Dtype dtype : kWide) {
    const Points points(dtype, 150, 230, 3);
    const Array x = normal(dtype, {11, 3}, 5), z = normal(dtype, {9001, 3}, 4);  // two ranges
    for (const char* text : kMasks)
      on_each_masked([&](TestContext& context) {
        expect_reductions(text, points.x, points.z, context);
        expect_reductions(text, x, z, context);
      });
    for (const char* text : {"where(i <= j, -sum((x-z)^2), -inf)", "where(abs(i-j) < 30, sum(x*z), inf)",
                             "where(abs(i-j) < 30, sum(x*z), nan)"})
      on_each_masked([&](TestContext& context) { expect_reductions(text, x, z, context); });
  }
}

TEST(Masks, Nearest) {
  for (Dtype dtype : kWide)
    for (auto [m, n] : {std::array{150, 230}, {11, 9001}}) {
      const Array x = normal(dtype, {m, 3}, 1), z = normal(dtype, {n, 3}, 2);
      const Tensor zt = z;
      for (const char* text : {"where(i != j, sum((x-z)^2), inf)", "where(abs(i-j) >= 60, sum((x-z)^2), inf)",
                               "where(abs(i-j) < 20, sum((x-z)^2), 1)", "where(i > j, sum((x-z)^2), nan)",
                               "where(j < 50, 0, sum((x-z)^2))"})
        on_each_masked([&](TestContext& context) {
          const Array pairs(dtype, {m, n}), values(dtype, {m, 100}), indices(Dtype::int64, {m, 100});
          context.set_ways("pairwise:packed_tile,pairwise:packed_halves,knn:packed_tile");
          pairwise(text, x, &zt, pairs, {}, context);
          knn(text, x, &zt, 100, values, indices, {}, context);
          for (std::int64_t i = 0; i < m; ++i) {
            std::vector<std::int64_t> order(n);
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
              const double left = pairs(i, a), right = pairs(i, b);
              if (std::isnan(left) || std::isnan(right)) return !std::isnan(left) && std::isnan(right);
              return left < right;
            });
            for (std::int64_t j = 0; j < 100; ++j)
              ASSERT_EQ(indices(i, j), static_cast<double>(order[j])) << text << " at " << i << "," << j;
          }
        });
    }
}

/// Labels of sorted points: blocks along the diagonal.
TEST(Masks, ValuesOfPoints) {
  for (Dtype dtype : kWide) {
    const Points points(dtype, 150, 230, 3);
    const Tensor zt = points.z;
    Array row(dtype, {150}), col(dtype, {230});
    Extra extra;
    for (int i = 0; i < 150; ++i) extra.row.push_back(i / 31);
    for (int j = 0; j < 230; ++j) extra.col.push_back(j == 70 ? kNan : j / 40);
    for (int i = 0; i < 150; ++i) row.set({i}, extra.row[i]);
    for (int j = 0; j < 230; ++j) col.set({j}, extra.col[j]);
    Arguments arguments;
    arguments.row = row;
    arguments.col = col;
    for (const char* text : {"where(row == col, exp(-sum((x-z)^2)), 0)", "where(row != col, exp(-sum((x-z)^2)), 0)",
                             "where(row < col, 2, sum(abs(x-z)))"}) {
      const Expected expected = expected_pairs(parse(text), points.x, zt, 4e-6, 10.0, extra);
      on_each_masked([&](TestContext& context) {
        const Array out(dtype, {150, 230});
        pairwise(text, points.x, &zt, out, arguments, context);
        expect_pairs(out, expected, text);
      });
    }
  }
}

/// Blocks that add nothing are left out; with infinities among the points or coefficients they are not nothing.
TEST(Masks, Gradients) {
  for (Dtype dtype : kWide)
    for (const char* text : {"where(j <= i, exp(-sum((x-z)^2)/8), 0)", "where(abs(i-j) < 9, exp(-sum(abs(x-z))/8), 0)",
                             "where(i < 20, sum(x*z), 3)", "where(abs(i-j) > 9, sum(max(x-z, 0)^2), 0)",
                             "where(row == col, tanh(sum(x*z)/8), 0)"}) {
      const Expr f = parse(text), field = differentiate(f, points().x);
      for (const bool is_finite : {true, false}) {
        Array x = normal(dtype, {43, 5}, 1), z = normal(dtype, {700, 5}, 2), coef = normal(dtype, {3, 700}, 3);
        Array row(dtype, {43}), col(dtype, {700});
        if (!is_finite) {
          x.set({2, 1}, kNan);
          z.set({650, 0}, kInf);
          coef.set({1, 690}, kNan);
        }
        Extra extra;
        for (int i = 0; i < 43; ++i) extra.row.push_back(i / 9), row.set({i}, i / 9);
        for (int j = 0; j < 700; ++j) extra.col.push_back(j / 200), col.set({j}, j / 200);
        Arguments arguments;
        if (std::string(text).find("row") != std::string::npos) {
          arguments.row = row;
          arguments.col = col;
        } else {
          extra.row.clear();
          extra.col.clear();
        }
        const Tensor zt = z;
        const Field expected = expected_field(field, x, z, coef, extra);
        on_each_masked([&](TestContext& context) {
          const Array out(dtype, {3, 43, 5});
          kernel_gradient(f, x, &zt, coef, out, arguments, context);
          expect_field(out, expected, text, 3);
        });
      }
    }
}

TEST(Masks, ExplainSaysWhatIsComputed) {
  constexpr Target kTarget = Target::x86_avx2;
  const ExplainShape shape{1000, 1000, 3};
  const std::string triangle = explain("where(i <= j, exp(-sum((x-z)^2)), 0)", shape, Dtype::float32, kTarget);
  EXPECT_NE(triangle.find("mask: tiles"), std::string::npos) << triangle;
  EXPECT_NE(triangle.find("about 50 % of 1000 x 1000 pairs are computed"), std::string::npos) << triangle;
  const std::string band = explain("where(abs(i-j) < b, exp(-sum((x-z)^2)), 0)", shape, Dtype::float32, kTarget);
  EXPECT_NE(band.find("depends on the values that the mask reads"), std::string::npos) << band;
  const std::string none = explain("where(i == j, 2, exp(-sum((x-z)^2)))", shape, Dtype::float32, kTarget);
  EXPECT_EQ(none.find("mask"), std::string::npos) << none;
}

}  // namespace
}  // namespace mercer
