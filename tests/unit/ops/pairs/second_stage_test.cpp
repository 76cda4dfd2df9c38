// kernel_product, kernel_reduce and knn against folds of the oracle's values.
#include <algorithm>
#include <numeric>

#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

// Kernels of moderate |log f|: the contract of a product presumes values that err by 1e-6.
constexpr const char* kLaplace = "exp(-sum(abs(x-z))/(2*K + 1))";
constexpr const char* kSided = "sum(max(x-z, 0))/7 + sum(abs(x))";  // tells x from z

TEST(Product, ColumnsAndSizes) {
  for (Dtype dtype : kWide)
    for (auto [m, n, k] :
         {std::array{1, 1, 1}, {13, 37, 20}, {50, 193, 7}, {7, 300, 3}, {97, 2, 65}, {5, 0, 3}, {4, 6, 0}}) {
      const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2);
      const Tensor zt = z;
      for (const char* text : {kLaplace, kSided}) {
        const auto values = table(parse(text), x, z);
        for (std::int64_t e : {0, 1, 2, 3, 8, 16, 33}) {
          const Array v = normal(dtype, {n, e}, 3);
          on_each_target([&](TestContext& context) {
            const Array out(dtype, {m, e});
            kernel_product(text, x, &zt, v, out, {}, context);
            expect_product(out, values, v, text);
          });
        }
        const Array v = normal(dtype, {n}, 3);
        on_each_target([&](TestContext& context) {
          const Array out(dtype, {m});
          kernel_product(text, x, &zt, v, out, {}, context);
          expect_product(out, values, v, text);
        });
      }
    }
}

TEST(Product, ManyPointsAreSplit) {
  for (Dtype dtype : kWide) {
    const Array x = normal(dtype, {3, 4}, 1), z = normal(dtype, {13001, 4}, 2), v = normal(dtype, {13001, 2}, 3);
    const Tensor zt = z;
    const auto values = table(parse(kLaplace), x, z);
    on_each_target([&](TestContext& context) {
      const Array out(dtype, {3, 2});
      kernel_product(kLaplace, x, &zt, v, out, {}, context);
      expect_product(out, values, v, "split");
    });
  }
}

TEST(Product, NoPoints) {
  const Array x = normal(Dtype::float32, {4, 3}, 1), z(Dtype::float32, {0, 3}), v(Dtype::float32, {0, 2});
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {4, 2});
    kernel_product("sum(x*z)", x, &zt, v, out, {}, context);
    each_index({4, 2}, [&](const Shape& i) { EXPECT_EQ(read(out, i), 0); });
  });
}

TEST(Product, StridesTypesAndTheSamePoints) {
  const Array x = normal(Dtype::float32, {29, 6}, 1), v0 = normal(Dtype::float32, {29, 5}, 2);
  const auto values = table(parse(kSided), x, x);
  on_each_target([&](TestContext& context) {
    for (const Shape& strides : {Shape{5, 1}, Shape{1, 29}, Shape{-7, 1}, Shape{3, 100}, Shape{0, 1}})
      for (Dtype dtype : {Dtype::float32, Dtype::float16}) {
        const Array v = copy(v0, dtype, strides), out(Dtype::float32, {29, 5}, column_major({29, 5}));
        kernel_product(kSided, x, nullptr, v, out, {}, context);
        expect_product(out, values, v, "strides");
      }
  });
}

TEST(Product, BatchesAndParameters) {
  const Array x = normal(Dtype::float64, {3, 1, 9, 4}, 1), z = normal(Dtype::float64, {17, 4}, 2),
              v = normal(Dtype::float64, {2, 17, 3}, 3);
  const Array b = filled(Dtype::float64, {2}, {1, 6});
  const Tensor zt = z;
  Arguments arguments;
  arguments.params["b"] = b.tensor();
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {3, 2, 9, 3});
    kernel_product("exp(-sum(abs(x-z))/b)", x, &zt, v, out, arguments, context);
    each_index({3, 2}, [&](const Shape& i) {
      const Extra extra{{{"b", b(i[1])}}, {}, {}, {}, 0, 0};
      expect_product(item(out, i), table(parse("exp(-sum(abs(x-z))/b)"), item(x, {i[0], 0}), z, extra), item(v, {i[1]}),
                     "batch");
    });
  });
}

