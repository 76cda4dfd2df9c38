// Sums of absolute differences by maxima: every kind of data keeps the contract, whether its tiles are sums of maxima,
// made again from the values, or refused; and the tiles are counted, so that each way is known to be taken.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/sanitized.h"
#include "mercer/explain.h"
#include "ops/context.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kL1 = "sum(abs(x-z))";
/// Small problems take the path too.
constexpr double kAlways = -std::numeric_limits<double>::infinity();

double contract(Dtype type) { return type == Dtype::float64 ? 5e-14 : 1e-6; }

/// A value of feature k of `features`, from two numbers at random.
using Draw = std::function<double(double normal, double uniform, std::int64_t k, std::int64_t features)>;

Array drawn(Shape shape, unsigned seed, const Draw& draw, Dtype type = Dtype::float32, Shape strides = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const std::int64_t features = shape.back();
  std::int64_t at = 0;
  return Array(type, std::move(shape), std::move(strides)).fill([&] {
    const double g = normal(random), u = uniform(random);
    return draw(g, u, at++ % features, features);
  });
}

const Draw kNormal = [](double g, double, auto, auto) { return g; };
const Draw kUniform = [](double, double u, auto, auto) { return 3 + u; };
const Draw kIntegers = [](double, double u, auto, auto) { return std::floor(256 * u); };
/// Quotients of normal numbers: no scale serves all points.
const Draw kCauchy = [](double g, double u, auto, auto) { return g / (u - 0.5); };

enum class Way { maxima, values, any };
struct Kind {
  const char* name;
  Way way, wide_way;  // of data of 63 features or more in float32 and float64
  Draw draw;
  double slack = 1;  // times the contract of float32
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"normal", Way::maxima, Way::maxima, kNormal},
      {"uniform", Way::maxima, Way::maxima, kUniform},
      {"integers", Way::maxima, Way::maxima, kIntegers},
      {"steps of an eighth", Way::maxima, Way::maxima,
       [](double g, double, auto, auto) { return std::round(800 * g) / 8; }},
      {"negative integers", Way::maxima, Way::maxima,
       [](double, double u, auto, auto) { return -std::floor(8388600 * u); }},
      {"far from zero", Way::maxima, Way::maxima, [](double g, double, auto, auto) { return 1e4 + g; }},
      {"features of their own centres", Way::maxima, Way::maxima,
       [](double g, double, auto k, auto) { return 100.0 * static_cast<double>(k % 7) + g; }},
      {"constant features", Way::maxima, Way::maxima,
       [](double g, double, auto k, auto) { return k % 3 == 0 ? 0.3 : g; }},
      {"a millionth", Way::maxima, Way::maxima, [](double g, double, auto, auto) { return g * 1e-6; }},
      {"2^40", Way::maxima, Way::maxima, [](double g, double, auto, auto) { return g * 0x1p40; }},
      {"all equal", Way::maxima, Way::maxima, [](double, double, auto, auto) { return 0.3; }},
      {"zero", Way::values, Way::maxima, [](double, double, auto, auto) { return 0.0; }},
      {"lognormal", Way::any, Way::any, [](double g, double, auto, auto) { return std::exp(2 * g); }},
      {"scales of 1e-3 to 1e3", Way::any, Way::any,
       [](double g, double, auto k, auto features) {
         return g * std::pow(10, -3 + 6.0 * static_cast<double>(k) / static_cast<double>(features));
       }},
      {"far tails", Way::any, Way::any, kCauchy},
      // Where one term is most of a sum, all others after it round alike: 2e-6 of floats.
      {"far tails to the third", Way::values, Way::any,
       [](double g, double u, auto k, auto f) { return std::pow(kCauchy(g, u, k, f), 3); }, 2},
      {"1e-30", Way::values, Way::maxima, [](double g, double, auto, auto) { return g * 1e-30; }},
      {"denormals", Way::values, Way::maxima, [](double g, double, auto, auto) { return g * 1e-39; }},
      {"denormals of float64", Way::values, Way::maxima, [](double g, double, auto, auto) { return g * 1e-310; }},
      {"1e30", Way::values, Way::values, [](double g, double, auto, auto) { return g * 1e30; }},
      {"1e37", Way::values, Way::values, [](double g, double, auto, auto) { return g * 1e37; }},
  };
  return all;
}

