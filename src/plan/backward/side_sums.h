// What one pass of a backward has in addition to its gradient.
#pragma once

#include <string>
#include <vector>

#include "ir/passes/split.h"

namespace mercer::plan {

/// The formula's derivatives by these leaves, added up, the product with v, and the sums by the weights w.
/// `without_weight`: the gradient lacks its factor of w (plan/backward/weight_form.h).
struct SideSums {
  std::vector<Expr> by;
  bool product = false, weights = false;
  bool without_weight = false;

  /// Whether there are sums of one value a pair.
  bool has_sums() const { return !by.empty() || product; }
  bool any() const { return has_sums() || weights; }
  /// Text for keys of caches.
  std::string names() const;
};

/// The field of a formula's gradient, `derivative` by the points x, and that of the sums by w, where these are asked
/// for.
ir::FieldSplit field_of(const Expr& formula, const Expr& derivative, const SideSums& side_sums, double most_scale = 0);
/// The values of the pairs that the other sums are of, the product's last.
void add_outputs(std::vector<Expr>& outputs, const Expr& formula, const SideSums& side_sums);

}  // namespace mercer::plan
