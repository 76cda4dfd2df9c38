// Whoever keeps kernels keeps full ones from the second call on: in a process whose cache is empty, which compiled all
// kernels itself, no module of quick kernels is held by anybody then.
#include "jit/cuda_module.h"
#include "ops/context.h"
#include "ops/drawn_data.h"
#include "ops/kron_calls.h"
#include "ops/linalg_mirror.h"
#include "ops/quick_kernels.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr std::int64_t kM = 40, kN = 36, kOrder = 260;  // of more than one block of a factorisation

struct Holder {
  const char* name;
  bool begins_quickly;  // its first call has quick kernels
  void (*call)(TestContext& context);
};

Array points(std::int64_t count, std::int64_t features, unsigned seed) {
  return drawn(count, features, seed, kUniform);
}

Array positive_matrix() {
  Array a(Dtype::float32, {kOrder, kOrder});
  each_index({kOrder, kOrder}, [&](const Shape& at) { a.set(at, at[0] == at[1] ? 4 : 1.0 / (3 + at[0] + at[1])); });
  return a;
}

void take_sums(TestContext& context) {
  const Array x = points(kM, 20, 1), z = points(kN, 20, 2), out(Dtype::float32, {kM, kN});
  const Tensor columns = z;
  pairwise(parse("sum(abs(x-z)^1.5)"), x, &columns, out, {}, context);
}

void take_gradient(TestContext& context) {
  const Array x = points(kM, 12, 1), z = points(kN, 12, 2), coefs = points(1, kN, 3), out(Dtype::float32, {1, kM, 12});
  const Tensor columns = z;
  kernel_gradient(parse("exp(-sum(abs(x-z)))"), x, &columns, coefs, out, {}, context);
}

void take_kron(TestContext& context) {
  const Call call = call_of({{3, 5}, {7, 4}}, 5);
  const Arrays arrays(call);
  arrays.multiply(call, context, arrays.out);
}

void take_cholesky(TestContext& context) {
  static_cast<Context&>(context).state().own_costs().dense.blocked_from = 1;
  const Array a = positive_matrix(), out(Dtype::float32, {kOrder, kOrder});
  cholesky(a, out, {}, context);
}

void take_lu(TestContext& context) {
  Context& plain = context;
  plain.state().own_costs().dense.lu.from = 1;
  plain.state().own_costs().dense.small_until = 0;
  const Array a = positive_matrix(), b = points(kOrder, 2, 1), x(Dtype::float32, {kOrder, 2});
  solve_lu(a, b, x, {}, context);
}

constexpr Holder kHolders[] = {
    {"sums of pairs", true, take_sums},      {"fields of gradients", true, take_gradient},
    {"Kronecker products", true, take_kron}, {"updates of Cholesky", false, take_cholesky},
    {"updates of LU", false, take_lu},
};

void expect_full_kernels(const Holder& holder) {
  SCOPED_TRACE(holder.name);
  TestContext context{TestContext::Cuda()};
  holder.call(context);
  if (holder.begins_quickly) EXPECT_GT(jit::quick_cuda_module_count(), 0);
  jit::finish_compiling();
  holder.call(context);
  jit::trim_cuda_modules();
  EXPECT_EQ(jit::quick_cuda_module_count(), 0);
}

[[noreturn]] void run_all() {
  end_after([](const auto&) {
    for (const Holder& holder : kHolders) expect_full_kernels(holder);
  });
}

class QuickHolders : public QuickKernels {};

TEST_F(QuickHolders, KeepFullKernelsFromTheSecondCallOn) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_all(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mercer
