// Products with Kronecker products whose rows are shared by the blocks of a cluster, or alone on a multiprocessor
// (plan/kron/kron_chain.h), by the bound of mercer/kron.h.
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

Sizes power(std::int64_t p, int count) { return Sizes(static_cast<std::size_t>(count), {p, p}); }

/// The first axis is shared: on tensor cores, and by multiply-adds.
TEST(SharedChains, FirstAxis) {
  expect_all_right({call_of({{16, 16}, {16, 16}, {16, 16}, {16, 12}}, 1), call_of(power(4, 8), 2),
                    call_of(power(8, 5), 1, Dtype::float64)});
}

/// An axis of several factors in a pair with a large one.
TEST(SharedChains, MergedFactors) {
  expect_all_right({call_of({{32, 32}, {16, 16}, {16, 16}, {4, 4}, {2, 2}}, 1)});
}

TEST(SharedChains, LastPair) { expect_all_right({call_of(power(16, 4), 2)}); }

TEST(SharedChains, ItemsOfABatch) {
  expect_all_right({with_items(call_of({{16, 20}, {9, 7}, {16, 16}, {32, 16}}, 2), 2)});
}

TEST(SharedChains, Shapes) {
  std::vector<Call> calls;
  for (const Sizes& sizes : std::vector<Sizes>{
           power(8, 6), power(4, 9), power(2, 17), {{32, 32}, {32, 32}, {32, 32}, {4, 4}},
           {{6, 5}, {30, 32}, {20, 24}, {16, 12}}, {{4, 3}, {28, 28}, {28, 32}, {32, 16}},
           {{10, 10}, {8, 8}, {9, 9}, {9, 9}, {16, 16}}, {{16, 32}, {12, 12}, {16, 32}, {32, 16}},
           {{3, 3}, {5, 5}, {7, 8}, {32, 16}, {32, 32}}, {{2, 2}, {2, 2}, {9, 9}, {30, 30}, {32, 32}, {16, 32}}})
    for (const std::int64_t rows : {1, 5}) calls.push_back(call_of(sizes, rows));
  const std::vector<Sizes> of_other_types = {power(8, 5), power(4, 8), power(16, 4),
                                             {{16, 12}, {16, 16}, {16, 20}, {16, 4}}};
  for (const Sizes& sizes : of_other_types)
    for (const Dtype dtype : {Dtype::float64, Dtype::float16, Dtype::bfloat16})
      calls.push_back(call_of(sizes, 3, dtype));
  expect_all_right(calls);
}

/// Several rows for each block, which asks for the next one while it writes one.
TEST(AloneChains, PhasesAlternate) {
  std::vector<Call> calls = {call_of(power(32, 3), 20), call_of({{30, 30}, {32, 32}, {32, 32}}, 13)};
  calls.push_back(call_of(power(32, 3), 9));
  calls.back().items = 2;
  calls.back().alpha = -0.5;
  calls.back().beta = 2;
  expect_all_right(calls);
}

TEST(AloneChains, InPlace) {
  on_cuda([](TestContext& context) {
    const Arrays a(call_of(power(32, 3), 16));
    a.multiply(call_of(power(32, 3), 16), context, a.out);
    a.multiply(call_of(power(32, 3), 16), context, a.x);
    EXPECT_TRUE(same_bits(a.x, a.out));
  });
}

TEST(AloneChains, ManyRows) { expect_all_right({call_of(power(32, 3), 700)}); }

/// More than the clusters of a device.
TEST(SharedChains, ManyRows) {
  expect_all_right({call_of(power(16, 4), 1000), call_of({{16, 16}, {16, 16}, {16, 16}, {16, 12}}, 999),
                    call_of(power(8, 5), 400, Dtype::float64)});
}

TEST(SharedChains, WholeNumbers) {
  on_cuda([](TestContext& context) {
    for (const Dtype dtype : {Dtype::int32, Dtype::int64}) {
      const Call call = call_of(power(4, 8), 1, dtype);
      const Arrays a(call);
      const Array expected(dtype, {1, 1, 65536});
      a.multiply(call, context, a.out);
      kron::matmul(a.x, a.views, expected);
      EXPECT_TRUE(same_bits(a.out, expected)) << name_of(dtype);
    }
  });
}

/// Blocks that share a row write it by vectors: where out has gaps, rows take several passes.
TEST(SharedChains, OutputsWithGaps) {
  Call call = call_of(power(8, 5), 2, Dtype::float64);
  call.gaps = true;
  expect_all_right({call});
}

TEST(SharedChains, RowsAreApart) {
  on_cuda([](TestContext& context) {
    for (const Sizes& sizes : {power(16, 4), power(4, 8)}) {
      const Call call = call_of(sizes, 6);
      Arrays a(call);
      expect_rows_apart(call, a, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(SharedChains, InPlace) {
  on_cuda([](TestContext& context) {
    for (const Sizes& sizes : {power(4, 8), power(16, 4)}) expect_in_place(call_of(sizes, 40), context);
  });
}

}  // namespace
}  // namespace mercer