TEST(Product, OffsetsValuesAndWeights) {
  const Array x = normal(Dtype::float64, {9, 4}, 1), z = normal(Dtype::float64, {60, 4}, 2),
              v = normal(Dtype::float64, {60, 2}, 3);
  const Array row = normal(Dtype::float64, {9}, 4), col = normal(Dtype::float64, {60}, 5),
              w = uniform(Dtype::float64, {4}, 6);
  const Tensor zt = z;
  Extra extra;
  extra.i_offset = 5;
  extra.j_offset = 2;
  for (int i = 0; i < 9; ++i) extra.row.push_back(row(i));
  for (int i = 0; i < 60; ++i) extra.col.push_back(col(i));
  for (int i = 0; i < 4; ++i) extra.w.push_back(w(i));
  Arguments arguments = arguments_of(extra);
  arguments.row = row;
  arguments.col = col;
  arguments.w = w;
  const char* text = "where(i == j, 3, sum(w*max(x - z + row, 0))) + 2*col + i - 3*j";
  const auto values = table(parse(text), x, z, extra);
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {9, 2});
    kernel_product(text, x, &zt, v, out, arguments, context);
    expect_product(out, values, v, text);
  });
}

void check_reductions(const char* text, const Array& x, const Array& z) {
  const Tensor zt = z;
  on_each_target([&](TestContext& context) { expect_reductions(text, x, zt, context); });
}

TEST(Reduce, EveryKindOnRaggedSizes) {
  for (Dtype dtype : kWide)
    for (auto [m, n, k] : {std::array{1, 1, 1}, {13, 37, 20}, {50, 193, 7}, {7, 97, 3}, {3, 9001, 2}, {4, 6, 0}}) {
      const Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2);
      check_reductions(kSided, x, z);
      check_reductions("sum(abs(x-z))", x, z);
    }
}

TEST(Reduce, TiesGoToTheSmallerIndex) {
  for (Dtype dtype : kWide) {
    std::mt19937 random(1);
    const auto small = [&] { return static_cast<double>(random() % 3); };
    const Array x = Array(dtype, {20, 3}).fill(small), z = Array(dtype, {9000, 3}).fill(small);
    check_reductions("sum(abs(x-z))", x, z);
    check_reductions("sum(x*0*z)", x, z);
  }
}

TEST(Reduce, NanWinsAndInfinitiesCount) {
  for (Dtype dtype : kWide) {
    Array x = normal(dtype, {20, 3}, 1), z = normal(dtype, {9000, 3}, 2);
    x.set({3, 0}, kNan);
    x.set({4, 0}, kInf);
    x.set({5, 1}, -kInf);
    check_reductions("sum(x-z)", x, z);
    z.set({4200, 2}, kInf);
    z.set({4100, 1}, -kInf);
    check_reductions("sum(x-z)", x, z);
    z.set({8000, 1}, kNan);
    z.set({8001, 1}, kNan);
    check_reductions("sum(x-z)", x, z);
  }
}

TEST(Reduce, LogsumexpNeitherOverflowsNorUnderflows) {
  for (Dtype dtype : kWide) {
    Array x = normal(dtype, {20, 3}, 1, 300), z = normal(dtype, {500, 3}, 2, 300);
    check_reductions("sum(x-z)", x, z);
    check_reductions("-sum(abs(x-z))*1000", x, z);
    check_reductions("log(sum(x)*0)", x, z);  // -Inf everywhere
  }
}

TEST(Reduce, NoPoints) {
  const Array x = normal(Dtype::float32, {4, 3}, 1), z(Dtype::float32, {0, 3});
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float32, {4}), index(Dtype::int64, {4});
    kernel_reduce("sum(x*z)", x, &zt, ReduceKind::sum, out, {}, context);
    EXPECT_EQ(out(3), 0);
    kernel_reduce("sum(x*z)", x, &zt, ReduceKind::logsumexp, out, {}, context);
    EXPECT_EQ(out(3), -kInf);
    for (ReduceKind kind : {ReduceKind::max, ReduceKind::min, ReduceKind::argmax, ReduceKind::argmin}) {
      const bool is_index = kind == ReduceKind::argmax || kind == ReduceKind::argmin;
      const std::string what =
          message_of([&] { kernel_reduce("sum(x*z)", x, &zt, kind, is_index ? index : out, {}, context); });
      EXPECT_NE(what.find("needs at least one point of z"), std::string::npos) << what;
    }
    EXPECT_TRUE(index.untouched());
  });
}

