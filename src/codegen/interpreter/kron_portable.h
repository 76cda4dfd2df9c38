// A step of a Kronecker product in plain C++, where no code can be emitted.
#pragma once

#include "plan/kron/kron_step.h"

namespace mercer::codegen {

void run_kron_step(const plan::KronStepSource& source, const plan::KronStepArgs& args);

}  // namespace mercer::codegen
