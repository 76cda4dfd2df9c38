// Plans of pairs with measured tiles. The store is read while a plan is made, never by a call whose kernels are there.
#pragma once

#include <memory>
#include <string>

#include "backend/cuda/runtime/job.h"
#include "ops/costs/choice_store.h"
#include "ops/tune/trial.h"
#include "plan/gpu/tiles.h"

namespace mercer::ops {

/// Readable at its beginning, for `mercer cache list`. The kernel's own text is in it: a tile was measured with that.
std::string tile_key(const plan::GpuPairPlan& plan, const DeviceName& device);

/// The plan, with the tile that the store has for it if that still serves.
std::shared_ptr<const plan::GpuPairPlan> tuned_plan(std::shared_ptr<const plan::GpuPairPlan> plan,
                                                    const DeviceName& device,
                                                    const ChoiceStore& store = ChoiceStore::shared());
/// The plan that a call runs in place of the model's.
std::shared_ptr<const plan::GpuPairPlan> plan_for(std::shared_ptr<const plan::GpuPairPlan> model,
                                                  const cuda::PairJob& job);

}  // namespace mercer::ops
