#include "plan/gpu/sums/bilinear_tile.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/integers.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

double bilinear_time(const BilinearTile& tile, std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors,
                 const Costs& costs) {
  const TensorCoreCosts& own = costs.tensor_cores;
  const double product = tile.columns >= 192   ? own.wide_tile
                         : tile.columns >= 128 ? own.middle_tile
                                               : own.narrow_tile;
  const std::int64_t tiles = ceil_div(m, BilinearTile::kRows * tile.cluster) * ceil_div(n, tile.columns);
  const int ranges = feature_ranges(tile, tiles, k, multiprocessors, costs);
  const double waves = static_cast<double>(ceil_div(tiles * ranges, multiprocessors / tile.cluster));
  const double features = static_cast<double>(k) / ranges, joins = ranges > 1 ? ranges : 0;
  return waves * (tile.columns * (product * features + own.tile_epilogue + own.tile_join * joins) + own.tile_start);
}

namespace {

/// Epilogues of few features are most of the work: two blocks take turns.
constexpr std::int64_t kUnit = 32, kChunk = 2 * kUnit;
BilinearTile brief_tile(std::int64_t k) {
  return {.columns = 128, .stages = 2, .cluster = 1, .blocks = 2, .brief = static_cast<int>(ceil_div(k, kUnit))};
}

/// Columns of v whose sums leave room for a second block.
constexpr int kOfTwoBlocks = 16;

/// Columns of v that are multiplied without tensor cores.
constexpr int kMostSimdColumns = 4;
static_assert(kLeastWideColumns == kMostSimdColumns + 1);

/// All passes take about as many columns. A pass with the most of them takes `longer` as long.
int wide_columns(std::int64_t columns, double longer) {
  constexpr std::int64_t kMultiple = 8;
  const std::int64_t most = ceil_div(columns, kWideColumns), least = ceil_div(columns, kMostWideColumns);
  const std::int64_t passes = static_cast<double>(most) > longer * static_cast<double>(least) ? least : most;
  return static_cast<int>(round_up(ceil_div(columns, passes), kMultiple));
}

/// Fewest features of products with v: of fewer the values are made pair by pair.
constexpr std::int64_t kLeastOfProducts = kFewFeatures + 1;

/// Whether values are stored once, instead of made for every pass over the columns: a pass makes values and multiplies
/// them with its columns, of a product with all columns they are rounded up. Where all sizes run on tensor cores, the
/// kernels of a call cost nothing.
bool pays_kept_values(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns, int pass,
                      const Costs& costs) {
  constexpr double kBillion = 1e9;
  constexpr std::int64_t kRows = 256;
  const KeptCosts& own = costs.kept;
  const double from = costs.tensor_cores_from;
  if (from > 0 && m < own.least_rows) return false;
  const double features = own.feature * static_cast<double>(k), passes = static_cast<double>(ceil_div(columns, pass));
  const double call = from > 0 ? own.call * kBillion / (static_cast<double>(m) * static_cast<double>(n)) : 0;
  const double all = call + own.store + features + own.column * static_cast<double>(round_up(columns, kRows));
  return all < own.gain * passes * (own.pass + features + own.pass_column * pass);
}

bool pays_tensor_cores(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t least_k, Precision precision,
                       const Costs& costs) {
  constexpr std::int64_t kMostFeatures = 1 << 17;
  const double from = costs.tensor_cores_from;
  if (k < least_k || k > kMostFeatures || m == 0 || n == 0 || precision == Precision::direct) return false;
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return from == 0 || (std::min(m, n) >= costs.tensor_cores.least_points && work >= from);
}

}  // namespace

int feature_ranges(const BilinearTile& tile, std::int64_t tiles, std::int64_t k, int multiprocessors,
                   const Costs& costs) {
  const TensorCoreCosts& own = costs.tensor_cores;
  if (tile.brief > 0 || tile.by_warps || tiles == 0) return 1;
  const std::int64_t filling = multiprocessors / (tiles * tile.cluster);
  return static_cast<int>(std::clamp<std::int64_t>(std::min(filling, k / own.range_features), 1, own.most_ranges));
}

std::int64_t BilinearTile::shared_bytes(int col_slots, int product_columns) const {
  constexpr std::int64_t kRowBytes = 128, kWarps = 8, kValues = 2048, kRowsOfWarp = 16, kFloat = 4;
  const std::int64_t of_warp = product_columns > 0 ? kRowsOfWarp * product_columns * kFloat : kValues;
  const std::int64_t plane = columns + (product_columns > kMostSimdColumns ? 8 : 0);
  const std::int64_t rows = resident ? stages * columns + (2 + weight_units) * kRows : stages * (kRows + columns);
  if (wide > 0) {
    const std::int64_t of_v = wide_stages * (v_bytes(VPieces::floats) + 16);
    if (of_values) return of_v + stages * ((col_slots + product_columns) * columns * kFloat + 16);
    const int planes = 3 + col_slots + spreads + (side_sums > 0);
    const std::int64_t of_weights = weight_matrix ? kWarps * (kRowsOfWarp + 4) * columns * kFloat : 0;
    return rows * kRowBytes + of_v + planes * columns * kFloat + of_weights + 16 * stages + 32;
  }
  const std::int64_t of_columns = (last_feeds ? 2 : 1) * (3 + col_slots + product_columns) * plane * kFloat;
  return rows * kRowBytes + kWarps * of_warp + of_columns + 16 * stages + 32;
}

