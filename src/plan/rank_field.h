// Gradient fields of a linear factor whose pairs weigh products of two factors (kernels/cuda/rank_field.cuh).
#pragma once

#include "ir/split.h"
#include "plan/bilinear.h"

namespace mercer::plan {

/// φ = scale [w] amplitude (x - z), or times z.
struct RankField {
  Expr amplitude;  // a formula of the points; empty where φ has no such form
  bool of_differences = true, weighted = false;
  double scale = 1;
  int feature_blocks = 1;  // of 64 features, of rows that are computed by differences

  explicit operator bool() const { return !amplitude.empty(); }
  /// Of the product that contracts it.
  std::int64_t columns(std::int64_t k) const { return k + of_differences; }
};
RankField rank_field_of(const ir::FieldSplit& field);

/// Factors of a pass: a unit of 32 of them, or two.
inline int factor_units(std::int64_t factors) { return factors > 32 ? 2 : 1; }
/// More features are more passes over the pairs, and stored amplitudes pay.
inline constexpr std::int64_t kMostRankFeatures = 160;
/// The tile of that product; an empty one where it does not pay.
BilinearTile rank_field_tile(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns,
                             std::int64_t factors, Precision precision, double from = kTensorCoresFrom);

}  // namespace mercer::plan
