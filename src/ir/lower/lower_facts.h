// What lowering may know about the value of an expression, from its shape and the promises in LowerOptions.
#pragma once

#include "ir/lower/lower_math.h"
#include "ir/passes/passes.h"

namespace mercer::ir {

class Facts {
 public:
  explicit Facts(const LowerOptions& options) : options_(options) {}

  /// A bound on |e| that holds in the program's type; Inf when none is known. A finite bound also excludes NaN.
  double bound(const Expr& e);
  bool never_nan(const Expr& e) { return bound(e) <= largest(); }
  Range range(const Expr& e);
  /// Whether e is a difference of narrow streams.
  bool narrow(const Expr& e) const {
    return options_.assume_narrow && is_difference(e);
  }
  /// Whether e cannot be a subnormal number: an accumulator with that promise, or made of coarse streams.
  bool normal(const Expr& e) const;
  bool promised_normal(const Expr& e) const;

 private:
  double largest() const { return options_.type == Dtype::float64 ? 1e300 : 3e38; }
  double bound_of(const Expr& e);
  Range range_of(const Expr& e);
  bool nonnegative(const Expr& e) { return range(e) == Range::nonnegative; }
  bool nonpositive(const Expr& e) { return range(e) == Range::nonpositive; }

  const LowerOptions& options_;
  ExprMap<double> bounds_;
  ExprMap<Range> ranges_;
};

}  // namespace mercer::ir
