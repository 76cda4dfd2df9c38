// First calls of a formula: quick kernels, and full ones behind them, with the same bits.
#include <cmath>
#include <functional>
#include <random>

#include "ops/context.h"
#include "ops/device_arrays.h"
#include "ops/drawn_data.h"
#include "ops/quick_kernels.h"

namespace mercer {
namespace {

using namespace testing_support;

class QuickPairs : public QuickKernels {
 protected:
  /// A number that no cache has seen in a formula.
  std::string fresh() { return fmt::format("{:.9f}", 1 + 1e-9 * static_cast<double>(draws_() % 100'000'000)); }

  std::random_device draws_;
};

/// Sets of kernels that a context keeps, of which some are quick.
int quick_in(TestContext& test) {
  Context& context = test;
  int count = 0;
  const auto counted = [&](const auto& kernels) { return count += kernels.are_quick() ? 1 : 0, false; };
  context.state().cuda_pairs.erase_if(counted);
  context.state().cuda_fields.erase_if(counted);
  return count;
}

struct Verb {
  const char* name;
  std::int64_t features;
  std::string formula;
  std::function<void(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context)> call;
  Shape shape;  // of its output
};

constexpr std::int64_t kM = 150, kN = 140;

void pairs(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  pairwise(f, x, &z, out, {}, context);
}
void product(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  kernel_product(f, x, &z, drawn(kN, 1, 3, kUniform), out, {}, context);
}
void gradient(const Formula& f, const Tensor& x, const Tensor& z, const Tensor& out, TestContext& context) {
  kernel_gradient(f, x, &z, drawn(2, kN, 3, kUniform), out, {}, context);
}

/// Tiles of one state and of several, on mixed pipes, by differences and by products of tensor cores, folds, fields.
TEST_F(QuickPairs, TheSecondCallHasTheSameBits) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  const Verb verbs[] = {
      {"mixed pipes", 160, "sum(abs(x-z))*" + fresh(), pairs, {kM, kN}},
      {"differences", 161, fresh() + "*sum(abs(x-z)^3)", pairs, {kM, kN}},
      {"powers", 20, "sum(abs(x-z)^1.7)*" + fresh(), pairs, {kM, kN}},
      {"two sums", 9, "sum(x*z)*sum(max(x,z)) + " + fresh(), pairs, {kM, kN}},
      {"squares", 70, "exp(-sum((x-z)^2)/9)*" + fresh(), pairs, {kM, kN}},
      {"products with v", 5, "exp(-sum(abs(x-z))/3)*" + fresh(), product, {kM, 1}},
      {"gradient", 12, "exp(-sum((x-z)^2)/9)*" + fresh(), gradient, {2, kM, 12}},
  };
  for (const Verb& verb : verbs) {
    SCOPED_TRACE(verb.name);
    TestContext context{TestContext::Cuda()}, host(Target::interpreter);
    for (Context* each : {static_cast<Context*>(&context), static_cast<Context*>(&host)}) {
      each->state().much_mixed_work = 0;
      each->state().differs_always = true;
      each->state().tensor_cores_from = 0;
    }
    const Array x = drawn(kM, verb.features, 1, kUniform), z = drawn(kN, verb.features, 2, kUniform);
    Array first(Dtype::float32, verb.shape), second = first, by_host = first;
    const Formula f = parse(verb.formula);
    verb.call(f, x, z, first, context);
    EXPECT_GT(quick_in(context), 0) << "the first kernels should be quick ones";
    verb.call(f, x, z, second, context);
    EXPECT_EQ(quick_in(context), 0);
    EXPECT_TRUE(same_bits(first, second));
    verb.call(f, x, z, by_host, host);
    // Each of two paths keeps 1e-6 (1 + |s f' / f|) of a value f of sums s, which is 5e-6 of these at most.
    double largest = 0;
    const Tensor wanted = by_host, got = first;
    each_index(wanted.shape, [&](const Shape& at) { largest = std::max(largest, std::abs(read(wanted, at))); });
    each_index(wanted.shape, [&](const Shape& at) { EXPECT_NEAR(read(got, at), read(wanted, at), 1e-5 * largest); });
  }
}

/// A graph keeps the kernels that it was captured with, so those are full ones.
TEST_F(QuickPairs, CapturesWaitForTheFullKernels) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  TestContext context{TestContext::Cuda()};
  const Formula f = parse("exp(-sum((x-z)^2)/9)*" + fresh());
  const DeviceStream stream;
  DeviceArrays arrays(stream, 1 << 20);
  const Tensor x = arrays.take(drawn(kM, 40, 1, kUniform)), z = arrays.take(drawn(kN, 40, 2, kUniform));
  const Tensor out = arrays.take(Dtype::float32, {kM, kN});
  Arguments arguments;
  arguments.queue.stream = static_cast<CuStream>(stream);
  const auto call = [&] { mercer::pairwise(f, x, &z, out, arguments, context); };
  call();
  const Array first = arrays.download(out);
  EXPECT_GT(quick_in(context), 0);
  const Recording recording(stream, call);
  EXPECT_EQ(quick_in(context), 0);
  arrays.poison(out);
  recording.play();
  EXPECT_TRUE(same_bits(first, arrays.download(out)));
}

}  // namespace
}  // namespace mercer
