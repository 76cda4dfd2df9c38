// Products and sums of the chain rule.
//
// A branch that is not taken must not reach a derivative, whatever its value: a factor that is 0 there is no help where
// another one is infinite or NaN. So a product with a condition, or a where that may be 0, is written as a where of
// products unless the other factor stays finite (ir/passes/bounded.h).
//
// A sum of such factors is 0 where all of them are. Written out it would grow with every level, so it stays a factor.
// That is right where both factors are of one branch, as values are and derivatives of what is read there. A reduction
// is computed for all pairs: its derivative dq may be NaN where no branch that is taken reads it, and one more where,
// of the condition that none does, keeps it out.
#pragma once

#include "ir/passes/passes.h"

namespace mercer::ir {

inline Expr shorten(const Expr& e) { return simplify_keeping_powers(e); }
inline bool is_zero(const Expr& e) { return e->op == Op::constant && e->value == 0; }
inline bool is_one(const Expr& e) { return is_constant(e, 1.0); }

/// a + b, of which a 0 is left out.
Expr plus(const Expr& a, const Expr& b);
/// partial * d, with each moved into the branches of a where: 0 stays 0 when the other is Inf or NaN there.
Expr times(const Expr& partial, const Expr& d);
/// 1 where no branch that `e` takes reads the reduction q, else 0: a constant where that is known.
Expr unread(const Expr& e, const Expr& q);
/// 1 where the terms t of a reduction read q at no feature, else 0.
Expr unread_by_all(const Expr& t, const Expr& q);
/// factor * dq, where dq is the derivative of a reduction that is not read where `unread` is 1.
Expr times_total(const Expr& factor, const Expr& dq, const Expr& unread);
/// The product at a feature, of the reduction q: one product of both wherever that may be.
Expr times_field(const Expr& factor, const Expr& dq, const Expr& q, const Expr& unread);

}  // namespace mercer::ir
