// Targets: what the planner and the emitters know about a processor, as data. The rows are in targets/.
#pragma once

#include <cstdint>
#include <span>

#include "ir/program.h"
#include "mercer/device.h"
#include "mercer/tensor.h"

namespace mercer::plan {

/// Which execution pipe carries a primitive.
enum class Pipe : std::uint8_t {
  none,     // inputs and constants: operands of the instructions that read them
  fma,      // multiply class: two of the core's four vector pipes
  add,      // add, min / max, shift, rounding class: the other two
  either,   // logic and integer adds: any of the four
  shuffle,  // permutes: one pipe of each pair
  divide,   // division and roots: a unit of their own, beside the pipes
  mask,     // operations on mask registers: a port of their own
};

struct PrimCost {
  Pipe pipe;
  double cycles;  // that the pipe is busy with one vector
};

struct TargetInfo {
  Target target;
  const char* name;
  int vector_bytes;
  int registers;            // for vectors
  int mask_registers;       // 0: masks live in vector registers
  bool embedded_broadcast;  // an instruction may read one element and broadcast it
  PrimCost (*cost)(ir::Prim prim, Dtype type);
  bool (*runs_here)() = nullptr;  // whether this processor has the instructions

  int lanes(Dtype type) const { return vector_bytes / static_cast<int>(size_of(type)); }
};

/// All of them, the best first.
std::span<const TargetInfo* const> targets();
const TargetInfo& target_info(Target target);

/// Cycles that a program keeps each pipe busy, per vector.
struct PipeCount {
  double fma = 0, add = 0, either = 0, shuffle = 0, divide = 0;
  double cycles() const;  ///< of the busiest pipes: the floor
};
PipeCount count_pipes(const ir::Program& program, const TargetInfo& target);

/// Turns x - z into z - x where only the magnitude matters (|t|, t * t, a power's tables): the broadcast x then is the
/// operand that an instruction may read from memory.
ir::Program orient_differences(ir::Program program, const TargetInfo& target);

/// Rewrites a + b as fma(a, 1, b) and a - b as fnma(b, 1, a), which round alike, while that shortens the busiest pipe.
ir::Program balance_pipes(ir::Program program, const TargetInfo& target);

}  // namespace mercer::plan
