// Folds over n on tensor cores: values in registers, in split precision, times v, or their maxima. Small problems take
// the path too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "ops/drawn_data.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/plan.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kL2 = "sum((x-z)^2)^0.5";
constexpr const char* kGauss = "exp(-sum((x-z)^2)/(2*b^2))";

Array product_of(const Formula& f, const Tensor& x, const Tensor* z, const Tensor& v, const Arguments& arguments,
                 TestContext& context) {
  Array out(Dtype::float32, {x.shape[0], v.shape[1]});
  kernel_product(f, x, z, v, out, arguments, context);
  return out;
}

/// Twice, for the bits do not depend on the run.
void expect_products(const char* f, const PointPair& points, std::int64_t columns, const std::string& what,
                     TestContext& context) {
  const Tensor z = points.z;
  const Array v = normal(Dtype::float32, {z.shape[0], columns}, 7);
  const Array out = product_of(f, points.x, &z, v, {}, context);
  expect_product(out, table(parse(f), points.x, z), v, what);
  EXPECT_TRUE(same_bits(out, product_of(f, points.x, &z, v, {}, context))) << what;
}

TEST(TensorCoreProducts, EveryKindOfData) {
  on_tensor_cores([](TestContext& context) {
    for (const Kind& kind : kinds()) {
      if (std::string(kind.name) == "huge") continue;  // sums of such distances leave the floats
      PointPair points{drawn(300, 70, 1, kind.draw), drawn(333, 70, 2, kind.draw)};
      add_neighbours(points);
      expect_products(kL2, points, 2, kind.name, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// |out - wanted| <= sum (2e-6 + 1e-6 s / (2 b^2)) |k| |v|: what products may lose, and what their values may.
void expect_gauss_product(const Tensor& out, const PointPair& points, double b, const Tensor& v,
                          const std::string& what) {
  const auto squares = table(parse("sum((x-z)^2)"), points.x, points.z);
  for (std::int64_t m = 0; m < out.shape[0]; ++m)
    for (std::int64_t e = 0; e < out.shape[1]; ++e) {
      double wanted = 0, most = 0;
      for (std::int64_t n = 0; n < v.shape[0]; ++n) {
        const double power = squares[m][n] / (2 * b * b), term = std::exp(-power) * read(v, {n, e});
        wanted += term;
        most += (2e-6 + 1e-6 * power) * std::abs(term);
      }
      ASSERT_NEAR(read(out, {m, e}), wanted, most + 1e-37) << what << " at " << m << "," << e;
    }
}

/// Widths that let values lose what cancelling takes, and widths that do not; what decides may lie on the device.
TEST(TensorCoreProducts, WidthsAndColumns) {
  on_tensor_cores([](TestContext& context) {
    for (const std::size_t kind : {0, 5})  // normal and lognormal
      for (auto [k, columns] : {std::array{40, 1}, {64, 16}, {70, 5}, {18, 5}}) {
        PointPair points{drawn(70, k, 1, kinds()[kind].draw), drawn(130, k, 2, kinds()[kind].draw)};
        add_neighbours(points);
        const Tensor z = points.z;
        const Array v = normal(Dtype::float32, {130, columns}, 7);
        double squares = 0;  // of a typical pair
        for (std::int64_t f = 0; f < k; ++f) squares += std::pow(points.x(5, f) - points.z(9, f), 2);
        for (const double width : {0.2, 1.0, 30.0}) {
          Array b(Dtype::float32, {1}), same(Dtype::float32, {1, 70, columns});
          b.set({0}, width * std::sqrt(squares));
          Arguments number, device;
          number.params["b"] = b(0);
          device.params["b"] = b.tensor();
          const std::string what = fmt::format("{} of {}, {} columns, width {}", kinds()[kind].name, k, columns, width);
          for (const char* f : {kGauss, "exp(sum(-(x-z)^2)/(2*b^2))"})
            expect_gauss_product(product_of(f, points.x, &z, v, number, context), points, b(0), v, what);
          kernel_product(kGauss, points.x, &z, v, same, device, context);
          expect_gauss_product(item(same, {0}), points, b(0), v, what + " on the device");
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
  });
}

/// Wide kernels multiply in pieces of 16 bits where v is finite, whatever its sizes; narrow ones, and infinities, in
/// tf32, as powers of two too. Bits tell: a formula that may not know its values to be powers of two leaves its own.
TEST(TensorCoreProducts, PiecesOfSixteenBits) {
  constexpr const char* kSame = "min(exp(-sum((x-z)^2)/(2*b^2)), c)";
  on_tensor_cores([](TestContext& context) {
    if (context.state().own_costs().by_warps != 0) return;  // which multiply in pieces of tf32 alone
    for (auto [m, n, k, columns] :
         {std::array{70, 300, 40, 5}, {130, 97, 64, 16}, {150, 130, 100, 40}, {70, 210, 40, 112}}) {
      const PointPair points{drawn(m, k, 1, kUniform), drawn(n, k, 2, kUniform)};
      const Tensor z = points.z;
      Array v = normal(Dtype::float32, {n, columns}, 7);
      for (std::int64_t i = 0; i < n; ++i) {
        // Every 32 points of a size of their own, the least denormal; of other columns all but one zero, or all.
        v.set({i, 0}, std::ldexp(v(i, 0), static_cast<int>(i / 32 % 4) * 55 - 125));
        v.set({i, 1}, std::ldexp(v(i, 1), static_cast<int>(i % 32) - 16));
        if (i != n / 2) v.set({i, 2}, 0);
        v.set({i, 3}, 0);
      }
      const auto both = [&](double b, const Array& of_v, const std::string& what) {
        Arguments width;
        width.params["b"] = b;
        const Array out = product_of(kGauss, points.x, &z, of_v, width, context);
        Arguments bound = width;
        bound.params["c"] = 2.0;
        const Array general = product_of(kSame, points.x, &z, of_v, bound, context);
        if (std::isfinite(of_v(0, 4))) expect_gauss_product(out, points, b, of_v, what);
        return same_bits(out, general);
      };
      const double typical = std::sqrt(static_cast<double>(k) / 6);
      EXPECT_FALSE(both(typical * 4, v, "wide"));
      EXPECT_FALSE(both(typical / 4, v, "narrow"));
      v.set({0, 4}, std::numeric_limits<double>::infinity());
      EXPECT_FALSE(both(typical * 4, v, "infinite"));
      if (::testing::Test::HasFailure()) return;
    }
  });
}

/// The image of v is in blocks of 32 points, of which the last ones may have no point: these refuse no pieces of 16
/// bits. A column of v that is too large for them shows which pieces the other columns are made of.
TEST(TensorCoreProducts, BlocksWithoutPointsRefuseNothing) {
  on_tensor_cores([](TestContext& context) {
    if (context.state().own_costs().by_warps != 0) return;
    constexpr std::int64_t kM = 70, kN = 257, kK = 40, kColumns = 16;
    const PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    const Tensor z = points.z;
    Arguments width;
    width.params["b"] = 4 * std::sqrt(kK / 6.0);
    const auto product = [&](double last) {
      Array v = normal(Dtype::float32, {kN, kColumns}, 7);
      v.set({0, kColumns - 1}, last);
      return product_of(kGauss, points.x, &z, v, width, context);
    };
    const Array halves = product(1), floats = product(0x1p70);
    int unlike = 0;
    for (std::int64_t m = 0; m < kM; ++m)
      for (std::int64_t e = 0; e + 1 < kColumns; ++e) unlike += halves(m, e) != floats(m, e);
    EXPECT_GT(unlike, kM);
  });
}

/// Powers of two of any width, of points that nearly coincide far from the centre, and of points that pieces do not
/// carry: pairs that cancel are computed again where they stand. The factor is in v, where that stays finite; else, and
/// where values grow with the distance, differences compute all.
TEST(TensorCoreProducts, PowersOfEveryWidth) {
  constexpr std::int64_t kM = 70, kN = 100, kK = 36, kColumns = 8;
  on_tensor_cores([](TestContext& context) {
    PointPair points{drawn(kM, kK, 1, kinds()[0].draw), drawn(kN, kK, 2, kinds()[0].draw)};
    for (std::int64_t k = 0; k < kK; ++k)
      for (const std::int64_t at : {3, 40}) {
        points.x.set({at, k}, 20 * points.x(at, k));
        points.z.set({2 * at, k}, points.x(at, k) + 1e-3 * points.z(2 * at, k));
        points.z.set({2 * at + 1, k}, points.x(at, k));
      }
    points.x.set({50, 1}, 1e20);
    points.z.set({77, 2}, -1e20);
    const Tensor z = points.z;
    const auto squares = table(parse("sum((x-z)^2)"), points.x, z);
    const auto expect = [&](const Formula& f, double h, double factor, const Array& v, const std::string& what) {
      Arguments arguments;
      arguments.params["h"] = h;
      arguments.params["c"] = factor;
      const Array out = product_of(f, points.x, &z, v, arguments, context);
      for (std::int64_t m = 0; m < kM; ++m)
        for (std::int64_t e = 0; e < kColumns; ++e) {
          double wanted = 0, most = 0;
          for (std::int64_t n = 0; n < kN; ++n) {
            const double power = squares[m][n] / h, term = factor * std::exp(-power) * v(n, e);
            wanted += term;
            most += (power < 80 ? 2e-6 + 1e-6 * power : 1) * std::abs(term);  // beyond 80 values underflow
          }
          ASSERT_NEAR(out(m, e), wanted, most + 1e-37) << what << " at " << m << "," << e;
        }
    };
    Array v = normal(Dtype::float32, {kN, kColumns}, 7);
    for (std::int64_t n = 0; n < kN; ++n) {  // of one column all but one zero
      if (n != 7) v.set({n, 2}, 0);
      v.set({n, 3}, std::ldexp(v(n, 3), static_cast<int>(n % 40) - 20));
    }
    const Formula gauss("c*exp(-sum((x-z)^2)/h)");
    for (const double h : {0.02 * kK, 0.3 * kK, 1.0 * kK, 2000.0 * kK})
      expect(gauss, h, 1.5, v, fmt::format("h = {}", h));
    expect(gauss, kK, 0x1p-80, v, "a small factor");
    expect(gauss, kK, 0x1p100, v, "a large factor");
    for (std::int64_t n = 0; n < kN; ++n) v.set({n, 4}, std::ldexp(v(n, 4), n == 8 ? 60 : -40));
    expect(gauss, 2, 0x1p90, v, "a factor that v cannot take");
  });
}

/// Values for very many columns are stored, parts of the rows and of n one after the other, where pieces of 16 bits
/// carry them; the others go to the passes.
TEST(TensorCoreProducts, StoredValues) {
  on_tensor_cores([](TestContext& context) {
    if (context.state().own_costs().by_warps != 0) return;
    context.state().own_costs().part_bytes = 196608;  // of 128 x 384 values
    constexpr std::int64_t kM = 140, kN = 390, kK = 40, kColumns = 250;
    PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    add_neighbours(points);
    const Tensor z = points.z;
    Array v = normal(Dtype::float32, {kN, kColumns}, 7);
    for (std::int64_t i = 0; i < kN; ++i) {
      v.set({i, 0}, std::ldexp(v(i, 0), static_cast<int>(i / 32 % 4) * 6 - 12));
      v.set({i, 1}, std::ldexp(v(i, 1), static_cast<int>(i % 32) - 16));
      if (i != kN / 2) v.set({i, 2}, 0);
      v.set({i, 3}, 0);
      v.set({i, kColumns - 1}, std::ldexp(v(i, kColumns - 1), -70));
    }
    const double typical = std::sqrt(static_cast<double>(kK) / 6);
    // Values that know their point m are not stored, and leave other bits. So do powers of two, stored or not: what is
    // not stored is told by a formula that knows no rate.
    constexpr const char* kNoRate = "min(exp(-sum((x-z)^2)/(2*b^2)), 2)";
    const auto is_kept = [&](const char* f, double b, const Array& of_v) {
      Arguments width;
      width.params["b"] = b;
      const Array out = product_of(Formula(f), points.x, &z, of_v, width, context);
      Extra extra;
      extra.params["b"] = b;
      if (std::isfinite(of_v(0, 4)) && b >= typical)
        expect_product(out, table(parse(f), points.x, z, extra), of_v, fmt::format("{}, b = {}", f, b));
      const std::string of_point = fmt::format("where(i < 0, 0, {})", f);
      return !same_bits(out, product_of(Formula(of_point), points.x, &z, of_v, width, context));
    };
    EXPECT_TRUE(is_kept(kGauss, typical * 4, v));
    EXPECT_TRUE(is_kept(kGauss, typical, v)) << "some pairs cancel";
    EXPECT_FALSE(is_kept(kNoRate, typical / 8, v)) << "values of all sizes";
    EXPECT_TRUE(is_kept("2.5*exp(-sum((x-z)^2)^0.5/b)", typical, v));
    EXPECT_FALSE(is_kept("sum((x-z)^2)^0.5/b", typical, v)) << "nothing at zero";
    // What is largest far away, the rest so small that pieces lose half of it, near.
    Array uneven = v;
    for (std::int64_t k = 0; k < kK; ++k) points.z.set({0, k}, 2.5);
    for (std::int64_t i = 0; i < kN; ++i) uneven.set({i, 5}, i == 0 ? 1 : std::ldexp(1.3, -40));
    EXPECT_TRUE(is_kept("exp(-sum((x-z)^2)^0.5/b)", 3, v));
    EXPECT_FALSE(is_kept("exp(-sum((x-z)^2)^0.5/b)", 3, uneven));
    v.set({0, 4}, std::numeric_limits<double>::quiet_NaN());
    EXPECT_FALSE(is_kept(kNoRate, typical * 4, v));
    Array tiny = normal(Dtype::float32, {kN, kColumns}, 8);
    for (std::int64_t i = 0; i < kN; ++i)
      for (std::int64_t e = 0; e < kColumns; ++e) tiny.set({i, e}, std::ldexp(tiny(i, e), -100));
    EXPECT_TRUE(is_kept(kNoRate, typical * 4, normal(Dtype::float32, {kN, kColumns}, 8)));
    EXPECT_FALSE(is_kept(kNoRate, typical * 4, tiny));
  });
}

/// What decides may lie on the device, for each item of a batch, and features have weights.
TEST(TensorCoreProducts, StoredValuesOfDeviceParametersAndWeights) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 70, kN = 130, kK = 33, kColumns = 256;
    constexpr const char* kWeighted = "exp(-sum(w*(x-z)^2)/(2*b^2))";
    const PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    const Tensor z = points.z;
    const Array v = normal(Dtype::float32, {kN, kColumns}, 7), w = uniform(Dtype::float32, {kK}, 3, 0.5, 2);
    Array b(Dtype::float32, {2}), out(Dtype::float32, {2, kM, kColumns});
    b.set({0}, 6);
    b.set({1}, 0.4);  // its values are of all sizes
    Arguments number, device;
    device.params["b"] = b.tensor();
    number.w = device.w = w;
    kernel_product(kWeighted, points.x, &z, v, out, device, context);
    for (std::int64_t at : {0, 1}) {
      number.params["b"] = b(at);
      const Array alone = product_of(kWeighted, points.x, &z, v, number, context);
      for (std::int64_t m = 0; m < kM; ++m)
        for (std::int64_t e = 0; e < kColumns; ++e)
          ASSERT_EQ(out(at, m, e), alone(m, e)) << "item " << at << " at " << m << "," << e;
    }
    Extra extra;
    extra.params["b"] = b(0);
    for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
    expect_product(item(out, {0}), table(parse(kWeighted), points.x, z, extra), v, "weighted");
  });
}

/// Many tiles of n one after the other, whose stages are filled again and again while the warps of a block, and two
/// blocks of a multiprocessor, are at other ones: every run has the same bits, and sampled rows are right.
TEST(TensorCoreProducts, ManyTilesAreTheSameInEveryRun) {
  constexpr std::int64_t kM = 1000, kN = 20000, kK = 64, kSampled = 8;
  on_tensor_cores([](TestContext& context) {
    const PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    const Tensor z = points.z;
    const double b = std::sqrt(static_cast<double>(kK));
    Arguments width;
    width.params["b"] = b;
    for (const std::int64_t columns : {5, 16, 64, 256}) {
      const Array v = normal(Dtype::float32, {kN, columns}, 7);
      const Array out = product_of(kGauss, points.x, &z, v, width, context);
      for (int run = 0; run < 3; ++run)
        EXPECT_TRUE(same_bits(out, product_of(kGauss, points.x, &z, v, width, context))) << columns << " columns";
      PointPair sampled{Array(Dtype::float32, {kSampled, kK}), points.z};
      Array found(Dtype::float32, {kSampled, columns});
      for (std::int64_t s = 0; s < kSampled; ++s) {
        const std::int64_t m = s * (kM - 1) / (kSampled - 1);
        for (std::int64_t k = 0; k < kK; ++k) sampled.x.set({s, k}, points.x(m, k));
        for (std::int64_t e = 0; e < columns; ++e) found.set({s, e}, out(m, e));
      }
      expect_gauss_product(found, sampled, b, v, std::to_string(columns) + " columns");
      if (::testing::Test::HasFailure()) return;
    }
  });
}

TEST(TensorCoreProducts, SizesAndColumns) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, k, columns] : {std::array{257, 128, 64, 1},
                                    {129, 700, 17, 4},
                                    {64, 1000, 33, 5},
                                    {300, 193, 300, 16},
                                    {130, 1543, 1025, 1},
                                    {513, 65, 100, 19}}) {
      const PointPair points{drawn(m, k, 1, kUniform), drawn(n, k, 2, kUniform)};
      expect_products(kL2, points, columns, std::to_string(columns) + " columns", context);
      expect_products("0.5*sum(x*z) + 1", points, columns, std::to_string(columns) + " columns, x z", context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Products of v on tensor cores too: passes of up to 128 columns, ranges of n, what is left of the last 32 points.
TEST(TensorCoreProducts, ManyColumns) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, k, columns] : {std::array{257, 140, 64, 17}, {129, 700, 19, 64}, {64, 333, 100, 24},
                                    {300, 193, 65, 100}, {130, 33, 33, 129}, {140, 97, 65, 120}}) {
      const PointPair points{drawn(m, k, 1, kUniform), drawn(n, k, 2, kUniform)};
      expect_products(kL2, points, columns, std::to_string(columns) + " columns", context);
      expect_products("0.5*sum(x*z) + i - j/2", points, 40, "of points and indices", context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Few features: values are computed pair by pair where they serve as operands. Any formula, weights, several states.
TEST(WideProducts, FormulasSizesAndBatches) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().wide_from = 0;
    struct Row {
      std::int64_t m, n, k, columns;
      const char* f;
    };
    for (const Row& row : {Row{257, 140, 3, 16, "exp(-sum((x-z)^2)/9)"}, {129, 700, 1, 5, "sum(abs(x-z)^1.3)"},
                           {130, 193, 16, 70, "logsumexp(x*z)"}, {64, 33, 7, 130, "max(abs(x-z)) + i/9 - j"},
                           {150, 129, 5, 40, "sum(x*z)/sqrt(sum(x*x)*sum(z*z))"}, {70, 300, 2, 120, "sum(x*z)^2"}}) {
      const PointPair points{normal(Dtype::float32, {row.m, row.k}, 1), normal(Dtype::float32, {row.n, row.k}, 2)};
      expect_products(row.f, points, row.columns, row.f, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
    const Array x = normal(Dtype::float32, {2, 150, 4}, 1), z = normal(Dtype::float32, {2, 300, 4}, 2);
    const Array v = normal(Dtype::float32, {2, 300, 20}, 3), b = filled(Dtype::float64, {3, 1}, {0.5, 1, 9});
    const Array w = uniform(Dtype::float32, {4}, 5);
    const Tensor zt = z;
    Arguments arguments;
    arguments.w = w;
    arguments.params["b"] = b.tensor();
    const Array out(Dtype::float32, {3, 2, 150, 20});
    kernel_product("exp(-sum(w*(x-z)^2)/b)", x, &zt, v, out, arguments, context);
    for (std::int64_t p = 0; p < 3; ++p)
      for (std::int64_t s = 0; s < 2; ++s) {
        const Tensor zs = item(zt, {s});
        arguments.params["b"] = item(b, {p, 0});
        const Array alone = product_of("exp(-sum(w*(x-z)^2)/b)", item(x, {s}), &zs, item(v, {s}), arguments, context);
        EXPECT_TRUE(same_bits(alone, copy(item(out, {p, s}), Dtype::float32)));
      }
  });
}

TEST(WideProducts, InfinitiesAndNan) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().wide_from = 0;
    Array x = normal(Dtype::float32, {140, 3}, 1), z = normal(Dtype::float32, {200, 3}, 2);
    Array v = normal(Dtype::float32, {200, 12}, 7);
    for (std::int64_t n = 0; n < 200; ++n) v.set({n, 3}, 1.0), v.set({n, 5}, 1e37);
    v.set({7, 0}, kInf), v.set({9, 1}, kNan), v.set({100, 2}, -kInf), v.set({199, 2}, kInf);
    x.set({5, 0}, kInf), x.set({6, 1}, kNan), z.set({11, 2}, kNan);
    const Tensor zt = z;
    const Array out = product_of("sum(abs(x-z))", x, &zt, v, {}, context);
    const auto expected = table(parse("sum(abs(x-z))"), x, z);
    for (std::int64_t m = 0; m < 140; ++m)
      for (std::int64_t e = 0; e < 12; ++e) {
        double sum = 0, size = 0;
        for (std::int64_t n = 0; n < 200; ++n)
          sum += expected[m][n] * v(n, e), size += std::abs(expected[m][n] * v(n, e));
        ASSERT_TRUE(within(out(m, e), sum, 2 * unit(Dtype::float32) * size, Dtype::float32))
            << m << "," << e << ": " << out(m, e) << " for " << sum;
      }
  });
}