/// Distances, exact to float64.
class Distances {
 public:
  Distances(const Tensor& x, const Tensor& z) : features_(x.shape[1]), x_(dense(x)), z_(dense(z)) {}
  double operator()(std::int64_t m, std::int64_t n) const {
    long double sum = 0;
    for (std::int64_t k = 0; k < features_; ++k)
      sum += std::abs(static_cast<long double>(x_[m * features_ + k]) - z_[n * features_ + k]);
    return static_cast<double>(sum);
  }

 private:
  static std::vector<double> dense(const Tensor& t) {
    std::vector<double> values;
    each_index(t.shape, [&](const Shape& index) { values.push_back(read(t, index)); });
    return values;
  }
  std::int64_t features_;
  std::vector<double> x_, z_;
};

/// All pairs, or some and those that add_neighbours made.
void expect_distances(const Tensor& out, const Tensor& x, const Tensor& z, int sampled, const std::string& what,
                      double slack = 1) {
  const double tolerance = slack * contract(out.dtype);
  const double smallest = out.dtype == Dtype::float32 ? 1e-44 : 0;
  const std::int64_t m = x.shape[0], n = z.shape[0];
  const Distances distance(x, z);
  std::mt19937_64 random(3);
  for (int i = 0; i < sampled + n; ++i) {
    const std::int64_t col = i < n ? i : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    const std::int64_t row = i < n ? i % m : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(m));
    const double wanted = distance(row, col), value = read(out, {row, col});
    // Near the smallest numbers sums end in steps.
    ASSERT_TRUE(within(value, wanted, tolerance * wanted + smallest * static_cast<double>(x.shape[1]), out.dtype))
        << what << " at " << row << "," << col << ": " << value << " for " << wanted << ", off by "
        << std::abs(value / wanted - 1);
  }
}

/// Some rows of z are rows of x, or nearly.
void add_neighbours(const Tensor& x, const Tensor& z) {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (std::int64_t n = 5; n < z.shape[0]; n += 37) {
    const double noise = n % 3 == 0 ? 0 : n % 3 == 1 ? 1e-4 : 1e-6;
    for (std::int64_t k = 0; k < x.shape[1]; ++k) {
      const double value = read(x, {n % x.shape[0], k});
      write(z, {n, k}, value + noise * std::abs(value) * normal(random));
    }
  }
}

struct Counted {
  std::int64_t maxima, doubtful, values;
  std::int64_t all() const { return maxima + doubtful + values; }
};
/// The tiles of a call.
template <class Call>
Counted counted(TestContext& context, const Call& call) {
  cpu::MaximaTiles& tiles = context.state().maxima_tiles;
  tiles.maxima = tiles.doubtful = tiles.values = 0;
  call();
  return {tiles.maxima, tiles.doubtful, tiles.values};
}

template <class Body>
void with_maxima(const Body& body) {
  on_each_cpu_target([&](TestContext& context) {
    if (context.target() == Target::interpreter) return;  // it has no maxima
    context.state().least_gain = kAlways;
    context.set_ways("packed_tile,packed_halves");
    body(context);
  });
}
/// Runs the body in both types.
template <class Body>
void with_all_maxima(const Body& body) {
  for (Dtype type : {Dtype::float32, Dtype::float64})
    with_maxima([&](TestContext& context) { body(context, type); });
}

