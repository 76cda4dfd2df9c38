// Plans of products with Kronecker products that were measured. The store is read while a plan is made.
#pragma once

#include <string>

#include "backend/cpu/kron/kron.h"
#include "backend/cuda/runtime/job.h"
#include "ops/costs/choice_store.h"
#include "ops/tune/trial.h"
#include "plan/kron/kron_gpu.h"

namespace mercer::ops {

/// Readable at its beginning. All that a plan depends on is in it, and the texts of the kernels.
std::string kron_key(const plan::KronGpuProblem& problem, const DeviceName& device);

/// The plan that the store has for this problem, or the model's.
plan::KronGpuPlan tuned_kron_plan(const plan::KronGpuProblem& problem, const DeviceName& device,
                                  const ChoiceStore& store = ChoiceStore::shared());
/// As `kron_key`, for this processor, with the instruction set and as many threads as the tools have.
std::string kron_cpu_key(const KronJob& job, const plan::KronProblem& problem, const cpu::KronTools& tools);
plan::KronChoice tuned_kron_choice(const std::string& key, const ChoiceStore& store = ChoiceStore::shared());
/// Makes later calls of this process, and by the store of later ones, ask whether something was measured for them.
void mark_cpu_choices(ChoiceStore& store);
/// The choice that a call runs.
plan::KronChoice kron_choice_for(const KronJob& job, const plan::KronProblem& problem, const cpu::KronTools& tools);
/// The plan that a call runs.
plan::KronGpuPlan kron_plan_for(const plan::KronGpuProblem& problem, const cuda::PairJob& place);

}  // namespace mercer::ops
