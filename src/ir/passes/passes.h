// Passes over expressions. Each takes and returns values; verify() may stand between any two of them.
#pragma once

#include <cstdint>

#include "ir/expr/expr.h"

namespace mercer::ir {

/// What an expression is a formula of: values of pairs; of pairs and features; such values, combined over the points n
/// by its outermost operation (ir/passes/fold.h).
enum class Form : std::uint8_t { pairs, field, fold };

/// Constant folding, algebraic rules, canonical order of commutative arguments. Bit-exact on NaN, Inf and zeros.
Expr simplify(const Expr& e);
/// As `simplify`, but pow with a constant exponent stays pow, whose derivative is shorter than that of products.
Expr simplify_keeping_powers(const Expr& e);

/// Throws Error(invalid_argument) with the broken rule: a state leaf outside reduce, a two-sided reduction inside
/// another one, x or z outside reductions (but in a field or a fold), wrong arity, internal leaves in a user formula.
void verify(const Expr& e, Form form = Form::pairs);

/// The derivative at t = 0 with the feature `variable` (x, z, w) replaced by variable + t * direction at every k, where
/// `direction` is another feature: a leaf w with a slot above 0, say. A formula like any other, if `expression` is one.
Expr differentiate_along(const Expr& expression, const Expr& variable, const Expr& direction);

/// `differentiate` without verify(): the sum(t * φ) of a field φ may have reductions of both sides inside that sum.
Expr differentiate_made(const Expr& expression, const Expr& variable);

/// Fields of one pass of the pairs, with what they compare with values of that pass pinned, in both.
std::vector<Expr> pin_compared(const std::vector<Expr>& fields);

/// True when swapping (x, row, i) with (z, col, j) leaves the simplified expression unchanged.
bool is_symmetric(const Expr& e);

/// True when the value is never negative and never -0 (it may be NaN).
bool is_nonnegative(const Expr& e);
/// x - z, x + z or their magnitude: of kNarrow streams it is 0 or at least 2^-kNarrowBits.
bool is_difference(const Expr& e);
bool is_nonnegative(const Expr& e, ExprMap<bool>& memo);  ///< for many questions about one graph
/// True when the value strictly rises with the only accumulator, which may be known never to be negative, and reads no
/// parameter, which might have any sign.
bool rises_with_accumulator(const Expr& e, bool nonnegative);

/// Which leaves an expression reads, reductions included.
inline const Uses& uses(const Expr& e) { return e->uses; }
/// Whether `e` is of parameters, K and constants alone.
inline bool is_uniform(const Expr& e) {
  const Uses& u = e->uses;
  return !(u.x || u.z || u.w || u.row || u.col || u.index_i || u.index_j || u.state || u.accumulator || u.ptx ||
           u.reduction);
}

}  // namespace mercer::ir
