// Every row of the zoo through pairwise: types by targets, weighted forms too, data in the row's domain.
#include <algorithm>

#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// What the error of a row is relative to where that is not its value. For kernels f(s): |f| + |s f'(s)|.
/// Options are at their defaults: bandwidth, gamma, coef0, alpha, period = 1, as in the table.
const std::map<std::string, const char*> kScales = {
    // x/|x| rounds to 2^-24 of itself; |u - v| (|u| + |v|) 2^-24 summed is at most 0.12e-6 |u - v| (Cauchy, Schwarz).
    {"cosine", "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); q = sum(square(x/nx - z/nz)); q/2 + 0.12*sqrt(q)"},
    {"angular", "nx = sqrt(sum(x*x)); nz = sqrt(sum(z*z)); sqrt(sum(square(x/nx - z/nz))) + 0.12"},
    {"cosine_similarity", "2 + 0*K"},
    // Differences round to 2^-24 of the points, and a sine at a multiple of pi keeps nothing of its argument.
    {"haversine", "sum(abs(x) + abs(z)) + 1"},
    // A quotient of two sums.
    {"braycurtis", "2*sum(abs(x - z))/sum(abs(x + z))"},
    {"soergel", "2*sum(abs(x - z))/sum(max(x, z))"},
    // Square roots of the inputs round before they are subtracted: 2^-24 (sqrt(x) + sqrt(z)) |sqrt(x) - sqrt(z)| a
    // term.
    {"hellinger", "s = sqrt(sum(square(sqrt(x) - sqrt(z)))/2); s + 0.06*sqrt(sum(square(sqrt(x) + sqrt(z)))/2)"},
    // Terms of this size cancel inside each term.
    {"jensenshannon", "sqrt(sum(x/sum(x) + z/sum(z)))"},
    {"dot", "sqrt(sum(x*x)*sum(z*z))"},
    {"polynomial", "s = sqrt(sum(x*x)*sum(z*z)); (s + 1)^3 + 3*s*(s + 1)^2"},
    {"sigmoid", "s = sqrt(sum(x*x)*sum(z*z)); d = sum(x*z) + 1; abs(tanh(d)) + (1 - tanh(d)^2)*(s + 1)"},
    {"arc_cosine", "2*sqrt(sum(x*x)*sum(z*z))"},
    {"ntk_relu", "4*sqrt(sum(x*x)*sum(z*z))"},
    {"laplace", "s = sum(abs(x - z)); exp(-s)*(1 + s)"},
    {"gauss", "s = sum(square(x - z))/2; exp(-s)*(1 + s)"},
    {"rbf", "s = sum(square(x - z)); exp(-s)*(1 + s)"},
    {"matern12", "s = sqrt(sum(square(x - z))); exp(-s)*(1 + s)"},
    {"matern32", "s = sqrt(3*sum(square(x - z))); exp(-s)*(1 + s + s*s)"},
    {"matern52", "s = sqrt(5*sum(square(x - z))); exp(-s)*(1 + s + s*s/3 + s*(s + s*s)/3)"},
    {"rational_quadratic", "s = sum(square(x - z))/2; 1/(1 + s) + s/(1 + s)^2"},
    {"periodic", "t = pi*abs(x - z); s = 2*sum(square(sin(t))); d = 4*sum(abs(t*sin(t)*cos(t))); exp(-s)*(1 + s + d)"},
    {"thin_plate", "q = sum(square(x - z)); (abs(xlogy(q, q)) + abs(xlogy(q, q) + q))/2"},
    {"product_laplace", "s = sum(abs(x - z)); exp(-s)*(1 + s)"},
    {"lpq", "s = sqrt(sum(square(x - z))); exp(-s)*(1 + s)"},
    {"sum_power_laplace", "t = abs(x - z); f = sum(exp(-t))/K; f*f + 2*f*sum(t*exp(-t))/K"},
    {"exp_power", "sum(exp(-abs(x - z))*(1 + abs(x - z)))"},
    {"dispersal", "s = sqrt(sum(square(x - z))); exp(-s)*(1 + s)"},
    {"chi2_kernel", "t = x + z; s = sum(square(x - z)/where(t == 0, 1, t)); exp(-s)*(1 + s)"},
};
const std::map<std::string, const char*> kWeightedScales = {
    {"cosine", "nx = sqrt(sum(w*x*x)); nz = sqrt(sum(w*z*z)); q = sum(w*square(x/nx - z/nz)); q/2 + 0.12*sqrt(q)"},
    {"braycurtis", "2*sum(w*abs(x - z))/sum(w*abs(x + z))"},
    {"dot", "sqrt(sum(w*x*x)*sum(w*z*z))"},
};

Array data(const ZooEntry& entry, Dtype dtype, const Shape& shape, unsigned seed) {
  // Kernels decay within one bandwidth = 1: differences of about 0.2 keep them away from underflow.
  Array points =
      entry.domain == "real" ? normal(dtype, shape, seed, entry.is_metric ? 1 : 0.2) : uniform(dtype, shape, seed);
  if (entry.domain != "nonnegative" && entry.text.find("!= 0") == std::string::npos) return points;
  int count = 0;  // sets and histograms have zeros
  each_index(shape, [&](const Shape& index) {
    if (++count % 3 == 0) points.set(index, 0);
  });
  return points;
}

Expr scale_of(const ZooEntry& entry, bool weighted) {
  const auto& scales = weighted ? kWeightedScales : kScales;
  const auto found = scales.find(entry.name);
  if (found != scales.end()) return parse(found->second);
  if (entry.name != "correlation") return {};
  return parse("2 + 0*K");  // of centred unit vectors, whose means round as well
}

class ZooRows : public ::testing::TestWithParam<std::tuple<Dtype, int>> {};

TEST_P(ZooRows, MatchesOracle) {
  const auto [dtype, index] = GetParam();
  const ZooEntry& entry = zoo_table()[index];
  for (bool weighted : {false, true}) {
    if (weighted && !entry.weighted) continue;
    const Expr f = zoo(entry.name, {}, weighted);
    for (auto [m, n, k] : {std::array{13, 37, 19}, {9, 17, 70}, {2, 3, 1}}) {
      const Array x = data(entry, dtype, {m, k}, 1), z = data(entry, dtype, {n, k}, 2), w = uniform(dtype, {k}, 3);
      Extra extra;
      for (const ZooOption& option : entry.options)
        if (!option.is_static) extra.params[option.name] = option.default_value;
      Arguments arguments;
      if (weighted || !entry.w_meaning.empty()) {
        arguments.w = w;
        for (int i = 0; i < k; ++i) extra.w.push_back(w(i));
      }
      const Expected expected = expected_pairs(f, x, z, unit(dtype), scale_of(entry, weighted), extra);
      const Tensor zt = z;
      on_each_target([&](TestContext& context) {
        const Array out(dtype, {m, n});
        pairwise(f, x, &zt, out, arguments, context);
        expect_pairs(out, expected, entry.name + (weighted ? ", weighted" : ""));
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZooRows,
                         ::testing::Combine(::testing::Values(Dtype::float32, Dtype::float64),
                                            ::testing::Range(0, static_cast<int>(zoo_table().size()))),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_" +
                                  zoo_table()[std::get<1>(info.param)].name;
                         });

}  // namespace
}  // namespace mercer
