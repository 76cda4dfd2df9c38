// Matrices of few pairs whose tiles' features blocks share (kernels/cuda/pairs/pair_ranges.cuh), against the oracle:
// formulas of all kinds of states, sizes next to those of tiles, batches and strides. Sums are merged in one order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "core/emulated.h"
#include "ops/context.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

struct Case {
  const char* text;
  const char* scale;  // of the bound; null: the value itself
  Dtype dtype = Dtype::float32;
  bool weighted = false;
};

// Products on float64 tensor cores, sums with and without promotion, maxima, products, two states and several sums.
constexpr Case kCases[] = {
    {"sum(x*z)", "sum(abs(x*z))"},
    {"exp(-sum((x-z)^2)/(4*K))", nullptr},
    {"sqrt(sum(w*(x-z)^2)) + h", nullptr, Dtype::float64, true},
    {"sum(x*z)", "sum(abs(x*z))", Dtype::float64},
    {"prod(1 + x*z/K)", "0.06*K*prod(1 + x*z/K)"},  // two roundings a factor
    {"max(abs(x-z))*h", nullptr},
    {"logsumexp(x*z)", "1 + abs(logsumexp(x*z))"},
    {"sum(w*abs(x-z))/(1 + sum(abs(x+z)))", nullptr, Dtype::float32, true},
    {"sum(abs(x-z)^1.3)", nullptr, Dtype::float64},
    {"sum(abs(x-z)^3)", nullptr, Dtype::bfloat16},
};

double tolerance_of(Dtype dtype) { return dtype == Dtype::float64 ? 2e-13 : dtype == Dtype::bfloat16 ? 5e-3 : 2e-6; }

Extra extra_of(const Case& of, std::int64_t features) {
  Extra extra;
  if (std::string(of.text).find('h') != std::string::npos && std::string(of.text).find("logsum") != 0)
    extra.params["h"] = 0.75;
  for (std::int64_t k = 0; of.weighted && k < features; ++k) extra.w.push_back(0.25 + 0.5 * static_cast<double>(k % 3));
  return extra;
}

Arguments arguments_of(const Case& of, const Extra& extra, const Array& w) {
  Arguments arguments = testing_support::arguments_of(extra);
  if (of.weighted) arguments.w = w.tensor();
  return arguments;
}

template <class Body>
void on_split_k(const Body& body) {
  on_cuda([&](TestContext& context) {
    context.set_ways("pairwise:split_k");
    body(context);
  });
}

/// Twice, since blocks come in any order.
TEST(SplitK, FormulasAndSizes) {
  on_split_k([](TestContext& context) {
    constexpr std::array<std::int64_t, 3> kSizes[] = {{70, 45, 300}, {1, 130, 65}, {33, 33, 17}, {65, 129, 600}};
    Turns turns(7);
    for (const Case& of : kCases)
      for (const auto& [m, n, k] : kSizes) {
        if (turns.leaves_out()) continue;
        const Extra extra = extra_of(of, k);
        Array w(of.dtype, {k});
        for (std::int64_t f = 0; of.weighted && f < k; ++f) w.set({f}, extra.w[static_cast<std::size_t>(f)]);
        const Array x = normal(of.dtype, {m, k}, 1), z = normal(of.dtype, {n, k}, 2);
        const Tensor points = z;
        const Array out(of.dtype, {m, n}), again(of.dtype, {m, n}, column_major({m, n}));
        pairwise(of.text, x, &points, out, arguments_of(of, extra, w), context);
        pairwise(of.text, x, &points, again, arguments_of(of, extra, w), context);
        const Expr scale = of.scale ? parse(of.scale) : Expr();
        const std::string what = fmt::format("{} of {} {} x {} x {}", of.text, name_of(of.dtype), m, n, k);
        expect_pairs(out, expected_pairs(parse(of.text), x, points, tolerance_of(of.dtype), scale, extra), what);
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) ASSERT_EQ(out(i, j), again(i, j)) << what;
        if (::testing::Test::HasFailure()) return;
      }
  });
}

