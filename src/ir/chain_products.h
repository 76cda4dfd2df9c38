// Products and sums of the chain rule.
//
// A branch that is not taken must not reach a derivative, whatever its value: a factor that is 0 there is no help where
// another one is infinite or NaN. So a product with a condition, or a where that may be 0, is written as a where of
// products unless the other factor stays finite (ir/bounded.h).
#pragma once

#include "ir/passes.h"

namespace mercer::ir {

inline Expr shorten(const Expr& e) { return simplify_keeping_powers(e); }
inline bool is_zero(const Expr& e) { return e->op == Op::constant && e->value == 0; }
inline bool is_one(const Expr& e) { return is_constant(e, 1.0); }

/// a + b, of which a 0 is left out.
Expr plus(const Expr& a, const Expr& b);
/// partial * d, with each moved into the branches of a where: 0 stays 0 when the other is Inf or NaN there.
Expr times(const Expr& partial, const Expr& d);
/// factor * dq, where dq is the derivative of the reduction q at a feature: one product of both wherever that may be.
Expr times_field(const Expr& factor, const Expr& dq, const Expr& q);

}  // namespace mercer::ir
