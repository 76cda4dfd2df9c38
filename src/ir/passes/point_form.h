// Formulas as functions of other points: what a cosine or a correlation reads of x and z are points of length one, or
// centred ones, and a value of each (their norms).
//
//   f(x, z) = formula(x', z', row, col)     x'[m, k] = (x[m, k] - shift[m]) * scale[m],   row[m] = value[m]
//
// with shift, scale and value functions of x[m], weights and parameters; z' and col are the same of z. Then derivatives
// by x' and row are those of a formula that has no sums of one side, and x' and row are no work next to the pairs.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

struct PointForm {
  /// Expressions over x, for z too; empty where there is none.
  struct Side {
    Expr shift, scale, value;
    bool is_plain() const { return shift.empty() && scale.empty() && value.empty(); }
  };
  Expr formula;
  Side x, z;
  explicit operator bool() const { return !formula.empty(); }
};

/// An empty one where the points are read as they are, or in several ways or another one.
PointForm point_form(const Expr& f);

}  // namespace mercer::ir