TEST(MaximaSums, EveryKindOfData) {
  for (Dtype type : {Dtype::float32, Dtype::float64})
    for (const Kind& kind : kinds())
      for (std::int64_t k : {1, 3, 63, 64, 65, 255, 256, 257, 1000}) {
        if (kSanitized && k > 65) continue;
        const Array x = drawn({150, k}, 1, kind.draw, type), z = drawn({420, k}, 2, kind.draw, type);
        const Tensor zt = z;
        add_neighbours(x, zt);
        const std::string what = name_of(type) + std::string(", ") + kind.name + " of " + std::to_string(k);
        with_maxima([&](TestContext& context) {
          const Array out(type, {150, 420});
          const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
          expect_distances(out, x, z, 500, what, type == Dtype::float32 ? kind.slack : 1);
          const Way way = type == Dtype::float32 ? kind.way : kind.wide_way;
          if (k < 63 || way == Way::any) return;
          if (way == Way::values) EXPECT_EQ(tiles.values, tiles.all()) << what;
          else EXPECT_GT(tiles.maxima, tiles.all() * 7 / 10) << what;
        });
        if (::testing::Test::HasFailure()) return;
      }
}

/// Part by part, each with chunks of its own; bounds are those of all features.
TEST(MaximaSums, ThousandsOfFeatures) {
  if (kSanitized) GTEST_SKIP() << "takes minutes";
  for (std::int64_t k : {8193, 20000}) {
    const Array x = drawn({60, k}, 1, kNormal, Dtype::float32), z = drawn({150, k}, 2, kNormal, Dtype::float32);
    const Tensor zt = z;
    const Array out(Dtype::float32, {60, 150});
    with_maxima([&](TestContext& context) {
      const auto run = [&] { return counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); }); };
      const Counted apart = run();
      EXPECT_EQ(apart.maxima, apart.all());
      expect_distances(out, x, z, 500, fmt::format("{} features", k));
    });
    add_neighbours(x, zt);
    with_maxima([&](TestContext& context) {
      const Counted near = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
      EXPECT_GT(near.doubtful, 0);
      expect_distances(out, x, z, 500, fmt::format("{} features, neighbours", k));
    });
  }
}

TEST(MaximaSums, NeighboursAreMadeAgain) {
  with_all_maxima([](TestContext& context, Dtype type) {
    const Array x = drawn({150, 64}, 1, kNormal, type), z = drawn({2000, 64}, 2, kNormal, type);
    const Array out(type, {150, 2000});
    const Tensor zt = z;
    const auto run = [&] { return counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); }); };
    Counted tiles = run();
    EXPECT_EQ(tiles.maxima, tiles.all());
    add_neighbours(x, zt);
    tiles = run();
    EXPECT_GT(tiles.doubtful, 0);
    const Distances distance(x, z);
    for (std::int64_t n = 5; n < 2000; n += 37) {
      const double wanted = distance(n % 150, n);
      EXPECT_TRUE(within(out(n % 150, n), wanted, contract(type) * wanted, type)) << n;
    }
    // Where most points have a neighbour in reach of every tile, looking at the data says so.
    for (std::int64_t m = 4; m < 150; ++m)
      for (std::int64_t k = 0; k < 64; ++k) write(x, {m, k}, read(x, {m % 4, k}) * (1 + 1e-7 * static_cast<double>(m)));
    for (std::int64_t n = 0; n < 2000; ++n)
      for (std::int64_t k = 0; k < 64; ++k)
        write(zt, {n, k}, read(x, {n % 150, k}) * (1 + 1e-6 * static_cast<double>(n)));
    tiles = run();
    EXPECT_EQ(tiles.values, tiles.all());
    expect_distances(out, x, z, 2000, "neighbours everywhere");
  });
}

TEST(MaximaSums, AFarPointKeepsToItsPanel) {
  with_all_maxima([](TestContext& context, Dtype type) {
    for (double special : {1e6, -1e9, 1e25, kNan, kInf, -kInf}) {
      Array x = drawn({300, 100}, 1, kNormal, type), z = drawn({2000, 100}, 2, kNormal, type), out(type, {300, 2000});
      x.set({17, 3}, special);
      z.set({18, 3}, special);
      z.set({1999, 99}, special);
      const Tensor zt = z;
      const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
      expect_distances(out, x, z, 2000, std::to_string(special));
      const Distances distance(x, z);
      for (std::int64_t j = 0; j < 2000; ++j) {
        const double wanted = distance(17, j);
        EXPECT_TRUE(within(out(17, j), wanted, contract(type) * wanted, type)) << special << " at " << j;
      }
      EXPECT_GT(tiles.values + tiles.doubtful, 0) << special;
      EXPECT_GT(tiles.maxima, tiles.all() * 3 / 4) << special;
    }
  });
}

