// Sums of several terms, written as one: what a product of two matrices computes becomes a sum of its own.
//
//   sum(A + B + p + q + c)  =  sum(A) + sum(B) + sum(p) + sum(q) + c K         A, B bilinear (plan/forms/bilinear.h),
//   sum((x + z)^2)          =  sum((x - (-z))^2)                               p of x, q of z, c of neither
#pragma once

#include "ir/expr/expr.h"

namespace mercer::plan {

/// The output with such sums apart; the given one where there are none. Terms must be rounded themselves, all but
/// one: parts may be larger than their sum by what terms lose anyway, and by no more.
Expr separate_sums(const Expr& output);

}  // namespace mercer::plan
