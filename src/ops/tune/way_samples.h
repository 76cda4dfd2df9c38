// Times of calls on the CPU by each of the ways that serve them, on one thread, for tune_cpu.
#pragma once

#include <vector>

#include "mercer/device.h"
#include "plan/cpu/fit_costs.h"

namespace mercer::ops {

/// What ways cost with an instruction set that this machine runs: fitted to some 300 calls of pairwise, then to
/// products and neighbours too, whose values come by ways that the first fit chooses.
struct MeasuredWays {
  plan::cpu::Costs costs;
  std::vector<plan::cpu::TimedCall> calls;
};
/// Throws Cancelled when progress says so.
MeasuredWays measure_ways(Target target, const ProgressCallback& progress);

}  // namespace mercer::ops
