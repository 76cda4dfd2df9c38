// Masks that formulas spell, on CUDA: products and folds are made in strips of rows, with the columns that these need.
#include "backend/cuda/pairs/mask_strips.h"
#include "ops/context.h"
#include "ops/expected_folds.h"

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

/// Calls of any size look for strips.
template <class Body>
void on_masked_cuda(const Body& body) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().mask_strip = 0;
    body(context);
  });
}

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

/// The strips of a product, or of another fold, of m x n pairs.
std::vector<cuda::MaskStrip> strips_of(const char* text, std::int64_t m, std::int64_t n, ReduceKind kind,
                                       std::int64_t offset = 0) {
  plan::GpuPairProblem problem;
  problem.outputs = {parse(text)};
  problem.consumer = plan::Consumer::fold;
  problem.use.fold = kind;
  problem.sizes = plan::sizes_of(m, n, 3, 132);
  const auto plan = plan::plan_gpu_pairs(problem);
  const Queue queue;
  cuda::PairJob job;
  job.queue = &queue;
  job.features = 3;
  job.x.count = m;
  job.z.count = n;
  job.x.index_offset = offset;
  plan::Costs costs = plan::costs_of(plan::kMeasuredCapability);
  costs.mask_strip = 0;
  job.own_costs = &costs;
  return cuda::mask_strips(*plan, job);
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
      const auto strips = strips_of(one.text, kM, kN, ReduceKind::sum);
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

/// All pairs are computed where a known value adds something, or indices have no exact float32.
TEST(CudaMasks, NoStripsWhereTheyWouldBeWrong) {
  on_cuda([&](TestContext&) {
    const char* triangle = "where(j <= i, sum(x*z), 0)";
    EXPECT_FALSE(strips_of(triangle, 5000, 5000, ReduceKind::sum).empty());
    EXPECT_TRUE(strips_of(triangle, 5000, 5000, ReduceKind::sum, 1 << 24).empty());
    EXPECT_TRUE(strips_of(triangle, 5000, 5000, ReduceKind::max).empty());
    EXPECT_TRUE(strips_of(triangle, 5000, 5000, ReduceKind::argmax).empty());
    EXPECT_TRUE(strips_of("where(j <= i, sum(x*z), 1)", 5000, 5000, ReduceKind::sum).empty());
    EXPECT_TRUE(strips_of("where(row == col, sum(x*z), 0)", 5000, 5000, ReduceKind::sum).empty());
    EXPECT_FALSE(strips_of("where(j <= i, sum(x*z), -inf)", 5000, 5000, ReduceKind::max).empty());
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
    for (const char* text : {kMasks[0], "where(i <= j, -sum((x-z)^2), -inf)", "where(abs(i-j) < 30, sum(x*z), nan)"})
      expect_reductions(text, x, z, context);
  });
}

}  // namespace
}  // namespace mercer
