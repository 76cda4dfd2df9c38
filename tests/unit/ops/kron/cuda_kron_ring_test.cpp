// Products with Kronecker products whose rows come through a ring (kernels/cuda/kron/kron_ring.cuh), by the bound of
// mercer/kron.h.
#include "ops/kron_calls.h"

namespace mercer {
namespace {

using namespace testing_support;

const Sizes kEights = {{8, 8}, {8, 8}, {8, 8}, {8, 8}, {8, 8}};
const Sizes kSixEights = Sizes(6, {8, 8});

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

/// Rows that the blocks of a cluster share: one, and several for each cluster, which bring a row while they write one.
TEST(RingsOfClusters, Rows) { expect_all_right({call_of(kSixEights, 1), call_of(kSixEights, 20)}); }

/// Axes of several factors, also such as are not square.
TEST(RingsOfClusters, MergedFactors) {
  Sizes twos(16, {2, 2});
  twos[0] = twos[2] = {4, 4};
  expect_all_right({call_of(twos, 1), call_of({{2, 4}, {4, 2}, {8, 8}, {8, 8}, {4, 2}, {2, 4}, {8, 8}, {8, 8}}, 2)});
}

/// Operands change between two rows: the row before is written first. With alpha, beta and y.
TEST(RingsOfClusters, ItemsOfABatch) { expect_all_right({with_items(call_of(kSixEights, 1), 17)}); }

TEST(RingsOfClusters, Scales) {
  for (const double scale : {1e-30, 1e30}) {
    Call call = call_of(kSixEights, 1);
    call.x_scale = scale;
    expect_all_right({call});
  }
}

TEST(RingsOfClusters, InPlaceAndApart) {
  on_cuda([](TestContext& context) {
    expect_in_place(call_of(kSixEights, 17), context);
    const Call call = call_of(kSixEights, 6);
    Arrays a(call);
    if (!::testing::Test::HasFatalFailure()) expect_rows_apart(call, a, context);
  });
}

}  // namespace
}  // namespace mercer
