// Products with Kronecker products on a device; arguments are checked by ops/ before.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/cuda/kernels.h"
#include "backend/kron_job.h"
#include "core/recent_cache.h"
#include "plan/kron_gpu.h"

namespace mercer::cuda {

/// A plan and its kernels on one device.
struct KronProgram {
  plan::KronGpuProblem problem;
  plan::KronGpuPlan plan;
  std::vector<Kernel> passes;
  Kernel finish;        // where the last pass may not write into out, or no factor is multiplied
  bool copies = false;  // the former

  /// Whether the next call is to ask for its kernels again.
  bool is_quick() const {
    return std::any_of(passes.begin(), passes.end(), [](const Kernel& kernel) { return kernel.is_quick; });
  }
};

/// What a call uses besides its arrays.
struct KronTools {
  std::int64_t part_bytes;
  RecentCache<KronProgram>& programs;
  /// The plan that the call runs: the model's, or a measured one.
  plan::KronGpuPlan (*plan)(const plan::KronGpuProblem& problem, const PairJob& place);
  bool quickly;  // new kernels may be quick ones for this call
};

/// Puts the passes of the call into its stream and returns. Scratch memory is at most two arrays of the largest size
/// between passes, of part_bytes together where the call can be taken apart: by items, rows or columns.
void kron_matmul(KronJob job, const KronTools& tools);

}  // namespace mercer::cuda
