// A device's own row of costs in the store. No GPU is needed.
#include "ops/costs/device_costs.h"

#include <cstdlib>

#include "core/testing.h"
#include "ops/context.h"
#include "ops/testing.h"
#include "ops/tune/product_samples.h"
#include "plan/gpu/costs/costs_record.h"
#include "plan/gpu/costs/fit_costs.h"
#include "plan/gpu/value_products.h"

namespace mercer {
namespace {

using namespace testing_support;

class DeviceCosts : public ::testing::Test {
 protected:
  DeviceCosts() {
    device_.name = "a device";
    device_.major = 9;
    own_.candidates_from = 777;
    own_.stored.pass = 3.25;
  }
  ops::ChoiceStore store() const { return ops::ChoiceStore(FileCache(folder_.path(), 1 << 20)); }
  /// What differs from the row of the generation.
  std::string found(const CudaDevice& device) const {
    const plan::Costs& generation = plan::costs_of(90);
    return plan::costs_record(ops::stored_costs(device, store()).value_or(generation), generation);
  }

  TemporaryFolder folder_;
  CudaDevice device_;
  plan::Costs own_ = plan::costs_of(90);
};

TEST_F(DeviceCosts, AreKeptForLaterProcesses) {
  EXPECT_EQ(found(device_), "1\n");
  ops::ChoiceStore writer = store();
  ops::keep_costs(device_, own_, writer);
  EXPECT_EQ(found(device_), "1\ncandidates_from 777\nstored.pass 3.25\n");
  CudaDevice other = device_;
  other.name = "another";
  EXPECT_EQ(found(other), "1\n");
}

TEST_F(DeviceCosts, ARecordThatDoesNotReadIsAsNone) {
  for (const char* record : {"", "2\nstored.pass 1\n", "1\nstored.pass -1\n", "1\nno_such 1\n"}) {
    store().keep("costs\nsm_90a\na device", record, "costs of a device");
    EXPECT_EQ(found(device_), "1\n") << record;
  }
}

/// A device without a name stands for its generation; a context's own costs come before every device's.
TEST_F(DeviceCosts, AContextHasThoseOfTheDeviceThatACallIsPlannedFor) {
  CudaDevice a100;
  a100.major = 8;
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace, &a100};
  Queue queue;
  queue.rehearsal = &rehearsal;
  Context context;
  EXPECT_EQ(&context.state().costs_on({DeviceKind::cuda, 0}, queue), &plan::costs_of(80));
  EXPECT_EQ(&context.state().costs_on({}, {}), &plan::costs_of(90)) << "the CPU has none";
  const plan::Costs& own = context.state().own_costs();
  EXPECT_EQ(&context.state().costs_on({DeviceKind::cuda, 0}, queue), &own);
}

/// Milliseconds that a device of these costs would take.
plan::SampleTime clock_of(const plan::Costs& costs, int capability) {
  return [costs, capability](const plan::ProductSample& sample) {
    plan::Request request;
    request.verb = plan::Verb::product;
    request.type = sample.type;
    request.m = request.n = sample.points;
    request.k = sample.features;
    request.columns = sample.columns;
    request.device.capability = capability;
    const plan::ValueTimes times = plan::value_times(costs, request, false);
    return sample.stores ? times.stored : times.passes;
  };
}

/// A device that stores values slowly.
plan::Costs slow_stores(int capability) {
  plan::Costs costs = plan::costs_of(capability);
  for (plan::ValueCosts* times : {&costs.stored, &costs.pieces, &costs.float64}) {
    times->pass *= 1.25;
    times->store *= 40;
    times->column *= 2;
  }
  return costs;
}

TEST(FitCosts, FindsTheTimesThatAClockRunsBy) {
  for (const int capability : {90, 80}) {
    const plan::Costs &generation = plan::costs_of(capability), slow = slow_stores(capability);
    int samples = 0;
    const auto counted = [&, time = clock_of(slow, capability)](const plan::ProductSample& sample) {
      ++samples;
      return time(sample);
    };
    const bool reads_stored = capability == 90;
    const plan::Costs found = plan::fit_costs(generation, reads_stored, counted);
    EXPECT_EQ(samples, plan::samples_of_fit(reads_stored));
    const auto expect_same = [](const plan::ValueCosts& own, const plan::ValueCosts& wanted) {
      constexpr double kThreeDigits = 5e-3;
      for (double plan::ValueCosts::* time :
           {&plan::ValueCosts::pass, &plan::ValueCosts::feature, &plan::ValueCosts::store,
            &plan::ValueCosts::stored_feature, &plan::ValueCosts::column})
        EXPECT_NEAR(own.*time, wanted.*time, kThreeDigits * wanted.*time);
    };
    expect_same(found.stored, reads_stored ? slow.stored : generation.stored);
    expect_same(found.pieces, slow.pieces);
    expect_same(found.float64, slow.float64);
  }
}

TEST(FitCosts, NoiseThatMakesATimeNegativeLeavesTheGenerations) {
  const plan::Costs& generation = plan::costs_of(90);
  const plan::Costs found = plan::fit_costs(generation, true, [](const plan::ProductSample& sample) {
    return 1e3 / static_cast<double>(sample.features * sample.columns);  // more work takes less time
  });
  EXPECT_EQ(found.stored.feature, generation.stored.feature);
  EXPECT_EQ(found.pieces.column, generation.pieces.column);
  EXPECT_NE(found.pieces.pass, generation.pieces.pass);
}

/// The way of a product whose values take long, planned for a device that is not there.
std::string way_on(const CudaDevice& device) {
  cuda::Rehearsal rehearsal{cuda::Rehearsal::Purpose::workspace, &device};
  Arguments arguments;
  arguments.queue.rehearsal = &rehearsal;
  std::uintptr_t places = 0;
  const auto array = [&](std::vector<std::int64_t> shape) {
    Tensor t(reinterpret_cast<void*>(++places << 44), Dtype::float32, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  };
  const Tensor z = array({10000, 64});
  Context context;
  kernel_product(Formula("exp(-sum(abs(x-z)))"), array({10000, 64}), &z, array({10000, 64}), array({10000, 64}),
                 arguments, context);
  return rehearsal.ways.at(0);
}

TEST_F(DeviceCosts, AMeasuredRowChangesTheWaysOfItsDevice) {
  ::setenv("MERCER_CACHE_DIR", "off", 1);  // where no test has asked for it before, nothing is left on disk
  CudaDevice slow = device_, other = device_;
  slow.name = "a device that stores slowly";
  other.name = "a device that nobody measured";
  for (CudaDevice* device : {&slow, &other}) {
    device->multiprocessors = 132;
    device->shared_per_block = 232448;
  }
  ops::keep_costs(slow, plan::fit_costs(plan::costs_of(90), true, clock_of(slow_stores(90), 90)),
                  ops::ChoiceStore::shared());
  EXPECT_EQ(way_on(other), "materialised");
  EXPECT_NE(way_on(slow), "materialised");
  EXPECT_EQ(ops::source_of_costs(slow), "this device's own (mercer tune --gpu)");
  EXPECT_EQ(ops::source_of_costs(other), "compute capability 9.0, measured on an H200");
  EXPECT_EQ(ops::source_of_costs(80), "compute capability 8.0, those of an H200 scaled by data sheets");
}

TEST(DeviceCostsOnGpu, ProductsAreTimedByBothWays) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  ops::ProductSamples samples(0);
  for (const Dtype type : {Dtype::float32, Dtype::float64})
    for (const bool stores : {false, true})
      EXPECT_GT(samples.milliseconds({type, stores, 256, 24, stores ? 64 : 16}), 0) << name_of(type) << stores;
}

}  // namespace
}  // namespace mercer
