// Arrays of a CUDA device from C: the stream and the scratch memory are those of the queue.
#include "mercer/kron.h"
#include "unit/c_api/views.h"

namespace mercer {
namespace {

using namespace testing_support;

/// The queue of a call that the tests take to the device, in the terms of C.
struct CQueue {
  mercer_queue c = MERCER_QUEUE_INIT;
  Queue cpp;
  std::int64_t asked = 0;

  explicit CQueue(const Queue& queue) : cpp(queue) {
    c.stream = queue.stream;
    c.user = this;
    c.allocate = [](void* user, std::int64_t bytes) {
      auto& self = *static_cast<CQueue*>(user);
      self.asked += bytes;
      return self.cpp.allocate(bytes);
    };
  }
};

/// x [2, 40 * 36] and factors of 40 x 32 and 36 x 28, which take a pass each in float64: what is between them has no
/// room in out.
struct KronArrays {
  Array x = normal(Dtype::float64, {2, 40 * 36}, 1), f = normal(Dtype::float64, {40, 32}, 2),
        g = normal(Dtype::float64, {36, 28}, 3), out = Array(Dtype::float64, {2, 32 * 28});
  Tensor xt = x, ft = f, gt = g, to = out;
};

TEST(CCuda, KroneckerProducts) {
  if (!cuda_serves()) return;
  TestContext context{TestContext::Cuda()};
  KronArrays a;
  CudaCall call({&a.xt, &a.ft, &a.gt}, {&a.to}, {}, context);
  CQueue queue(call.arguments().queue);
  const View x(call(a.xt)), f(call(a.ft)), g(call(a.gt)), out(call(a.to));
  const mercer_tensor factors[] = {f.c, g.c};
  mercer_kron_options options = MERCER_KRON_OPTIONS_INIT;
  options.queue = &queue.c;
  std::int64_t bytes = 0;
  expect_ok(mercer_kron_matmul_workspace_size(x, factors, 2, out, &options, nullptr, &bytes));
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(queue.asked, 0);
  call.run([&] { expect_ok(mercer_kron_matmul(x, factors, 2, out, &options, nullptr)); });
  EXPECT_EQ(queue.asked, bytes);
  for (int m = 0; m < 2; ++m)
    for (int j = 0; j < 32 * 28; ++j) {
      double sum = 0, size = 0;
      for (int k = 0; k < 40 * 36; ++k) {
        const double term = a.x(m, k) * a.f(k / 36, j / 28) * a.g(k % 36, j % 28);
        sum += term;
        size += std::abs(term);
      }
      ASSERT_LE(std::abs(a.out(m, j) - sum), (40 + 36 + 2 * 2 + 2 + 40 * 36) * 0x1p-53 * size) << m << ", " << j;
    }
}

TEST(CCuda, NoScratchMemory) {
  if (!cuda_serves()) return;
  TestContext context{TestContext::Cuda()};
  KronArrays a;
  CudaCall call({&a.xt, &a.ft, &a.gt}, {&a.to}, {}, context);
  const View x(call(a.xt)), f(call(a.ft)), g(call(a.gt)), out(call(a.to));
  const mercer_tensor factors[] = {f.c, g.c};
  mercer_queue queue = MERCER_QUEUE_INIT;
  queue.stream = call.arguments().queue.stream;
  queue.allocate = [](void*, std::int64_t) -> void* { return nullptr; };
  mercer_kron_options options = MERCER_KRON_OPTIONS_INIT;
  options.queue = &queue;
  // The call must fail and write nothing; `run` looks at the arrays when the call throws.
  EXPECT_NE(message_of([&] {
    call.run([&] {
      expect_invalid(mercer_kron_matmul(x, factors, 2, out, &options, nullptr),
                     "kron.matmul: workspace memory must lie at a multiple of 16 bytes.");
      throw Error(ErrorKind::device, mercer_last_error());
    });
  }), "");
}

TEST(CCuda, PairwiseMatrices) {
  if (!cuda_serves()) return;
  TestContext context{TestContext::Cuda()};
  constexpr char kText[] = "exp(-sum(abs(x-z))/h)";
  const Array x_array = normal(Dtype::float32, {40, 70}, 1), z_array = normal(Dtype::float32, {33, 70}, 2);
  Array got(Dtype::float32, {40, 33}), expected(Dtype::float32, {40, 33});
  const Tensor xt = x_array, zt = z_array, to = got;
  pairwise(kText, xt, &zt, expected, {.params = {{"h", 9.0}}}, context);
  CudaCall call({&xt, &zt}, {&to}, {}, context);
  CQueue queue(call.arguments().queue);
  const View x(call(xt)), z(call(zt)), out(call(to));
  mercer_formula* formula = nullptr;
  expect_ok(mercer_formula_create(kText, &formula));
  const mercer_param params[] = {{"h", 9.0, nullptr}};
  mercer_arguments arguments = MERCER_ARGUMENTS_INIT;
  arguments.params = params;
  arguments.param_count = 1;
  arguments.queue = &queue.c;
  std::int64_t bytes = -1;
  expect_ok(mercer_pairwise_workspace_size(formula, x, z, out, &arguments, nullptr, &bytes));
  EXPECT_GT(bytes, 0);
  EXPECT_EQ(queue.asked, 0);
  call.run([&] { expect_ok(mercer_pairwise(formula, x, z, out, &arguments, nullptr)); });
  EXPECT_EQ(queue.asked, bytes);
  EXPECT_TRUE(same_bits(got, expected));
  mercer_formula_destroy(formula);
}

TEST(CCuda, ADeviceThatThereIsNot) {
  if (!cuda_serves()) return;
  KronArrays a;
  View x(a.xt), f(a.ft), g(a.gt), out(a.to);
  for (mercer_tensor* t : {&x.c, &f.c, &g.c, &out.c}) {
    t->device_kind = MERCER_CUDA;
    t->device_index = 1000;
  }
  const mercer_tensor factors[] = {f.c, g.c};
  EXPECT_NE(mercer_kron_matmul(x, factors, 2, out, nullptr, nullptr), MERCER_OK);
  EXPECT_NE(std::string(mercer_last_error()).find("1000"), std::string::npos) << mercer_last_error();
  EXPECT_TRUE(a.out.untouched());
}

}  // namespace
}  // namespace mercer
