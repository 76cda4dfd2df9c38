// Products with Gauss kernels of few features, their squares expanded where norms allow it: every kind of data keeps
// the contract, whichever tile it takes. Small problems take the path too where a test asks for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/devices/cuda_driver.h"
#include "core/emulated.h"
#include "ir/passes/passes.h"
#include "ops/context.h"
#include "ops/drawn_data.h"
#include "ops/testing.h"
#include "plan/gpu/plan.h"
#include "plan/gpu/sums/expanded.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kGauss = "2*exp(-sum((x-z)^2)/(2*h^2))";
constexpr double kNever = std::numeric_limits<double>::infinity();

template <class Body>
void on_expanded(const Body& body, double from = 0) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().expanded_from = from;
    context.state().own_costs().wide_from = 0;
    body(context);
  });
}

double square(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n) {
  const float* a = static_cast<const float*>(x.data) + m * x.strides[0];
  const float* b = static_cast<const float*>(z.data) + n * z.strides[0];
  double sum = 0;
  for (std::int64_t k = 0; k < x.shape[1]; ++k) {
    const double d = static_cast<double>(a[k * x.strides[1]]) - static_cast<double>(b[k * z.strides[1]]);
    sum += d * d;
  }
  return sum;
}

Arguments with_width(double h, const Array* w = nullptr) {
  Arguments arguments;
  arguments.params["h"] = h;
  if (w != nullptr) arguments.w = w->tensor();
  return arguments;
}

/// |out - wanted| <= sum (2e-6 + 1e-6 s) f |v| of f = 2 exp(-s), s = power_of(i, j): what products may lose, and what
/// their values may.
template <class Power>
void expect_product_of(const Array& out, std::int64_t m, std::int64_t n, const Array& v, const Power& power_of,
                       const std::string& what) {
  const std::int64_t columns = v.tensor().shape[1];
  for (std::int64_t i = 0; i < m; ++i) {
    std::vector<double> wanted(static_cast<std::size_t>(columns)), most(wanted.size(), 1e-36);
    for (std::int64_t j = 0; j < n; ++j) {
      const double power = power_of(i, j), value = 2 * std::exp(-power);
      for (std::int64_t e = 0; e < columns; ++e) {
        const auto at = static_cast<std::size_t>(e);
        wanted[at] += value * v(j, e);
        if (!(value == 0)) most[at] += (2e-6 + 1e-6 * power) * value * std::abs(v(j, e));
      }
    }
    for (std::int64_t e = 0; e < columns; ++e) {
      const double want = wanted[static_cast<std::size_t>(e)], allowed = most[static_cast<std::size_t>(e)];
      ASSERT_TRUE(std::isnan(want) ? std::isnan(out(i, e)) : std::abs(out(i, e) - want) <= allowed)
          << what << " at " << i << "," << e << ": " << out(i, e) << " for " << want << ", allowed " << allowed;
    }
  }
}

void expect_product(const Array& out, const Tensor& x, const Tensor& z, const Array& v, double h,
                    const std::string& what) {
  const auto power_of = [&](std::int64_t i, std::int64_t j) { return square(x, z, i, j) / (2 * h * h); };
  expect_product_of(out, x.shape[0], z.shape[0], v, power_of, what);
}

