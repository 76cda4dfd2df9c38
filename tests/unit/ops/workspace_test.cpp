// workspace_size: what it says is what the call asks for.
#include "backend/rehearsal.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

constexpr const char* kText = "exp(-sum(abs(x-z))/b)";
constexpr Device kCuda{DeviceKind::cuda, 0};

/// Arrays at addresses where nothing need be: one after the other.
class Places {
 public:
  explicit Places(Device device = kCuda) : device_(device) {}
  Tensor operator()(Shape shape, Dtype dtype = Dtype::float32) {
    Tensor t(nullptr, dtype, std::move(shape));
    t.data = reinterpret_cast<void*>(next_ += std::uintptr_t{1} << 34);
    t.device = device_;
    return t;
  }

 private:
  Device device_;
  std::uintptr_t next_ = std::uintptr_t{1} << 34;
};

struct CallRow {
  const char* name;
  std::function<void(Places&, const Arguments&)> call;
};

const std::vector<CallRow>& calls() {
  static const std::vector<CallRow> rows = {
      {"pairwise",
       [](Places& p, const Arguments& a) {
         const Tensor z = p({3, 200, 70});
         pairwise(kText, p({300, 70}), &z, p({3, 300, 200}), a);
       }},
      {"the same points",
       [](Places& p, const Arguments& a) { pairwise(kText, p({300, 70}), nullptr, p({300, 300}), a); }},
      {"column-major",
       [](Places& p, const Arguments& a) {
         const Tensor z = p({90, 70});
         Tensor out = p({40, 90});
         out.strides = {1, 40};
         pairwise(kText, p({40, 70}), &z, out, a);
       }},
      {"kernel_product",
       [](Places& p, const Arguments& a) {
         const Tensor z = p({2000, 9}, Dtype::float64);
         kernel_product(kText, p({300, 9}, Dtype::float64), &z, p({2000, 3}, Dtype::float64),
                        p({300, 3}, Dtype::float64), a);
       }},
      {"kernel_reduce",
       [](Places& p, const Arguments& a) {
         const Tensor z = p({2000, 9});
         kernel_reduce(kText, p({300, 9}), &z, ReduceKind::argmin, p({300}, Dtype::int64), a);
       }},
      {"knn",
       [](Places& p, const Arguments& a) {
         const Tensor z = p({2000, 9});
         knn(kText, p({2, 300, 9}), &z, 7, p({2, 300, 7}), p({2, 300, 7}, Dtype::int64), a);
       }},
      {"kernel_gradient",
       [](Places& p, const Arguments& a) {
         const Tensor z = p({2000, 9});
         kernel_gradient(kText, p({300, 9}), &z, p({2, 2000}), p({2, 300, 9}), a);
       }},
      {"gradient_field",
       [](Places& p, const Arguments& a) {
         Arguments without = a;
         without.params.clear();
         gradient_field(parse("x-z"), p({30, 9}), p({40, 9}), p({30, 40}), p({40}), p({30, 9}), without);
       }},
  };
  return rows;
}

Arguments with_b() {
  Arguments arguments;
  arguments.params = {{"b", 2.0}};
  return arguments;
}

std::int64_t size_of_call(const CallRow& row, const Arguments& arguments, Device device) {
  return workspace_size(arguments, [&](const Arguments& a) {
    Places places(device);
    row.call(places, a);
  });
}

TEST(WorkspaceSize, IsZeroOnTheCpuAndNothingIsRead) {
  for (const CallRow& row : calls()) EXPECT_EQ(size_of_call(row, with_b(), {}), 0) << row.name;
}

TEST(WorkspaceSize, BrokenRulesAreFound) {
  EXPECT_THROW(size_of_call(calls()[0], {}, {}), Error);
}

/// For a device that is described, not there.
TEST(WorkspaceSize, HoldsBothPanelsAndNeedsNoDevice) {
  CudaDevice device;
  device.major = 9;
  device.multiprocessors = 132;
  device.shared_per_block = 232448;
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace, &device};
  Arguments arguments = with_b();
  arguments.queue.rehearsal = &rehearsal;
  Places p;
  const Tensor z = p({256, 50});
  Context context;
  pairwise(kText, p({384, 50}), &z, p({384, 256}), arguments, context);
  EXPECT_EQ(rehearsal.bytes, (384 + 256) * 50 * 4);
  EXPECT_EQ(context.plan_count(), 0u);
}

/// Few points of few features are read where they lie.
TEST(WorkspaceSize, SmallCallsNeedNone) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  const CallRow row{"pairwise", [](Places& p, const Arguments& a) {
                      const Tensor z = p({300, 32});
                      pairwise(kText, p({200, 32}), &z, p({200, 300}), a);
                    }};
  EXPECT_EQ(size_of_call(row, with_b(), kCuda), 0);
}

TEST(WorkspaceSize, IsWhatTheCallAsksFor) {
  if (!cuda_serves()) GTEST_SKIP() << cuda_missing();
  const DeviceStream stream;
  for (const CallRow& row : calls()) {
    const std::int64_t bytes = size_of_call(row, with_b(), kCuda);
    std::int64_t asked = 0;
    struct Stop {};
    Arguments arguments = with_b();
    arguments.queue.stream = static_cast<CuStream>(stream);
    arguments.queue.allocate = [&](std::int64_t wanted) -> void* {
      asked = wanted;
      throw Stop();
    };
    Places places;
    EXPECT_THROW(row.call(places, arguments), Stop) << row.name;
    EXPECT_EQ(asked, bytes) << row.name;
    EXPECT_GT(bytes, 0) << row.name;
  }
}

}  // namespace
}  // namespace mercer
