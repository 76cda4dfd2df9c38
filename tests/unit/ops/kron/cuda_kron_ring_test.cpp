// Products with Kronecker products whose rows come through a ring (kernels/cuda/kron/kron_ring.cuh), by the bound of
// mercer/kron.h.
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

const Sizes kEights = {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}};

/// Fewer rows than multiprocessors, and several for each.
TEST(RingChains, Rows) { expect_all_right({call_of(kEights, 1), call_of(kEights, 9), call_of(kEights, 300)}); }

/// P or Q below eight, the last chunk of a row not full, six axes, axes of several factors.
TEST(RingChains, Shapes) {
  std::vector<Call> calls;
  for (const Sizes& sizes : std::vector<Sizes>{
           {{7, 8}, {8, 7}, {8, 8}, {8, 8}, {8, 8}}, {{8, 5}, {8, 8}, {8, 6}, {7, 8}, {8, 8}},
           {{5, 5}, {5, 6}, {6, 5}, {5, 5}, {5, 5}, {8, 8}}, {{5, 6}, {5, 5}, {5, 5}, {6, 7}, {5, 5}, {8, 8}},
           Sizes(15, {2, 2}), {{2, 4}, {4, 2}, {8, 8}, {8, 8}, {8, 8}, {8, 8}}})
    for (const std::int64_t rows : {1, 4}) calls.push_back(call_of(sizes, rows));
  expect_all_right(calls);
}

TEST(RingChains, ItemsOfABatch) { expect_all_right({with_items(call_of(kEights, 3), 3)}); }

/// Pieces have the exponents of float32: nothing is scaled.
TEST(RingChains, Scales) {
  for (const double scale : {1e-30, 1e30}) {
    Call call = call_of(kEights, 2);
    call.x_scale = scale;
    expect_all_right({call});
    call.x_scale = 1;
    call.factor_scale = scale > 1 ? 1e6 : 1e-6;
    expect_all_right({call});
  }
}

TEST(RingChains, InPlaceAndApart) {
  on_cuda([](TestContext& context) {
    expect_in_place(call_of(kEights, 20), context);
    const Call call = call_of(kEights, 6);
    Arrays a(call);
    if (!::testing::Test::HasFatalFailure()) expect_rows_apart(call, a, context);
  });
}

/// Rows that are not whole vectors apart come into their tiles.
TEST(RingChains, Gaps) {
  Call call = call_of(kEights, 2);
  call.gaps = true;
  expect_all_right({call});
}

}  // namespace
}  // namespace mercer
