// Whose costs the plans and floors of CPUs follow.
#pragma once

#include <optional>
#include <string>

#include "mercer/device.h"
#include "ops/costs/choice_store.h"
#include "plan/cpu/costs.h"
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

/// What ways cost with an instruction set on this processor: what was measured here before this process asked first,
/// else the numbers of the header, which are of Zen 5.
const plan::cpu::Costs& way_costs(Target target);
/// Whose they are, for people.
std::string source_of_way_costs(Target target);
/// What the store says now. A record that cannot be read counts as none, and a warning says so.
std::optional<plan::cpu::Costs> stored_way_costs(Target target, const ChoiceStore& store);
/// Has processes that start later choose by these numbers.
void keep_way_costs(Target target, const plan::cpu::Costs& costs, ChoiceStore& store);

}  // namespace mercer::ops
