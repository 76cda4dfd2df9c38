// Families of processors, a row each. Zen 4 and Zen 5 are measured, each instruction alone and in turns with others;
// the other rows are from public tables (docs/kernels/cpu_floor.md names them).
#include "plan/cpu/cpu_rows.h"

#include <algorithm>
#include <bit>

namespace mercer::plan {
namespace {

constexpr const char* kNames[kKinds] = {
    "multiply", "add",     "extreme", "range", "compare", "select", "round",  "convert",  "shift", "logic",
    "int_add",  "int_max", "permute", "table", "gather",  "mask",   "divide", "divide64", "root",  "root64"};

constexpr PortUse kNone{};
/// The divider, and what else has a unit of its own, are not among the vector ports.
constexpr PortUse divider(double cycles) { return {16, cycles}; }
constexpr PortUse apart(double cycles) { return {32, cycles}; }

// Zen: ports 0 and 1 multiply, 2 and 3 add, 1 and 2 permute, all four have logic.
namespace zen {
constexpr PortUse multiply(double n) { return {0b0011, n}; }
constexpr PortUse add(double n) { return {0b1100, n}; }
constexpr PortUse either(double n) { return {0b1111, n}; }
constexpr PortUse shuffle(double n) { return {0b0110, n}; }
}  // namespace zen

// Intel: bit 0 is port 0, bit 1 port 1, bit 2 port 5. An instruction of 512 bits takes port 0, with port 1 shut, or 5.
namespace intel {
constexpr PortUse p0(double n) { return {0b001, n}; }
constexpr PortUse p01(double n) { return {0b011, n}; }
constexpr PortUse p5(double n) { return {0b100, n}; }
constexpr PortUse p05(double n) { return {0b101, n}; }
constexpr PortUse p15(double n) { return {0b110, n}; }
constexpr PortUse p015(double n) { return {0b111, n}; }
}  // namespace intel

// Costs in the order of Kind: arithmetic of floats, comparisons, rounding; integers and lookups; masks; the divider.

constexpr PortUses kZen2Narrow{
    zen::multiply(1), zen::add(1), zen::multiply(1), kNone, zen::multiply(1), zen::multiply(1), {0b1000, 1},
    {0b1000, 1}, {0b0100, 1}, zen::either(1), {0b1011, 1}, {0b1011, 1}, zen::shuffle(4), zen::shuffle(8), apart(9),
    kNone, divider(5), divider(6), divider(7), divider(10)};

constexpr PortUses kZen3Narrow{
    zen::multiply(1), zen::add(1), zen::add(1), kNone, zen::add(1), zen::multiply(1), zen::add(1),
    zen::add(1), zen::shuffle(1), zen::either(1), zen::either(1), zen::either(1), zen::shuffle(2), zen::shuffle(4),
    apart(8), kNone, divider(3), divider(5), divider(5), divider(9)};

constexpr PortUses kZen4Wide{
    zen::multiply(2), zen::add(2), zen::add(2), zen::add(2), zen::multiply(2), zen::either(2), zen::add(2),
    zen::add(2), zen::add(2), zen::either(2), zen::either(2), zen::either(2), zen::shuffle(2), kNone,
    kNone, kNone, divider(6), divider(10), divider(10), divider(18)};

constexpr PortUses kZen4Narrow{
    zen::multiply(1), zen::add(1), zen::add(1), kNone, zen::add(1), zen::multiply(1), zen::add(1),
    zen::add(1), zen::add(1), zen::either(1), zen::either(1), zen::either(1), zen::shuffle(1), zen::shuffle(4),
    zen::shuffle(8), kNone, divider(3), divider(5), divider(5), divider(9)};

constexpr PortUses kZen5Wide{
    zen::multiply(1), zen::add(1), zen::add(1), zen::add(1), zen::shuffle(1), zen::either(1), zen::add(1),
    zen::add(1), zen::add(1), zen::either(1), zen::either(1), zen::either(1), zen::shuffle(1), kNone,
    kNone, kNone, divider(2.5), divider(4), divider(4.5), divider(7.5)};

constexpr PortUses kZen5Narrow{
    zen::multiply(1), zen::add(1), zen::add(1), kNone, zen::add(1), zen::multiply(1), zen::add(1),
    zen::add(1), zen::add(1), zen::either(1), zen::either(1), zen::either(1), zen::shuffle(1), zen::either(4),
    apart(4), kNone, divider(2.5), divider(4), divider(4.5), divider(7.5)};

constexpr PortUses kSkylakeWide{
    intel::p05(1), intel::p05(1), intel::p05(1), intel::p05(1), intel::p5(1), intel::p05(1), intel::p05(2),
    intel::p05(1), intel::p0(1), intel::p05(1), intel::p05(1), intel::p0(1), intel::p5(1), kNone,
    kNone, intel::p0(1), divider(10), divider(16), divider(12), divider(18)};

constexpr PortUses kSkylakeNarrow{
    intel::p01(1), intel::p01(1), intel::p01(1), kNone, intel::p01(1), intel::p015(2), intel::p01(2),
    intel::p01(1), intel::p01(1), intel::p015(1), intel::p015(1), intel::p01(1), intel::p5(1), intel::p5(2),
    apart(4), kNone, divider(5), divider(8), divider(6), divider(9)};

/// Additions have units of their own on ports 1 and 5, of 256 bits.
constexpr PortUses kGoldenCoveNarrow{
    intel::p01(1), intel::p15(1), intel::p01(1), kNone, intel::p01(1), intel::p015(3), intel::p01(2),
    intel::p01(1), intel::p01(1), intel::p015(1), intel::p015(1), intel::p01(1), intel::p5(1), intel::p5(2),
    apart(4), kNone, divider(5), divider(8), divider(6), divider(9)};

constexpr CpuRow kZen2{"zen2", "Zen 2", {}, kZen2Narrow, 5, 2};
constexpr CpuRow kZen3{"zen3", "Zen 3", {}, kZen3Narrow, 4, 2};
constexpr CpuRow kZen5{"zen5", "Zen 5 with units of 512 bits", kZen5Wide, kZen5Narrow, 4, 2};
constexpr CpuRow kSkylake{"skylake", "Skylake, Skylake-X, Cascade Lake, Cooper Lake", kSkylakeWide, kSkylakeNarrow,
                          4, 2};
constexpr CpuRow kIceLake{"ice_lake", "Ice Lake of servers", kSkylakeWide, kSkylakeNarrow, 4, 2};
constexpr CpuRow kGoldenCove{"golden_cove", "Sapphire Rapids, Emerald Rapids; Alder Lake, Raptor Lake",
                             kSkylakeWide, kGoldenCoveNarrow, 4, 3};

/// Models from `first` to `last` of a family that cpuid names.
struct Models {
  CpuVendor vendor;
  int family, first, last;
  const CpuRow* row;
};

}  // namespace

constinit const CpuRow kReferenceRow{"zen4", "Zen 4", kZen4Wide, kZen4Narrow, 4, 2};

namespace {

constexpr Models kModels[] = {
    {CpuVendor::amd, 0x17, 0x30, 0xaf, &kZen2},
    {CpuVendor::amd, 0x19, 0x00, 0x0f, &kZen3},
    {CpuVendor::amd, 0x19, 0x20, 0x5f, &kZen3},
    {CpuVendor::amd, 0x19, 0x10, 0x1f, &kReferenceRow},
    {CpuVendor::amd, 0x19, 0x60, 0x7f, &kReferenceRow},
    {CpuVendor::amd, 0x19, 0xa0, 0xaf, &kReferenceRow},
    {CpuVendor::amd, 0x1a, 0x00, 0x1f, &kZen5},
    {CpuVendor::amd, 0x1a, 0x40, 0x4f, &kZen5},
    {CpuVendor::amd, 0x1a, 0x70, 0x7f, &kZen5},
    {CpuVendor::intel, 6, 0x4e, 0x4e, &kSkylake},
    {CpuVendor::intel, 6, 0x55, 0x55, &kSkylake},
    {CpuVendor::intel, 6, 0x5e, 0x5e, &kSkylake},
    {CpuVendor::intel, 6, 0x8e, 0x8e, &kSkylake},
    {CpuVendor::intel, 6, 0x9e, 0x9e, &kSkylake},
    {CpuVendor::intel, 6, 0xa5, 0xa6, &kSkylake},
    {CpuVendor::intel, 6, 0x6a, 0x6a, &kIceLake},
    {CpuVendor::intel, 6, 0x6c, 0x6c, &kIceLake},
    {CpuVendor::intel, 6, 0x8f, 0x8f, &kGoldenCove},
    {CpuVendor::intel, 6, 0xcf, 0xcf, &kGoldenCove},
    {CpuVendor::intel, 6, 0x97, 0x97, &kGoldenCove},
    {CpuVendor::intel, 6, 0x9a, 0x9a, &kGoldenCove},
    {CpuVendor::intel, 6, 0xb7, 0xb7, &kGoldenCove},
    {CpuVendor::intel, 6, 0xba, 0xba, &kGoldenCove},
    {CpuVendor::intel, 6, 0xbf, 0xbf, &kGoldenCove},
};

}  // namespace

const char* name_of(Kind kind) { return kNames[static_cast<std::size_t>(kind)]; }

double PortUse::alone() const { return ports == 0 ? 0 : cycles / std::popcount(ports); }

std::span<const CpuRow* const> cpu_rows() {
  static constexpr const CpuRow* kRows[] = {&kZen2, &kZen3, &kReferenceRow, &kZen5, &kSkylake, &kIceLake, &kGoldenCove};
  return kRows;
}

const CpuRow* find_row(const std::string& name) {
  const auto rows = cpu_rows();
  const auto found = std::ranges::find_if(rows, [&](const CpuRow* row) { return name == row->name; });
  return found == rows.end() ? nullptr : *found;
}

const CpuRow* row_of(const CpuFeatures& cpu) {
  for (const Models& models : kModels)
    if (models.vendor == cpu.vendor && models.family == cpu.family && models.first <= cpu.model &&
        cpu.model <= models.last)
      return models.row;
  return nullptr;
}

}  // namespace mercer::plan
