#include "plan/value_products.h"

#include <algorithm>

#include "core/integers.h"
#include "ir/expr.h"

namespace mercer::plan {
namespace {

/// Milliseconds of 10^9 pairs on an H200: passes make a value and multiply it with their columns; of stored ones the
/// part that is a product is read again as well, of very many columns examined and written in pieces before.
struct Costs {
  double pass, feature, store, stored_feature, column;
  std::int64_t multiple;  // of columns
  double of_passes(double features, std::int64_t columns) const {
    return static_cast<double>(ceil_div(columns, std::int64_t{kFewColumns})) * (pass + feature * features);
  }
  double of_stored(double features, std::int64_t columns) const {
    return store + stored_feature * features + column * static_cast<double>(round_up(columns, multiple));
  }
};
constexpr Costs kOfStored{2.2, 0.057, 2.6, 0.073, 0.023, 8};  // measured with sums of |x - z|
constexpr Costs kOfPieces{2.2, 0.057, 7, 0.075, 0.0098, 64};
constexpr Costs kOfFloat64{9.5, 0.04, 6, 0.04, 0.042, 32};    // with Gauss kernels, whose sums are products of matrices
const Costs& costs_of(Dtype type, std::int64_t columns) {
  return type == Dtype::float64 ? kOfFloat64 : stored_tile(columns) ? kOfStored : kOfPieces;
}

}  // namespace

double product_time(Dtype type, std::int64_t k, std::int64_t columns) {
  const Costs& costs = costs_of(type, columns);
  const double features = static_cast<double>(k), passes = costs.of_passes(features, columns);
  return columns <= kFewColumns ? passes : std::min(passes, costs.of_stored(features, columns));
}

bool pays_value_products(Dtype type, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                         bool of_sums, double from) {
  constexpr double kBeside = 0.12e9;  // of a call
  constexpr std::int64_t kLeastPoints = 1024;
  if (columns <= kFewColumns || m == 0 || n == 0) return false;
  if (from == 0) return true;
  if (std::min(m, n) < kLeastPoints) return false;
  const Costs& costs = costs_of(type, columns);
  const double features = of_sums ? 0 : static_cast<double>(k);
  const double beside = kBeside / (static_cast<double>(m) * static_cast<double>(n));
  return beside + costs.of_stored(features, columns) < costs.of_passes(features, columns);
}

BilinearTile stored_tile(std::int64_t columns) {
  constexpr std::int64_t kMost = 3 * kWideColumns, kMultiple = 8;
  if (columns > kMost) return {};
  BilinearTile tile{.columns = 128, .stages = 1, .wide_stages = 4, .of_values = true};
  tile.wide = static_cast<int>(round_up(ceil_div(columns, ceil_div(columns, std::int64_t{kWideColumns})), kMultiple));
  return tile;
}

int columns_of_doubles(std::int64_t columns) { return columns <= 32 ? 32 : 64; }

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
