// Norms whose sums of powers leave the range of numbers before they do.
//
//   S = sum over k of w |t|^p,  p > 1        S^(1/p) = L s^(1/p)    L = max |t|,  s = sum of w (|t| / L)^p
//
// L and s are the two states of one pass, as in LAPACK's nrm2: L' = max(L, |t|), s' = s (L/L')^p + w (|t|/L')^p. What
// leaves the range later than S does is written as a function of the norm: roots, powers with exponents between -1 and
// 1, and logarithms.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// weight * |base|^power; the weight reads no points.
struct PowerTerm {
  Expr weight, base;
  double power = 0;
  explicit operator bool() const { return !base.empty(); }
};

/// What a simplified term is, if it is such a power of one base, never negative but for its weight; else an empty one.
PowerTerm read_power_term(const Expr& term);

/// A sum of powers of one base.
struct SumOfPowers {
  Expr sum, base;
  double power = 0;
  explicit operator bool() const { return !sum.empty(); }
};
/// The only sum over pairs of powers above 1 that e is, times anything that does not read it; else an empty one.
SumOfPowers sum_of_powers(const Expr& e);

/// p, or the half integer that it is but for rounding.
double rounded_exponent(double p);

/// A simplified formula with what leaves the range later than such a sum written by its norm. Its values are the same
/// in exact arithmetic, zeros, infinities and NaN included. It is `e` itself where there is nothing to write so.
Expr safe_norms(const Expr& e);

}  // namespace mercer::ir