TEST(ExpandedSquares, EveryKindOfData) {
  on_expanded([](TestContext& context) {
    Turns turns(5);
    for (const Kind& kind : kinds())
      for (auto [m, n, k, columns] :
           {std::array{70, 333, 1, 1}, {133, 260, 3, 1}, {257, 70, 5, 1}, {66, 129, 8, 1}, {140, 270, 3, 5},
            {70, 150, 6, 20}}) {
        if (turns.leaves_out()) continue;
        PointPair points{drawn(m, k, 1, kind.draw), drawn(n, k, 2, kind.draw)};
        add_neighbours(points);
        const Tensor z = points.z;
        const Array v = normal(Dtype::float32, {n, columns}, 3);
        double middle = 0;
        for (std::int64_t i = 0; i < 50; ++i) middle += std::sqrt(square(points.x, z, i, i + 1)) / 50;
        for (double width : {0.05, 1.0, 20.0}) {
          const double h = width * (middle > 0 && std::isfinite(middle) ? middle : 1);
          if (h < 1e-15 || h > 1e15) continue;
          const double rounded = static_cast<double>(static_cast<float>(h));
          Array out(Dtype::float32, {m, columns}), again(Dtype::float32, {m, columns});
          kernel_product(kGauss, points.x, &z, v, out, with_width(rounded), context);
          kernel_product(kGauss, points.x, &z, v, again, with_width(rounded), context);
          EXPECT_TRUE(same_bits(out, again)) << kind.name;
          expect_product(out, points.x, z, v, rounded, kind.name + (" of " + std::to_string(k)));
          if (::testing::Test::HasFailure()) return;
        }
      }
  });
}

Array product_of(const Array& x, const Array& z, const Array& v, double h, double from,
                 Precision precision = Precision::fp32) {
  Array out(Dtype::float32, {x.tensor().shape[0], v.tensor().shape[1]});
  on_expanded(
      [&](TestContext& context) {
        const Tensor points = z;
        context.set_precision(precision);
        kernel_product(kGauss, x, &points, v, out, with_width(h), context);
      },
      from);
  return out;
}

/// The tile of differences leaves its own bits: they tell which one was taken.
TEST(ExpandedSquares, NormsAndColumnsDecide) {
  on_cuda([](TestContext&) {
    constexpr std::int64_t kM = 130, kN = 150, kK = 3;
    const Array x = drawn(kM, kK, 1, kUniform), z = drawn(kN, kK, 2, kUniform);
    const Array v = normal(Dtype::float32, {kN, 1}, 3);
    const auto expands = [&](const Array& of_x, const Array& of_v, double h) {
      const Array expanded = product_of(of_x, z, of_v, h, 0), differences = product_of(of_x, z, of_v, h, kNever);
      expect_product(expanded, of_x.tensor(), z.tensor(), of_v, h, "h = " + std::to_string(h));
      return !same_bits(expanded, differences);
    };
    EXPECT_TRUE(expands(x, v, 1));
    const Array columns = normal(Dtype::float32, {kN, 20}, 4);
    EXPECT_EQ(expands(x, columns, 1), cuda_device(0).capability() == 90);  // which has wide products
    EXPECT_FALSE(expands(x, columns, 0.01));
    EXPECT_TRUE(same_bits(product_of(x, z, v, 1, 0, Precision::direct), product_of(x, z, v, 1, kNever)));
    EXPECT_FALSE(expands(x, v, 0.01));  // exponents of hundreds
    EXPECT_FALSE(expands(x, v, 1e20));  // no rate that a float holds
    Array far = copy(x, Dtype::float32);
    far.set({17, 1}, 1e5);
    EXPECT_FALSE(expands(far, v, 1));
    for (double special : {kNan, kInf}) {
      Array other = copy(x, Dtype::float32);
      other.set({17, 1}, special);
      EXPECT_FALSE(expands(other, v, 1)) << special;
    }
    Array tiny = copy(v, Dtype::float32);
    for (std::int64_t j = 0; j < kN; ++j) tiny.set({j, 0}, v(j, 0) * 0x1p-125);
    EXPECT_FALSE(expands(x, tiny, 0.5));
    Array huge = copy(v, Dtype::float32);
    huge.set({3, 0}, 0x1p70);
    EXPECT_FALSE(expands(x, huge, 1));
    Array zeros(Dtype::float32, {kN, 1});
    for (std::int64_t j = 0; j < kN; ++j) zeros.set({j, 0}, 0);
    zeros.set({5, 0}, 1);
    expands(x, zeros, 1);
  });
}

