// Masks that formulas spell, on CUDA: calls are made in strips of rows, with the columns that these need.
#include <algorithm>
#include <numeric>
#include <set>

#include "backend/cuda/pairs/mask_strips.h"
#include "ops/context.h"
#include "ops/expected_folds.h"
#include "ops/masked_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kMasks[] = {
    "where(i <= j, exp(-sum((x-z)^2)/4), 0)",
    "where(j < i, exp(-sum((x-z)^2)/4), 0)",
    "where(abs(i-j) < 20, exp(-sum(abs(x-z))/4), 0)",
    "where(abs(i-j) > 170, exp(-sum(abs(x-z))/4), 0)",
    "where(i == j, exp(-sum(abs(x-z))/4), 0)",
    "where(floor(i/64) == floor(j/64), sum(x*z), -1)",
    "where(i < 100, where(j < 150, sum(x*z), 3), 0)",
    "where(j >= 240 && j < 260, sum((x-z)^2), 0)",
    "where(i < 1000, 0, sum(x*z))",
};

TEST(CudaMasks, Products) {
  on_masked_cuda([&](TestContext& context) {
    std::size_t turn = 0;
    for (const char* text : kMasks) {
      const Dtype dtype = turn % 3 == 2 ? Dtype::float64 : Dtype::float32;
      const std::int64_t m = 300, n = turn % 4 == 3 ? 1 : 430, e = turn % 2 == 0 ? 1 : 17;
      const Array x = normal(dtype, {m, 3}, 1), z = normal(dtype, {n, 3}, 2), v = normal(dtype, {n, e}, 3);
      const Tensor zt = z;
      const Array out(dtype, {m, e});
      kernel_product(text, x, &zt, v, out, {}, context);
      expect_product(out, table(parse(text), x, z), v, text);
      ++turn;
    }
  });
}

/// A strip has the rows' own indices and offsets, the parameters and the items of a batch.
TEST(CudaMasks, BatchesParametersAndOffsets) {
  on_masked_cuda([&](TestContext& context) {
    const Array x = normal(Dtype::float32, {2, 300, 3}, 1), z = normal(Dtype::float32, {410, 3}, 2),
                v = normal(Dtype::float32, {410, 4}, 3);
    const Tensor zt = z;
    Arguments arguments;
    arguments.params["b"] = 17.5;
    arguments.i_offset = 40;
    arguments.j_offset = -30;
    const Array out(Dtype::float32, {2, 300, 4});
    const char* text = "where(abs(i - j) <= b, exp(-sum(abs(x-z))), 0)";
    kernel_product(text, x, &zt, v, out, arguments, context);
    for (std::int64_t b = 0; b < 2; ++b) {
      const Extra extra{{{"b", 17.5}}, {}, {}, {}, 40, -30};
      expect_product(item(out, {b}), table(parse(text), item(x, {b}), z, extra), v, text);
    }
  });
}

/// A strip has the values of its own rows and columns.
TEST(CudaMasks, ValuesOfPoints) {
  on_masked_cuda([&](TestContext& context) {
    constexpr std::int64_t kM = 300, kN = 410;
    const Array x = normal(Dtype::float32, {kM, 3}, 1), z = normal(Dtype::float32, {kN, 3}, 2),
                v = normal(Dtype::float32, {kN, 2}, 3), row = normal(Dtype::float32, {kM}, 4),
                col = normal(Dtype::float32, {kN}, 5);
    const Tensor zt = z;
    Arguments arguments;
    arguments.row = row;
    arguments.col = col;
    Extra extra;
    for (std::int64_t m = 0; m < kM; ++m) extra.row.push_back(row(m));
    for (std::int64_t n = 0; n < kN; ++n) extra.col.push_back(col(n));
    const Array out(Dtype::float32, {kM, 2});
    const char* text = "where(j <= i, row*exp(-sum((x-z)^2)/4)*col, 0)";
    kernel_product(text, x, &zt, v, out, arguments, context);
    expect_product(out, table(parse(text), x, z, extra), v, text);
  });
}

