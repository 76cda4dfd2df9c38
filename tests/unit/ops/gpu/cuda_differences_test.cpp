// Sums of functions of x - z whose differences come from tensor cores: every kind of data keeps the contract, whether
// its values have pieces or not. Small problems take the path too where a test asks for it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "ir/passes/passes.h"
#include "ops/context.h"
#include "ops/drawn_data.h"
#include "ops/testing.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/sums/differences.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kCubes = "sum(abs(x-z)^3)";

double term_of(const Tensor& x, const Tensor& z, std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto at = [&](const Tensor& t, std::int64_t row) {
    return static_cast<double>(static_cast<const float*>(t.data)[row * t.strides[0] + k * t.strides[1]]);
  };
  return at(x, m) - at(z, n);
}

/// A difference may lose 2^-23 of itself, a cube three times that; the rest of the bound is for the sum.
void expect_sums(const Array& out, const Tensor& x, const Tensor& z, const std::function<double(double)>& term,
                 const std::string& what) {
  const std::int64_t m = x.shape[0], n = z.shape[0], step = m * n > 20000 ? 37 : 1;
  for (std::int64_t pair = 0; pair < m * n; pair += step) {
    const std::int64_t i = pair / n, j = pair % n;
    double wanted = 0, size = 0;
    for (std::int64_t k = 0; k < x.shape[1]; ++k) {
      const double own = term(term_of(x, z, i, j, k));
      wanted += own;
      size += std::abs(own);
    }
    if (size > 1e38) continue;  // of both signs, infinities meet
    ASSERT_TRUE(within(out(i, j), wanted, 1e-6 * size + 1e-43 * static_cast<double>(x.shape[1]), Dtype::float32))
        << what << " at " << i << "," << j << ": " << out(i, j) << " for " << wanted;
  }
}

template <class Body>
void by_differences(const Body& body) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().much_mixed_work = 0;
    context.state().own_costs().differences = context.state().own_costs().everywhere().differences;
    body(context);
  });
}

double cube(double d) { return std::abs(d) * d * d; }

TEST(TensorCoreDifferences, EveryKindOfData) {
  by_differences([](TestContext& context) {
    for (const Kind& kind : kinds()) {
      PointPair points{drawn(150, 161, 1, kind.draw), drawn(140, 161, 2, kind.draw)};
      add_neighbours(points);
      const Tensor z = points.z;
      for (const auto& [formula, term] :
           {std::pair{kCubes, std::function(cube)}, {"sum((x-z)^3)", [](double d) { return d * d * d; }}}) {
        Array out(Dtype::float32, {150, 140}), again(Dtype::float32, {150, 140});
        pairwise(formula, points.x, &z, out, {}, context);
        expect_sums(out, points.x, points.z, term, kind.name + std::string(" ") + formula);
        pairwise(formula, points.x, &z, again, {}, context);
        EXPECT_TRUE(same_bits(out, again)) << kind.name;
      }
      if (::testing::Test::HasFailure()) return;
    }
  });
}

/// Slices that are whole and such that are not, promoted sums, several tiles of a block, edges.
TEST(TensorCoreDifferences, Shapes) {
  by_differences([](TestContext& context) {
    for (auto [m, n, k] :
         {std::array{128, 128, 160}, {1, 129, 129}, {257, 40, 193}, {131, 1100, 130}, {128, 256, 544}}) {
      PointPair points{drawn(m, k, 1, kUniform), drawn(n, k, 2, kUniform)};
      const Tensor z = points.z;
      Array out(Dtype::float32, {m, n});
      out.fill([] { return kNan; });
      pairwise(kCubes, points.x, &z, out, {}, context);
      expect_sums(out, points.x, points.z, cube, std::to_string(k) + " features");
    }
  });
}

/// What has no pieces takes the values themselves: infinities, NaN, digits below the least normal number.
TEST(TensorCoreDifferences, ValuesWithoutPieces) {
  by_differences([](TestContext& context) {
    for (double special : {kInf, -kInf, kNan, 3e38, 1e-33, 1e-40}) {
      PointPair points{drawn(70, 150, 1, kUniform), drawn(130, 150, 2, kUniform)};
      points.x.set({17, 3}, special);
      points.z.set({18, 3}, special);
      const Tensor z = points.z;
      Array out(Dtype::float32, {70, 130});
      pairwise("sum(abs(x-z)*abs(x-z)*0.5)", points.x, &z, out, {}, context);
      expect_sums(out, points.x, points.z, [](double d) { return 0.5 * d * d; }, std::to_string(special));
    }
  });
}

