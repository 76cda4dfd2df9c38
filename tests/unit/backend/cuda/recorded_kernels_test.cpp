// A kernel is compiled again when anything that its code depends on has changed.
#include <gtest/gtest.h>

#include "core/sanitized.h"
#include "device/nvrtc.h"
#include "unit/backend/cuda/recorded_kernels.h"

namespace mercer::cuda {
namespace {

TEST(RecordedKernels, AreOfOneText) {
  if (testing_support::kSanitized) GTEST_SKIP() << "NVRTC is not what the sanitizers look at";
  MERCER_NEEDS_NVRTC();
  const jit::CudaSource source{"a", "#include \"prelude.cuh\"\n", "sm_90a", {"-DA=1"}};
  jit::CudaSource other = source;
  other.name = "b";
  EXPECT_EQ(text_of(other), text_of(source));
  other.text += "// more\n";
  EXPECT_NE(text_of(other), text_of(source));
  other = source;
  other.options = {"-DA=2"};
  EXPECT_NE(text_of(other), text_of(source));
  other = source;
  other.architecture = "sm_80";
  EXPECT_NE(text_of(other), text_of(source));
  const RecordedKernels recorded;
  const Measured* row = recorded.find("sm_90a", "backward-few-3-weights");
  ASSERT_NE(row, nullptr);
  EXPECT_FALSE(recorded.known("sm_90a", "backward-few-3-weights", text_of(source)));
}

}  // namespace
}  // namespace mercer::cuda
