// Ports found from times.
#include "plan/cpu/fit_ports.h"

#include <gtest/gtest.h>

#include "ir/passes/passes.h"
#include "mercer/formula.h"
#include "plan/cpu/planner.h"

namespace mercer::plan {
namespace {

/// Ports found from the times of pairs explain them, and floors of several kinds come out as with the row's own.
TEST(FitPorts, FindsTheRowsAgain) {
  for (const CpuRow* row : cpu_rows())
    for (const Target target : {Target::x86_avx512, Target::x86_avx2}) {
      const PortUses& uses = target == Target::x86_avx512 ? row->wide : row->narrow;
      if (uses[0].ports == 0) continue;
      const PortTimes times = times_of(uses);
      const PortUses found = fit_ports(times);
      const PortTimes again = times_of(found);
      for (std::size_t a = 0; a < kKinds; ++a) {
        if (static_cast<Kind>(a) >= Kind::gather) continue;  // units of their own
        EXPECT_NEAR(again.alone[a], times.alone[a], 1e-12) << row->name;
        EXPECT_NEAR(again.with_both[a], times.with_both[a], 1e-9) << row->name << ' ' << name_of(static_cast<Kind>(a));
        for (std::size_t b = 0; b < a; ++b)
          EXPECT_NEAR(again.pair[a][b], times.pair[a][b], 1e-9)
              << row->name << ' ' << name_of(static_cast<Kind>(a)) << ' ' << name_of(static_cast<Kind>(b));
      }
      CpuRow measured = *row;
      (target == Target::x86_avx512 ? measured.wide : measured.narrow) = found;
      for (const char* text : {"sum(x*z)", "sum((x-z)^2)", "sum(abs(x-z))", "sum(abs(x-z)^1.3)", "sum(exp(-abs(x-z)))",
                               "sum(where(x < z, x, sqrt(abs(z))))"}) {
        PairProblem problem;
        problem.outputs = {ir::simplify(parse(text))};
        problem.target = target;
        problem.cpu = row;
        const ir::Program program = plan_pairs(problem)->best().update;
        EXPECT_NEAR(count_pipes(program, target_info(target, measured)).cycles(),
                    count_pipes(program, target_info(target, *row)).cycles(), 1e-9)
            << row->name << ' ' << text;
      }
    }
}

/// Measured times lie above what ports allow, more so for mixtures.
TEST(FitPorts, ForgivesWhatSchedulersLose) {
  const CpuRow& row = *find_row("zen4");
  PortTimes times = times_of(row.narrow);
  for (std::size_t a = 0; a < kKinds; ++a)
    for (std::size_t b = 0; b < kKinds; ++b)
      if (a != b) times.pair[a][b] *= 1.02 + 0.04 * static_cast<double>((a + b) % 3) / 2;
  const PortUses found = fit_ports(times);
  const auto both = [&](Kind a, Kind b) {
    return use_of(found, a).ports & use_of(found, b).ports;
  };
  EXPECT_EQ(both(Kind::multiply, Kind::add), 0);
  EXPECT_EQ(use_of(found, Kind::logic).ports, use_of(found, Kind::multiply).ports | use_of(found, Kind::add).ports);
  EXPECT_NE(both(Kind::permute, Kind::multiply), 0);
  EXPECT_NE(both(Kind::permute, Kind::add), 0);
}

}  // namespace
}  // namespace mercer::plan
