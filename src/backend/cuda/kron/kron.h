// Products with Kronecker products on a device; arguments are checked by ops/ before.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cuda/runtime/kernels.h"
#include "backend/kron_job.h"
#include "core/system/recent_cache.h"
#include "kernels/cuda/common/arguments.h"
#include "plan/kron/kron_gpu.h"

namespace mercer::cuda {

/// A kernel and what it starts with, but for the addresses of arrays.
struct KronLaunch {
  Kernel kernel;
  std::int64_t blocks = 0, threads = 0, shared_bytes = 0;
  bool adds = false;  // y
  KronArguments arguments{};
};

/// What a call does, for any addresses of the same alignment, on one device.
struct KronProgram {
  plan::KronGpuProblem problem;
  plan::KronGpuPlan plan;
  std::vector<int> between;  // where each pass but the last one writes: a buffer, or kKronOut
  int buffers = 0;
  std::int64_t buffer_bytes = 0;  // of each
  bool copies = false;  // the last pass may not write into out, `finish` does
  std::vector<KronLaunch> passes;  // none before kernels were asked for
  KronLaunch finish;  // where it copies, or no factor is multiplied

  /// Whether the next call is to ask for its kernels again.
  bool is_quick() const {
    return std::any_of(passes.begin(), passes.end(), [](const KronLaunch& pass) { return pass.kernel.is_quick; });
  }
};

inline constexpr int kKronOut = -1, kKronX = -2;  // in place of a buffer

/// Where the arrays of a call begin; y is null where nothing is added.
struct KronAddresses {
  char *x, *y, *out;
  std::vector<const char*> factors;
};

/// What a call uses in addition to its arrays.
struct KronTools {
  /// The program's key: equal for calls that differ in nothing but addresses of the same alignment.
  const std::string& key;
  const plan::Costs& costs;
  RecentCache<KronProgram>& programs;
  /// The plan that the call runs: the model's, or a measured one.
  plan::KronGpuPlan (*plan)(const plan::KronGpuProblem& problem, const PairJob& place);
  bool quickly;  // new kernels may be quick ones for this call
};

/// Puts the passes of the call into its stream and returns. Scratch memory is at most two arrays of the largest size
/// between passes, of costs.part_bytes together where the call can be taken apart: by items, rows or columns.
void kron_matmul(KronJob job, const KronTools& tools);

/// Repeats a call with other arrays, by the program that is kept under its key.
void kron_matmul_again(const KronProgram& program, const PairJob& place, const KronAddresses& arrays);

}  // namespace mercer::cuda