/// Pieces of tf32 make NaN of infinities; sums of one sign are where truncation shows.
TEST(TensorCoreProducts, ManyColumnsOfInfinitiesAndOnes) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 130, kN = 300, kK = 40, kColumns = 20;
    PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    add_neighbours(points);
    const Tensor z = points.z;
    Array v = normal(Dtype::float32, {kN, kColumns}, 7);
    for (std::int64_t n = 0; n < kN; ++n) v.set({n, 3}, 1.0), v.set({n, 4}, 3e-30), v.set({n, 5}, 1e37);
    v.set({7, 0}, kInf), v.set({9, 1}, kNan), v.set({200, 2}, -kInf), v.set({299, 2}, kInf);
    points.x.set({5, 0}, kInf), points.x.set({6, 1}, kNan);
    for (const char* f : {kL2, "1/sum((x-z)^2)", "exp(-sum((x-z)^2)/9)"}) {
      const Array out = product_of(f, points.x, &z, v, {}, context);
      const auto expected = table(parse(f), points.x, z);
      for (std::int64_t m = 0; m < kM; ++m)
        for (std::int64_t e = 0; e < kColumns; ++e) {
          double sum = 0, size = 0;
          for (std::int64_t n = 0; n < kN; ++n) {
            const double value = static_cast<float>(expected[m][n]);
            sum += value * v(n, e), size += std::abs(value * v(n, e));
          }
          ASSERT_TRUE(within(out(m, e), sum, 2 * unit(Dtype::float32) * size, Dtype::float32))
              << f << " at " << m << "," << e << ": " << out(m, e) << " for " << sum;
        }
    }
  });
}

