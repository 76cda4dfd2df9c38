// Products with many columns of values that are computed pair by pair and stored, then multiplied on tensor cores:
// where they lie, of more columns in pieces. Small problems take the path too.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/emulated.h"
#include "ops/drawn_data.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/value_products.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kLaplace = "exp(-sum(abs(x-z))/K)";

Array product_of(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& v, TestContext& context) {
  Array out(v.dtype, {x.shape[0], v.shape[1]});
  kernel_product(f, x, z, v, out, {}, context);
  return out;
}

void expect_products(const char* f, const Tensor& x, const Tensor& z, const Tensor& v, const std::string& what,
                     TestContext& context) {
  const Array out = product_of(f, x, &z, v, context);
  expect_product(out, table(parse(f), x, z), v, what);
  EXPECT_TRUE(same_bits(out, product_of(f, x, &z, v, context))) << what;
}

TEST(ValueProducts, FormulasAndSizes) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, k, columns] : {std::array{70, 130, 6, 17}, {150, 65, 40, 70}, {5, 300, 18, 320}}) {
      const Array x = drawn(m, k, 1, kUniform), z = drawn(n, k, 2, kUniform);
      const Array v = normal(Dtype::float32, {n, columns}, 3);
      for (const char* f : {kLaplace, "sum(abs(x-z)^1.5)^(1/1.5)", "max(abs(x-z))",
                            "1/(1 + sum(abs(x-z)) + abs(i - j)/64)"}) {
        expect_products(f, x, z, v, fmt::format("{}, {} columns", f, columns), context);
        if (::testing::Test::HasFatalFailure()) return;
      }
      constexpr const char* kWeighted = "exp(-sum(w*abs(x-z))/9) + row*col";
      Extra extra;
      for (std::int64_t i = 0; i < k; ++i) extra.w.push_back(0.25 + 0.125 * static_cast<double>(i % 7));
      for (std::int64_t i = 0; i < m; ++i) extra.row.push_back(static_cast<double>(i % 5) - 2);
      for (std::int64_t i = 0; i < n; ++i) extra.col.push_back(0.5 * static_cast<double>(i % 3) - 0.25);
      const Array w = filled(Dtype::float32, {k}, extra.w), row = filled(Dtype::float32, {m}, extra.row);
      const Array col = filled(Dtype::float32, {n}, extra.col), out(Dtype::float32, {m, columns});
      const Tensor zt = z;
      Arguments arguments;
      arguments.w = w.tensor();
      arguments.row = row.tensor();
      arguments.col = col.tensor();
      kernel_product(kWeighted, x, &zt, v, out, arguments, context);
      expect_product(out, table(parse(kWeighted), x, z, extra), v, kWeighted);
    }
    EXPECT_GT(context.state().cuda_fields.size(), 0U) << "values are stored";
  });
}