TEST(Reduce, BatchesAndStridedOutputs) {
  const Array x = normal(Dtype::float64, {3, 1, 9, 4}, 1), z = normal(Dtype::float64, {2, 17, 4}, 2);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array out(Dtype::float64, {3, 2, 9}, {1, 40, -4});
    kernel_reduce(kSided, x, &zt, ReduceKind::max, out, {}, context);
    each_index({3, 2}, [&](const Shape& i) {
      const auto values = table(parse(kSided), item(x, {i[0], 0}), item(z, {i[1]}));
      for (int m = 0; m < 9; ++m) ASSERT_NEAR(out(i[0], i[1], m), folded(ReduceKind::max, values[m]), 1e-12);
    });
  });
}

void check_nearest(const char* text, Dtype dtype, const Array& x, const Array& z, std::int64_t k) {
  const Tensor zt = z;
  const std::int64_t m = x.shape()[0], n = z.shape()[0];
  on_each_target([&](TestContext& context) {
    const Array pairs(dtype, {m, n}), values(dtype, {m, k}, column_major({m, k})), indices(Dtype::int64, {m, k});
    context.set_ways("pairwise:packed_tile,pairwise:packed_halves");  // neighbours are of its values
    pairwise(text, x, &zt, pairs, {}, context);
    knn(text, x, &zt, k, values, indices, {}, context);
    for (std::int64_t i = 0; i < m; ++i) {
      std::vector<std::int64_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        const double left = pairs(i, a), right = pairs(i, b);
        if (std::isnan(left) || std::isnan(right)) return !std::isnan(left) && std::isnan(right);
        return left < right;
      });
      for (std::int64_t j = 0; j < k; ++j) {
        ASSERT_EQ(indices(i, j), static_cast<double>(order[j])) << text << " of " << n << " at " << i << "," << j;
        ASSERT_TRUE(within(values(i, j), pairs(i, order[j]), 0, dtype));
      }
    }
  });
}

TEST(Nearest, OneSomeAndAll) {
  for (Dtype dtype : kWide)
    for (auto [m, n] : {std::array{1, 1}, {7, 40}, {50, 193}, {3, 9001}})
      for (std::int64_t k : {1, 5, n}) {
        if (k > n || m * k > 30000) continue;
        check_nearest("sum(abs(x-z))", dtype, normal(dtype, {m, 4}, 1), normal(dtype, {n, 4}, 2), k);
      }
}

TEST(Nearest, TiesByIndexAndNanLast) {
  for (Dtype dtype : kWide) {
    std::mt19937 random(1);
    const auto small = [&] { return static_cast<double>(random() % 3); };
    Array x = Array(dtype, {20, 3}).fill(small), z = Array(dtype, {300, 3}).fill(small);
    check_nearest("sum(abs(x-z))", dtype, x, z, 7);
    for (int n = 0; n < 300; n += 3) z.set({n, 1}, kNan);
    x.set({4, 0}, kInf);
    x.set({5, 0}, kNan);
    check_nearest("sum(x-z)", dtype, x, z, 7);
    check_nearest("sum(x-z)", dtype, x, z, 300);
  }
}

TEST(Nearest, Batches) {
  const Array x = normal(Dtype::float32, {2, 9, 4}, 1), z = normal(Dtype::float32, {2, 30, 4}, 2);
  const Tensor zt = z;
  on_each_target([&](TestContext& context) {
    const Array values(Dtype::float32, {2, 9, 3}), indices(Dtype::int64, {2, 9, 3});
    knn("sum(abs(x-z))", x, &zt, 3, values, indices, {}, context);
    for (int b = 0; b < 2; ++b) {
      const Array value(Dtype::float32, {9, 3}), index(Dtype::int64, {9, 3});
      const Tensor zb = item(z, {b});
      knn("sum(abs(x-z))", item(x, {b}), &zb, 3, value, index, {}, context);
      EXPECT_TRUE(same_bits(value, copy(item(values, {b}), Dtype::float32)));
      EXPECT_TRUE(same_bits(index, copy(item(indices, {b}), Dtype::int64)));
    }
  });
}

}  // namespace
}  // namespace mercer
