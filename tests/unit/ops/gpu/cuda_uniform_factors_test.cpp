// Parameters inside a sum of products or squares: they scale the operands on tensor cores, and where they cannot,
// direct differences take everything, with what zero, infinity and NaN mean there.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/drawn_data.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr std::int64_t kM = 140, kN = 150, kK = 40;

struct Form {
  const char* text;
  bool of_distance;  // else of x · z
  bool weighted;     // by w; then by g too, where it is of x · z
};
constexpr Form kForms[] = {{"sum(((x-z)/h)^2)", true, false},
                           {"sum(-0.5*w*(x-z)^2/(h*h))", true, true},
                           {"sum(x*z/h)", false, false},
                           {"sum(w*g*x*z*h)", false, true}};

/// The contract's bound, of a sum of terms of these sizes.
double bound_of(const Form& form, Dtype dtype, const Array& x, const Tensor& z, const Array& w, double factor,
                std::int64_t m, std::int64_t n) {
  double xs = 0, zs = 0, square = 0;
  for (std::int64_t k = 0; k < kK; ++k) {
    const double a = x(m, k), b = read(z, {n, k}), weight = form.weighted ? w(k) : 1;
    xs += weight * a * a;
    zs += weight * b * b;
    square += weight * (a - b) * (a - b);
  }
  return 2 * unit(dtype) * std::abs(factor) * (form.of_distance ? square : std::sqrt(xs * zs));
}

TEST(UniformFactors, ScaleTheOperands) {
  on_tensor_cores([](TestContext& context) {
    for (Dtype dtype : kWide)
      for (const Form& form : kForms)
        for (double h : {0.37, 3e-4, 40.0}) {
          PointPair points{drawn(kM, kK, 1, kUniform, dtype), drawn(kN, kK, 2, kUniform, dtype)};
          for (std::int64_t k = 0; k < kK; ++k) points.z.set({3, k}, points.x(5, k));
          const Array w = uniform(dtype, {kK}, 3), out(dtype, {kM, kN});
          const Tensor z = points.z;
          Arguments arguments;
          arguments.params["h"] = h;
          arguments.params["g"] = -1.75;
          Extra extra{{{"h", h}, {"g", -1.75}}, {}, {}, {}, 0, 0};
          for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
          if (form.weighted) arguments.w = w.tensor();
          if (!form.weighted || form.of_distance) arguments.params.erase("g");
          pairwise(form.text, points.x, &z, out, arguments, context);
          Reference reference(parse(form.text), points.x, z, extra);
          const double of_distance = (form.weighted ? 0.5 : 1) / (h * h), of_product = form.weighted ? 1.75 * h : 1 / h;
          const double factor = form.of_distance ? of_distance : of_product;
          for (std::int64_t m = 0; m < kM; m += 3)
            for (std::int64_t n = 0; n < kN; n += 2)
              ASSERT_NEAR(out(m, n), reference(m, n), bound_of(form, dtype, points.x, z, w, factor, m, n))
                  << form.text << " " << h;
          if (form.of_distance) ASSERT_EQ(out(5, 3), 0) << form.text << " " << h;
        }
  });
}

/// One call for several values, some of which are no scale; each item as alone, by tensors on the device too.
TEST(UniformFactors, WhatIsNoScale) {
  on_tensor_cores([](TestContext& context) {
    const std::vector<double> values{0.5, 0, kInf, kNan, -2, 1e-30, 1e30};
    const auto count = static_cast<std::int64_t>(values.size());
    for (Dtype dtype : kWide)
      for (const char* text : {"sum(h*(x-z)^2)", "sum((x-z)^2/h)", "sum(h*x*z)"}) {
        const PointPair points{drawn(kM, kK, 1, kUniform, dtype), drawn(kN, kK, 2, kUniform, dtype)};
        const Array h = filled(dtype, {count}, values), out(dtype, {count, kM, kN});
        const Tensor z = points.z;
        Arguments arguments;
        arguments.params["h"] = h.tensor();
        pairwise(text, points.x, &z, out, arguments, context);
        for (std::int64_t i = 0; i < count; ++i) {
          const double value = h(i);
          Reference reference(parse(text), points.x, z, {{{"h", value}}, {}, {}, {}, 0, 0});
          const Array alone(dtype, {kM, kN});
          Arguments one;
          one.params["h"] = value;
          pairwise(text, points.x, &z, alone, one, context);
          for (std::int64_t m = 0; m < kM; m += 7)
            for (std::int64_t n = 0; n < kN; n += 5) {
              const double wanted = reference(m, n);
              const double bound = std::isfinite(wanted) ? 4 * unit(dtype) * std::abs(wanted) : 0;
              ASSERT_TRUE(within(out(i, m, n), wanted, bound, dtype)) << text << " " << value << ": " << out(i, m, n);
              ASSERT_TRUE(within(alone(m, n), wanted, bound, dtype)) << text << " " << value << ": " << alone(m, n);
            }
        }
      }
  });
}

