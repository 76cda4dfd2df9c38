// Whether a value is finite whatever its leaves are, short of their own infinities.
#pragma once

#include "ir/expr.h"

namespace mercer::ir {

/// True for values that finite leaves make finite: sums and differences of leaves, bounded functions, and their
/// products with numbers, weights and bounded functions. False where it is not known: of quotients, roots, logarithms,
/// exponentials, powers and products of points, which may overflow.
bool stays_finite(const Expr& e);

}  // namespace mercer::ir