/// Some calls have a few cancelling pairs, which are repaired, others so many that direct differences take over.
TEST(TensorCoreProducts, CancellingPairs) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 200, kN = 450, kK = 96;
    for (std::int64_t every : {1, 3, 40, 150}) {
      PointPair points{drawn(kM, kK, 1, kinds()[0].draw), drawn(kN, kK, 2, kinds()[0].draw)};
      for (std::int64_t n = 0; n < kN; n += every)
        for (std::int64_t k = 0; k < kK; ++k) points.z.set({n, k}, points.x(n / every % 3, k) + 1e-4 * points.z(n, k));
      expect_products("exp(-sum((x-z)^2)^0.5/9)", points, 3, std::to_string(every), context);
      if (::testing::Test::HasFatalFailure()) return;
    }
    const Array x = drawn(kM, kK, 1, kinds()[0].draw), v = normal(Dtype::float32, {kM, 1}, 7);
    const Array out = product_of(kL2, x, nullptr, v, {}, context);
    expect_product(out, table(parse(kL2), x, x), v, "the same points");
  });
}

/// Pairs of few features that cancel are valid where their norms are small next to what values may lose, and computed
/// again where they are not. Columns of v with one point each show every value.
TEST(TensorCoreProducts, NearPairsOfSmallAndOfLargeNorms) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 70, kN = 130, kColumns = 12;
    for (std::int64_t k : {17, 20, 32}) {
      PointPair points{drawn(kM, k, 1, kinds()[0].draw), drawn(kN, k, 2, kinds()[0].draw)};
      for (std::int64_t e = 0; e < kColumns; ++e)  // every other one is far
        for (std::int64_t f = 0; f < k; ++f) {
          if (e % 2 == 1) points.x.set({5 * e, f}, 30 * points.x(5 * e, f));
          points.z.set({10 * e + 1, f}, points.x(5 * e, f) + 0.3 * points.z(10 * e + 1, f));
        }
      Array v(Dtype::float32, {kN, kColumns});
      for (std::int64_t n = 0; n < kN; ++n)
        for (std::int64_t e = 0; e < kColumns; ++e) v.set({n, e}, n == 10 * e + 1 ? 1 : 0);
      const double b = static_cast<float>(std::sqrt(static_cast<double>(k)));
      Arguments width;
      width.params["b"] = b;
      const Tensor z = points.z;
      const Array out = product_of(kGauss, points.x, &z, v, width, context);
      expect_gauss_product(out, points, b, v, std::to_string(k) + " features");
    }
  });
}