/// A value so far below a large step that their quotient is 0 leaves a residual all the same.
TEST(MaximaSums, ADifferenceFarBelowTheStep) {
  with_maxima([](TestContext& context) {
    Array x = drawn({300, 100}, 1, kIntegers), z = drawn({2000, 100}, 2, kIntegers), out(Dtype::float32, {300, 2000});
    for (Array* points : {&x, &z})
      for (std::int64_t m = 0; m < points->shape()[0]; ++m)
        for (std::int64_t k = 0; k < 100; ++k) points->set({m, k}, m == 17 ? 0 : 0x1p50 * (*points)(m, k));
    x.set({17, 3}, 0x1p-120);
    const Tensor zt = z;
    const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
    EXPECT_EQ(out(17, 17), 0x1p-120);
    EXPECT_GT(tiles.maxima, tiles.all() * 3 / 4);
  });
}

TEST(MaximaSums, BytesAreExact) {
  with_maxima([](TestContext& context) {
    const Array x = copy(drawn({90, 300}, 1, kIntegers), Dtype::uint8),
                z = copy(drawn({203, 300}, 2, kIntegers), Dtype::uint8), out(Dtype::float32, {90, 203});
    const Tensor zt = z;
    for (std::int64_t k = 0; k < 300; ++k) write(zt, {7, k}, read(x, {5, k}));
    const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
    EXPECT_EQ(tiles.maxima, tiles.all());
    const Distances distance(x, z);
    each_index({90, 203}, [&](const Shape& i) { ASSERT_EQ(read(out, i), distance(i[0], i[1])); });
    EXPECT_EQ(out(5, 7), 0);
  });
}

TEST(MaximaSums, NoFeaturesAndFewPoints) {
  with_all_maxima([](TestContext& context, Dtype type) {
    for (auto [m, n, k] : {std::array{5, 7, 0}, {1, 1, 64}, {1, 100, 64}, {3, 2, 257}, {17, 49, 65}, {97, 1, 300}}) {
      const Array x = drawn({m, k}, 1, kUniform, type), z = drawn({n, k}, 2, kUniform, type), out(type, {m, n});
      const Tensor zt = z;
      const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
      expect_distances(out, x, z, 500, "few");
      if (k > 0) EXPECT_EQ(tiles.maxima, tiles.all()) << m << "x" << n;
      else EXPECT_EQ(tiles.maxima, 0);
    }
  });
}

/// Epilogues, factors, streams, values per point: against the oracle, by the condition of each.
TEST(MaximaSums, FormulasAroundTheSum) {
  struct Row {
    const char* text;
    bool maxima, values;
    double condition;
  };
  static const Row rows[] = {
      {"exp(-sum(abs(x-z))/50)", true, false, 4}, {"sqrt(sum(abs(z-x)))", true, false, 1},
      {"3*sum(abs(x-z))", true, false, 1}, {"sum(0.7*abs(x-z))^2", true, false, 3},
      {"sum(abs(sqrt(abs(x))-sqrt(abs(z))))", true, false, 1},
      {"where(i == j, 7, sum(abs(x-z)) + row*col)", true, true, 1},
      {"sum(abs(x-z))/(1e-42*row)", true, true, 2},
      {"sum(-abs(x-z))", false, false, 1}, {"sum(abs(x-z)) + max(abs(x-z))", false, false, 1},
      {"sum(abs(x-z) + x*x)", false, false, 1}, {"sum(abs(x-2*z*x))", false, false, 1}};
  with_all_maxima([&](TestContext& context, Dtype type) {
    const Array x = drawn({60, 130}, 1, kNormal, type), z = drawn({140, 130}, 2, kNormal, type);
    const Array row = uniform(type, {60}, 3), col = uniform(type, {140}, 4);
    const Tensor zt = z;
    for (const Row& f : rows) {
      Extra extra;
      Arguments arguments;
      if (f.values) {
        arguments.row = row;
        if (std::string(f.text).find("col") != std::string::npos) arguments.col = col;
        for (std::int64_t m = 0; m < 60; ++m) extra.row.push_back(row(m));
        for (std::int64_t n = 0; n < 140; ++n) extra.col.push_back(col(n));
      }
      const Expected expected = expected_pairs(parse(f.text), x, z, 1.2 * contract(type) * f.condition, {}, extra);
      const Array out(type, {60, 140});
      const Counted tiles = counted(context, [&] { pairwise(f.text, x, &zt, out, arguments, context); });
      EXPECT_EQ(tiles.maxima, f.maxima ? tiles.all() : 0) << f.text;
      expect_pairs(out, expected, f.text);
    }
  });
}

