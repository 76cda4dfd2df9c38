// Products with Kronecker products on a device; arguments are checked by ops/ before.
#pragma once

#include "backend/kron_job.h"
#include "core/recent_cache.h"
#include "plan/kron_gpu.h"

namespace mercer::cuda {

/// What a call uses besides its arrays.
struct KronTools {
  std::int64_t part_bytes;
  RecentCache<plan::KronGpuPlan>& plans;
};

/// Puts the passes of the call into its stream and returns. Scratch memory is at most two arrays of the largest size
/// between passes, of part_bytes together where the call can be taken apart: by items, rows or columns.
void kron_matmul(const KronJob& job, const KronTools& tools);

}  // namespace mercer::cuda
