// Products with Kronecker products in float64 of factors that tensor cores take (plan/kron/kron_double.h), by the bound
// of mercer/kron.h.
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

Call doubles(Sizes sizes, std::int64_t rows = 3) { return call_of(std::move(sizes), rows, Dtype::float64); }

/// Edges that are whole in nothing, alpha, beta and y; few enough for the emulator.
TEST(DoubleKron, RaggedEdges) {
  Call call = doubles({{35, 37}, {18, 33}, {33, 17}}, 2);
  call.alpha = -2;
  call.beta = 3;
  expect_all_right({call});
}

/// Axes of five to eight (kernels/cuda/kron/kron_eights.cuh): in pairs and alone, shared by blocks, with odd neighbours
/// after them, with several rows in a tile, and places that add up or do not.
TEST(DoubleKron, Eights) {
  std::vector<Call> calls;
  for (const Sizes& sizes : std::vector<Sizes>{{{8, 8}, {8, 8}, {8, 8}, {8, 8}},
                                               {{8, 8}, {8, 8}, {8, 8}},
                                               {{5, 7}, {8, 6}, {7, 8}, {6, 5}},
                                               {{8, 8}, {7, 5}, {3, 3}},
                                               {{6, 8}, {3, 4}, {8, 8}, {2, 2}},
                                               {{5, 5}, {8, 7}},
                                               {{6, 6}, {8, 6}},
                                               {{7, 6}, {21, 19}}})
    for (const bool columns : {false, true}) {
      Call call = doubles(sizes, columns ? 5 : 37);
      call.by_columns = columns;
      call.alpha = columns ? 1 : -0.5;
      call.beta = columns ? 0 : 2;
      calls.push_back(call);
    }
  expect_all_right(calls);
}

TEST(DoubleKron, FullTiles) { expect_all_right({doubles({{64, 64}, {64, 64}}, 2)}); }

/// Several tiles of outputs, and factors that shared memory does not hold.
TEST(DoubleKron, LargeFactors) {
  expect_all_right({doubles({{150, 300}}, 40), doubles({{600, 130}}, 9), doubles({{2, 3}, {520, 200}, {3, 2}}, 2)});
}

TEST(DoubleKron, Shapes) {
  std::vector<Call> calls;
  for (const Sizes& sizes : std::vector<Sizes>{
           {{128, 128}, {128, 128}}, {{52, 50}, {52, 50}}, {{100, 100}, {100, 100}}, {{33, 128}, {40, 34}},
           {{128, 33}, {128, 35}},   {{5, 64}, {128, 2}},  {{64, 1}, {1, 64}},       {{127, 65}, {66, 121}},
           {{256, 256}, {17, 16}},   {{34, 34}, {3, 3}},   {{40, 40}, {2, 2}},       {{40, 41}, {5, 7}},
           {{512, 512}, {2, 1}},     {{1000, 24}},         {{24, 1000}},
           {{36, 36}, {33, 34}, {34, 33}, {4, 5}}})
    calls.push_back(doubles(sizes));
  expect_all_right(calls);
}

TEST(DoubleKron, ManyRows) {
  expect_all_right({doubles({{64, 64}, {64, 64}}, 1500), doubles({{128, 128}, {128, 128}}, 300),
                    doubles({{52, 50}, {52, 50}, {52, 50}}, 30), doubles({{512, 512}}, 5000)});
}

TEST(DoubleKron, Layouts) {
  std::vector<Call> calls;
  for (const bool turned : {false, true})
    for (const int layout : {0, 1, 2})
      for (const Sizes& sizes : {Sizes{{64, 64}, {64, 64}}, Sizes{{34, 40}, {40, 46}, {66, 37}}, Sizes{{350, 130}}}) {
        Call call = doubles(sizes, 5);
        call.turned = turned;
        call.gaps = layout == 1;
        call.by_columns = layout == 2;
        call.alpha = 0.5;
        if (turned) call.beta = -2;
        calls.push_back(call);
      }
  expect_all_right(calls);
}

TEST(DoubleKron, BatchesOfFactors) {
  std::vector<Call> calls;
  for (const auto& [sizes, rows, items] : std::vector<std::tuple<Sizes, std::int64_t, std::int64_t>>{
           {{{64, 64}, {64, 64}}, 7, 300}, {{{40, 33}, {50, 50}, {36, 36}}, 3, 5}, {{{128, 128}, {128, 128}}, 3, 40},
           {{{200, 300}}, 70, 9},          {{{600, 400}}, 50, 3},                  {{{33, 40}}, 1, 1000}}) {
    Call call = doubles(sizes, rows);
    call.items = items;
    call.alpha = 2;
    calls.push_back(call);
  }
  expect_all_right(calls);
}

TEST(DoubleKron, FewItemsWithTilesOfTheirOwn) {
  Call call = doubles({{40, 40}, {6, 5}}, 9);
  call.items = 3;
  expect_all_right({call});
}

TEST(DoubleKron, Scales) {
  std::vector<Call> calls;
  for (const auto& [x, factor] :
       std::vector<std::pair<double, double>>{{1e-250, 1}, {1e250, 1e-100}, {1, 1e-120}, {0, 1}, {1, 0}}) {
    Call call = doubles({{40, 34}, {36, 48}}, 2);
    call.x_scale = x;
    call.factor_scale = factor;
    calls.push_back(call);
  }
  expect_all_right(calls);
}

TEST(DoubleKron, RowsAreApart) {
  on_cuda([](TestContext& context) {
    for (const bool by_columns : {false, true}) {
      Call call = doubles({{36, 36}, {33, 33}}, 6);
      call.by_columns = by_columns;
      Arrays a(call);
      expect_rows_apart(call, a, context);
    }
  });
}

TEST(DoubleKron, FactorsThatAreNotFinite) {
  on_cuda([](TestContext& context) { expect_outputs_apart(doubles({{40, 33}, {35, 34}}, 2), context); });
}

TEST(DoubleKron, InfinitiesStayInfinities) {
  on_cuda([](TestContext& context) {
    const auto all = [](const Shape& shape, double value) {
      return filled(Dtype::float64, shape, std::vector<double>(static_cast<std::size_t>(shape[0] * shape[1]), value));
    };
    const Array x = all({2, 33 * 3}, kInf), f = all({33, 35}, 1), g = all({3, 3}, 1), out(Dtype::float64, {2, 35 * 3});
    const std::vector<Tensor> factors = {f, g};
    matmul(x, factors, out, {}, context);
    each_index({2, 35 * 3}, [&](const Shape& at) { ASSERT_EQ(read(out, at), kInf); });
  });
}

TEST(DoubleKron, InPlace) {
  on_cuda([](TestContext& context) {
    for (const Sizes& sizes : {Sizes{{64, 64}, {64, 64}}, Sizes{{64, 40}, {40, 64}}, Sizes{{90, 90}},
                               Sizes{{300, 300}}, Sizes{{40, 40}, {34, 34}, {3, 3}}})
      for (const bool gaps : {false, true}) {
        Call call = doubles(sizes, 70);
        call.gaps = gaps;
        call.alpha = -1;
        expect_in_place(call, context);
      }
  });
}

}  // namespace
}  // namespace mercer