TEST(SplitK, SpecialValues) {
  on_split_k([](TestContext& context) {
    constexpr std::int64_t kM = 40, kN = 50, kK = 150;
    for (const char* text : {"sum(x*z)", "sum((x-z)^2)", "max(abs(x-z))", "sqrt(sum((x-z)^2))"})
      for (const Dtype dtype : kWide) {
        Array x = normal(dtype, {kM, kK}, 1), z = normal(dtype, {kN, kK}, 2);
        x.set({3, 0}, kNan), x.set({7, kK - 1}, kInf), z.set({9, 70}, -kInf), x.set({11, 33}, 0), z.set({9, 33}, kInf);
        for (std::int64_t k = 0; k < kK; ++k) z.set({5, k}, x(6, k));  // a copy
        const bool is_norm = std::string(text).starts_with("sqrt");
        for (std::int64_t k = 0; is_norm && k < kK; ++k) x.set({20, k}, x(20, k) * 1e-25), z.set({21, k}, x(20, k) * 2);
        const Tensor points = z;
        const Array out(dtype, {kM, kN});
        pairwise(text, x, &points, out, {}, context);
        const Expr scale = std::string(text) == "sum(x*z)" ? parse("sum(abs(x*z))") : Expr();
        expect_pairs(out, expected_pairs(parse(text), x, points, tolerance_of(dtype), scale), text);
        if (std::string(text) != "sum(x*z)") EXPECT_EQ(out(6, 5), 0) << text;
      }
  });
}

/// Items of a batch, some of which share their sums, have the bits of calls alone; halves of a symmetric matrix agree.
TEST(SplitK, BatchesAndHalves) {
  on_split_k([](TestContext& context) {
    constexpr std::int64_t kItems = 3, kWidths = 2, kM = 40, kK = 90;
    constexpr const char* kText = "exp(-sum(abs(x-z))/h)";
    for (const Dtype dtype : kWide) {
      const Array x = normal(dtype, {kItems, 1, kM, kK}, 1);
      const Array h = filled(dtype, {1, kWidths}, {70, 40}), out(dtype, {kItems, kWidths, kM, kM});
      Arguments arguments;
      arguments.params["h"] = h.tensor();
      pairwise(kText, x, nullptr, out, arguments, context);
      for (std::int64_t item = 0; item < kItems; ++item)
        for (std::int64_t width = 0; width < kWidths; ++width) {
          const Array alone(dtype, {kM, kM});
          Arguments own;
          own.params["h"] = h(0, width);
          const Tensor points = testing_support::item(x, {item, 0});
          pairwise(kText, points, nullptr, alone, own, context);
          const Extra extra{{{"h", h(0, width)}}, {}, {}, {}, 0, 0};
          expect_pairs(alone, expected_pairs(parse(kText), points, points, 4 * tolerance_of(dtype), {}, extra), kText);
          for (std::int64_t i = 0; i < kM; ++i)
            for (std::int64_t j = 0; j < kM; ++j) {
              ASSERT_EQ(out(item, width, i, j), alone(i, j)) << i << "," << j;
              ASSERT_EQ(alone(i, j), alone(j, i)) << i << "," << j;
            }
        }
    }
  });
}

/// Scratch memory for few tiles at a time: launches one after the other.
TEST(SplitK, FewTilesAtATime) {
  on_split_k([](TestContext& context) {
    constexpr std::int64_t kM = 100, kN = 70, kK = 200;
    const Array x = normal(Dtype::float32, {kM, kK}, 1), z = normal(Dtype::float32, {kN, kK}, 2);
    const Tensor points = z;
    const Array out(Dtype::float32, {kM, kN}), parts(Dtype::float32, {kM, kN});
    pairwise("sum(abs(x-z))", x, &points, out, {}, context);
    context.state().own_costs().part_bytes = 100000;
    pairwise("sum(abs(x-z))", x, &points, parts, {}, context);
    EXPECT_TRUE(same_bits(out, parts));
  });
}

}  // namespace
}  // namespace mercer