TEST(ValueProducts, EveryKindOfData) {
  on_tensor_cores([](TestContext& context) {
    for (const Kind& kind : kinds()) {
      if (std::string(kind.name) == "huge") continue;  // sums of such distances leave the floats
      PointPair points{drawn(40, 30, 1, kind.draw), drawn(90, 30, 2, kind.draw)};
      add_neighbours(points);
      const Array v = normal(Dtype::float32, {90, 33}, 3);
      for (const char* f : {"sum(abs(x-z))", "1/(1 + sum(abs(x-z)))"})
        expect_products(f, points.x, points.z, v, fmt::format("{}, {}", f, kind.name), context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Parts of the rows, ranges of n, the last of both ragged; arrays of any strides, points of 16 bits, z left out.
TEST(ValueProducts, PartsAndLayouts) {
  on_tensor_cores([](TestContext& context) {
    const Array x = drawn(140, 18, 1, kUniform), z = drawn(1100, 18, 2, kUniform);
    const Array v0 = normal(Dtype::float32, {1100, 20}, 3);
    const Tensor zt = z;
    const Array whole = product_of(kLaplace, x, &zt, v0, context);
    context.state().own_costs().part_bytes = 50000;
    expect_products(kLaplace, x, z, v0, "in parts", context);
    EXPECT_FALSE(same_bits(whole, product_of(kLaplace, x, &zt, v0, context))) << "one range of n";
    const Array cut = product_of(kLaplace, x, &zt, v0, context);
    for (const Shape& strides : {Shape{1, 1100}, Shape{-43, 2}}) {
      const Array v = copy(v0, Dtype::float32, strides), out(Dtype::float32, {140, 20}, {-1, 140});
      kernel_product(kLaplace, x, &zt, v, out, {}, context);
      EXPECT_TRUE(same_bits(copy(out, Dtype::float32), cut)) << strides[0];
    }
    const Array halves = copy(x, Dtype::bfloat16), v = normal(Dtype::float32, {140, 40}, 4);
    Array out(Dtype::float32, {140, 40});
    kernel_product("sum(abs(x-z))", halves, nullptr, v, out, {}, context);
    expect_product(out, table(parse("sum(abs(x-z))"), halves, halves), v, "one set of points");
  });
}

/// Values far below the largest of their row, and columns of v with such values, count as much as others.
void expect_values_of_all_sizes(std::int64_t columns) {
  on_tensor_cores([columns](TestContext& context) {
    constexpr std::int64_t kM = 40, kN = 130, kK = 20;
    PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    for (const Tensor& side : {points.x.tensor(), points.z.tensor()})  // sums of differences are exact
      each_index(side.shape, [&](const Shape& at) { write(side, at, std::round(8 * read(side, at)) / 8); });
    add_neighbours(points);
    const Tensor z = points.z;
    const Array normal_v = normal(Dtype::float32, {kN, columns}, 3);
    Array v = normal_v;
    // A value of nearly one meets a zero: what is far below it makes the sum.
    for (std::int64_t n = 0; n < kN; ++n)
      for (std::int64_t m = 0; m < kM; ++m) {
        double sum = 0;
        for (std::int64_t k = 0; k < kK; ++k) sum += std::abs(points.x(m, k) - points.z(n, k));
        if (sum < 0.5) v.set({n, 1}, 0);
      }
    for (const char* f : {"exp2(-6*sum(abs(x-z)))", "exp2(-12*sum(abs(x-z)))"})
      expect_products(f, points.x, z, v, f, context);
    // v of two sizes: whatever the formula leaves of the larger ones is nothing, or as small as the others.
    for (const double size : {-12.0, -24.0, -40.0, -90.0, 70.0, -110.0}) {
      v = normal_v;
      for (std::int64_t n = 0; n < kN; ++n)
        if (n % 3 != 0) v.set({n, 2}, std::ldexp(v(n, 2), static_cast<int>(size)));
      PointPair apart = points;
      for (std::int64_t n = 0; n < kN; n += 3)
        for (std::int64_t k = 0; k < kK; ++k) apart.z.set({n, k}, 3 + apart.z(n, k));
      const Tensor far = apart.z;
      for (const char* f : {"max(1 - sum(abs(x-z))/12, 0)", "exp(-sum(abs(x-z))/4)", kLaplace})
        expect_products(f, apart.x, far, v, fmt::format("{}, 2^{}", f, size), context);
      if (::testing::Test::HasFatalFailure()) return;
    }
    // v of one far point, the last, and so small ones near that pieces lose half of them: together those count.
    PointPair close = points;
    for (const Tensor& side : {close.x.tensor(), close.z.tensor()})
      each_index(side.shape, [&](const Shape& at) { write(side, at, read(side, at) / 8); });
    for (std::int64_t k = 0; k < kK; ++k) close.z.set({kN - 1, k}, 2.25);
    v = normal_v;
    for (std::int64_t n = 0; n < kN; ++n) v.set({n, 5}, n == kN - 1 ? 1 : std::ldexp(1.3, -40));
    expect_products("exp(-sum(abs(x-z))/4)", close.x, close.z, v, "one far point", context);
    // What is no number stays in its column, and in the rows that read it.
    v = normal_v;
    v.set({7, 3}, kNan);
    v.set({9, 4}, kInf);
    expect_products(kLaplace, points.x, z, v, "no numbers", context);
    for (std::int64_t k = 0; k < kK; ++k) points.x.set({5, k}, kNan);
    expect_products(kLaplace, points.x, z, normal_v, "no point", context);
  });
}

TEST(ValueProducts, SizesThatPiecesDoNotCarry) { expect_values_of_all_sizes(320); }
TEST(ValueProducts, ValuesWhereTheyLie) { expect_values_of_all_sizes(24); }

/// Values themselves may be of products of matrices.
TEST(ValueProducts, Float64) {
  on_tensor_cores([](TestContext& context) {
    Turns turns(3);
    for (auto [m, n, k, columns] : {std::array{40, 130, 20, 17}, {150, 65, 40, 50}, {5, 1100, 3, 130}}) {
      const Array x = normal(Dtype::float64, {m, k}, 1), z = normal(Dtype::float64, {n, k}, 2);
      Array v = normal(Dtype::float64, {n, columns}, 3);
      for (std::int64_t i = 0; i < n; i += 2) v.set({i, 1}, std::ldexp(v(i, 1), -200));
      for (const std::int64_t bytes : {std::int64_t{1} << 28, std::int64_t{1}}) {
        context.state().own_costs().part_bytes = bytes;  // of 128 rows at least
        for (const char* f : {kLaplace, "exp(-sum((x-z)^2)/(9*K))", "max(abs(x-z))", "sum(x*z) + j"}) {
          if (turns.leaves_out()) continue;
          expect_products(f, x, z, v, fmt::format("{}, {} columns", f, columns), context);
        }
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    EXPECT_EQ(context.state().cuda_fields.size(), 2U) << "of up to 32 columns and of more, of all formulas";
  });
}

TEST(ValueProducts, ItemsOfABatchAreAlone) {
  on_tensor_cores([](TestContext& context) {
    expect_product_items_alone("exp(-sum(abs(x-z))/b)", 70, 90, 24, {30, 50, 90}, context);
  });
}

TEST(ValueProducts, PlansKeepWithinTheirMemory) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 28;
  for (auto [m, n, columns] : {std::array<std::int64_t, 3>{50000, 50000, 64},
                               {10000, 10000, 512},
                               {1000000, 2000, 17},
                               {1500, 1000000, 1024}}) {
    const plan::LinearSizes sizes = plan::value_product_sizes(m, n, columns, kBytes, 132);
    EXPECT_TRUE(sizes.fits);
    EXPECT_LE(sizes.rows * sizes.row_bytes(), kBytes);
    EXPECT_LE(sizes.columns * sizes.points * 4, 2 * kBytes);
    EXPECT_TRUE(sizes.rows == m || sizes.rows % 128 == 0) << sizes.rows;
    EXPECT_GE(sizes.columns, columns);
    EXPECT_TRUE(plan::linear_tile(sizes, 132, plan::costs_of(90))) << m << ", " << n;
  }
  const auto stores = [](Dtype type, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                         bool of_sums) {
    plan::Request request;
    request.m = m, request.n = n, request.k = k, request.columns = columns;
    request.type = type;
    const plan::ValueTimes times = plan::value_times(plan::costs_of(90), request, of_sums);
    return columns > plan::kFewColumns && times.stored < times.passes;
  };
  const auto pays = [&](std::int64_t k, std::int64_t columns, bool of_sums = false) {
    return stores(Dtype::float32, 10000, 10000, k, columns, of_sums);
  };
  EXPECT_FALSE(pays(784, 16)) << "one pass";
  EXPECT_TRUE(pays(784, 17));
  EXPECT_TRUE(pays(20, 17));
  EXPECT_FALSE(pays(784, 32, true)) << "sums are stored once for all passes";
  EXPECT_TRUE(pays(784, 512, true));
  const auto pays_in_double = [&](std::int64_t m, std::int64_t k, std::int64_t columns) {
    return stores(Dtype::float64, m, 1000000, k, columns, false);
  };
  EXPECT_FALSE(pays_in_double(10000, 784, 16)) << "one pass";
  EXPECT_TRUE(pays_in_double(10000, 3, 17));
  EXPECT_TRUE(pays_in_double(10000, 784, 17));
}

}  // namespace
}  // namespace mercer
