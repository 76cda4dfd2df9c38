// Gradient fields of a linear factor whose pairs weigh products of two factors, and those of few outputs, of a factor
// each (kernels/cuda/gradient/rank_field.cuh).
#pragma once

#include <cstdint>
#include <string>

#include "ir/passes/split.h"

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

}  // namespace mercer::plan