/// All addends alike: every rounding of a sum goes the same way. So many rows that a device with few multiprocessors
/// does not cut n.
void expect_sums_of_equal_addends(const char* f, std::int64_t features, TestContext& context) {
  constexpr std::int64_t kM = 1536, kN = 32768;
  const Array x = drawn(kM, features, 1, kUniform), one = drawn(1, features, 2, kUniform);
  const Tensor z = repeated(one, kN);
  const auto values = table(parse(f), x, one);
  const auto expect = [&](const Array& out, double v, const std::string& what) {
    for (std::int64_t m = 0; m < kM; ++m) {
      const double wanted = values[m][0] * v * kN;
      ASSERT_NEAR(out.shape().size() == 1 ? out(m) : out(m, 0), wanted, 2e-6 * std::abs(wanted)) << what << " at " << m;
    }
  };
  for (std::int64_t columns : {1, 6}) {
    const Array v = Array(Dtype::float32, {kN, columns}).fill([] { return 0.7; });
    expect(product_of(f, x, &z, v, {}, context), v(0, 0), std::to_string(columns) + " columns");
  }
  const Array sums(Dtype::float32, {kM});
  kernel_reduce(f, x, &z, ReduceKind::sum, sums, {}, context);
  expect(sums, 1, "sum");
}

