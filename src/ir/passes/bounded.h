// Whether a value is finite whatever its leaves are, short of their own infinities.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// True for values that finite leaves make finite: sums and differences of leaves, bounded functions, and their
/// products with numbers, weights and bounded functions. False where it is not known: of quotients, roots, logarithms,
/// exponentials, powers and products of points, which may overflow.
bool stays_finite(const Expr& e);

/// True for values that finite leaves make finite unless they overflow: divisors, roots and logarithms are of what
/// cannot be 0 or negative, or are chosen by a where that asks for that 0.
bool has_no_poles(const Expr& e);

}  // namespace mercer::ir
