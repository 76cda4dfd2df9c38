// Products with Kronecker products on a device; arguments are checked by ops/ before.
#pragma once

#include "backend/kron_job.h"

namespace mercer::cuda {

/// Puts the passes of the call into its stream and returns. Scratch memory is at most two arrays of the largest size
/// between passes, of part_bytes together where the call can be taken apart: by items, rows or columns.
void kron_matmul(const KronJob& job, std::int64_t part_bytes);

}  // namespace mercer::cuda
