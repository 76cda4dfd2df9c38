// Formulas that are linear in x and in z: inner products, with weights of the features and factors of the points, as
// cosines and correlations are of points that have been taken apart (ir/passes/point_form.h).
#pragma once

#include "mercer/formula.h"

namespace mercer::plan {

/// f = offset + scale [row] [col] sum(c(w) x z), with row and col where these are factors.
struct LinearForm {
  double scale = 0, offset = 0;
  bool of_row = false, of_col = false;
  Expr weight, slope;  // c and its derivative, over row in place of w; empty where the sum has none
  explicit operator bool() const { return scale != 0; }
};
/// An empty one where it is no such formula.
LinearForm linear_form(const Expr& f);

}  // namespace mercer::plan
