// Products with Kronecker products on the CPU; arguments are checked by ops/ before.
#pragma once

#include "backend/cpu/kron/kron_kernels.h"
#include "backend/kron_job.h"
#include "core/system/parallel.h"
#include "mercer/device.h"

namespace mercer::cpu {

struct KronTools {
  Pool& pool;
  Target target;
  KronKernels& kernels;
  /// How a product is divided: as the model would, or as was measured.
  plan::KronChoice (*choose)(const KronJob&, const plan::KronProblem&, const KronTools&);
};

/// Asks job.queue->allocate for its scratch memory where there is one; a rehearsal for the size of it ends there.
void kron_matmul(const KronJob& job, const KronTools& tools);

}  // namespace mercer::cpu
