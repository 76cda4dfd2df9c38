#include "plan/rank_field.h"

#include <algorithm>

#include "core/integers.h"
#include "ir/passes.h"
#include "plan/gpu_field.h"

namespace mercer::plan {

RankField rank_field_of(const ir::FieldSplit& field) {
  const FieldFactors factors = factors_of(field.field);
  if (!factors || factors.linear == FieldFactors::Linear::none) return {};
  ir::ExprMap<Expr> values;
  for (int u = 0; u < static_cast<int>(field.uniforms.size()); ++u)
    values[ir::uniform_leaf(u)] = field.uniforms[static_cast<std::size_t>(u)];
  for (int p = 0; p < static_cast<int>(field.pair_outputs.size()); ++p)
    values[ir::leaf(ir::Op::pair_value, p)] = field.pair_outputs[static_cast<std::size_t>(p)];
  RankField result;
  result.amplitude = ir::simplify(ir::substitute(factors.amplitude, values));
  result.of_differences = factors.linear == FieldFactors::Linear::difference;
  result.weighted = factors.weighted;
  result.scale = factors.scale;
  return result;
}

BilinearTile rank_field_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                             std::int64_t factors, Precision precision, double from) {
  constexpr std::int64_t kLeastPoints = 256, kUnit = 32, kMultiple = 8;
  // What registers hold beside two sums of products: of 64 columns of the matrix, and of 128.
  constexpr int kColumnsOfPass = 80, kFewColumnsOfPass = 40;
  if (k <= kFewFeatures || k > kMostRankFeatures || m == 0 || n == 0 || precision == Precision::direct) return {};
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  if (from > 0 && (std::min(m, n) < kLeastPoints || work < from)) return {};
  BilinearTile tile{.columns = 64, .stages = 4, .wide_stages = 4};
  tile.wide = static_cast<int>(round_up(ceil_div(columns, ceil_div(columns, kColumnsOfPass)), kMultiple));
  tile.weight_units = factor_units(factors);
  if (k <= 2 * kUnit) {
    tile.brief = static_cast<int>(ceil_div(k, kUnit));
    tile.resident = true;
    tile.stages = 6;
    if (tile.wide <= kFewColumnsOfPass) tile.columns = 128, tile.stages = 4;
  }
  return tile;
}

}  // namespace mercer::plan
