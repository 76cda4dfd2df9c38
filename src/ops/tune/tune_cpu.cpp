// What vector instructions cost on this processor, measured and kept:
//
//   the clock, by two chains that must agree → loops of one, two and three kinds of instructions → times
//   times → ports (plan/cpu/fit_ports.h) → a row, in the store and next to the table's
//
// and what ways cost, which their choice follows: calls by each way → times → a row (plan/cpu/fit_costs.h) → the store
#include <fmt/format.h>

#include "core/error.h"
#include "core/system/cpu_features.h"
#include "core/system/exec_memory.h"
#include "jit/cpu_probe.h"
#include "mercer/explain.h"
#include "mercer/tune.h"
#include "ops/costs/choice_store.h"
#include "ops/costs/cpu_costs.h"
#include "ops/costs/cpu_record.h"
#include "ops/tune/way_samples.h"
#include "plan/cpu/costs_fields.h"
#include "plan/cpu/fit_ports.h"
#include "plan/cpu/target.h"

namespace mercer {
namespace {

using plan::CpuRow;
using plan::Kind;

/// Hosts that others share are quiet sooner or later.
Clock agreed_clock() {
  constexpr int kTries = 5;
  Clock clock;
  for (int i = 0; i < kTries && !clock.agrees(); ++i) clock = measure_clock();
  if (!clock.agrees())
    fail(ErrorKind::unsupported,
         "tune: the clock must be measured alike by multiplications of three cycles and by rotations of one. Received "
         "{:.2f} and {:.2f} GHz.",
         clock.gigahertz, clock.by_rotations);
  return clock;
}

bool runs_here(Target target) { return plan::target_info(target).runs_here(); }

CpuRow measured_row(double gigahertz, const ProgressCallback& progress) {
  CpuRow row{"measured", "", {}, {}, 0, 0};
  const int widths = runs_here(Target::x86_avx512) ? 2 : 1;
  const auto of_width = [&](int width) -> jit::Told {
    if (!progress) return {};
    return [&progress, width, widths](double done, double total) {
      return progress(width * total + done, widths * total);
    };
  };
  row.narrow = plan::fit_ports(jit::measure_ports(Target::x86_avx2, gigahertz, of_width(0)));
  if (widths == 2) row.wide = plan::fit_ports(jit::measure_ports(Target::x86_avx512, gigahertz, of_width(1)));
  row.latency = jit::measure_latency(Target::x86_avx2, gigahertz);
  row.loads = jit::measure_loads(Target::x86_avx2, gigahertz);
  return row;
}

std::string ports_of(plan::PortUse use) {
  constexpr int kVectorPorts = 4;
  std::string ports;
  for (int port = 0; port < kVectorPorts; ++port)
    if (use.ports >> port & 1) ports += std::to_string(port);
  return ports.empty() ? "own" : ports;
}

/// Cycles alone and ports; those of the table where there is one.
std::string table_of(const CpuRow& row, const CpuRow* known) {
  std::string text;
  for (const bool wide : {true, false}) {
    const plan::PortUses& uses = wide ? row.wide : row.narrow;
    if (uses[0].ports == 0) continue;
    text += fmt::format("\n{:<10} {:>8}  {:<6}{}\n", wide ? "512 bits" : "256 bits", "cycles", "ports",
                        known != nullptr ? fmt::format("  {}", known->name) : "");
    for (std::size_t kind = 0; kind < plan::kKinds; ++kind) {
      if (uses[kind].ports == 0) continue;
      text += fmt::format("{:<10} {:>8.2f}  {:<6}", name_of(static_cast<Kind>(kind)), uses[kind].alone(),
                          ports_of(uses[kind]));
      const double expected = known == nullptr ? 0 : (wide ? known->wide : known->narrow)[kind].alone();
      if (expected > 0) text += fmt::format("  {:.3g}", expected);
      text = text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
    }
  }
  return text;
}

/// Every number next to that of Zen 5, and how well they predict what was measured.
std::string table_of(const ops::MeasuredWays& ways, Target target) {
  const plan::cpu::Costs shipped;
  std::vector<double> others;
  plan::cpu::each_cost(shipped, [&](const char*, double number, auto) { others.push_back(number); });
  std::string text =
      fmt::format("{:<24} {:>9} {:>9}\n", "ns of ways, " + std::string(name_of(target)), "measured", "zen5");
  std::size_t at = 0;
  plan::cpu::each_cost(ways.costs, [&](const char* name, double number, auto) {
    text += fmt::format("{:<24} {:>9.3g} {:>9.3g}\n", name, number, others[at++]);
  });
  return text + fmt::format(
                    "half of {} calls take what is predicted within a factor of {:.2f} (by the numbers of zen5 "
                    "{:.2f})\n",
                    ways.calls.size(), median_error(ways.costs, ways.calls), median_error(shipped, ways.calls));
}

/// The instruction set that calls take here by themselves.
Target best_target() {
  for (const plan::TargetInfo* info : plan::targets())
    if (info->runs_here()) return info->target;
  return Target::interpreter;
}

}  // namespace

std::string tune_cpu(const ProgressCallback& progress) {
  if (!runs_here(Target::x86_avx2))
    fail(ErrorKind::unsupported, "tune: the processor must have AVX2. Received {}.", cpu_features().brand);
  if (const std::string why_not = ExecutableMemory::why_not(); !why_not.empty())
    fail(ErrorKind::unsupported, "tune: code must be allowed to run. Received a refusal: {}.", why_not);
  const Clock clock = agreed_clock();
  const CpuRow row = measured_row(clock.gigahertz, progress);
  const Target target = best_target();
  const ops::MeasuredWays ways = ops::measure_ways(target, progress);
  const CpuRow* known = plan::row_of(cpu_features());
  const std::string& brand = cpu_features().brand;
  ops::ChoiceStore::shared().keep(ops::record_key(cpu_features()), ops::record_of(row), brand);
  ops::keep_way_costs(target, ways.costs, ops::ChoiceStore::shared());
  std::string text = fmt::format(
      "{}, {:.2f} GHz\nlatency of a multiply-add {:.2f} cycles, {:.2f} loads of 256 bits a "
      "cycle\n{}\n{}\n",
      brand, clock.gigahertz, row.latency, row.loads, table_of(row, known), table_of(ways, target));
  if (known == nullptr) return text + "kept: plans, floors and ways of later processes follow it\n";
  const std::string apart = ops::differences(row, *known);
  return text + fmt::format("kept: ways of later processes follow it; plans and floors follow the table's row {}, {}\n",
                            known->name, apart.empty() ? "which it confirms" : "which differs: " + apart);
}

}  // namespace mercer