TEST(MaximaSums, LayoutsAndTypes) {
  const Array x0 = drawn({70, 90}, 1, kNormal), z0 = drawn({130, 90}, 2, kNormal);
  with_maxima([&](TestContext& context) {
    Array plain(Dtype::float32, {70, 130});
    const Tensor zt = z0;
    pairwise(kL1, x0, &zt, plain, {}, context);
    for (const Shape& strides : {Shape{1, 70}, Shape{200, 2}, Shape{-91, 1}}) {
      const Array x = copy(x0, Dtype::float32, strides), out(Dtype::float32, {70, 130}, {133, 1});
      const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
      EXPECT_EQ(tiles.maxima, tiles.all());
      each_index({70, 130}, [&](const Shape& i) { ASSERT_EQ(read(out, i), read(plain, i)); });
    }
    for (const Shape& strides : {column_major({70, 130}), Shape{260, 2}, Shape{-1, -70}}) {
      const Array out(Dtype::float32, {70, 130}, strides);
      pairwise(kL1, x0, &zt, out, {}, context);
      each_index({70, 130}, [&](const Shape& i) { ASSERT_EQ(read(out, i), read(plain, i)); });
    }
    for (Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
      const Array x = copy(x0, dtype), z = copy(z0, dtype), out(Dtype::float32, {70, 130}), half(dtype, {70, 130});
      const Tensor zh = z;
      const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zh, out, {}, context); });
      EXPECT_EQ(tiles.maxima, tiles.all());
      expect_distances(out, x, z, 1000, name_of(dtype));
      pairwise(kL1, x, &zh, half, {}, context);
      EXPECT_TRUE(same_bits(half, copy(out, dtype)));
    }
    const Array x = copy(x0, Dtype::float64, {1, 70}), z = copy(z0, Dtype::float64), out(Dtype::float64, {70, 130});
    const Tensor wide = z;
    const Counted tiles = counted(context, [&] { pairwise(kL1, x, &wide, out, {}, context); });
    EXPECT_EQ(tiles.maxima, tiles.all());
    expect_distances(out, x, z, 1000, "float64");
  });
}

TEST(MaximaSums, SymmetricResults) {
  with_all_maxima([](TestContext& context, Dtype type) {
    for (const Draw& draw : {kNormal, kIntegers, kCauchy}) {
      const Array x = drawn({205, 130}, 1, draw, type), out(type, {205, 205}), whole(type, {205, 205});
      add_neighbours(x, x);
      pairwise(kL1, x, nullptr, out, {}, context);
      expect_distances(out, x, x, 2000, "symmetric");
      each_index({205, 205}, [&](const Shape& i) { ASSERT_EQ(read(out, i), read(out, {i[1], i[0]})); });
      for (std::int64_t m = 0; m < 205; ++m) ASSERT_EQ(out(m, m), 0);
      const Array z = copy(x, type);
      const Tensor zt = z;
      pairwise(kL1, x, &zt, whole, {}, context);
      expect_distances(whole, x, x, 2000, "of a copy");
    }
  });
}

