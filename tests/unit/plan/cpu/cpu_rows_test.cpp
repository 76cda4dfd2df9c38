// The rows of processors: their floors, and the table of them in the documentation.
#include "plan/cpu/cpu_rows.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "device/source_folder.h"
#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/cpu/planner.h"
#include "plan/cpu/registers.h"

namespace mercer::plan {
namespace {

constexpr Target kTargets[] = {Target::x86_avx512, Target::x86_avx2};

std::shared_ptr<const PairPlan> plan_of(const char* text, Target target, const CpuRow& cpu) {
  PairProblem problem;
  problem.outputs = {ir::simplify(parse(text))};
  problem.target = target;
  problem.cpu = &cpu;
  return plan_pairs(problem);
}

double cycles_of(const char* text, Target target, const char* cpu) {
  return floor_of(*plan_of(text, target, *find_row(cpu))).update_cycles;
}

const PortUses& uses_of(const CpuRow& row, Target target) {
  return target == Target::x86_avx512 ? row.wide : row.narrow;
}

TEST(CpuRows, HaveTheirFloors) {
  constexpr Target kWide = Target::x86_avx512, kNarrow = Target::x86_avx2;
  // Inner products: multiply-adds alone. Squared differences: Zen subtracts in parallel, Skylake on the same ports,
  // Golden Cove on one port more, but with 512 bits.
  EXPECT_DOUBLE_EQ(cycles_of("sum(x*z)", kWide, "zen4"), 1);
  EXPECT_DOUBLE_EQ(cycles_of("sum(x*z)", kWide, "zen5"), 0.5);
  EXPECT_DOUBLE_EQ(cycles_of("sum(x*z)", kWide, "golden_cove"), 0.5);
  EXPECT_DOUBLE_EQ(cycles_of("sum((x-z)^2)", kWide, "zen4"), 1);
  EXPECT_DOUBLE_EQ(cycles_of("sum((x-z)^2)", kWide, "zen5"), 0.5);
  EXPECT_DOUBLE_EQ(cycles_of("sum((x-z)^2)", kWide, "golden_cove"), 1);
  EXPECT_DOUBLE_EQ(cycles_of("sum((x-z)^2)", kNarrow, "zen3"), 0.5);
  EXPECT_DOUBLE_EQ(cycles_of("sum((x-z)^2)", kNarrow, "skylake"), 1);
  EXPECT_DOUBLE_EQ(cycles_of("sum((x-z)^2)", kNarrow, "golden_cove"), 2.0 / 3);
  // Three instructions of any port.
  EXPECT_DOUBLE_EQ(cycles_of("sum(abs(x-z))", kWide, "ice_lake"), 1.5);
}

/// Choices follow the row: an addition becomes a multiply-add where that frees a port alone.
TEST(CpuRows, DecideWhatPlansDo) {
  const auto update = [](const char* cpu) {
    return plan_of("sum(abs(x-z))", Target::x86_avx512, *find_row(cpu))->best().update.to_text();
  };
  EXPECT_NE(update("zen4").find("fma"), std::string::npos);
  EXPECT_EQ(update("zen5"), update("zen4"));
  EXPECT_EQ(update("golden_cove").find("fma"), std::string::npos);
  // The plan of a problem that names no processor is that of Zen 4.
  EXPECT_EQ(PairProblem().cpu, find_row("zen4"));
}

/// Where all instructions take half of the cycles, what else a call does is taken to do so.
TEST(CpuRows, OfTwiceTheWidthChooseAlike) {
  for (const char* text : {"sum(abs(x-z))", "exp(-sum(abs(x-z))/h)"}) {
    const auto zen4 = plan_of(text, Target::x86_avx512, *find_row("zen4"));
    const auto zen5 = plan_of(text, Target::x86_avx512, *find_row("zen5"));
    for (std::int64_t points = 64; points < 4096; points += points / 8)
      for (const std::int64_t k : {2, 8, 64, 700})
        EXPECT_EQ(zen5->pays_maxima(points, points, k), zen4->pays_maxima(points, points, k)) << points << ' ' << k;
    EXPECT_TRUE(zen5->pays_maxima(700, 700, 64));
  }
}

/// The longer a multiply-add takes, the more sums go on at once.
TEST(CpuRows, DecideTheShapeOfFields) {
  const ir::Program field = ir::lower({points().x - points().z}, {});
  const auto sums = [&](double latency) {
    TargetInfo target = target_info(Target::x86_avx512, *find_row("zen5"));
    target.latency = latency;
    const FieldShape shape = choose_field(field, 1, 64, target);
    return shape.vectors * shape.rows;
  };
  EXPECT_LE(sums(1), sums(4));
  EXPECT_LE(sums(4), sums(40));
  const FieldShape of_reference = choose_field(field, 1, 64, target_info(Target::x86_avx512));
  const FieldShape of_zen4 = choose_field(field, 1, 64, target_info(Target::x86_avx512, *find_row("zen4")));
  EXPECT_EQ(of_reference.vectors, of_zen4.vectors);
  EXPECT_EQ(of_reference.rows, of_zen4.rows);
}

/// The hull of what floors are: never below any of its kinds alone, nor below all of them on all ports.
TEST(CpuRows, FloorsAreBoundsOfPorts) {
  for (const CpuRow* row : cpu_rows())
    for (const Target target : kTargets) {
      const PortUses& uses = uses_of(*row, target);
      if (uses[0].ports == 0) continue;
      PipeCount count;
      double longest = 0, vector_ports = 0;
      for (const PortUse& use : uses) {
        count.add(use);
        longest = std::max(longest, use.alone());
        if (use.ports < 16) vector_ports += use.cycles;
      }
      EXPECT_GE(count.cycles(), longest) << row->name;
      EXPECT_GE(count.cycles(), vector_ports / 4) << row->name;
    }
}

TEST(CpuRows, AreFoundByFamilyAndModel) {
  const auto name_at = [](CpuVendor vendor, int family, int model) {
    CpuFeatures cpu;
    cpu.vendor = vendor;
    cpu.family = family;
    cpu.model = model;
    const CpuRow* row = row_of(cpu);
    return std::string(row == nullptr ? "" : row->name);
  };
  EXPECT_EQ(name_at(CpuVendor::amd, 0x17, 0x31), "zen2");          // Rome
  EXPECT_EQ(name_at(CpuVendor::amd, 0x17, 0x01), "");              // Zen 1, whose units are half as wide
  EXPECT_EQ(name_at(CpuVendor::amd, 0x19, 0x01), "zen3");          // Milan
  EXPECT_EQ(name_at(CpuVendor::amd, 0x19, 0x11), "zen4");          // Genoa
  EXPECT_EQ(name_at(CpuVendor::amd, 0x1a, 0x02), "zen5");          // Turin
  EXPECT_EQ(name_at(CpuVendor::amd, 0x1a, 0x24), "");              // Strix Point, likewise
  EXPECT_EQ(name_at(CpuVendor::intel, 6, 0x55), "skylake");        // Skylake-X, Cascade Lake
  EXPECT_EQ(name_at(CpuVendor::intel, 6, 0x6a), "ice_lake");
  EXPECT_EQ(name_at(CpuVendor::intel, 6, 0x8f), "golden_cove");    // Sapphire Rapids
  EXPECT_EQ(name_at(CpuVendor::intel, 6, 0xcf), "golden_cove");    // Emerald Rapids
  EXPECT_EQ(name_at(CpuVendor::intel, 0x19, 0x11), "");
  EXPECT_EQ(name_at(CpuVendor::other, 6, 0x55), "");
}

/// Cycles alone, then the ports: Intel's third bit is port 5.
std::string cell(PortUse use, bool intel) {
  if (use.ports == 0) return "";
  std::string ports;
  for (int port = 0; port < 4; ++port)
    if (use.ports >> port & 1) ports += std::to_string(intel && port == 2 ? 5 : port);
  return fmt::format("{:.3g}{}", use.alone(), ports.empty() ? "" : " (" + ports + ")");
}

std::string table_of(Target target) {
  std::string head = "| |", line = "|---|", body;
  const auto is_shown = [&](const CpuRow* row) { return uses_of(*row, target)[0].ports != 0; };
  for (const CpuRow* row : cpu_rows())
    if (is_shown(row)) {
      head += fmt::format(" `{}` |", row->name);
      line += "---|";
    }
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    std::string cells;
    bool any = false;
    for (const CpuRow* row : cpu_rows()) {
      if (!is_shown(row)) continue;
      const bool intel = std::string(row->name).find("zen") == std::string::npos;
      const std::string text = cell(uses_of(*row, target)[kind], intel);
      any = any || !text.empty();
      cells += fmt::format(" {} |", text);
    }
    if (any) body += fmt::format("| {} |{}\n", name_of(static_cast<Kind>(kind)), cells);
  }
  return head + "\n" + line + "\n" + body;
}

std::string families() {
  std::string text =
      "| row | processors | latency of a multiply-add | loads of 256 bits a cycle |\n|---|---|---|---|\n";
  for (const CpuRow* row : cpu_rows())
    text += fmt::format("| `{}` | {} | {:g} | {:g} |\n", row->name, row->processors, row->latency, row->loads);
  return text;
}

/// MERCER_UPDATE_GOLDEN=1 writes the tables anew.
TEST(CpuRows, StandInTheDocumentation) {
  const std::string path = (testing::source_folder() / "docs" / "kernels" / "cpu_floor.md").string();
  std::ostringstream file;
  file << std::ifstream(path, std::ios::binary).rdbuf();
  std::string page = file.str();
  const std::pair<std::string, std::string> tables[] = {
      {"families", families()}, {"512", table_of(Target::x86_avx512)}, {"256", table_of(Target::x86_avx2)}};
  for (const auto& [title, table] : tables) {
    const std::string begin = "<!-- rows " + title + " -->\n", end = "<!-- end -->\n";
    const std::size_t from = page.find(begin);
    ASSERT_NE(from, std::string::npos) << title;
    const std::size_t start = from + begin.size(), stop = page.find(end, start);
    ASSERT_NE(stop, std::string::npos) << title;
    if (std::getenv("MERCER_UPDATE_GOLDEN") != nullptr) page.replace(start, stop - start, table);
    else EXPECT_EQ(page.substr(start, stop - start), table) << "If wanted, run once with MERCER_UPDATE_GOLDEN=1.";
  }
  if (std::getenv("MERCER_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << page;
}

}  // namespace
}  // namespace mercer::plan
