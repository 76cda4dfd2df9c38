// What terms are multiplied with that reads the weights w alone: w, 1 / w^2 of length scales, exp(-2 w) of their
// logarithms.
#pragma once

#include <utility>
#include <vector>

#include "mercer/formula.h"

namespace mercer::plan {

class WeightFactors {
 public:
  /// Whether an expression of one feature reads w, and else constants at most.
  static bool is_weight(const Expr& e);
  void add(const Expr& e, bool divides);
  void multiply(const WeightFactors& other);

  bool empty() const { return powers_.empty(); }
  /// None has come to nothing, as of w / w, which is NaN where w is 0.
  bool stand() const;
  /// The product of the factors, which must not be empty.
  Expr product() const { return quotient(1, false); }
  /// The root of the product, up to its sign. Factors that are squared are none of what is under the root: they leave
  /// the range of floats later.
  Expr root() const;

 private:
  /// Each to its power divided by `by`; or to the rest of that. Empty where all of those are 0.
  Expr quotient(int by, bool rest) const;
  std::vector<std::pair<Expr, int>> powers_;
};

}  // namespace mercer::plan