TEST(TensorCoreProducts, ManyEqualAddends) {
  on_tensor_cores([](TestContext& context) {
    for (std::int64_t features : {32, 66}) expect_sums_of_equal_addends("0.5 + sum(x*z)/64", features, context);
  });
}

TEST(DirectProducts, ManyEqualAddends) {
  on_cuda([](TestContext& context) { expect_sums_of_equal_addends("exp(-sum(abs(x-z)))", 3, context); });
}

/// Whole tiles by the copy engine and a ragged last one, whose last column of z has infinite values: a weight of zero
/// would make NaN of what follows it.
TEST(DirectProducts, FewFeatures) {
  constexpr std::int64_t kM = 200, kN = 1999;
  on_cuda([](TestContext& context) {
    for (std::int64_t features : {1, 3, 4, 5, 8}) {
      const std::string what = std::to_string(features) + " features";
      PointPair points{drawn(kM, features, 1, kUniform), drawn(kN, features, 2, kUniform)};
      const Tensor z = points.z;
      for (std::int64_t f = 0; f < features; ++f) points.x.set({11, f}, points.z(kN - 1, f));
      points.x.set({150, 0}, kNan);
      const Array v = normal(Dtype::float32, {kN, 1}, 7);
      const char* text = features % 2 == 0 ? "sum(abs(x-z))*exp(-sum(x*z)/9)" : "1/sum((x-z)^2)";
      expect_product(product_of(text, points.x, &z, v, {}, context), table(parse(text), points.x, z), v, what);
      if (features == 3) expect_reductions(text, points.x, z, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(TensorCoreProducts, InfinitiesAndNan) {
  on_tensor_cores([](TestContext& context) {
    PointPair points{drawn(150, 64, 1, kUniform), drawn(260, 64, 2, kUniform)};
    points.x.set({3, 5}, kNan);
    points.x.set({9, 1}, 1e15);
    points.z.set({100, 2}, kInf);
    const Tensor z = points.z;
    const char* f = "1/(1 + sum((x-z)^2))";
    for (std::int64_t columns : {2, 7}) {  // the second on tensor cores as well
      Array v = normal(Dtype::float32, {260, columns}, 7);
      expect_product(product_of(f, points.x, &z, v, {}, context), table(parse(f), points.x, z), v, "special");
      v.set({7, 1}, kNan);
      v.set({8, 0}, kInf);
      expect_product(product_of(f, points.x, &z, v, {}, context), table(parse(f), points.x, z), v, "special v");
    }
  });
}

/// Values of the caller, offsets, weights, layouts of v and out; values after the last column are not read.
TEST(TensorCoreProducts, EpiloguesAndLayouts) {
  on_tensor_cores([](TestContext& context) {
    const PointPair points{drawn(140, 40, 1, kUniform), drawn(205, 40, 2, kUniform)};
    const Tensor z = points.z;
    const Array row = normal(Dtype::float32, {140}, 3), col = normal(Dtype::float32, {205}, 4);
    const Array w = copy(drawn(1, 40, 5, kUniform), Dtype::float32);
    const Array v0 = normal(Dtype::float32, {205, 3}, 6);
    Extra extra{{{"b", 7}}, {}, {}, {}, 5, 2};
    for (std::int64_t m = 0; m < 140; ++m) extra.row.push_back(row(m));
    for (std::int64_t n = 0; n < 205; ++n) extra.col.push_back(col(n));
    for (std::int64_t k = 0; k < 40; ++k) extra.w.push_back(w(0, k));
    Arguments arguments = arguments_of(extra);
    arguments.row = row.tensor();
    arguments.col = col.tensor();
    arguments.w = item(w, {0});
    const Expr f = parse("exp(-sum(w*(x-z)^2)/b)*(3 + row)/col + 0.01*(i - j)");
    const auto values = table(f, points.x, z, extra);
    for (const Shape& strides : {Shape{3, 1}, Shape{1, 205}, Shape{-7, 2}, Shape{0, 1}}) {
      const Array v = copy(v0, Dtype::float32, strides), out(Dtype::float32, {140, 3}, column_major({140, 3}));
      kernel_product(f, points.x, &z, v, out, arguments, context);
      expect_product(out, values, v, "strides");
    }
  });
}

/// Many columns of v are read as they lie, and packed where products leave their pairs to the direct tile, which takes
/// the columns some at a time: nothing cancels, and a third does.
TEST(TensorCoreProducts, ManyColumnsAsTheyLie) {
  on_tensor_cores([](TestContext& context) {
    constexpr const char* kLaplace = "exp(-sum((x-z)^2)^0.5/5)";
    for (const bool cancels : {false, true}) {
      PointPair points{drawn(140, 40, 1, kUniform), drawn(205, 40, 2, kUniform)};
      for (std::int64_t m = 3; cancels && m < 140; ++m)
        for (std::int64_t k = 0; k < 40; ++k) points.x.set({m, k}, points.x(m % 3, k));
      for (std::int64_t n = 0; cancels && n < 205; ++n)
        for (std::int64_t k = 0; k < 40; ++k) points.z.set({n, k}, points.x(n % 3, k) + 1e-4 * points.z(n, k));
      const Tensor z = points.z;
      const Array v0 = normal(Dtype::float32, {205, 40}, 6);
      const auto values = table(parse(kLaplace), points.x, z);
      const Array first = product_of(kLaplace, points.x, &z, v0, {}, context);
      for (const Shape& strides : {Shape{40, 1}, Shape{1, 205}, Shape{-83, 2}, Shape{1, -230}}) {
        const Array v = copy(v0, Dtype::float32, strides);
        const Array out = product_of(kLaplace, points.x, &z, v, {}, context);
        expect_product(out, values, v, cancels ? "pairs cancel" : "products stand");
        EXPECT_TRUE(same_bits(out, first)) << strides[0] << ", " << strides[1];
      }
    }
  });
}

TEST(TensorCoreProducts, ItemsOfABatchAreAlone) {
  on_tensor_cores([](TestContext& context) {
    expect_product_items_alone(kGauss, 150, 210, 48, {3, 5, 9}, context);
  });
}

TEST(TensorCoreFolds, EveryKind) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, k] : {std::array{150, 700, 40}, {257, 321, 130}, {130, 65, 25}}) {
      PointPair points{drawn(m, k, 1, kUniform), drawn(n, k, 2, kUniform)};
      for (std::int64_t f = 0; f < k; ++f) {  // ties: the smaller index wins
        points.z.set({n - 1, f}, points.x(7, f));
        points.z.set({n / 2, f}, points.x(7, f));
      }
      for (const char* f : {kL2, "sum(x*z)/4 - 3"}) expect_reductions(f, points.x, points.z, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(TensorCoreFolds, NanWinsAndManyPairsCancel) {
  on_tensor_cores([](TestContext& context) {
    PointPair points{drawn(140, 48, 1, kUniform), drawn(390, 48, 2, kUniform)};
    points.x.set({3, 5}, kNan);
    points.z.set({100, 2}, kInf);
    expect_reductions(kL2, points.x, points.z, context);
    const PointPair equal{drawn(140, 48, 1, kinds()[9].draw), drawn(390, 48, 2, kinds()[9].draw)};
    expect_reductions(kL2, equal.x, equal.z, context);
  });
}

TEST(TensorCoreFolds, ItemsOfABatchAreAlone) {
  on_tensor_cores([](TestContext& context) {
    const Array x = normal(Dtype::float32, {3, 150, 48}, 1), z = drawn(210, 48, 2, kUniform);
    const Tensor zt = z;
    for (ReduceKind kind : kKinds) {
      const bool index = kind == ReduceKind::argmax || kind == ReduceKind::argmin;
      const Dtype type = index ? Dtype::int64 : Dtype::float32;
      const Array out(type, {3, 150}), alone(type, {150});
      kernel_reduce(kL2, x, &zt, kind, out, {}, context);
      for (std::int64_t i = 0; i < 3; ++i) {
        kernel_reduce(kL2, item(x, {i}), &zt, kind, alone, {}, context);
        for (std::int64_t m = 0; m < 150; ++m) ASSERT_EQ(out(i, m), alone(m)) << name_of(kind);
      }
    }
  });
}

/// Values of the pairs of some rows at a time, for a second kernel: with duplicates, so that every part has repairs.
TEST(TensorCoreValues, NearestSomeRowsAtATime) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 500, kN = 260, kK = 40, kCount = 5;
    PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    add_neighbours(points);
    const Tensor z = points.z;
    const Array pairs(Dtype::float32, {kM, kN});
    pairwise(kL2, points.x, &z, pairs, {}, context);
    for (std::int64_t rows : {128, 256, 1 << 20}) {
      context.state().own_costs().part_bytes = rows * (kN * 4 + 8 * 16);
      const Array values(Dtype::float32, {kM, kCount}), indices(Dtype::int64, {kM, kCount});
      knn(kL2, points.x, &z, kCount, values, indices, {}, context);
      for (std::int64_t m = 0; m < kM; ++m) {
        std::vector<std::pair<double, std::int64_t>> sorted;
        for (std::int64_t n = 0; n < kN; ++n) sorted.emplace_back(pairs(m, n), n);
        std::sort(sorted.begin(), sorted.end());
        for (std::int64_t c = 0; c < kCount; ++c) {
          ASSERT_EQ(values(m, c), sorted[c].first) << m << "," << c << " of " << rows << " rows";
          ASSERT_EQ(indices(m, c), sorted[c].second) << m << "," << c << " of " << rows << " rows";
        }
      }
    }
  });
}

TEST(TensorCoreValues, GradientsSomeRowsAtATime) {
  on_tensor_cores([](TestContext& context) {
    constexpr std::int64_t kM = 300, kN = 130, kK = 36;
    PointPair points{drawn(kM, kK, 1, kUniform), drawn(kN, kK, 2, kUniform)};
    add_neighbours(points);
    const Tensor z = points.z;
    const Array coef = normal(Dtype::float32, {2, kN}, 3);
    const Expr f = parse("exp(-sum((x-z)^2)/9)");
    const Field expected = expected_field(differentiate(f, mercer::points().x), points.x, z, coef);
    for (std::int64_t rows : {128, 256, 1 << 20}) {
      context.state().own_costs().part_bytes = rows * 256 * 4;
      const Array out(Dtype::float32, {2, kM, kK});
      kernel_gradient(f, points.x, &z, coef, out, {}, context);
      expect_field(out, expected, std::to_string(rows) + " rows", 3);
    }
  });
}

TEST(TensorCoreProducts, ThePlanSaysSo) {
  plan::GpuPairProblem problem;
  problem.outputs = {Formula(kGauss).expression()};
  problem.consumer = plan::Consumer::product;
  EXPECT_EQ(plan::plan_gpu_pairs(problem)->to_text().find("tensor cores"), std::string::npos);
  problem.product = plan::bilinear_fold_tile(50000, 50000, 64, 1, Precision::fp32, plan::costs_of(90));
  EXPECT_NE(plan::plan_gpu_pairs(problem)->to_text().find("stay in registers"), std::string::npos);
  EXPECT_FALSE(plan::bilinear_fold_tile(50000, 50000, 3, 1, Precision::fp32, plan::costs_of(90)))
      << "direct differences are cheaper";
  EXPECT_FALSE(plan::bilinear_fold_tile(50000, 50000, 64, 1, Precision::direct, plan::costs_of(90)));
  for (int columns : {1, 4, 5, 16}) {
    problem.use.columns = columns;
    problem.product = plan::bilinear_fold_tile(50000, 50000, 256, columns, Precision::fp32, plan::costs_of(90));
    EXPECT_TRUE(plan::plan_gpu_pairs(problem)->products.bilinear) << columns << " columns must fit shared memory";
  }
}

}  // namespace
}  // namespace mercer
