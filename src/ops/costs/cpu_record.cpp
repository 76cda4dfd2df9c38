#include "ops/costs/cpu_record.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

namespace mercer::ops {
namespace {

using plan::CpuRow;
using plan::Kind;
using plan::kKinds;
using plan::PortUse;
using plan::PortUses;

struct Width {
  const char* name;
  PortUses CpuRow::* uses;
};
constexpr Width kWidths[] = {{"512", &CpuRow::wide}, {"256", &CpuRow::narrow}};

std::optional<std::size_t> kind_named(const std::string& name) {
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    if (name == name_of(static_cast<Kind>(kind))) return kind;
  return std::nullopt;
}

bool is_cost(double cycles) { return std::isfinite(cycles) && cycles > 0; }

/// "512 multiply 3 1.0"
bool read_use(std::istringstream& line, PortUses& uses) {
  std::string name;
  int ports = 0;
  double cycles = 0;
  if (!(line >> name >> ports >> cycles)) return false;
  const std::optional<std::size_t> kind = kind_named(name);
  if (!kind || ports < 1 || ports >= 1 << plan::kPorts || !is_cost(cycles)) return false;
  uses[*kind] = {static_cast<std::uint8_t>(ports), cycles};
  return true;
}

bool has_arithmetic(const PortUses& uses) {
  for (const Kind kind : {Kind::multiply, Kind::add, Kind::logic, Kind::permute, Kind::divide, Kind::root})
    if (use_of(uses, kind).ports == 0) return false;
  return true;
}

}  // namespace

std::string record_key(const CpuFeatures& cpu) {
  constexpr int kVersion = 1;
  return fmt::format("cpu\n{}-{:x}-{:x}\n{}\nversion {}", static_cast<int>(cpu.vendor), cpu.family, cpu.model,
                     cpu.brand, kVersion);
}

std::string record_of(const CpuRow& row) {
  std::string text = fmt::format("latency {}\nloads {}\n", row.latency, row.loads);
  for (const Width& width : kWidths)
    for (std::size_t kind = 0; kind < kKinds; ++kind)
      if (const PortUse use = (row.*width.uses)[kind]; use.ports != 0)
        text += fmt::format("{} {} {} {}\n", width.name, name_of(static_cast<Kind>(kind)), use.ports, use.cycles);
  return text;
}

std::optional<CpuRow> row_of_record(const std::string& record) {
  CpuRow row{"measured", "measured here by mercer tune --cpu", {}, {}, 0, 0};
  std::istringstream lines(record);
  for (std::string text; std::getline(lines, text);) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    bool good = false;
    if (what == "latency") good = static_cast<bool>(line >> row.latency);
    else if (what == "loads") good = static_cast<bool>(line >> row.loads);
    for (const Width& width : kWidths)
      if (what == width.name) good = read_use(line, row.*width.uses);
    if (!good) return std::nullopt;
  }
  const bool whole = is_cost(row.latency) && is_cost(row.loads) && has_arithmetic(row.narrow) &&
                     (!row.has_wide() || has_arithmetic(row.wide));
  return whole ? std::optional(row) : std::nullopt;
}

std::string differences(const CpuRow& measured, const CpuRow& table) {
  constexpr double kMuch = 0.15;
  std::string text;
  for (const Width& width : kWidths)
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const double found = (measured.*width.uses)[kind].alone(), expected = (table.*width.uses)[kind].alone();
      if (found == 0 || expected == 0 || std::fabs(found - expected) <= kMuch * expected) continue;
      text += fmt::format("{}{} bits {} {:.2f} (table {:.3g})", text.empty() ? "" : ", ", width.name,
                          name_of(static_cast<Kind>(kind)), found, expected);
    }
  return text;
}

}  // namespace mercer::ops