/// Narrow values of many columns: means of all points leave too much open, and what a row sums up decides.
TEST(ExpandedSquares, SumsOfRowsDecide) {
  on_cuda([](TestContext&) {
    if (cuda_device(0).capability() != 90) return;  // which has wide products
    constexpr double kH = 0.15;                     // the bound by means reaches to 0.2
    for (const auto& [n, columns] : {std::pair<std::int64_t, std::int64_t>{150, 5}, {140, 48}}) {
      constexpr std::int64_t kM = 130, kK = 3;
      const Array x = drawn(kM, kK, 1, kUniform), z = drawn(n, kK, 2, kUniform);
      Array v(Dtype::float32, {n, columns});
      const Array drawn_v = normal(Dtype::float32, {n, columns}, 4);
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t e = 0; e < columns; ++e) v.set({j, e}, drawn_v(j, e) < 0 ? drawn_v(j, e) - 0.5 : 0.5);
      const auto expands = [&](const Array& of_x, const Array& of_v) {
        const Array expanded = product_of(of_x, z, of_v, kH, 0), differences = product_of(of_x, z, of_v, kH, kNever);
        expect_product(expanded, of_x.tensor(), z.tensor(), of_v, kH, std::to_string(columns) + " columns");
        return !same_bits(expanded, differences);
      };
      EXPECT_TRUE(expands(x, v)) << columns;
      Array far = copy(x, Dtype::float32);  // values of its row are 2^-32 at most
      for (std::int64_t k = 0; k < kK; ++k) far.set({kM - 1, k}, 1.6);
      EXPECT_FALSE(expands(far, v)) << columns;
      Array lone(Dtype::float32, {n, columns});  // the last column has one point, far from some rows
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t e = 0; e < columns; ++e) lone.set({j, e}, e + 1 < columns ? v(j, e) : j == 3 ? 1 : 0);
      EXPECT_FALSE(expands(x, lone)) << columns;
      Array other = copy(v, Dtype::float32);
      other.set({n - 1, columns - 1}, kNan);
      EXPECT_FALSE(expands(x, other)) << columns;
    }
  });
}

/// Columns of v that have one point each: every value of the kernel is seen, and no sum hides what pieces lose. In both
/// tiles. The device takes a tile only where it reckons that a value loses 1.8e-6 of itself at most: by exponents that
/// are truncated, powers of two, pieces of 16 bits with the products that are left out, and three roundings.
TEST(ExpandedSquares, EveryPairKeepsItsDigits) {
  on_cuda([](TestContext&) {
    constexpr std::int64_t kM = 140, kN = 200;
    // Tiles by warps up to 32 columns, of 8 features 16, and by warpgroups.
    for (const auto& [k, columns] :
         {std::pair<std::int64_t, std::int64_t>{1, 12}, {3, 20}, {3, 48}, {4, 32}, {8, 12}, {8, 48}}) {
      const Array x = drawn(kM, k, 1, kUniform), z = drawn(kN, k, 2, kUniform);
      double largest = 0;  // from the middle, a median that this stands for within a fifth
      for (std::int64_t i = 0; i < kM; ++i) {
        double norm = 0;
        for (std::int64_t f = 0; f < k; ++f) norm += (x(i, f) - 0.5) * (x(i, f) - 0.5);
        largest = std::max(largest, norm);
      }
      const double h = static_cast<float>(std::sqrt(1.4426950408889634 * 1.2 * largest / (2 * 2)));
      Array v(Dtype::float32, {kN, columns});
      for (std::int64_t j = 0; j < kN; ++j)
        for (std::int64_t e = 0; e < columns; ++e) v.set({j, e}, j == 3 * e + 1 ? 1 : 0);
      const Array expanded = product_of(x, z, v, h, 0), differences = product_of(x, z, v, h, kNever);
      if (cuda_device(0).capability() == 90)
        EXPECT_FALSE(same_bits(expanded, differences)) << k << " features, " << columns << " columns";
      double worst = 0;
      for (std::int64_t i = 0; i < kM; ++i)
        for (std::int64_t e = 0; e < columns; ++e) {
          const double value = 2 * std::exp(-square(x.tensor(), z.tensor(), i, 3 * e + 1) / (2 * h * h));
          worst = std::max(worst, std::abs(expanded(i, e) - value) / value);
        }
      EXPECT_LT(worst, 1.8e-6) << k << " features, " << columns << " columns";
    }
  });
}

