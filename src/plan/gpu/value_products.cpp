#include "plan/gpu/value_products.h"

#include <algorithm>

#include "core/integers.h"
#include "ir/expr/expr.h"

namespace mercer::plan {
namespace {

/// `reads`: the device has the tile that reads values where they lie.
const ValueCosts& costs_of(const Costs& costs, Dtype type, std::int64_t columns, bool reads = true) {
  if (type == Dtype::float64) return costs.float64;
  return reads && stored_tile(columns, costs) ? costs.stored : costs.pieces;
}

double of_passes(const ValueCosts& costs, double features, std::int64_t columns) {
  return static_cast<double>(ceil_div(columns, std::int64_t{kFewColumns})) * (costs.pass + costs.feature * features);
}

double of_stored(const ValueCosts& costs, double features, std::int64_t columns) {
  return costs.store + costs.stored_feature * features +
         costs.column * static_cast<double>(round_up(columns, costs.multiple));
}

}  // namespace

ValueTimes value_times(const Costs& costs, const Request& request, bool of_sums) {
  const bool has_warpgroups = request.device.capability == kOfWarpgroups && !request.device.by_warps;
  const ValueCosts& own = costs_of(costs, request.type, request.columns, has_warpgroups);
  const double features = of_sums ? 0 : static_cast<double>(request.k), billions = request.pairs() * 1e-9;
  return {billions * of_passes(own, features, request.columns),
          costs.stored_call + billions * of_stored(own, features, request.columns)};
}

ValueTimes value_times(const Costs& costs, const Request& request, std::int64_t passes, std::int64_t pass_columns) {
  const KeptCosts& kept = costs.kept;
  const ValueCosts& own = costs_of(costs, request.type, request.columns);
  const double billions = request.pairs() * 1e-9, features = kept.feature * static_cast<double>(request.k);
  const double pass = kept.pass + features + kept.pass_column * static_cast<double>(pass_columns);
  const double columns = own.column * static_cast<double>(round_up(request.columns, own.multiple));
  return {billions * static_cast<double>(passes) * pass,
          costs.stored_call + billions * (own.store + features + columns)};
}

double product_time(const Costs& costs, Dtype type, std::int64_t k, std::int64_t columns) {
  const ValueCosts& own = costs_of(costs, type, columns);
  const double features = static_cast<double>(k), passes = of_passes(own, features, columns);
  return columns <= kFewColumns ? passes : std::min(passes, of_stored(own, features, columns));
}

BilinearTile stored_tile(std::int64_t columns, const Costs& costs) {
  constexpr std::int64_t kMultiple = 8;
  if (columns > costs.stored_columns) return {};
  BilinearTile tile{.columns = 128, .stages = 1, .wide_stages = 4, .of_values = true};
  tile.wide = static_cast<int>(round_up(ceil_div(columns, ceil_div(columns, std::int64_t{kWideColumns})), kMultiple));
  return tile;
}

LinearSizes value_product_sizes(std::int64_t m, std::int64_t n, std::int64_t columns, std::int64_t part_bytes,
                                int multiprocessors) {
  constexpr std::int64_t kFloat = 4, kRows = 128, kColumns = 192, kUnit = 64, kLeast = 1024, kMost = 16384;
  LinearSizes sizes;
  sizes.columns = linear_columns(columns, false);
  const std::int64_t strips = ceil_div(columns, kColumns);
  // All parts have about as many rows.
  const std::int64_t wave = std::max<std::int64_t>(multiprocessors / strips, 1) * kRows;
  const std::int64_t parts = std::max<std::int64_t>(ceil_div(m, wave), 1);
  const std::int64_t filling = std::min(m, round_up(ceil_div(m, parts), kRows));
  const std::int64_t fitting = (part_bytes / (kFloat * filling) - sizes.columns) / 2 / kUnit * kUnit;
  const std::int64_t most = std::clamp(fitting, kLeast, kMost);
  sizes.points = std::min(n, round_up(ceil_div(n, std::max<std::int64_t>(1, ceil_div(n, most))), kUnit));
  sizes.fits = sizes.columns * sizes.points * kFloat <= 2 * part_bytes;
  const std::int64_t rows = part_bytes / std::max<std::int64_t>(1, sizes.row_bytes());
  sizes.rows = std::min(filling, std::max<std::int64_t>(1, rows / kRows) * kRows);
  return sizes;
}

ir::FieldSplit value_product_field() {
  ir::FieldSplit field;
  field.field = ir::leaf(ir::Op::pair_value, 0) * points().z;
  return field;
}

}  // namespace mercer::plan
