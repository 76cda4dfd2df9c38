// A device's own row of costs in the store. No GPU is needed.
#include "ops/device_costs.h"

#include "core/testing.h"
#include "ops/context.h"
#include "ops/testing.h"
#include "plan/gpu/costs_record.h"

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
    return plan::costs_record(ops::stored_costs(device, store()), plan::costs_of(90));
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

}  // namespace
}  // namespace mercer