/// f(0) is beyond the floats, values of points that are far from each other are not.
TEST(ExpandedSquares, ValuesAtNoDistanceMayBeInfinite) {
  on_expanded([](TestContext& context) {
    constexpr std::int64_t kM = 70, kN = 90, kK = 3;
    const Array x = drawn(kM, kK, 1, kUniform), v = normal(Dtype::float32, {kN, 1}, 3);
    Array z = drawn(kN, kK, 2, kUniform);
    for (std::int64_t j = 0; j < kN; ++j) z.set({j, 0}, z(j, 0) + 8);
    const Tensor points = z;
    Array out(Dtype::float32, {kM, 1});
    kernel_product("exp(100 - sum((x-z)^2)/(2*h^2))", x, &points, v, out, with_width(1), context);
    const double scale = std::exp(100.0) / 2;
    constexpr double kRounded = 3 * 0x1p-24 * 145;  // of an exponent of two up to 145, by its three operations
    for (std::int64_t i = 0; i < kM; ++i) {
      double wanted = 0, most = 0;
      for (std::int64_t j = 0; j < kN; ++j) {
        const double power = 100 - square(x.tensor(), points, i, j) / 2, value = std::exp(power);
        wanted += value * v(j, 0);
        most += (2e-6 + kRounded) * value * std::abs(v(j, 0));
      }
      ASSERT_NEAR(out(i, 0) / scale, wanted / scale, most / scale) << i;
    }
  });
}

TEST(ExpandedSquares, FarFromTheOrigin) {
  on_expanded([](TestContext& context) {
    constexpr std::int64_t kM = 100, kN = 140, kK = 4;
    Array x = drawn(kM, kK, 1, kUniform), z = drawn(kN, kK, 2, kUniform);
    for (std::int64_t k = 0; k < kK; ++k) {
      for (std::int64_t i = 0; i < kM; ++i) x.set({i, k}, x(i, k) + 1000);
      for (std::int64_t i = 0; i < kN; ++i) z.set({i, k}, z(i, k) + 1000);
    }
    const Tensor points = z;
    const Array v = normal(Dtype::float32, {kN, 1}, 3);
    Array out(Dtype::float32, {kM, 1});
    kernel_product(kGauss, x, &points, v, out, with_width(0.5), context);
    expect_product(out, x.tensor(), points, v, 0.5, "far");
  });
}

