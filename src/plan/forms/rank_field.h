// Gradient fields of a linear factor whose pairs weigh products of two factors, and those of few outputs, of a factor
// each (kernels/cuda/gradient/rank_field.cuh).
#pragma once

#include <algorithm>

#include "core/integers.h"
#include "ir/passes/split.h"
#include "plan/forms/bilinear.h"
#include "plan/gpu/field.h"

namespace mercer::plan {

/// φ = scale [weight] amplitude (x - z), or times z.
struct RankField {
  Expr amplitude;  // a formula of the points; empty where φ has no such form
  Expr weight;  // of w alone; empty: none
  std::string weight_text;  // which names kernels
  bool of_differences = true;
  double scale = 1;
  int feature_blocks = 1;  // of 64 features, of rows that are computed by differences

  explicit operator bool() const { return !amplitude.empty(); }
  /// Columns of the product that contracts it.
  std::int64_t columns(std::int64_t k) const { return k + of_differences; }
};
RankField rank_field_of(const ir::FieldSplit& field);

/// Factors of a pass, in units of 32. A single one is that of the columns, and of the result.
inline constexpr std::int64_t kFactorsOfUnit = 32, kMostFactorUnits = 32;
inline int factor_units(std::int64_t factors) {
  return factors <= 1 ? 0 : static_cast<int>(std::min(ceil_div(factors, kFactorsOfUnit), kMostFactorUnits));
}
/// Columns of v, more than one, whose product a pass has beside (BilinearTile::beside).
inline constexpr std::int64_t kMostBeside = 16;
/// Outputs of a pass with single factors, each with so many columns.
std::int64_t rank_outputs(std::int64_t outputs, std::int64_t columns);
/// Whether so many outputs take less time than of stored amplitudes (plan/gpu/field.h).
bool pays_rank_outputs(std::int64_t outputs, std::int64_t columns, const GradientCosts& costs);
/// The tile of that product, with those of the factors themselves beside it, or without; an empty one where it does not
/// pay.
BilinearTile rank_field_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                             const FieldWeights& weights, Precision precision, const Costs& costs,
                             bool beside = false);

}  // namespace mercer::plan
