// PointPair of every kind of data, for paths of a call that depend on it.
#pragma once

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "ops/context.h"
#include "ops/testing.h"

namespace mercer::testing_support {

struct PointPair {
  Array x, z;
};

/// A value of feature k of `features`, from three numbers at random.
using Draw = std::function<double(double normal, double uniform, std::int64_t k, std::int64_t features)>;

inline Array drawn(std::int64_t count, std::int64_t features, unsigned seed, const Draw& draw,
                   Dtype dtype = Dtype::float32) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  Array points(dtype, {count, features});
  const auto fill = [&](auto* to) {
    using Element = std::remove_pointer_t<decltype(to)>;
    for (std::int64_t i = 0; i < count * features; ++i)
      to[i] = static_cast<Element>(draw(normal(random), uniform(random), i % features, features));
  };
  if (dtype == Dtype::float64)
    fill(static_cast<double*>(points.tensor().data));
  else
    fill(static_cast<float*>(points.tensor().data));
  return points;
}

/// At few features only such data pass the sample: sums vary little.
inline const Draw kUniform = [](double, double u, std::int64_t, std::int64_t) { return u; };

struct Kind {
  const char* name;
  Draw draw;
};
inline const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"normal", [](double g, double, auto, auto) { return g; }},
      {"uniform", [](double, double u, auto, auto) { return 3 + u; }},
      {"integers", [](double, double u, auto, auto) { return std::floor(256 * u); }},
      {"steps of an eighth", [](double g, double, auto, auto) { return std::round(800 * g) / 8; }},
      {"negative integers", [](double, double u, auto, auto) { return -std::floor(8388600 * u); }},
      {"lognormal", [](double g, double, auto, auto) { return std::exp(2 * g); }},
      {"scales of 1e-3 to 1e3",
       [](double g, double, auto k, auto features) { return g * std::pow(10, -3 + 6.0 * k / features); }},
      {"tiny", [](double g, double, auto, auto) { return g * 1e-39; }},
      {"huge", [](double g, double, auto, auto) { return g * 1e37; }},
      {"all equal", [](double, double, auto, auto) { return 0.3; }},
      {"zero", [](double, double, auto, auto) { return 0.0; }},
  };
  return all;
}

/// Some rows of z are rows of x, some nearly.
inline void add_neighbours(PointPair& points) {
  const Tensor x = points.x, z = points.z;
  const std::int64_t features = x.shape[1];
  std::mt19937 random(5);
  std::normal_distribution<double> noise(0, 1e-6);
  for (std::int64_t n = 0; n < z.shape[0]; n += 7)
    for (std::int64_t k = 0; k < features; ++k)
      static_cast<float*>(z.data)[n * features + k] = static_cast<float>(
          static_cast<const float*>(x.data)[n % x.shape[0] * features + k] + (n % 2 == 0 ? 0 : noise(random)));
}

/// Items of a batch, of unlike data and with near pairs, and values of a parameter `b`: bit by bit those of calls of
/// their own.
inline void expect_items_alone(const Formula& f, double b0, double b1, TestContext& context) {
  constexpr std::int64_t kM = 150, kN = 140, kFeatures = 80;
  PointPair near{drawn(kM, kFeatures, 1, kUniform), drawn(kN, kFeatures, 4, kUniform)};
  add_neighbours(near);
  const std::vector<Array> items{near.x, drawn(kM, kFeatures, 2, kinds()[5].draw),
                                 drawn(kM, kFeatures, 3, kinds()[2].draw)};
  Array x(Dtype::float32, {3, kM, kFeatures});
  for (std::size_t i = 0; i < items.size(); ++i)
    std::copy(items[i].bytes().begin(), items[i].bytes().end(),
              x.bytes().begin() + static_cast<std::ptrdiff_t>(i * items[i].bytes().size()));
  const Array b = filled(Dtype::float64, {2, 1}, {b0, b1});
  const Tensor zt = near.z;
  Arguments arguments;
  arguments.params["b"] = b.tensor();
  const Array out(Dtype::float32, {2, 3, kM, kN});
  pairwise(f, x, &zt, out, arguments, context);
  each_index({2, 3}, [&](const Shape& at) {
    const Array alone(Dtype::float32, {kM, kN});
    Arguments one;
    one.params["b"] = item(b, {at[0], 0});
    pairwise(f, item(x, {at[1]}), &zt, alone, one, context);
    each_index({kM, kN}, [&](const Shape& pair) {
      ASSERT_EQ(out(at[0], at[1], pair[0], pair[1]), alone(pair[0], pair[1])) << at[0] << "," << at[1];
    });
  });
}

/// Runs the body on CUDA, also with small calls on tensor cores, of each kind that the device has.
template <class Body>
void on_tensor_cores(const Body& body) {
  for (bool by_warps : {false, true})
    on_cuda([&](TestContext& context) {
      if (!by_warps && cuda_device(0).capability() != 90) return;
      SCOPED_TRACE(by_warps ? "by warps" : "by warpgroups");
      context.state().own_costs().tensor_cores_from = 0;
      context.state().own_costs().by_warps = by_warps;
      body(context);
    });
}

}  // namespace mercer::testing_support
