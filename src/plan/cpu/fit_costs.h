// What ways cost on one processor, fitted to times of calls by forced ways; and the record of such a row.
//
//   calls, each by a way: times, and what the way predicts from a row of costs
//   every number of the row times e^u, where u makes   sum over calls of (log predicted - log measured)^2
//                                                    + weight * sum over numbers of (u - its start)^2     least
//
// u starts at the mean logarithm of measured / predicted for nanoseconds, at 0 for ratios. So numbers that no call
// depends on keep their ratios to each other, and those that calls say little about stay near them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "plan/cpu/ways.h"

namespace mercer::plan::cpu {

struct TimedCall {
  const Way* way = nullptr;
  Request request;
  PairForms forms;
  double microseconds = 0;
};

/// Microseconds that the way predicts; nothing where it refuses the call.
std::optional<double> predicted(const TimedCall& call, const Costs& costs);

/// Each number to three digits. Calls that are refused, or took no time, are left out.
Costs fit_costs(const Costs& base, std::span<const TimedCall> calls);

/// The factor within which half of the calls take what the row predicts.
double median_error(const Costs& costs, std::span<const TimedCall> calls);

/// All numbers, with a version.
std::string costs_record(const Costs& costs);
/// Nothing for any other text than that of a whole row of this version, whose numbers are all above 0.
std::optional<Costs> costs_from_record(std::string_view record);

}  // namespace mercer::plan::cpu
