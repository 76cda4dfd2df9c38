// Loops of vector instructions none of which waits for another: their time is what ports take.
#pragma once

#include <cstdint>
#include <vector>

#include "mercer/device.h"
#include "plan/cpu/cpu_rows.h"

namespace mercer::codegen {

/// Steps in one turn of a probe's loop: a multiple of the lengths of all cycles of kinds.
inline constexpr int kProbeSteps = 24;

/// Whether the target has instructions of this kind.
bool has_kind(Target target, plan::Kind kind);
/// Code for a function `void(std::int64_t turns)` of instructions of these kinds in turns: one, two or three.
std::vector<std::uint8_t> emit_probe(Target target, const std::vector<plan::Kind>& kinds);
/// The code of a probe of a chain of multiply-adds, and of one of loads of a vector.
std::vector<std::uint8_t> emit_chain_probe(Target target);
std::vector<std::uint8_t> emit_load_probe(Target target);

}  // namespace mercer::codegen