/// Widths on the device, one for every item; items with v of their own, and the formula's other forms.
TEST(ExpandedSquares, BatchesAndForms) {
  on_expanded([](TestContext& context) {
    constexpr std::int64_t kM = 66, kN = 140, kK = 3, kItems = 3;
    const std::array<double, 3> widths = {1, 0.02, 3};
    const Array x = drawn(kM, kK, 1, kUniform), z = drawn(kN, kK, 2, kUniform);
    const Array v = normal(Dtype::float32, {kItems, kN, 1}, 3);
    Array h(Dtype::float32, {kItems}), out(Dtype::float32, {kItems, kM, 1});
    for (std::int64_t item = 0; item < kItems; ++item) h.set({item}, widths[static_cast<std::size_t>(item)]);
    const Tensor points = z;
    Arguments arguments;
    arguments.params["h"] = h.tensor();
    kernel_product(kGauss, x, &points, v, out, arguments, context);
    for (std::int64_t item = 0; item < kItems; ++item) {
      Array own(Dtype::float32, {kN, 1}), row(Dtype::float32, {kM, 1});
      for (std::int64_t j = 0; j < kN; ++j) own.set({j, 0}, v(item, j, 0));
      for (std::int64_t i = 0; i < kM; ++i) row.set({i, 0}, out(item, i, 0));
      expect_product(row, x.tensor(), points, own, h(item), "item " + std::to_string(item));
    }
    Array own(Dtype::float32, {kN, 1}), first(Dtype::float32, {kM, 1});
    for (std::int64_t j = 0; j < kN; ++j) own.set({j, 0}, v(0, j, 0));
    for (const char* text : {"2*exp(-sum((x-z)^2)/(2*h*h))", "exp(-sum(2*(z-x)^2)/(4*h^2))/0.5",
                             "exp2(1 - sum(square(x-z))*(1.4426950408889634/2)/h^2)",
                             "2*exp(-sum(square(x/h-z/h))/2)"}) {
      kernel_product(text, x, &points, own, first, with_width(1), context);
      expect_product(first, x.tensor(), points, own, 1, text);
    }
  });
}

/// Parameters and weights inside the sum: they are in the rate and in the operands, or differences take them, at both
/// ends of the range and where they are no scale. Widths on the device give the bits of numbers.
TEST(ExpandedSquares, FactorsInsideTheSum) {
  constexpr std::int64_t kM = 70, kN = 140, kK = 3;
  struct Form {
    const char* text;
    bool weighted;
    std::int64_t columns;
  };
  constexpr Form kForms[] = {{"2*exp(-sum(((x-z)/h)^2)/2)", false, 1},
                             {"2*exp(-0.5*sum(square((x-z)/(exp(w)*h))))", true, 5},
                             {"2*exp(-sum(w*((x-z)/h)^2)/2)", true, 1},
                             {"2*exp(-sum(square((x-z)/h)/2))", false, 5}};
  on_expanded([&](TestContext& context) {
    const Array w = uniform(Dtype::float32, {kK}, 4);
    Turns turns(2);
    for (const Form& form : kForms) {
      if (turns.leaves_out() && form.columns == 1) continue;
      const Array v = normal(Dtype::float32, {kN, form.columns}, 3);
      const bool of_exponential = form.columns == 5 && form.weighted;
      for (const double size : {1.0, 1e-30, 1e15})
        for (const double width : {1.0, 0.01}) {
          Array x = drawn(kM, kK, 1, kUniform), z = drawn(kN, kK, 2, kUniform);
          for (Array* side : {&x, &z})
            for (std::int64_t i = 0; i < side->tensor().shape[0]; ++i)
              for (std::int64_t k = 0; k < kK; ++k) side->set({i, k}, (*side)(i, k) * size);
          const Tensor points = z;
          const double h = static_cast<double>(static_cast<float>(width * size));
          const std::string what = fmt::format("{} of {}", form.text, h);
          const auto computed = [&](const Arguments& arguments) {
            Array out(Dtype::float32, {kM, form.columns});
            kernel_product(form.text, x, &points, v, out, arguments, context);
            return out;
          };
          const Array out = computed(with_width(h, form.weighted ? &w : nullptr));
          expect_product_of(out, kM, kN, v, [&](std::int64_t i, std::int64_t j) {
            double sum = 0;
            for (std::int64_t k = 0; k < kK; ++k) {
              const double d = (x(i, k) - z(j, k)) / h;
              sum += (form.weighted ? of_exponential ? std::exp(-2 * w(k)) : w(k) : 1) * d * d;
            }
            return sum / 2;
          }, what);
          Array of_device(Dtype::float32, {});
          of_device.set({}, h);
          Arguments on_device = with_width(h, form.weighted ? &w : nullptr);
          on_device.params["h"] = of_device.tensor();
          EXPECT_TRUE(same_bits(out, computed(on_device))) << what;
          if (size != 1 || width != 1) continue;
          context.state().own_costs().expanded_from = kNever;
          const bool expands = form.columns == 1 || cuda_device(0).capability() == 90;
          EXPECT_EQ(same_bits(out, computed(with_width(h, form.weighted ? &w : nullptr))), !expands) << what;
          context.state().own_costs().expanded_from = 0;
        }
    }
    const Array x = drawn(kM, kK, 1, kUniform), z = drawn(kN, kK, 2, kUniform), v = normal(Dtype::float32, {kN, 1}, 3);
    const Tensor points = z;
    for (const double h : {0.0, -1.0, kInf, kNan}) {
      Array out(Dtype::float32, {kM, 1});
      kernel_product("2*exp(-sum((x-z)^2/h)/2)", x, &points, v, out, with_width(h), context);
      const auto power_of = [&](std::int64_t i, std::int64_t j) { return square(x.tensor(), points, i, j) / h / 2; };
      expect_product_of(out, kM, kN, v, power_of, fmt::format("h = {}", h));
    }
  });
}

