// Products with Kronecker products whose rows are shared by the blocks of a cluster (plan/kron_chain.h), by the bound
// of mercer/kron.h.
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

Sizes power(std::int64_t p, int count) { return Sizes(static_cast<std::size_t>(count), {p, p}); }

Call call_of(Sizes sizes, std::int64_t rows, Dtype dtype = Dtype::float32) {
  Call call;
  call.sizes = std::move(sizes);
  call.rows = rows;
  call.dtype = dtype;
  return call;
}

/// Two blocks by multiply-adds, four on tensor cores: whole numbers of a warp's items, and not.
TEST(SharedChains, TwoAndFourBlocks) {
  expect_all_right({call_of(power(8, 5), 2), call_of({{16, 16}, {16, 16}, {16, 16}, {16, 12}}, 1)});
}

/// alpha, beta and y, and factors of each item.
TEST(SharedChains, ItemsOfABatch) {
  Call call = call_of({{16, 20}, {24, 20}, {32, 28}}, 3);
  call.items = 2;
  call.alpha = -0.5;
  call.beta = 2;
  call.turned = true;
  expect_all_right({call});
}

TEST(SharedChains, Float64) { expect_all_right({call_of(power(8, 5), 1, Dtype::float64)}); }

TEST(SharedChains, Shapes) {
  std::vector<Call> calls;
  for (const Sizes& sizes : std::vector<Sizes>{
           power(8, 6), power(4, 9), power(2, 17), power(16, 4), power(32, 3),
           {{32, 32}, {32, 32}, {32, 32}, {2, 2}}, {{6, 5}, {30, 32}, {20, 24}, {16, 12}},
           {{2, 3}, {28, 28}, {28, 32}, {28, 20}}, {{10, 10}, {8, 8}, {9, 9}, {9, 9}, {8, 8}}})
    for (const std::int64_t rows : {1, 5}) calls.push_back(call_of(sizes, rows));
  for (const Sizes& sizes : std::vector<Sizes>{power(8, 5), power(4, 8), {{16, 12}, {16, 16}, {16, 20}, {4, 4}}})
    for (const Dtype dtype : {Dtype::float64, Dtype::float16, Dtype::bfloat16})
      calls.push_back(call_of(sizes, 3, dtype));
  expect_all_right(calls);
}

/// More than the clusters of a device.
TEST(SharedChains, ManyRows) {
  expect_all_right({call_of(power(8, 5), 1000), call_of(power(16, 4), 500), call_of(power(32, 3), 999),
                    call_of(power(8, 6), 70), call_of(power(8, 5), 400, Dtype::float64)});
}

TEST(SharedChains, WholeNumbers) {
  on_cuda([](TestContext& context) {
    for (const Dtype dtype : {Dtype::int32, Dtype::int64}) {
      const Call call = call_of(power(8, 5), 3, dtype);
      const Arrays a(call);
      const Array expected(dtype, {1, 3, 32768});
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
    const Call call = call_of(power(32, 3), 6);
    Arrays a(call);
    expect_rows_apart(call, a, context);
  });
}

TEST(SharedChains, InPlace) {
  on_cuda([](TestContext& context) {
    for (const Sizes& sizes : {power(8, 5), power(16, 4), power(32, 3)}) expect_in_place(call_of(sizes, 40), context);
  });
}

}  // namespace
}  // namespace mercer
