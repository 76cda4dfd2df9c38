// Formulas whose gradients by both sides are one value of a pair times the points or their differences: functions of
// one sum of (x - z)^2 or of x z.
#pragma once

#include "ir/expr/expr.h"
#include "plan/cpu/forms.h"

namespace mercer::plan::cpu {

/// The derivative of such a formula by x[m, k] is slope (x - z), by z[n, k] its negative; or slope z, and slope x.
struct SumField {
  PairSum sum = PairSum::none;
  Expr slope;  // of the pair
  explicit operator bool() const { return sum != PairSum::none; }
};
/// An empty one of any other formula.
SumField sum_field(const Expr& formula);

}  // namespace mercer::plan::cpu
