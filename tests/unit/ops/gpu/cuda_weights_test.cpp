// Functions of the weights w inside a sum of products or squares, length scales above all: on tensor cores they scale
// the operands, and where they cannot, direct differences take everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/emulated.h"
#include "ops/call/call.h"
#include "ops/drawn_data.h"
#include "ops/expected_fields.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr std::int64_t kM = 70, kN = 150, kK = 40;

struct Form {
  const char* text;
  bool of_distance;  // else of x · z
  std::function<double(double)> weight;
};
const std::vector<Form>& forms() {
  static const std::vector<Form> all{
      {"sum(((x-z)/w)^2)", true, [](double w) { return 1 / (w * w); }},
      {"sum((w*(x-z))^2)", true, [](double w) { return w * w; }},
      {"sum((x-z)^2/w)", true, [](double w) { return 1 / w; }},
      {"sum(w^3*(z-x)^2)", true, [](double w) { return w * w * w; }},
      {"sum((x-z)^2/(2*w^2))", true, [](double w) { return 0.5 / (w * w); }},
      {"sum(exp(-2*w)*(x-z)^2)", true, [](double w) { return std::exp(-2 * w); }},
      {"sum(x*z/w^2)", false, [](double w) { return 1 / (w * w); }},
      {"sum(sqrt(w)*x*z)", false, [](double w) { return std::sqrt(w); }},
  };
  return all;
}

/// Values against the oracle, by the contract's bound of a sum of terms of these sizes.
void expect_values(const Form& form, Dtype dtype, const std::vector<double>& values, TestContext& context) {
  PointPair points{drawn(kM, kK, 1, kUniform, dtype), drawn(kN, kK, 2, kUniform, dtype)};
  for (std::int64_t k = 0; k < kK; ++k) points.z.set({3, k}, points.x(5, k));
  const Array w = filled(dtype, {kK}, values), out(dtype, {kM, kN});
  const Tensor z = points.z;
  Arguments arguments;
  arguments.w = w.tensor();
  Extra extra{{}, {}, {}, {}, 0, 0};
  for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
  pairwise(form.text, points.x, &z, out, arguments, context);
  Reference reference(parse(form.text), points.x, z, extra);
  for (std::int64_t m = 0; m < kM; m += 3)
    for (std::int64_t n = 0; n < kN; n += 2) {
      double xs = 0, zs = 0, square = 0;
      for (std::int64_t k = 0; k < kK; ++k) {
        const double a = points.x(m, k), b = points.z(n, k), weight = std::abs(form.weight(w(k)));
        xs += weight * a * a;
        zs += weight * b * b;
        square += weight * (a - b) * (a - b);
      }
      const double wanted = reference(m, n), terms = form.of_distance ? square : std::sqrt(xs * zs);
      const double bound = std::isfinite(wanted) ? 2 * unit(dtype) * terms : 0;
      ASSERT_TRUE(within(out(m, n), wanted, bound, dtype)) << form.text << " " << m << "," << n << ": " << out(m, n);
    }
  const bool are_floats = std::all_of(values.begin(), values.end(), [&](double value) {
    return dtype == Dtype::float64 || std::isfinite(static_cast<float>(form.weight(value)));
  });
  if (form.of_distance && are_floats && std::isfinite(reference(5, 3))) ASSERT_EQ(out(5, 3), 0) << form.text;
}

std::vector<double> length_scales() {
  std::vector<double> values(kK);
  for (std::int64_t k = 0; k < kK; ++k) values[k] = 0.3 + 0.1 * static_cast<double>(k * 7 % 23);
  return values;
}

TEST(Weights, ScaleTheOperands) {
  on_tensor_cores([](TestContext& context) {
    Turns turns(3);
    for (Dtype dtype : kWide)
      for (const Form& form : forms()) {
        if (turns.leaves_out()) continue;
        expect_values(form, dtype, length_scales(), context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

/// Zero, negative, infinite and NaN ones, and those whose square is no float: with what they mean in the formula.
TEST(Weights, WhatIsNoScale) {
  on_tensor_cores([](TestContext& context) {
    for (Dtype dtype : kWide)
      for (const Form& form : forms())
        for (double value : {0.0, -0.7, kInf, kNan, 1e-25, 1e25}) {
          std::vector<double> values = length_scales();
          values[7] = value;
          expect_values(form, dtype, values, context);
          if (::testing::Test::HasFatalFailure()) return;
        }
  });
}

/// Derivatives keep the weight apart from x - z, a sign or z.
TEST(Weights, Fields) {
  on_tensor_cores([](TestContext& context) {
    Turns turns(2);
    for (auto [m, n, k, outputs] : {std::array{5, 66, 200, 16}, {70, 65, 20, 1}, {2, 32, 3, 3}})
      for (const char* f : {"exp(-sum(((x-z)/w)^2)/900)", "exp(-sum((x-z)^2/w^2)/900)", "sum(x*z/w)^2",
                            "exp(-sum(abs(x-z)/w)/400)", "exp(-sum(exp(w)*(x-z)^2)/400)"}) {
        if (turns.leaves_out()) continue;
        expect_gradient(f, {m, n, k, outputs}, context);
        if (::testing::Test::HasFatalFailure()) return;
      }
  });
}

}  // namespace
}  // namespace mercer