/// Values with NaN and infinities in points whose pairs are left out for the most part.
TEST(CudaMasks, Pairwise) {
  on_masked_cuda([&](TestContext& context) {
    std::size_t turn = 0;
    for (const char* text :
         {kMasks[0], kMasks[2], kMasks[3], kMasks[5], kMasks[6], kMasks[7], kMasks[8],
          "where(i >= j && sum(x) > 0, exp(-sum((x-z)^2)/4), inf)", "2*where((i-j)^2 < 900, sum(max(x-z, 0)), 1)"}) {
      const Dtype dtype = turn % 3 == 2 ? Dtype::float64 : Dtype::float32;
      const std::int64_t m = turn % 2 == 0 ? 300 : 131, n = turn % 4 == 3 ? 130 : 431, k = turn % 2 == 0 ? 3 : 40;
      Array x = normal(dtype, {m, k}, 1), z = normal(dtype, {n, k}, 2);
      x.set({m - 2, 0}, kNan);
      z.set({3, 0}, -kInf);
      const Tensor zt = z;
      const Expected expected = expected_pairs(parse(text), x, z, unit(dtype) * 8, parse("1 + sum(x*x + z*z)"));
      for (const Shape& strides : {Shape{}, column_major({m, n})}) {
        const Array out(dtype, {m, n}, strides);
        pairwise(text, x, &zt, out, {}, context);
        expect_pairs(out, expected, text);
      }
      ++turn;
    }
  });
}

TEST(CudaMasks, PairwiseOfOneSet) {
  on_masked_cuda([&](TestContext& context) {
    for (const char* text :
         {"where(abs(i-j) < 20, exp(-sum((x-z)^2)/4), 7)", "where(abs(i-j) > 150, exp(-sum((x-z)^2)/4), 0)",
          "where(floor(i/100) == floor(j/100), sum(x*z), -1)", "where(i < 50 || j < 50, 2, sum(abs(x-z)))",
          "where(j <= i, sum(x*z), 0)"})
      for (const std::int64_t count : {431, 260}) {
        const Array x = normal(Dtype::float32, {count, 9}, 1);
        const Tensor zt = x;
        const Expected expected = expected_pairs(parse(text), x, x, 4e-6, parse("1 + sum(x*x + z*z)"));
        for (const Shape& strides : {Shape{}, column_major({count, count})}) {
          const Array out(Dtype::float32, {count, count}, strides);
          pairwise(text, x, nullptr, out, {}, context);
          expect_pairs(out, expected, text);
          if (!Formula(parse(text)).symmetric()) continue;
          for (std::int64_t i = 0; i < count; ++i)
            for (std::int64_t j = 0; j < i; ++j) ASSERT_EQ(out(i, j), out(j, i)) << text << " at " << i << "," << j;
        }
      }
  });
}

TEST(CudaMasks, PairwiseOfBatchesAndHalves) {
  on_masked_cuda([&](TestContext& context) {
    const Array x = normal(Dtype::float32, {2, 1, 300, 3}, 1), z = normal(Dtype::float32, {410, 3}, 2);
    const Array b = filled(Dtype::float64, {3}, {0.5, 1, 2});
    const Tensor zt = z;
    Arguments arguments;
    arguments.params["b"] = b.tensor();
    arguments.i_offset = 40;
    arguments.j_offset = -30;
    const char* text = "where(abs(i - j) <= 17, exp(-sum(abs(x-z))/b), 3)";
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      const Array out(dtype, {2, 3, 300, 410});
      pairwise(text, x, &zt, out, arguments, context);
      each_index({2, 3}, [&](const Shape& i) {
        const Extra extra{{{"b", b(i[1])}}, {}, {}, {}, 40, -30};
        const double bound = dtype == Dtype::float32 ? 4e-6 : 0x1p-8;
        expect_pairs(item(out, i), expected_pairs(parse(text), item(x, {i[0], 0}), z, bound, 1.0, extra), "batch");
      });
    }
  });
}

