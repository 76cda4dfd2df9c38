// The state behind mercer::Context: the thread pool, the target, and the compiled programs of formulas.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>

#include "backend/cpu/kron/kron_kernels.h"
#include "backend/cpu/pairs/operations.h"
#include "backend/cuda/kron/kron.h"
#include "backend/cuda/pairs/operations.h"
#include "core/system/mutex.h"
#include "core/system/parallel.h"
#include "core/system/recent_cache.h"
#include "mercer/device.h"
#include "plan/cpu/costs.h"
#include "plan/gpu/ways.h"

namespace mercer {

struct Context::State {
  State();
  /// Its own costs, at first those of an H200.
  plan::Costs& own_costs() { return costs ? *costs : costs.emplace(plan::costs_of(plan::kMeasuredCapability)); }
  /// What ways cost on a device, or on that which a rehearsal plans for; of the CPU, which has none of its own, those
  /// sizes of an H200 that calls there take.
  const plan::Costs& costs_on(Device device, const Queue& queue) const;
  /// What ways cost on the CPU, with an instruction set.
  const plan::cpu::Costs& way_costs(Target of) const;
  /// Plans kept: more than a program uses, few enough that a stream of new formulas does not grow memory.
  static constexpr std::size_t kPlans = 256;

  Pool pool;
  std::atomic<Target> target;
  std::atomic<Precision> precision{Precision::fp32};
  std::atomic<const plan::ForcedWays*> forced_ways;  // the last of ways_given, which calls may still read
  Mutex ways_mutex;
  std::list<plan::ForcedWays> ways_given;
  std::optional<plan::Costs> costs;      // in place of every device's own: tests
  std::optional<plan::cpu::Costs> own_way_costs;  // in place of the processor's: tune_cpu, tests
  double least_gain = plan::kLeastGain;  // of maxima on the CPU: tests
  cpu::MaximaTiles maxima_tiles;
  RecentCache<cpu::PairProgram> pairs{kPlans};
  RecentCache<cpu::FieldProgram> fields{kPlans};
  RecentCache<plan::GpuPairPlan> gpu_plans{kPlans};  // of formulas and problems, as the model has them
  RecentCache<plan::GpuFieldPlan> gpu_fields{kPlans};
  RecentCache<cuda::PairKernels> cuda_pairs{kPlans};
  RecentCache<cuda::FieldKernels> cuda_fields{kPlans};
  RecentCache<cuda::KronProgram> cuda_krons{kPlans};
  RecentCache<jit::UpdateKernel> dots{32};
  RecentCache<jit::EpilogueKernel> exponentials{32};
  cpu::KronKernels kron;
};

}  // namespace mercer
