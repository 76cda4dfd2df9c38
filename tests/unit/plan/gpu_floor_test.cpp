// Floors on GPUs: of programs by hand, and of formulas.
#include "plan/gpu_floor.h"

#include <gtest/gtest.h>

#include "mercer/mercer.h"

namespace mercer::plan {
namespace {

TEST(GpuFloor, EveryUnitHasItsRate) {
  GpuInfo gpu{.capability = 90, .multiprocessors = 100, .gigahertz = 1, .bytes_per_second = 1e12};
  const GpuCost cost{.issue = 4, .fma = 2, .alu = 1, .unit = 1};
  // A slot keeps all issue slots busy for a second.
  const GpuTimes times = gpu_times(cost, Dtype::float32, 128e11, gpu);
  EXPECT_DOUBLE_EQ(times.issue, 4000);
  EXPECT_DOUBLE_EQ(times.fma, 2000);
  EXPECT_DOUBLE_EQ(times.alu, 2000);
  EXPECT_DOUBLE_EQ(times.unit, 8000);
  EXPECT_DOUBLE_EQ(times.ms(), 8000);
  EXPECT_DOUBLE_EQ(gpu_times(cost, Dtype::float64, 128e11, gpu).fma, 4000);
  EXPECT_DOUBLE_EQ(gpu_memory_times(1e12, gpu).ms(), 1000);
  EXPECT_DOUBLE_EQ(gpu_times(cost, Dtype::float32, 128e11, gpu).ms() / 1000, cost.slots());
}

TEST(GpuFloor, GenerationsAreInOrder) {
  int last = 0;
  for (const GpuInfo& info : gpu_infos()) {
    EXPECT_GT(info.capability, last);
    EXPECT_EQ(info.name, "sm_" + std::to_string(info.capability));
    last = info.capability;
  }
  EXPECT_EQ(gpu_info(87).capability, 86);
  EXPECT_EQ(gpu_info(999).capability, last);
}

}  // namespace
}  // namespace mercer::plan
