// What preconditioners of low rank are made of: an approximation U diag(l) U^T of k, and the ridges added to it.
//
//   P = U diag(l) U^T + (least + ridge) (1 - U U^T),   of k + ridge, l and ridge summed on U;
//   Nystrom's is P / (least + ridge), with what is left of k taken for its least eigenvalue; others have least = 0
//
// So P^-1 = scale (1 - U diag(w) U^T) with 1 - w = (least + ridge) / (l + ridge).
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "backend/low_rank.h"
#include "core/error.h"
#include "core/made_once.h"
#include "mercer/linalg.h"

namespace mercer::linalg {

struct LowRankParts {
  std::shared_ptr<const TallFactor> columns = {};  // U, with a column of zeros where its rank is 0; null where n is
  std::vector<double> values = {};            // l [rank], the largest first
  double least = 0;
  bool is_relative = false;
  double most_weight = 1;      // of w: what is known of U being orthonormal
  std::vector<double> ridges;  // one, or one for each column

  double outside(double ridge) const { return is_relative ? 1 : least + ridge; }
  /// 1 - w, which is exact where w is near 1.
  double kept(double value, double ridge) const {
    const double sum = value + ridge;
    return sum > 0 ? std::clamp((least + ridge) / sum, 1 - most_weight, 1.0) : 1;
  }
  /// The weights of P^-1, and of P^(1/2).
  LowRankWeights inverse() const;
  LowRankWeights root() const;

  /// Their maps, made when one is first asked for and kept; a copy of the parts, which may get other ridges, makes its
  /// own.
  struct KeptMap {
    LowRankWeights (LowRankParts::*weights)() const;
    MadeOnce<LowRankMap> made = {};
  };
  KeptMap inverse_map = {&LowRankParts::inverse}, root_map = {&LowRankParts::root};
  /// Throws where a map must be made on a stream whose work is captured.
  const LowRankMap& map(const KeptMap& kept, const char* op, const Queue& queue) const;
};

/// 1 / ridge is a factor of the inverse, so both must be normal numbers of the dtype.
inline void require_ridge(const char* op, double ridge, Dtype dtype) {
  const bool is_normal = dtype == Dtype::float32
                             ? std::isnormal(static_cast<float>(ridge)) && std::isnormal(static_cast<float>(1 / ridge))
                             : std::isnormal(ridge) && std::isnormal(1 / ridge);
  require(ridge > 0 && is_normal, "{}: ridge must be positive, and it and 1 / ridge normal numbers of {}. Received {}.",
          op, name_of(dtype), ridge);
}

/// The preconditioner of these parts.
Preconditioner preconditioner_of(LowRankParts parts, std::int64_t order, Dtype dtype, Device device);

}  // namespace mercer::linalg
