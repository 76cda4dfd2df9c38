// A call under trial: it runs with one of the choices that are measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/kron/kron.h"
#include "backend/cuda/runtime/kernels.h"
#include "core/system/recent_cache.h"
#include "ops/costs/choice_store.h"

namespace mercer::ops {

/// A plan that a call under trial asked for.
struct AskedPlan {
  std::string key;    // of the store
  std::string title;  // what it computes, for people
  Choice model, taken;
  /// What is worth measuring against `taken`, itself the first.
  std::function<std::vector<Choice>()> candidates;
};

/// A call that runs with a choice under trial, or with the model's own, whatever the store says. Its kernels are its
/// own.
struct Trial {
  std::string record;            // of the choice; empty: the model's
  std::vector<AskedPlan> asked;  // where kernels of plans were made
  DeviceName device;
  int index = 0;        // of that device
  bool on_cpu = false;  // in place of a device
  RecentCache<cuda::PairKernels> pairs{8};
  RecentCache<cuda::KronProgram> krons{8};
};

}  // namespace mercer::ops
