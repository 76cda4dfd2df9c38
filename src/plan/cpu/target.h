// Targets: what the planner and the emitters know about a processor, as data. The rows are in targets/.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ir/expr/program.h"
#include "mercer/device.h"
#include "mercer/tensor.h"
#include "plan/cpu/cpu_rows.h"

namespace mercer::plan {

struct TargetInfo {
  Target target;
  const char* name;
  int vector_bytes;
  int registers;            // for vectors
  int mask_registers;       // 0: masks live in vector registers
  bool embedded_broadcast;  // an instruction may read one element and broadcast it
  const PortUses* uses;     // of its vectors, from the row of a processor
  bool (*runs_here)() = nullptr;  // whether this processor has the instructions
  double latency = 4;             // cycles from a multiply-add to the next of its chain
  double loads = 2;               // of vectors in a cycle

  int lanes(Dtype type) const { return vector_bytes / static_cast<int>(size_of(type)); }
  /// The ports that a primitive uses for one vector. Leaves are operands of the instructions that read them: no port.
  PortUse cost(ir::Prim prim, Dtype type) const;
};

/// All of them, the best first.
std::span<const TargetInfo* const> targets();
/// The target with the costs of the reference row, which suits emitters: code depends on the machine by its plan alone.
const TargetInfo& target_info(Target target);
/// The target with the costs of a row; of the reference row where that has no such vectors.
TargetInfo target_info(Target target, const CpuRow& row);

/// Cycles of a multiplication divided by those of the reference row: what was measured there in cycles takes so many
/// times as many here.
double pace(const TargetInfo& target);

/// Cycles of ports that a program takes, per vector.
class PipeCount {
 public:
  void add(PortUse use);
  /// That any way of sharing the ports takes: the longest, over sets of ports, of what only they can take, divided by
  /// their number.
  double cycles() const;
  /// Uses in cycles of a pair of ports, named by what they are for: "multiply 1.0, add 1.0, either 0.0, shuffle 0.0";
  /// of a single port, as the divider, in its own.
  std::string to_text(const PortUses& uses) const;

 private:
  std::vector<PortUse> sets_;  // different ports
};
PipeCount count_pipes(const ir::Program& program, const TargetInfo& target);

/// Turns x - z into z - x where only the magnitude matters (|t|, t * t, a power's tables): the broadcast x then is the
/// operand that an instruction may read from memory.
ir::Program orient_differences(ir::Program program, const TargetInfo& target);

/// Rewrites a + b as fma(a, 1, b) and a - b as fnma(b, 1, a), which round alike, while that shortens the busiest pipe.
ir::Program balance_pipes(ir::Program program, const TargetInfo& target);

}  // namespace mercer::plan