struct StripsOf {
  plan::Consumer consumer = plan::Consumer::fold;
  std::int64_t offset = 0;  // of i
  bool symmetric = false;
  std::int64_t least = 0;
};

/// The strips of m x n pairs.
std::vector<cuda::MaskStrip> strips_of(const char* text, std::int64_t m, std::int64_t n, const StripsOf& of) {
  plan::GpuPairProblem problem;
  problem.outputs = {parse(text)};
  problem.consumer = of.consumer;
  problem.sizes = plan::sizes_of(m, n, 3, 132);
  const auto plan = plan::plan_gpu_pairs(problem);
  const Queue queue;
  cuda::PairJob job;
  job.queue = &queue;
  job.features = 3;
  job.x.count = m;
  job.z.count = n;
  job.x.index_offset = of.offset;
  plan::Costs costs = plan::costs_of(plan::kMeasuredCapability);
  costs.mask_strip = 0;
  costs.mask_byte = 1;
  job.own_costs = &costs;
  return cuda::mask_strips(*plan, job, of.symmetric, of.least);
}

TEST(CudaMasks, StripsHaveThePairsThatCount) {
  on_cuda([&](TestContext&) {
    constexpr std::int64_t kM = 100000, kN = 90001;
    struct Case {
      const char* text;
      bool (*keeps)(std::int64_t i, std::int64_t j);
      double most;  // part of the pairs
    };
    const Case cases[] = {
        {"where(j <= i, sum(x*z), 0)", [](auto i, auto j) { return j <= i; }, 0.58},
        {"where(i < j, sum(x*z), 0)", [](auto i, auto j) { return i < j; }, 0.48},
        {"where(abs(i-j) < 5000, sum(x*z), 0)", [](auto i, auto j) { return std::abs(i - j) < 5000; }, 0.15},
        {"where(j < 5, sum(x*z), 0)", [](auto, auto j) { return j < 5; }, 0.01},
    };
    for (const Case& one : cases) {
      const auto strips = strips_of(one.text, kM, kN, {});
      double pairs = 0;
      std::int64_t row = 0;
      for (const cuda::MaskStrip& strip : strips) {
        ASSERT_EQ(strip.row, row) << one.text;
        ASSERT_EQ(strip.row % cuda::kStripPoints, 0);
        ASSERT_EQ(strip.column % cuda::kStripPoints, 0);
        row += strip.rows;
        pairs += static_cast<double>(strip.rows) * static_cast<double>(strip.columns);
        for (const std::int64_t i : {strip.row, strip.row + strip.rows / 2, row - 1})
          for (std::int64_t j = 0; j < kN; ++j)
            if (one.keeps(i, j))
              ASSERT_TRUE(j >= strip.column && j < strip.column + strip.columns) << one.text << " at " << i << "," << j;
      }
      EXPECT_EQ(row, kM) << one.text;
      EXPECT_LT(pairs, one.most * kM * kN) << one.text;
    }
  });
}

