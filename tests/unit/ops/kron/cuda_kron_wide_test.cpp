// Products with Kronecker products of factors that tensor cores take (plan/kron/kron_wide.h), against products in
// double, by the bound of mercer/kron.h.
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

/// A pair whose edges are whole in nothing, a single factor before it, alpha, beta and y; few enough for the emulator.
TEST(WideKron, RaggedEdges) {
  expect_all_right({{.sizes = {{34, 33}, {35, 37}, {37, 41}}, .rows = 2, .alpha = -2, .beta = 3}});
}

TEST(WideKron, FullTiles) { expect_all_right({{.sizes = {{64, 64}, {64, 64}}, .rows = 2, .items = 2}}); }

TEST(WideKron, LargeTiles) {
  expect_all_right({{.sizes = {{128, 128}, {128, 128}}, .rows = 5, .alpha = 0.5}});
}

TEST(WideKron, Shapes) {
  std::vector<Call> calls;
  for (const Sizes& sizes : std::vector<Sizes>{{{52, 50}, {52, 50}}, {{100, 100}, {100, 100}}, {{96, 128}, {96, 128}},
                                               {{33, 128}, {40, 34}}, {{128, 33}, {128, 35}}, {{128, 64}, {128, 128}},
                                               {{5, 64}, {128, 2}}, {{64, 1}, {1, 64}}, {{127, 65}, {66, 121}},
                                               {{40, 100}, {100, 40}}, {{33, 34}, {35, 36}, {37, 38}},
                                               {{64, 128}, {33, 40}, {40, 33}}, {{128, 40}, {36, 36}, {36, 36}},
                                               {{100, 1}, {40, 40}, {50, 50}}, {{120, 40}, {7, 6}},
                                               {{34, 34}, {3, 3}, {35, 35}}, {{36, 36}, {33, 34}, {34, 33}, {4, 5}}})
    calls.push_back({.sizes = sizes});
  expect_all_right(calls);
}

/// Rows share a tile there. Their number is whole in vectors, in pairs of floats, and in nothing; tiles are ragged.
TEST(WideKron, RowsByColumns) {
  std::vector<Call> calls;
  for (const std::int64_t rows : {64, 36, 22, 7})
    for (const Sizes& sizes : {Sizes{{64, 64}, {34, 34}}, Sizes{{100, 37}}, Sizes{{40, 128}, {128, 33}}})
      calls.push_back({.sizes = sizes, .rows = rows, .alpha = 2, .beta = rows == 36 ? -1.0 : 0.0, .by_columns = true});
  calls.push_back({.sizes = {{64, 64}, {40, 40}}, .rows = 24, .items = 3, .dtype = Dtype::float16, .by_columns = true});
  calls.push_back({.sizes = {{128, 128}}, .rows = 300, .items = 5, .by_columns = true});
  for (const auto& [x, factor] : std::vector<std::pair<double, double>>{{1e-42, 1e20}, {1e-30, 1}, {1e30, 1e-20}})
    calls.push_back({.sizes = {{50, 50}, {34, 34}}, .rows = 40, .x_scale = x, .factor_scale = factor,
                     .by_columns = true});
  expect_all_right(calls);
}

TEST(WideKron, ManyRows) {
  expect_all_right({{.sizes = {{64, 64}, {64, 64}}, .rows = 1500},
                    {.sizes = {{128, 128}, {128, 128}}, .rows = 701},
                    {.sizes = {{52, 50}, {52, 50}, {52, 50}}, .rows = 30},
                    {.sizes = {{40, 40}, {34, 34}}, .rows = 1500, .gaps = true}});
}

TEST(WideKron, TypesAndLayouts) {
  std::vector<Call> calls;
  for (const Dtype dtype : {Dtype::float32, Dtype::float16, Dtype::bfloat16})
    for (const bool turned : {false, true})
      for (const bool gaps : {false, true})
        for (const Sizes& sizes : {Sizes{{64, 64}, {64, 64}}, Sizes{{34, 40}, {40, 46}, {66, 37}}}) {
          Call call = {.sizes = sizes, .dtype = dtype, .turned = turned, .gaps = gaps, .alpha = 0.5};
          if (turned) call.beta = -2;
          calls.push_back(call);
        }
  expect_all_right(calls);
}

TEST(WideKron, BatchesOfFactors) {
  expect_all_right({{.sizes = {{64, 64}, {64, 64}}, .rows = 7, .items = 300, .alpha = 2, .beta = 1},
                    {.sizes = {{40, 33}, {50, 50}, {36, 36}}, .rows = 3, .items = 5},
                    {.sizes = {{128, 128}, {128, 128}}, .rows = 9, .items = 70},
                    {.sizes = {{128, 100}, {100, 128}}, .rows = 1, .items = 300}});
}

/// Values far from 1 of either sign of the exponent, down to those that are not normal.
TEST(WideKron, Scales) {
  std::vector<Call> calls;
  for (const auto& [x, factor] : std::vector<std::pair<double, double>>{
           {1e-30, 1}, {1e30, 1}, {1e-30, 1e15}, {1e30, 1e-20}, {1, 1e-25}, {1e-38, 1e18}, {1e-42, 1e20}, {0, 1},
           {1, 0}})
    for (const Sizes& sizes : {Sizes{{64, 64}, {64, 64}}, Sizes{{50, 50}, {34, 34}, {34, 34}}})
      calls.push_back({.sizes = sizes, .x_scale = x, .factor_scale = factor});
  expect_all_right(calls);
}

/// Rows of every magnitude, and rows that are not finite, leave each other alone: not a bit differs.
TEST(WideKron, RowsAreApart) {
  on_cuda([](TestContext& context) {
    for (const auto& [sizes, by_columns] : std::vector<std::pair<Sizes, bool>>{
             {{{64, 64}, {64, 64}}, false}, {{{36, 36}, {40, 40}, {36, 36}}, false}, {{{64, 64}, {36, 36}}, true}}) {
      const Call call = {.sizes = sizes, .rows = 6, .by_columns = by_columns};
      Arrays a(call);
      const std::int64_t k = extent(sizes, true);
      for (std::int64_t e = 0; e < k; ++e) {
        a.x.set({0, 1, e}, a.x(0, 1, e) * 1e-30);
        a.x.set({0, 2, e}, a.x(0, 2, e) * 1e30);
      }
      expect_rows_apart(call, a, context);
    }
  });
}

TEST(WideKron, FactorsThatAreNotFinite) {
  on_cuda([](TestContext& context) {
    expect_outputs_apart({.sizes = {{40, 33}, {36, 36}, {35, 34}}, .rows = 2}, context);
  });
}

TEST(WideKron, InPlace) {
  on_cuda([](TestContext& context) {
    for (const Sizes& sizes : {Sizes{{64, 64}, {64, 64}}, Sizes{{64, 40}, {40, 64}}, Sizes{{128, 128}, {128, 128}},
                               Sizes{{100, 100}, {1, 1}, {50, 50}}, Sizes{{40, 40}, {34, 34}, {33, 33}}})
      for (const bool gaps : {false, true}) {
        const Call call = {.sizes = sizes, .rows = 300, .gaps = gaps, .alpha = -1};
        if (extent(sizes, true) * call.rows > 12000000) continue;
        expect_in_place(call, context);
      }
  });
}

}  // namespace
}  // namespace mercer