TEST(TensorCoreDifferences, SymmetricBatchedStrided) {
  by_differences([](TestContext& context) {
    const PointPair points{drawn(260, 150, 1, kUniform), drawn(1, 150, 2, kUniform)};
    Array square(Dtype::float32, {260, 260});
    pairwise(kCubes, points.x, nullptr, square, {}, context);
    expect_sums(square, points.x, points.x, cube, "symmetric");
    for (std::int64_t i = 0; i < 260; ++i) {
      EXPECT_EQ(square(i, i), 0);
      for (std::int64_t j = 0; j < i; ++j) ASSERT_EQ(square(i, j), square(j, i)) << i << "," << j;
    }
    // Items of a batch: the one whose values have no pieces decides for itself alone.
    Array x(Dtype::float32, {3, 60, 150}), z(Dtype::float32, {3, 70, 150}), out(Dtype::float32, {3, 60, 70});
    for (std::int64_t b = 0; b < 3; ++b) {
      const Array own_x = drawn(60, 150, 10 + b, kUniform), own_z = drawn(70, 150, 20 + b, kUniform);
      for (std::int64_t i = 0; i < 70; ++i)
        for (std::int64_t k = 0; k < 150; ++k) {
          if (i < 60) x.set({b, i, k}, own_x(i, k));
          z.set({b, i, k}, own_z(i, k));
        }
    }
    x.set({1, 5, 7}, kInf);
    const Tensor all = z;
    pairwise(kCubes, x, &all, out, {}, context);
    for (std::int64_t b = 0; b < 3; ++b)
      for (std::int64_t i = 0; i < 60; ++i)
        for (std::int64_t j = 0; j < 70; ++j) {
          double wanted = 0;
          for (std::int64_t k = 0; k < 150; ++k) wanted += cube(x(b, i, k) - z(b, j, k));
          ASSERT_TRUE(within(out(b, i, j), wanted, 1e-6 * wanted, Dtype::float32)) << b << "," << i << "," << j;
        }
  });
}

/// Outputs that share their sums, by an epilogue with a parameter.
TEST(TensorCoreDifferences, OutputsThatShareTheirSums) {
  by_differences([](TestContext& context) {
    const PointPair points{drawn(140, 150, 1, kUniform), drawn(260, 150, 2, kUniform)};
    const Tensor z = points.z;
    Array widths(Dtype::float32, {2}), out(Dtype::float32, {2, 140, 260});
    widths.set({0}, 20);
    widths.set({1}, 35);
    Arguments arguments;
    arguments.params["h"] = widths.tensor();
    pairwise("exp(-sum(abs(x-z)^3)/h)", points.x, &z, out, arguments, context);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t i = 0; i < 140; ++i)
        for (std::int64_t j = 0; j < 260; ++j) {
          double sum = 0;
          for (std::int64_t k = 0; k < 150; ++k) sum += cube(points.x(i, k) - points.z(j, k));
          const double power = sum / (b == 0 ? 20 : 35), wanted = std::exp(-power);
          ASSERT_NEAR(out(b, i, j), wanted, 2e-6 * (1 + power) * wanted) << b << "," << i << "," << j;
        }
  });
}

TEST(TensorCoreDifferences, ThePlanChoosesThem) {
  const auto differs = [](const char* text, auto change) {
    plan::GpuPairProblem problem;
    problem.outputs = {ir::simplify(parse(text))};
    problem.tries.mixed_work = plan::MixedWork::much;
    problem.tries.differs = true;
    problem.sizes = plan::sizes_of(30000, 30000, 1024, 132);
    change(problem);
    return plan::plan_gpu_pairs(problem)->pipes.differs;
  };
  const auto as_it_is = [](plan::GpuPairProblem&) {};
  for (const char* text :
       {kCubes, "sum(abs(z-x)^3)", "sum((x-z)^3)", "sum(abs(x-z))", "sum((x-z)^2)"})
    EXPECT_TRUE(differs(text, as_it_is)) << text;
  for (const char* text : {"sum((x-z)*x)", "sum(max(abs(x-z)-1,0)^2)", "max(abs(x-z))", "sum(abs(x-z)^1.3)",
                           "sum(w*abs(x-z))"})
    EXPECT_FALSE(differs(text, as_it_is)) << text;
  EXPECT_FALSE(differs(kCubes, [](auto& p) { p.device.capability = 100; }));
  EXPECT_FALSE(differs(kCubes, [](auto& p) { p.type = Dtype::float64; }));
  EXPECT_FALSE(differs(kCubes, [](auto& p) { p.tries.differs = false; }));
  EXPECT_FALSE(differs(kCubes, [](auto& p) { p.tries.mixed_work = plan::MixedWork::little; }));
  EXPECT_FALSE(differs(kCubes, [](auto& p) { p.consumer = plan::Consumer::fold; }));
  EXPECT_FALSE(differs(kCubes, [](auto& p) { p.sizes = plan::sizes_of(30000, 30000, 64, 132); }));
  const plan::DifferenceCosts& costs = plan::costs_of(90).differences;
  EXPECT_TRUE(plan::fills_waves(30000, 30000, 1024, 132, costs));
  EXPECT_FALSE(plan::fills_waves(3000, 3000, 1024, 132, costs));  // 576 tiles: a fifth wave of 48
  EXPECT_FALSE(plan::fills_waves(4096, 4096, 1024, 132, costs, true));
  EXPECT_TRUE(plan::fills_waves(8192, 8192, 1024, 132, costs, true));
}

}  // namespace
}  // namespace mercer