TEST(CudaMasks, StripsOfStoredValuesKnowTheirSides) {
  on_cuda([&](TestContext&) {
    constexpr std::int64_t kM = 50000;
    const auto strips = strips_of("where(i < 20000, where(abs(i-j) < 3000, sum(x*z), 3), where(j < i, -1, 4))", kM, kM,
                                  {.consumer = plan::Consumer::store});
    ASSERT_FALSE(strips.empty());
    double pairs = 0;
    for (const cuda::MaskStrip& strip : strips) {
      pairs += static_cast<double>(strip.rows) * static_cast<double>(strip.columns);
      const std::int64_t i = strip.row + strip.rows / 2;
      if (strip.column > 0) EXPECT_EQ(strip.before, i < 20000 ? 3 : -1) << strip.row;
      if (strip.column_end() < kM) EXPECT_EQ(strip.after, i < 20000 ? 3 : 4) << strip.row;
    }
    EXPECT_LT(pairs, 0.15 * kM * kM);
    for (const cuda::MaskStrip& strip : strips_of("where(abs(i-j) < 3000, sum(x*z), 3)", kM, kM,
                                                  {.consumer = plan::Consumer::store, .symmetric = true})) {
      EXPECT_EQ(strip.column, strip.row);
      EXPECT_GE(strip.column_end(), std::min(kM, strip.row + strip.rows + 2999));
    }
    const auto filled = strips_of("where(i + j >= 0, 5, sum(x*z))", kM, kM, {.consumer = plan::Consumer::store});
    for (const cuda::MaskStrip& strip : filled) EXPECT_EQ(strip.columns, 0);
    EXPECT_FALSE(filled.empty());
    for (const cuda::MaskStrip& strip : strips_of("where(j == i, sum(x*z), inf)", kM, kM, {.least = 5000})) {
      EXPECT_GE(strip.columns, 5000);
      EXPECT_LE(strip.column_end(), kM);
    }
  });
}

TEST(CudaMasks, PlansSayWhatTheyDo) {
  plan::GpuPairProblem problem;
  problem.outputs = {parse("where(j <= i, sum(x*z), 0)")};
  problem.sizes = plan::sizes_of(1000, 1000, 3, 132);
  EXPECT_NE(plan::plan_gpu_pairs(problem)->to_text().find("matrices are filled where i, j and"), std::string::npos);
  problem.consumer = plan::Consumer::product;
  EXPECT_NE(plan::plan_gpu_pairs(problem)->to_text().find("strips of rows, each with the columns"), std::string::npos);
  problem.outputs = {parse("sum(x*z)")};
  EXPECT_EQ(plan::plan_gpu_pairs(problem)->to_text().find("mask"), std::string::npos);
}

/// All pairs are computed where a product would want sums of v, or indices have no exact float32.
TEST(CudaMasks, NoStripsWhereTheyWouldBeWrong) {
  on_cuda([&](TestContext&) {
    using plan::Consumer;
    const char* triangle = "where(j <= i, sum(x*z), 0)";
    EXPECT_FALSE(strips_of(triangle, 5000, 5000, {}).empty());
    EXPECT_TRUE(strips_of(triangle, 5000, 5000, {.offset = 1 << 24}).empty());
    EXPECT_TRUE(strips_of("where(row == col, sum(x*z), 0)", 5000, 5000, {}).empty());
    EXPECT_FALSE(strips_of("where(j <= i, sum(x*z), 1)", 5000, 5000, {}).empty());
    EXPECT_TRUE(strips_of("where(j <= i, sum(x*z), 1)", 5000, 5000, {.consumer = Consumer::product}).empty());
    EXPECT_FALSE(strips_of(triangle, 5000, 5000, {.consumer = Consumer::product}).empty());
  });
}

/// Zero times an infinity is NaN, for rows of v that a strip leaves out as for others.
TEST(CudaMasks, ProductsWithInfinitiesInV) {
  on_masked_cuda([&](TestContext& context) {
    const Array x = normal(Dtype::float32, {350, 3}, 1), z = normal(Dtype::float32, {900, 3}, 2);
    Array v = normal(Dtype::float32, {900, 2}, 3);
    v.set({5, 1}, kInf);
    v.set({890, 0}, kNan);
    const Tensor zt = z;
    const Array out(Dtype::float32, {350, 2});
    kernel_product("where(abs(i-j) < 9, exp(-sum(abs(x-z))), 0)", x, &zt, v, out, {}, context);
    for (int m = 0; m < 350; ++m) {
      EXPECT_TRUE(std::isnan(out(m, 0))) << m;
      EXPECT_EQ(std::isnan(out(m, 1)), std::abs(m - 5) >= 9) << m;
    }
  });
}

