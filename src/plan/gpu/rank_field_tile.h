// Tiles of gradient fields that products contract (plan/forms/rank_field.h), and when they pay.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/integers.h"
#include "mercer/device.h"
#include "plan/forms/rank_field.h"
#include "plan/gpu/field.h"
#include "plan/gpu/sums/bilinear_tile.h"

namespace mercer::plan {

/// Factors of a pass, in units of 32. A single one is that of the columns, and of the result.
inline constexpr std::int64_t kFactorsOfUnit = 32, kMostFactorUnits = 32;
inline int factor_units(std::int64_t factors) {
  return factors <= 1 ? 0 : static_cast<int>(std::min(ceil_div(factors, kFactorsOfUnit), kMostFactorUnits));
}
/// Columns of v, more than one, whose product a pass yields as well (BilinearTile::extra).
inline constexpr std::int64_t kMostExtraColumns = 16;
/// Outputs of a pass with single factors, each with so many columns.
std::int64_t rank_outputs(std::int64_t outputs, std::int64_t columns);
/// Whether so many outputs take less time than of stored amplitudes (plan/gpu/field.h).
bool pays_rank_outputs(std::int64_t outputs, std::int64_t columns, const GradientCosts& costs);
/// The tile of that product, with those of the factors themselves, or without; an empty one where it does not
/// pay.
BilinearTile rank_field_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                             const FieldWeights& weights, Precision precision, const Costs& costs,
                             bool has_extra = false);

}  // namespace mercer::plan