std::string BilinearTile::to_text() const {
  std::string text = fmt::format("{}x{} {} stages, {} a cluster, {} blocks", kRows, columns, stages, cluster, blocks);
  if (wide > 0) text += fmt::format(", {} columns of v", wide);
  if (wide_stages > 0) text += fmt::format(" in {} stages", wide_stages);
  if (brief > 0) text += fmt::format(", brief of {}", brief);
  if (resident) text += ", x resident";
  if (single) text += ", single";
  if (last_feeds) text += ", fed by the last";
  if (areas) text += ", repairs by areas";
  if (keeps) text += ", values stored";
  if (own_scales) text += ", a scale a column";
  if (by_warps) text += ", by warps";
  if (spreads) text += ", spreads";
  if (side_sums > 0) text += fmt::format(", {} side sums", side_sums);
  if (extra > 0) text += fmt::format(", {} columns of one more value", extra);
  if (weight_units > 0) text += fmt::format(", weights of {} units", weight_units);
  if (weight_matrix) text += ", weights of a matrix";
  return text;
}

BilinearTile BilinearTile::of_warps(int col_slots, int product_columns, std::int64_t shared_per_block) const {
  constexpr int kMostStages = 4, kLeastStages = 2;
  BilinearTile tile{.columns = 128, .stages = kMostStages, .cluster = 1, .single = single, .by_warps = true,
                    .own_scales = own_scales, .areas = areas};
  const auto fits = [&] { return tile.shared_bytes(col_slots, product_columns) <= shared_per_block; };
  while (!fits() && tile.stages > kLeastStages) --tile.stages;
  return fits() ? tile : BilinearTile{};
}

BilinearTile bilinear_tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision, int multiprocessors,
                           const Costs& costs, std::int64_t rows) {
  constexpr double kMostPairs = 17179869184.0;  // 2^34: lists of up to 7 GiB, an eighth of the output
  if (!pays_tensor_cores(m, n, k, costs.tensor_cores.pairs_features, precision, costs)) return {};
  if (rows > 0) m = std::min(m, rows);
  if (static_cast<double>(m) * static_cast<double>(n) > kMostPairs) return {};
  constexpr BilinearTile kTiles[] = {
      {.columns = 192}, {.columns = 128, .stages = 6, .cluster = 1}, {.columns = 64, .stages = 8, .cluster = 1}};
  BilinearTile tile = brief_tile(k);
  tile.last_feeds = k <= kChunk;
  if (k > kChunk) {
    double least = std::numeric_limits<double>::infinity();
    for (const BilinearTile& tried : kTiles) {
      const double time = bilinear_time(tried, m, n, k, multiprocessors, costs);
      if (time >= least) continue;
      least = time;
      tile = tried;
    }
  }
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const bool fill = ceil_div(m, kArea) * ceil_div(n, kArea) >= 2 * multiprocessors;
  tile.areas = k > kChunk && (costs.tensor_cores_from == 0 || (work >= costs.tensor_cores.fixup_from && fill));
  tile.single = precision != Precision::fp32;
  return tile;
}

BilinearTile bilinear_fold_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                                Precision precision, const Costs& costs) {
  const std::int64_t least = columns > 0 ? kLeastOfProducts : costs.tensor_cores.folds_features;
  if (!pays_tensor_cores(m, n, k, least, precision, costs)) return {};
  BilinearTile tile{.columns = 192};
  if (columns > kMostSimdColumns) {
    const TensorCoreCosts& own = costs.tensor_cores;
    tile = {.columns = 128, .stages = 4, .wide_stages = 4};
    tile.wide = wide_columns(columns, k <= kChunk ? own.most_columns_of_few : own.most_columns);
    if (tile.wide > kWideColumns)
      tile.columns = 64;
    else if (tile.wide > (k <= kChunk ? 64 : 96))
      tile.stages = 3;  // shared memory has no room for more
    if (k <= kChunk) {
      tile.brief = static_cast<int>(ceil_div(k, kUnit));
      tile.resident = true;
      if (tile.wide <= kOfTwoBlocks) tile.columns = 64, tile.cluster = 1, tile.blocks = 2;
    }
    tile.keeps = precision == Precision::fp32 && pays_kept_values(m, n, k, columns, tile.wide, costs);
  } else if (k <= kChunk) {
    tile = brief_tile(k);
    tile.resident = true;
    tile.stages = 4;
  }
  tile.single = precision != Precision::fp32;
  return tile;
}

BilinearTile kept_values_tile(const BilinearTile& product) {
  return product.brief > 0 ? brief_tile(product.brief * kUnit) : BilinearTile{.columns = 192};
}

BilinearTile bilinear_nearest_tile(std::int64_t m, std::int64_t n, std::int64_t k, Precision precision,
                                   const Costs& costs) {
  if (!pays_tensor_cores(m, n, k, costs.tensor_cores.pairs_features, precision, costs)) return {};
  BilinearTile tile = k <= kChunk ? brief_tile(k) : BilinearTile{.columns = 192};
  tile.single = precision != Precision::fp32;
  return tile;
}

BilinearTile wide_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns, Precision precision,
                       const Costs& costs) {
  const double pairs = static_cast<double>(m) * static_cast<double>(n);
  if (k < 1 || k > kFewFeatures || columns < kLeastWideColumns || precision == Precision::direct) return {};
  if (pairs < costs.wide_from) return {};
  BilinearTile tile{.columns = 128, .stages = 2, .wide_stages = 4, .of_values = true};
  tile.wide = wide_columns(columns, costs.tensor_cores.most_columns_of_values);
  if (tile.wide <= kOfTwoBlocks && k <= kOfTwoBlocks / 2) tile.cluster = 1, tile.blocks = 2;
  return tile;
}

}  // namespace mercer::plan
