// Whose costs the plans and floors of CPUs follow.
#pragma once

#include <string>

#include "mercer/device.h"
#include "plan/cpu/cpu_rows.h"

namespace mercer::ops {

/// The row of this processor, by its family; where that is not known, the one that was measured here before this
/// process asked first; else the reference.
struct CpuInUse {
  const plan::CpuRow* row;
  bool known;
};
const CpuInUse& cpu_in_use();

/// Instruction set and costs that a name asks for: "auto" or "x86_avx2", with the row in use; "zen4", with the widest
/// vectors of this family; "zen4:x86_avx2". Throws invalid_argument for another one.
struct CpuTarget {
  Target target;
  const plan::CpuRow* cpu;
  bool named = false;  // the family was
};
CpuTarget cpu_target(const std::string& name);

}  // namespace mercer::ops