TEST(CudaMasks, Reductions) {
  on_masked_cuda([&](TestContext& context) {
    Array x = normal(Dtype::float32, {300, 3}, 5), z = normal(Dtype::float32, {290, 3}, 4);
    x.set({298, 0}, kNan);
    z.set({3, 0}, kNan);
    z.set({170, 1}, -kInf);
    for (const char* text : {kMasks[0], "where(i <= j, -sum((x-z)^2), -inf)", "where(abs(i-j) < 30, sum(x*z), nan)",
                             "where(abs(i-j) < 30, sum((x-z)^2), inf)", "where(i < j, sum(x*z)/9, where(j < 9, 3, -2))",
                             "where(j < 200 && i > 90, sum(x*z), 0.5)"})
      expect_reductions(text, x, z, context);
  });
}

/// Values of `text` as a stable sort has them, NaN last.
void expect_neighbours(const char* text, const Array& x, const Array& z, std::int64_t count, TestContext& context,
                       const Arguments& arguments = {}, const Extra& extra = {}) {
  const Tensor xt = x, zt = z;
  const std::int64_t m = xt.shape[0], n = zt.shape[0];
  const Array values(Dtype::float32, {m, count}), indices(Dtype::int64, {m, count});
  knn(text, x, &zt, count, values, indices, arguments, context);
  const auto all = table(parse(text), x, z, extra);
  for (std::int64_t i = 0; i < m; ++i) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](std::int64_t j) {
      return std::isnan(all[i][j]) ? std::pair(true, 0.0) : std::pair(false, all[i][j]);
    };
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
    std::set<std::int64_t> seen;
    for (std::int64_t r = 0; r < count; ++r) {
      const double wanted = all[i][order[r]];
      const auto found = static_cast<std::int64_t>(indices(i, r));
      ASSERT_TRUE(found >= 0 && found < n && seen.insert(found).second) << text << " at " << i << "," << r;
      ASSERT_TRUE(within(values(i, r), wanted, 1e-5 * (1 + std::abs(wanted)), Dtype::float32))
          << text << " at " << i << "," << r << ": " << values(i, r) << " for " << wanted;
      ASSERT_TRUE(within(values(i, r), all[i][found], 1e-5 * (1 + std::abs(wanted)), Dtype::float32))
          << text << " at " << i << "," << r << ": column " << found;
      const bool is_tie = std::isinf(wanted) || std::isnan(wanted);
      if (is_tie) ASSERT_EQ(found, order[r]) << text << " at " << i << "," << r;
    }
  }
}

/// Rows with fewer neighbours than are asked for, values on both sides that come first, between and last, and NaN.
TEST(CudaMasks, Neighbours) {
  on_masked_cuda([&](TestContext& context) {
    Array x = normal(Dtype::float32, {300, 3}, 5), z = normal(Dtype::float32, {331, 3}, 4);
    x.set({170, 0}, kNan);
    z.set({3, 0}, kNan);
    z.set({180, 1}, kInf);
    for (const char* text : {"where(abs(i-j) < 3, sum((x-z)^2), inf)", "where(j < i, sum((x-z)^2), inf)",
                             "where(abs(i-j) < 30, sum((x-z)^2), nan)", "where(abs(i-j) > 150, sum(x*z), 0.25)",
                             "where(i < 150 && j >= 140, sum(abs(x-z)), where(j < 2, -1, 7))"})
      for (const std::int64_t count : {1, 10, 140}) expect_neighbours(text, x, z, count, context);
    Arguments arguments;
    arguments.params["b"] = 17.0;
    arguments.j_offset = 20;
    const Extra extra{{{"b", 17.0}}, {}, {}, {}, 0, 20};
    expect_neighbours("where(abs(i-j) < b, sum((x-z)^2), inf)", x, z, 5, context, arguments, extra);
  });
}

}  // namespace
}  // namespace mercer
