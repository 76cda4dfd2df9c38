// Steps of Kronecker products → something that runs: machine code where the target and the system allow it, else plain
// C++.
#pragma once

#include <memory>

#include "jit/compile.h"
#include "plan/kron/kron_step.h"

namespace mercer::jit {

using KronKernel = Kernel<plan::KronStepArgs>;

std::unique_ptr<KronKernel> compile(const plan::KronStepSource& source);

}  // namespace mercer::jit
