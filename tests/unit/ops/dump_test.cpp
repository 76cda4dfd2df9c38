// MERCER_DUMP prints the stages it names, when a plan is made, and nothing else.
#include "ops/dump.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/rehearsal.h"
#include "core/error.h"
#include "mercer/mercer.h"

namespace mercer {
namespace {

class Dump : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("MERCER_DUMP"); }

  /// What a call prints with this setting.
  static std::string printed(const char* setting, bool gradient = false, bool again = false) {
    if (setting)
      setenv("MERCER_DUMP", setting, 1);
    else
      unsetenv("MERCER_DUMP");
    Context context;
    std::vector<float> data(64, 0.5f), out(64);
    const Tensor x(data.data(), Dtype::float32, {3, 4}), z(data.data() + 12, Dtype::float32, {5, 4});
    const Tensor coef(data.data(), Dtype::float32, {5}), pairs(out.data(), Dtype::float32, {3, 5});
    const Tensor field(out.data(), Dtype::float32, {3, 4});
    const Formula f("exp(-sum(abs(x-z)))");
    const auto call = [&] {
      if (gradient)
        kernel_gradient(f, x, &z, coef, field, {}, context);
      else
        pairwise(f, x, &z, pairs, {}, context);
    };
    if (again) call();
    ::testing::internal::CaptureStderr();
    call();
    return ::testing::internal::GetCapturedStderr();
  }
};

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_F(Dump, PrintsNothingUnasked) {
  EXPECT_EQ(printed(nullptr), "");
  EXPECT_EQ(printed(""), "");
}

TEST_F(Dump, PrintsTheStagesItNames) {
  const std::string ir = printed("ir"), plan = printed("plan"), all = printed("ir,plan,program,source");
  EXPECT_TRUE(has(ir, "## formula\nexp(-sum(abs(x - z)))") && has(ir, "## split")) << ir;
  EXPECT_FALSE(has(ir, "## plan"));
  EXPECT_TRUE(has(plan, "## plan\ntarget ") && !has(plan, "## formula")) << plan;
  EXPECT_TRUE(has(all, "## formula") && has(all, "## plan") && has(all, "## program: general update")) << all;
}

TEST_F(Dump, PrintsMachineCodeOfMachineTargets) {
  const std::string text = printed("source");
  const Target target = Context().target();
  EXPECT_EQ(has(text, "## source: general epilogue"), target != Target::interpreter) << text;
  // Both in one where registers allow it.
  EXPECT_EQ(has(text, "## source: general update and epilogue"), target == Target::x86_avx512) << text;
}

TEST_F(Dump, PrintsBothPassesOfAGradient) {
  const std::string text = printed("plan,program", true);
  EXPECT_TRUE(has(text, "## plan") && has(text, "## field plan") && has(text, "## program: general field")) << text;
}

TEST_F(Dump, PrintsAPlanOnce) { EXPECT_EQ(printed("ir", false, true), ""); }

/// A call for a GPU that is not there lists its kernels, and prints their plan.
TEST_F(Dump, PrintsPlansOfGpus) {
  CudaDevice device;
  device.major = 9;
  device.multiprocessors = 132;
  device.shared_per_block = 232448;
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::sources, &device};
  Arguments arguments;
  arguments.queue.rehearsal = &rehearsal;
  auto array = [places = std::uintptr_t{0}](std::vector<std::int64_t> shape) mutable {
    Tensor t(reinterpret_cast<void*>(++places << 44), Dtype::float32, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  };
  const Tensor x = array({300, 40}), z = array({200, 40});
  setenv("MERCER_DUMP", "ir,plan,program,source", 1);
  Context context;
  ::testing::internal::CaptureStderr();
  pairwise("exp(-sum(abs(x-z)))", x, &z, array({300, 200}), arguments, context);
  const std::string text = ::testing::internal::GetCapturedStderr();
  for (const char* part : {"## formula\nexp(-sum(abs(x - z)))", "## split", "## GPU plan\nfloat32, tile ",
                           "## program: update", "## program: epilogue", "## source: tile"})
    EXPECT_TRUE(has(text, part)) << part << " is not in\n" << text.substr(0, 2000);
}

TEST_F(Dump, RefusesOtherWords) {
  setenv("MERCER_DUMP", "ir,tree", 1);
  EXPECT_THROW(ops::DumpStages::from_environment(), Error);
}

}  // namespace
}  // namespace mercer
