// Floors on GPUs: of programs by hand, and of formulas.
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/floor.h"
#include "plan/gpu/value_products.h"

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

/// Times of an H200, by what limits them.
TEST(Costs, OfOtherGenerationsAreScaled) {
  const Costs &h200 = costs_of(90), &a100 = costs_of(80), &geforce = costs_of(89);
  EXPECT_EQ(h200.stored.pass, 2.2);
  EXPECT_EQ(costs_of(87).stored.pass, costs_of(86).stored.pass) << "the newest row before it";
  EXPECT_DOUBLE_EQ(a100.stored.pass / h200.stored.pass, (132 * 1.98 * 128) / (108 * 1.41 * 64));
  EXPECT_DOUBLE_EQ(a100.pieces.store / h200.pieces.store, 4.235e12 / 1.79e12);
  EXPECT_DOUBLE_EQ(a100.pieces.column / h200.pieces.column, 700e12 / 312e12);
  EXPECT_DOUBLE_EQ(a100.float64.column / h200.float64.column, 58e12 / 19.5e12);
  EXPECT_GT(geforce.float64.pass / h200.float64.pass, 20) << "two lanes of float64 a multiprocessor";
  EXPECT_EQ(a100.tensor_cores_from, h200.tensor_cores_from);
  EXPECT_EQ(a100.everywhere().tensor_cores_from, 0);
}

/// Only products of warpgroups read values where they lie; others take them in pieces, of any number of columns.
TEST(Costs, OfStoredValuesAreThoseOfTheDevicesTile) {
  Request request;
  request.m = request.n = 10000;
  request.k = 50;
  request.columns = 100;
  const Costs& costs = costs_of(90);
  EXPECT_NEAR(value_times(costs, request, false).stored, 0.12 + 0.1 * (2.6 + 0.073 * 50 + 0.023 * 104), 1e-12);
  EXPECT_NEAR(value_times(costs, request, false).passes, 0.1 * 7 * (2.2 + 0.057 * 50), 1e-12);
  for (const RequestDevice device : {RequestDevice{.capability = 80}, RequestDevice{.by_warps = true}}) {
    request.device = device;
    EXPECT_NEAR(value_times(costs, request, false).stored, 0.12 + 0.1 * (7 + 0.075 * 50 + 0.0098 * 128), 1e-12);
  }
}

}  // namespace
}  // namespace mercer::plan
