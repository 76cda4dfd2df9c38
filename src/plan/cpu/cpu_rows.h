// What vector instructions cost on families of processors, as data: which ports take them, and for how long. The rows
// are in targets/cpu_rows.cpp, docs/kernels/cpu_floor.md has them as a table.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "core/system/cpu_features.h"

namespace mercer::plan {

/// Kinds of vector instructions that generated kernels are made of.
enum class Kind : std::uint8_t {
  multiply,   // and multiply-adds
  add,
  extreme,    // minima and maxima of floats
  range,      // AVX-512: the larger magnitude
  compare,    // into a mask register with AVX-512
  select,
  round,
  convert,
  shift,
  logic,
  int_add,
  int_max,
  permute,    // of elements by an index, across the vector
  table,      // AVX2: sixteen floats by two permutations, a shift and a choice
  gather,     // AVX2: sixteen doubles
  mask,       // AVX-512: of mask registers
  divide, divide64, root, root64,
};
inline constexpr int kKinds = 20;
const char* name_of(Kind kind);

/// A bit for each port that may take an instruction, and how many cycles of one of them it takes. No ports: it costs
/// nothing that floors count.
struct PortUse {
  std::uint8_t ports = 0;
  double cycles = 0;
  /// Cycles from one to the next of many.
  double alone() const;
  bool operator==(const PortUse&) const = default;
};
/// The ports that vectors of one width use, by kind.
using PortUses = std::array<PortUse, kKinds>;
inline constexpr int kPorts = 6;
inline const PortUse& use_of(const PortUses& uses, Kind kind) { return uses[static_cast<std::size_t>(kind)]; }

struct CpuRow {
  const char* name;        // "zen4"
  const char* processors;  // for people
  PortUses wide, narrow;   // of 512 and of 256 bits
  double latency;          // cycles from a multiply-add to the next of its chain
  double loads;            // of 256 bits in a cycle

  bool has_wide() const { return wide[0].ports != 0; }
};

/// All families that are known.
std::span<const CpuRow* const> cpu_rows();
/// That of Zen 4: plans that do not depend on the machine, as tests need them.
extern const CpuRow kReferenceRow;
/// Null where no family has this name; where none has this processor.
const CpuRow* find_row(const std::string& name);
const CpuRow* row_of(const CpuFeatures& cpu);

}  // namespace mercer::plan