TEST(MaximaSums, ThreadsAndRunsGiveTheSameBits) {
  with_all_maxima([](TestContext& context, Dtype type) {
    Array x = drawn({400, 70}, 1, kNormal, type), z = drawn({500, 70}, 2, kNormal, type);
    const Tensor zt = z;
    add_neighbours(x, zt);
    x.set({33, 5}, 1e9);
    z.set({77, 5}, kNan);
    std::vector<Array> results;
    for (int threads : {1, 1, 2, 3, 7}) {
      context.set_threads(threads);
      results.emplace_back(type, Shape{400, 500});
      pairwise(kL1, x, &zt, results.back(), {}, context);
      EXPECT_TRUE(same_bits(results.back(), results.front())) << threads;
    }
  });
}

TEST(MaximaSums, ItemsOfABatchAreAlone) {
  const std::vector<Draw> draws = {kNormal, kCauchy, kIntegers, kUniform,
                                   [](double g, double, auto, auto) { return g * 1e-20; }};
  const auto count = static_cast<std::int64_t>(draws.size());
  with_all_maxima([&](TestContext& context, Dtype type) {
    Array x(type, {count, 61, 140}), z(type, {count, 150, 140});
    for (std::int64_t b = 0; b < count; ++b) {
      const Array xs = drawn({61, 140}, 10 + static_cast<unsigned>(b), draws[b], type),
                  zs = drawn({150, 140}, 20, draws[b], type);
      each_index({61, 140}, [&](const Shape& i) { x.set({b, i[0], i[1]}, read(xs, i)); });
      each_index({150, 140}, [&](const Shape& i) { z.set({b, i[0], i[1]}, read(zs, i)); });
    }
    z.set({3, 5, 5}, kInf);
    const Tensor zt = z;
    const Array out(type, {count, 61, 150});
    pairwise(kL1, x, &zt, out, {}, context);
    for (std::int64_t b = 0; b < count; ++b) {
      const Tensor xb = item(x, {b}), zb = item(z, {b});
      const Array alone(type, {61, 150});
      pairwise(kL1, xb, &zb, alone, {}, context);
      expect_distances(alone, xb, zb, 1000, "item");
      EXPECT_TRUE(same_bits(alone, copy(item(out, {b}), type))) << b;
    }
  });
}

TEST(MaximaSums, BandwidthsShareASum) {
  const Array b = filled(Dtype::float64, {3}, {10, 1e-42, 500});
  with_all_maxima([&](TestContext& context, Dtype type) {
    Array x = drawn({61, 140}, 1, kNormal, type), z = drawn({150, 140}, 2, kNormal, type);
    const Tensor zt = z;
    add_neighbours(x, zt);
    x.set({20, 1}, 1e10);
    Arguments arguments;
    arguments.params["b"] = b.tensor();
    const Array out(type, {3, 61, 150});
    const Counted tiles = counted(context, [&] { pairwise("exp(-sum(abs(x-z))/b)", x, &zt, out, arguments, context); });
    EXPECT_GT(tiles.maxima, 0);
    for (std::int64_t i = 0; i < 3; ++i) {
      arguments.params["b"] = b(i);
      const Array alone(type, {61, 150});
      pairwise("exp(-sum(abs(x-z))/b)", x, &zt, alone, arguments, context);
      EXPECT_TRUE(same_bits(alone, copy(item(out, {i}), type))) << b(i);
    }
  });
}