/// One side of a product has the factor, though both are the same points; factors are those of their type.
TEST(UniformFactors, SelfCallsAndFractions) {
  on_tensor_cores([](TestContext& context) {
    for (Dtype dtype : kWide) {
      const Array x = drawn(kM, kK, 1, kUniform, dtype), w = uniform(dtype, {kK}, 3), out(dtype, {kM, kM});
      const Tensor z = x;
      Extra extra{{{"h", -2.5}}, {}, {}, {}, 0, 0};
      for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
      for (const char* text : {"sum(x*z/h)", "sum(x*z*w)", "sum(x*z*w*h)", "sum(((x-z)/3)^2)", "sum(0.1*(x-z)^2)",
                               "sum(x*z/3)", "sum((x-z)^2/h^2)"})
        for (const Tensor* second : {static_cast<const Tensor*>(nullptr), &z}) {
          Arguments arguments;
          if (std::string(text).find('h') != std::string::npos) arguments.params["h"] = -2.5;
          if (std::string(text).find('w') != std::string::npos) arguments.w = w.tensor();
          pairwise(text, x, second, out, arguments, context);
          Reference reference(parse(text), x, x, extra);
          for (std::int64_t m = 0; m < kM; m += 3)
            for (std::int64_t n = 0; n < kM; n += 2)
              ASSERT_NEAR(out(m, n), reference(m, n), 4 * unit(dtype) * std::abs(reference(m, n))) << text;
        }
    }
  });
}

TEST(UniformFactors, FoldsAndNeighbours) {
  on_tensor_cores([](TestContext& context) {
    context.state().own_costs().candidates_from = 0;
    for (double h : {0.5, -3.0}) {
      const PointPair points{drawn(kM, kK, 1, kUniform), drawn(600, kK, 2, kUniform)};
      const Tensor z = points.z;
      Arguments arguments;
      arguments.params["h"] = h;
      const Array v = normal(Dtype::float32, {600, 3}, 4), out(Dtype::float32, {kM, 3}), least(Dtype::float32, {kM}),
                  values(Dtype::float32, {kM, 4}), indices(Dtype::int64, {kM, 4});
      const char* text = "sum(h*(x-z)^2)";
      kernel_product(text, points.x, &z, v, out, arguments, context);
      kernel_reduce(text, points.x, &z, ReduceKind::min, least, arguments, context);
      knn(text, points.x, &z, 4, values, indices, arguments, context);
      Reference reference(parse(text), points.x, z, {{{"h", h}}, {}, {}, {}, 0, 0});
      for (std::int64_t m = 0; m < kM; m += 3) {
        std::vector<double> all;
        double sums[3] = {}, sizes[3] = {};
        for (std::int64_t n = 0; n < 600; ++n) {
          all.push_back(reference(m, n));
          for (std::int64_t e = 0; e < 3; ++e) {
            sums[e] += all.back() * v(n, e);
            sizes[e] += std::abs(all.back() * v(n, e));
          }
        }
        std::sort(all.begin(), all.end());
        ASSERT_NEAR(least(m), all[0], 2e-6 * std::abs(all[0]));
        for (std::size_t e = 0; e < 4; ++e) ASSERT_NEAR(values(m, e), all[e], 2e-6 * std::abs(all[e]));
        for (std::int64_t e = 0; e < 3; ++e) ASSERT_NEAR(out(m, e), sums[e], 2e-6 * sizes[e]);
      }
    }
  });
}

}  // namespace
}  // namespace mercer
