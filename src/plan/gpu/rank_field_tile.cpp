#include "plan/gpu/rank_field_tile.h"

#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

std::int64_t rank_outputs(std::int64_t outputs, std::int64_t columns) {
  const std::int64_t most = std::max<std::int64_t>(1, kWideColumns / columns);
  return ceil_div(outputs, ceil_div(outputs, most));
}

bool pays_rank_outputs(std::int64_t outputs, std::int64_t columns, const GradientCosts& costs) {
  const std::int64_t of_pass = rank_outputs(outputs, columns);
  const std::int64_t passes = ceil_div(outputs, of_pass) * ceil_div(columns, kWideColumns);
  return costs.rank_pass * static_cast<double>(passes) <=
         costs.rank_stored + costs.rank_output * static_cast<double>(outputs);
}

BilinearTile rank_field_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                             const FieldWeights& weights, Precision precision, const Costs& costs, bool has_extra) {
  constexpr std::int64_t kUnit = 32, kMultiple = 8;
  // What registers hold next to two sums of products: of 64 columns of the matrix, and of 128. Without weights there is
  // one.
  constexpr int kColumnsOfPass = 80, kFewColumnsOfPass = 40, kColumnsOfFourStages = 80;
  constexpr int kMostResidentUnits = 2;  // of weights: more of them pass by with the points, some stages at a time
  const GradientCosts& own = costs.gradient;
  if (k <= kFewFeatures || k > own.rank_features || m == 0 || n == 0 || precision == Precision::direct) return {};
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double from = costs.tensor_cores_from;
  if (from > 0 && (std::min(m, n) < own.rank_points || work < from)) return {};
  BilinearTile tile{.columns = 128, .stages = 4, .wide_stages = 4, .spreads = true};
  const std::int64_t factors = weights.kind == FieldWeights::Kind::factors ? weights.count : 1;
  tile.weight_units = factor_units(factors);
  tile.weight_matrix = weights.of_matrix();
  const bool weighs = tile.weight_units > 0 || tile.weight_matrix;
  if (has_extra) tile.extra = static_cast<int>(round_up(factors, kMultiple));
  tile.wide = static_cast<int>(
      round_up(ceil_div(columns, ceil_div(columns, weighs ? kColumnsOfPass : kWideColumns)), kMultiple));
  const bool is_brief = k <= 2 * kUnit && tile.weight_units <= kMostResidentUnits;
  if (is_brief) {
    tile.brief = static_cast<int>(ceil_div(k, kUnit));
    tile.resident = true;
    if (weighs && tile.wide + tile.extra > kFewColumnsOfPass) tile.columns = 64, tile.stages = 6;
  } else if (weighs) {
    tile.columns = 64;
  } else if (tile.wide > kColumnsOfFourStages) {
    tile.stages = 3;  // shared memory has no room for more
  }
  return tile;
}

}  // namespace mercer::plan
