// The state behind mercer::Context: the thread pool, the target, and the compiled programs of formulas.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>

#include "backend/cpu/kron_kernels.h"
#include "backend/cpu/operations.h"
#include "backend/cuda/kron.h"
#include "backend/cuda/operations.h"
#include "backend/dense_job.h"
#include "core/mutex.h"
#include "core/parallel.h"
#include "core/recent_cache.h"
#include "mercer/device.h"
#include "plan/gpu/ways.h"

namespace mercer {

struct Context::State {
  State();
  /// Its own costs, at first those of an H200.
  plan::Costs& own_costs() { return costs ? *costs : costs.emplace(plan::costs_of(plan::kOfWarpgroups)); }
  /// Plans kept: more than a program uses, few enough that a stream of new formulas does not grow memory.
  static constexpr std::size_t kPlans = 256;

  Pool pool;
  std::atomic<Target> target;
  std::atomic<Precision> precision{Precision::fp32};
  std::atomic<const plan::ForcedWays*> forced_ways;  // the last of ways_given, which calls may still read
  Mutex ways_mutex;
  std::list<plan::ForcedWays> ways_given;
  std::optional<plan::Costs> costs;                   // in place of every device's own: tests, before their first call
  bool products_by_warps = false;                     // likewise, where a GPU has both kinds
  std::int64_t part_bytes = cuda::kPartBytes;         // likewise
  std::int64_t dense_bytes = kDenseBytes;  // likewise
  std::int64_t blocked_from = kBlockedFrom;            // likewise
  LuChoice lu;                                         // likewise
  std::int64_t small_until = kSmallUntil;              // likewise
  double least_gain = plan::kLeastGain;  // likewise
  std::int64_t stream_memory = 0;  // bytes of blocks of a call on arrays of the host (ops/streamed.h), 0: as are free
  std::int64_t stream_piece = std::int64_t{16} << 20;  // bytes of its pinned buffers
  std::int64_t stream_points = 1024;  // least points of z in a step of it
  double stream_terms = 2e10;         // of its first step, pairs times numbers of a pair; all four: tests
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
