// Costs as text: what a device's own row says that differs from that of its generation.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

/// A line for the version, then one for each number that is not that of `base`: its name and value.
std::string costs_record(const Costs& costs, const Costs& base);
/// `base` with the numbers of a record; nothing for any other text: an unknown name, a number that is negative or not
/// finite, or a fraction where the row counts.
std::optional<Costs> costs_from_record(std::string_view record, const Costs& base);

}  // namespace mercer::plan
