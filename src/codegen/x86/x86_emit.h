// The x86 skeletons (plan/cpu/kernel.h says what they compute): loops around the program emitter. Each returns machine
// code for a function `void(const Args*)`, or throws Error(compile) when the program does not fit the target's
// registers.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cpu/kernel.h"

namespace mercer::codegen {

using plan::EpilogueSource;
using plan::FieldSource;
using plan::UpdateSource;

/// Also the fused kernel, when the source asks for it.
std::vector<std::uint8_t> emit_update(const UpdateSource& source);
std::vector<std::uint8_t> emit_epilogue(const EpilogueSource& source);
std::vector<std::uint8_t> emit_field(const FieldSource& source);

}  // namespace mercer::codegen
