// The x86 skeletons (kernel.h says what they compute): loops around the program emitter. Each returns machine code
// for a function `void(const Args*)`, or throws Error(compile) when the program does not fit the target's registers.
#pragma once

#include "codegen/kernel.h"

namespace mercer::codegen {

std::vector<std::uint8_t> emit_update(const UpdateSource& source);
std::vector<std::uint8_t> emit_epilogue(const EpilogueSource& source);
std::vector<std::uint8_t> emit_field(const FieldSource& source);

/// The largest register tile whose accumulators, panels of z and temporaries fit the target.
TileShape choose_tile(const ir::Program& update, int z_streams, Target target);
/// Vectors of features side by side in a field kernel with `outputs` accumulators each.
int choose_field_vectors(const ir::Program& field, int outputs, std::int64_t features, Target target);

}  // namespace mercer::codegen