TEST(ExpandedSquares, ThePlanSaysSo) {
  const auto planned = [](const char* text, std::int64_t k, std::int64_t columns) {
    plan::GpuPairProblem problem;
    problem.outputs = {ir::simplify(parse(text))};
    problem.consumer = plan::Consumer::product;
    problem.use.columns = static_cast<int>(columns);
    problem.sizes = plan::sizes_of(100000, 100000, k, 132);
    problem.tries.expands = plan::pays_expanded(100000, 100000, k, plan::costs_of(90));
    problem.product = plan::wide_tile(100000, 100000, k, columns, Precision::fp32, plan::costs_of(90));
    return plan::plan_gpu_pairs(problem);
  };
  EXPECT_TRUE(planned(kGauss, 3, 1)->few.expanded);
  EXPECT_NE(planned(kGauss, 3, 1)->to_text().find("expanded"), std::string::npos);
  EXPECT_FALSE(planned(kGauss, 9, 1)->few.expanded);
  EXPECT_FALSE(planned(kGauss, 3, 2)->few.expanded);
  EXPECT_TRUE(planned(kGauss, 3, 16)->few.expanded && planned(kGauss, 3, 16)->few.expanded->few.mma_rhs);
  // Blocks that a multiprocessor has together fit its shared memory, of which each has a KiB more.
  constexpr std::int64_t kShared = 228 * 1024, kReserved = 1024;
  for (std::int64_t k = 1; k <= plan::kMostExpandedFeatures; ++k)
    for (std::int64_t columns : {5, 16, 24, 32, 40}) {
      const auto tiles = planned(kGauss, k, columns)->few.expanded;
      const plan::BilinearTile& tile = tiles->problem.product;
      EXPECT_EQ(tile.by_warps, columns <= (k <= 4 ? 32 : k >= 7 ? 16 : 24)) << k << " features, " << columns;
      EXPECT_LE(tile.blocks * (tiles->product_shared_bytes() + kReserved), kShared) << k << " features, " << columns;
    }
  for (const char* other : {"exp(-sum(abs(x-z))/h)", "1/(1+sum((x-z)^2))", "exp(-sqrt(sum((x-z)^2))/h)",
                            "exp(-sum(sin(w*(x-z))^2))", "exp(-sum((x-z)^2)*row)"})
    EXPECT_FALSE(planned(other, 3, 1)->few.expanded) << other;
  for (const char* text : {"exp(-sum(w*(x-z)^2))", "exp(-sum(((x-z)/h)^2))", "exp(-sum(((x-z)/w)^2/(h*g)))"})
    for (std::int64_t columns : {1, 16}) EXPECT_TRUE(planned(text, 3, columns)->few.expanded) << text;
}

}  // namespace
}  // namespace mercer
