// What a formula is, found once: the forms that ways of computing it look for.
#pragma once

#include <string>

#include "plan/forms/bilinear.h"

namespace mercer::plan {

struct Forms {
  int reductions = 0;               // over the features of both sides
  Bilinear gemm;                    // the only one of these, where it is a product of matrices
  double absolute_differences = 0;  // c where it is a sum of c |x - z|; 0 elsewhere
  Expr relative_slope;              // r where the formula is c exp(r s) of the only sum s; empty elsewhere
  std::string to_text() const;
};

/// The forms of a simplified formula of pairs.
Forms forms_of(const Expr& formula);

}  // namespace mercer::plan