TEST(MaximaSums, SecondStages) {
  with_all_maxima([&](TestContext& context, Dtype type) {
    const Array x = drawn({100, 80}, 1, kNormal, type), v = drawn({333, 3}, 3, kUniform, type);
    Array z = drawn({333, 80}, 2, kNormal, type);
    const Tensor zt = z;
    add_neighbours(x, zt);
    z.set({40, 7}, 1e8);
    const Distances distance(x, z);
    const Array product(type, {100, 3}), nearest(type, {100, 5}), indices(Dtype::int64, {100, 5}), least(type, {100}),
        at(Dtype::int64, {100});
    const char* laplace = "exp(-sum(abs(x-z))/60)";
    Counted tiles = counted(context, [&] { kernel_product(laplace, x, &zt, v, product, {}, context); });
    EXPECT_GT(tiles.maxima, tiles.doubtful + tiles.values);
    tiles = counted(context, [&] { knn(kL1, x, &zt, 5, nearest, indices, {}, context); });
    EXPECT_GT(tiles.maxima, tiles.doubtful + tiles.values);
    kernel_reduce(kL1, x, &zt, ReduceKind::min, least, {}, context);
    kernel_reduce(kL1, x, &zt, ReduceKind::argmin, at, {}, context);
    for (std::int64_t m = 0; m < 100; ++m) {
      std::vector<double> row, sums(3), sizes(3);
      for (std::int64_t n = 0; n < 333; ++n) {
        row.push_back(distance(m, n));
        for (std::int64_t e = 0; e < 3; ++e) {
          const double term = std::exp(-row.back() / 60) * v(n, e);
          sums[e] += term;
          sizes[e] += std::abs(term);
        }
      }
      for (std::int64_t e = 0; e < 3; ++e) ASSERT_LE(std::abs(product(m, e) - sums[e]), 2 * contract(type) * sizes[e]);
      for (std::int64_t j = 0; j < 5; ++j) {
        const double wanted = row[static_cast<std::size_t>(indices(m, j))];
        ASSERT_TRUE(within(nearest(m, j), wanted, contract(type) * wanted, type)) << m << "," << j;
      }
      std::sort(row.begin(), row.end());
      for (std::int64_t j = 0; j < 5; ++j) ASSERT_LE(std::abs(nearest(m, j) - row[j]), contract(type) * row[j]);
      ASSERT_EQ(least(m), nearest(m, 0));
      ASSERT_EQ(at(m), indices(m, 0));
    }
  });
}

TEST(MaximaSums, ExplainSaysSoForLargeCalls) {
  for (Target target : {Target::x86_avx512, Target::x86_avx2}) {
    const std::string large = explain(kL1, {4096, 4096, 256}, Dtype::float32, target);
    EXPECT_NE(large.find("update by maxima"), std::string::npos) << large;
    EXPECT_NE(large.find("int_max"), std::string::npos);
    for (const ExplainShape& shape : {ExplainShape{200, 200, 256}, {8, 100000, 256}, {4096, 4096, 3}, {4096, 4096, 0}})
      EXPECT_EQ(explain(kL1, shape, Dtype::float32, target).find("update by maxima"), std::string::npos);
    const std::string wide = explain(kL1, {4096, 4096, 256}, Dtype::float64, target);
    EXPECT_NE(wide.find("update by maxima"), std::string::npos) << wide;
    EXPECT_EQ(wide.find("int_max"), std::string::npos);
    EXPECT_NEAR(floor_rate(kL1, {4096, 4096, 256}, Dtype::float32, target, 1) /
                    floor_rate(kL1, {4096, 4096, 256}, Dtype::float64, target, 1),
                2, 0.05);
  }
  EXPECT_EQ(explain("sum((x-z)^2)", {4096, 4096, 256}, Dtype::float32, Target::x86_avx512).find("maxima"),
            std::string::npos);
}

TEST(MaximaSums, ACallOfOrdinarySizeTakesThem) {
  on_each_cpu_target([](TestContext& context) {
    for (Dtype type : {Dtype::float32, Dtype::float64}) {
      const Array x = drawn({700, 64}, 1, kNormal, type), out(type, {700, 700}), small(type, {90, 90});
      const Array z = drawn({700, 64}, 2, kNormal, type), few = drawn({90, 64}, 1, kNormal, type);
      const Tensor zt = z;
      const Counted tiles = counted(context, [&] { pairwise(kL1, x, &zt, out, {}, context); });
      EXPECT_EQ(tiles.maxima, context.target() == Target::interpreter ? 0 : tiles.all());
      EXPECT_EQ(counted(context, [&] { pairwise(kL1, few, nullptr, small, {}, context); }).maxima, 0);
    }
  });
}

}  // namespace
}  // namespace mercer
