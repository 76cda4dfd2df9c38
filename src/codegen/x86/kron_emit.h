// Machine code for a step of a Kronecker product: a matrix product whose extents and strides are all known.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/kron/kron_step.h"

namespace mercer::codegen {

/// Whether the target has the instructions for steps of this type.
bool can_emit(const plan::KronStepSource& source);
/// Code for a function `void(const KronStepArgs*)`.
std::vector<std::uint8_t> emit_kron_step(const plan::KronStepSource& source);

}  // namespace mercer::codegen
