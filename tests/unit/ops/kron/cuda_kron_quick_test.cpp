// First calls of Kronecker products: a quick kernel, and after it the full one, with the same bits.
#include <random>

#include "core/devices/cuda_driver.h"
#include "core/testing.h"
#include "ops/kron_calls.h"
#include "ops/quick_kernels.h"

namespace mercer {
namespace {

using namespace testing_support;

class QuickKron : public QuickKernels {
 protected:
  /// Factors of sizes that no cache is likely to have seen.
  Call draw(int least, int most, int factors) {
    std::uniform_int_distribution<int> size(least, most);
    Sizes sizes;
    for (int f = 0; f < factors; ++f) sizes.emplace_back(size(draws_), size(draws_));
    return call_of(sizes, 5);
  }

  std::random_device draws_;
};

/// Programs are kept once their kernels are full ones.
std::size_t kept_in(TestContext& context) { return static_cast<Context&>(context).state().cuda_krons.size(); }

TEST_F(QuickKron, TheSecondCallHasTheSameBits) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  struct Kind {
    int least, most, factors;
  };
  for (const Kind& kind : {Kind{2, 11, 3}, Kind{7, 8, 6}, Kind{17, 30, 2}, Kind{25, 32, 3}, Kind{100, 120, 2}}) {
    TestContext context{TestContext::Cuda()};
    const Call call = draw(kind.least, kind.most, kind.factors);
    const Arrays arrays(call);
    const Array first = arrays.out, second = arrays.out;
    arrays.multiply(call, context, first);
    EXPECT_EQ(kept_in(context), 0u) << "the first kernel should be a quick one";
    arrays.multiply(call, context, second);
    EXPECT_EQ(kept_in(context), 1u);
    expect_right(call, arrays, first);
    EXPECT_TRUE(same_bits(first, second));
  }
}

/// Kernels of other kinds than those of drawn sizes: rows through a ring, by clusters, by phases that alternate from
/// one tile of a block to the next. A cache may have them, but not where tests run without one.
TEST_F(QuickKron, EveryKindOfKernelHasTheSameBits) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  for (const auto& [p, factors] : {std::pair(8, 5), {16, 4}, {32, 3}, {64, 2}}) {
    SCOPED_TRACE(fmt::format("{} factors of {}", factors, p));
    TestContext context{TestContext::Cuda()};
    const Call call = call_of(Sizes(static_cast<std::size_t>(factors), {p, p}),
                              cuda_device(0).multiprocessors + 1);
    const Arrays arrays(call);
    const Array first = arrays.out, second = arrays.out;
    arrays.multiply(call, context, first);
    arrays.multiply(call, context, second);
    expect_right(call, arrays, first);
    EXPECT_TRUE(same_bits(first, second));
  }
}

/// A graph keeps the kernels that it was captured with, so those are full ones.
TEST_F(QuickKron, CapturesWaitForTheFullKernel) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  TestContext context{TestContext::Cuda()};
  const Call call = draw(2, 9, 2);
  const Arrays arrays(call);
  const auto bytes = [](const Array& array) { return static_cast<std::int64_t>(array.bytes().size()); };
  const DeviceStream stream;
  std::int64_t place = 0;
  std::vector<std::int64_t> places;
  std::vector<const Array*> all = {&arrays.x, &arrays.out};
  for (const Array& factor : arrays.factors) all.push_back(&factor);
  for (const Array* array : all) places.push_back(std::exchange(place, place + (bytes(*array) + 255) / 256 * 256));
  const DeviceMemory memory(0, place);
  std::vector<Tensor> there;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Tensor& tensor = there.emplace_back(all[i]->tensor());
    tensor.data = memory.data() + places[i];
    tensor.device = {DeviceKind::cuda, 0};
    stream.upload(memory.at(places[i]), all[i]->bytes().data(), bytes(*all[i]));
  }
  kron::Options options;
  options.queue.stream = static_cast<CuStream>(stream);
  const std::vector<Tensor> factors(there.begin() + 2, there.end());
  const auto multiply = [&] { kron::matmul(there[0], factors, there[1], options, context); };
  const auto result = [&] {
    std::vector<char> values(arrays.out.bytes().size());
    stream.download(values.data(), memory.at(places[1]), bytes(arrays.out));
    stream.fill(memory.at(places[1]), 0x5a, bytes(arrays.out));
    return values;
  };
  multiply();
  const auto first = result();
  EXPECT_EQ(kept_in(context), 0u);
  const Recording recording(stream, multiply);
  EXPECT_EQ(kept_in(context), 1u);
  recording.play();
  EXPECT_TRUE(result() == first);
}

TEST_F(QuickKron, CanBeTurnedOff) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  ::setenv("MERCER_QUICK_COMPILE", "0", 1);
  TestContext context{TestContext::Cuda()};
  const Call call = draw(2, 11, 3);
  const Arrays arrays(call);
  arrays.multiply(call, context, arrays.out);
  EXPECT_EQ(kept_in(context), 1u);
  expect_right(call, arrays, arrays.out);
}

}  // namespace
}  // namespace mercer
