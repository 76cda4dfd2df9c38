// Gradient fields of linear factors, x - z or z, as products of matrices. Small problems take the path too.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "ops/call/call.h"
#include "ops/drawn_data.h"
#include "ops/expected_fields.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/field.h"

namespace mercer {
namespace {

using namespace testing_support;

/// φ = x - z times an amplitude of the pair, a constant one, a weighted one; φ = z times one.
TEST(LinearFields, FormulasAndSizes) {
  on_tensor_cores([](TestContext& context) {
    for (auto [m, n, k, outputs] : {std::array{5, 66, 200, 16}, {70, 65, 9, 1}, {3, 200, 97, 20}, {2, 32, 1, 3}})
      for (const char* f : {"exp(-sum((x-z)^2)/300)", "exp(-sqrt(sum((x-z)^2))/9)", "-3*sum((z-x)^2)",
                            "exp(-sum(w*(x-z)^2)/60)", "(sum(x*z)/K + 1)^3", "sum(w*x*z)"}) {
        expect_gradient(f, {m, n, k, outputs}, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

TEST(LinearFields, EveryKindOfData) {
  on_tensor_cores([](TestContext& context) {
    for (const Kind& kind : kinds()) {
      if (std::string(kind.name) == "huge") continue;  // squares leave the floats
      PointPair points{drawn(6, 170, 1, kind.draw), drawn(150, 170, 2, kind.draw)};
      add_neighbours(points);
      const Array coef = normal(Dtype::float32, {2, 150}, 3);
      expect_gradient("sum((x-z)^2)", points.x, points.z, coef, kind.name, context);
      expect_gradient("1/(1 + sum((x-z)^2))", points.x, points.z, coef, kind.name, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// One neighbour, or the point itself, has almost all the weight: digits are lost next to what cancels.
TEST(LinearFields, NarrowKernels) {
  on_tensor_cores([](TestContext& context) {
    for (double noise : {0.0, 1e-4, 1e-2}) {
      const Array x = normal(Dtype::float32, {40, 170}, 1), shift = normal(Dtype::float32, {40, 170}, 2);
      Array z(Dtype::float32, {40, 170});
      each_index({40, 170}, [&](const Shape& at) { z.set(at, x(at[0], at[1]) + noise * shift(at[0], at[1])); });
      const Array coef = normal(Dtype::float32, {3, 40}, 3);
      for (const char* f : {"exp(-sum((x-z)^2)/10)", "exp(-sqrt(sum((x-z)^2))/0.7)", "exp(-sum(w*(x-z)^2)/5)"})
        expect_gradient(f, x, noise == 0 ? x.tensor() : z.tensor(), coef, "noise of " + std::to_string(noise), context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

void expect_amplitude_field(const Tensor& x, const Tensor& z, const Tensor& amplitude, const Tensor& coef,
                            const std::string& what, TestContext& context) {
  for (const char* phi : {"x-z", "z"}) {
    const Expr field = parse("sum(" + std::string(phi) + ")")->args[0];
    const Array out(Dtype::float32, {coef.shape[0], x.shape[0], x.shape[1]});
    gradient_field(field, x, z, amplitude, coef, out, {}, context);
    expect_field(out, expected_field(field, x, z, coef, {}, &amplitude), what + ", " + phi, 8);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// Amplitudes are read where they lie if their rows allow it, and carried over more than pieces of 16 bits have.
TEST(LinearFields, AmplitudesOfTheCaller) {
  on_tensor_cores([](TestContext& context) {
    for (std::int64_t n : {92, 93}) {
      const Array x = normal(Dtype::float32, {7, 130}, 1), z = normal(Dtype::float32, {n, 130}, 2);
      Array amplitude = normal(Dtype::float32, {7, n}, 4), coef = normal(Dtype::float32, {17, n}, 3);
      expect_amplitude_field(x, z, amplitude, coef, "plain", context);
      const Array turned(Dtype::float32, {7, n}, {1, 7});
      each_index({7, n}, [&](const Shape& at) { Array(turned).set(at, amplitude(at[0], at[1])); });
      expect_amplitude_field(x, z, turned, coef, "columns first", context);
      for (std::int64_t i = 0; i < n; ++i) {
        amplitude.set({1, i}, 0);
        amplitude.set({2, i}, amplitude(2, i) * 1e-25);
        amplitude.set({3, i}, amplitude(3, i) * 1e25);
        amplitude.set({4, i}, std::exp(-0.5 * static_cast<double>(i)));
        coef.set({1, i}, 0);
        coef.set({2, i}, coef(2, i) * 1e-10);
      }
      expect_amplitude_field(x, z, amplitude, coef, "scales", context);
      // The largest amplitude is of a point that x is.
      for (std::int64_t k = 0; k < 130; ++k) Array(z).set({5, k}, x(5, k));
      amplitude.set({5, 5}, 1e9);
      expect_amplitude_field(x, z, amplitude, coef, "the same point", context);
    }
  });
}

/// Points x are read where they lie if their rows allow it, and packed otherwise.
TEST(LinearFields, PointsOfTheCaller) {
  on_tensor_cores([](TestContext& context) {
    const Array points = normal(Dtype::float32, {7, 132}, 1), z = normal(Dtype::float32, {60, 132}, 2);
    const Array amplitude = normal(Dtype::float32, {7, 60}, 4), coef = normal(Dtype::float32, {3, 60}, 3);
    struct Layout {
      const char* name;
      std::vector<std::int64_t> strides;
      std::int64_t first;
    };
    for (const Layout& layout : {Layout{"rows with a gap", {140, 1}, 4}, {"rows that begin anywhere", {141, 1}, 0},
                                 {"the first not at 16 bytes", {140, 1}, 3}, {"columns first", {1, 7}, 0},
                                 {"every other feature", {280, 2}, 0}}) {
      const Array memory(Dtype::float32, {2000});
      Tensor x = memory;
      x.shape = {7, 132};
      x.strides = layout.strides;
      x.data = static_cast<float*>(x.data) + layout.first;
      const std::int64_t first = layout.first;
      each_index({7, 132}, [&](const Shape& at) {
        Array(memory).set({first + at[0] * layout.strides[0] + at[1] * layout.strides[1]}, points(at[0], at[1]));
      });
      expect_amplitude_field(x, z, amplitude, coef, layout.name, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// The points of one item lie at 16 bytes, those of the next one do not.
TEST(LinearFields, PointsOfABatch) {
  on_tensor_cores([](TestContext& context) {
    const Array values = normal(Dtype::float32, {2, 7, 132}, 1), z = normal(Dtype::float32, {60, 132}, 2);
    const Array x(Dtype::float32, {2, 7, 132}, {7 * 132 + 1, 132, 1}), coef = normal(Dtype::float32, {3, 60}, 3);
    each_index({2, 7, 132}, [&](const Shape& at) { Array(x).set(at, values(at[0], at[1], at[2])); });
    const Tensor zt = z;
    const Expr f = parse("exp(-sum((x-z)^2)/200)"), field = differentiate(f, points().x);
    const Array out(Dtype::float32, {2, 3, 7, 132});
    kernel_gradient(f, x, &zt, coef, out, {}, context);
    for (std::int64_t i : {0, 1})
      expect_field(item(out, {i}), expected_field(field, item(x, {i}), z, coef), "item " + std::to_string(i), 8);
  });
}

/// Memory bounds the rows of a part and the points of a range.
TEST(LinearFields, PartsRangesAndBatches) {
  on_tensor_cores([](TestContext& context) {
    const Array x = normal(Dtype::float16, {2, 140, 6}, 1), z = normal(Dtype::float16, {1300, 6}, 2),
                coef = normal(Dtype::float32, {3, 1, 2, 1300}, 3);
    const Tensor zt = z;
    const Expr f = parse("exp(-sum((x-z)^2)/20)"), field = differentiate(f, points().x);
    for (std::int64_t part_bytes : {std::int64_t{1}, std::int64_t{1} << 28}) {
      context.state().own_costs().part_bytes = part_bytes;
      const Array out(Dtype::float32, {3, 2, 2, 140, 6}, {1, 3, 6, 72, 12});
      kernel_gradient(f, x, &zt, coef, out, {}, context);
      each_index({3, 2}, [&](const Shape& i) {
        expect_field(item(out, i), expected_field(field, item(x, {i[1]}), z, item(coef, {i[0], 0})), "batch", 8);
      });
    }
  });
}

/// Several values of a pair: shared memory is full to the last kilobyte where rows are left to differences.
TEST(LinearFields, AmplitudesAndValues) {
  on_tensor_cores([](TestContext& context) {
    const auto [px, pz] = points();
    const Array x = normal(Dtype::float32, {7, 200}, 1), z = normal(Dtype::float32, {66, 200}, 2);
    const Array amplitude = normal(Dtype::float32, {7, 66}, 3);
    const Tensor given = amplitude;
    for (double width : {300.0, 10.0}) {
      const Expr value = exp(-sum(square(px - pz)) / width);
      for (const Expr& phi : {value * (px - pz), value * sum(px * pz) * sum(abs(px - pz)) * (px - pz)})
        for (std::int64_t outputs : {1, 16}) {
          const Array coef = normal(Dtype::float32, {outputs, 66}, 4), out(Dtype::float32, {outputs, 7, 200});
          gradient_field(phi, x, z, amplitude, coef, out, {}, context);
          expect_field(out, expected_field(phi, x, z, coef, {}, &given),
                       phi.to_text() + ", " + std::to_string(outputs) + " outputs", 16);
          if (::testing::Test::HasFatalFailure()) return;
        }
    }
  });
}

TEST(LinearFields, SizesOfPartsAndRanges) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const plan::LinearSizes all = plan::linear_sizes(10000, 10000, 768, 16, kBytes);
  EXPECT_EQ(all.points, 10000);
  EXPECT_EQ(all.columns, 16 * 772);
  EXPECT_EQ(all.rows % 128, 0);
  EXPECT_LE(all.rows * all.row_bytes(), kBytes);
  const plan::LinearSizes many = plan::linear_sizes(100, 1000000, 20, 1, kBytes);
  EXPECT_EQ(many.points, 16192);  // 62 ranges
  EXPECT_EQ(many.rows, 100);
  const plan::LinearSizes wide = plan::linear_sizes(10000, 5000, 100000, 64, kBytes);
  EXPECT_EQ(wide.points, 1024);
  EXPECT_TRUE(all.fits && many.fits);
  EXPECT_FALSE(wide.fits) << "its columns take 6.5 GB";
  const auto tile = [](std::int64_t k, const plan::LinearSizes& sizes) {
    return plan::linear_tile(10000, 10000, k, sizes, Precision::fp32, 132, plan::costs_of(90));
  };
  EXPECT_TRUE(tile(768, all));
  EXPECT_FALSE(tile(100000, wide));
}

TEST(LinearFields, ThePlanSaysSo) {
  using plan::FieldFactors;
  const auto factors = [](const char* text) {
    return plan::factors_of(ir::split_field(Formula(text).prepared().field()).field);
  };
  EXPECT_EQ(factors("exp(-sum((x-z)^2)/3)").linear, FieldFactors::Linear::difference);
  EXPECT_EQ(factors("exp(-sum(w*(z-x)^2)/3)").linear, FieldFactors::Linear::difference);
  EXPECT_EQ(factors("sum(x*z)^2").linear, FieldFactors::Linear::point);
  EXPECT_EQ(factors("sum(abs(x-z)^3)").linear, FieldFactors::Linear::none);
  EXPECT_EQ(factors("sum(abs(x-z))").linear, FieldFactors::Linear::none);
}

}  // namespace
}  // namespace mercer
