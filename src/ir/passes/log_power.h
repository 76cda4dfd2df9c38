// Powers that are written with a logarithm: exp(p log t) and exp2(p log2 t).
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// base^exponent; both are empty where there is none.
struct LogPower {
  Expr base, exponent;
};

/// What a simplified e of the form exp(p log t) or exp2(p log2 t) says, for t known never to be negative. Factors and
/// signs may stand anywhere in the product, and divisors.
LogPower read_log_power(const Expr& e, ExprMap<bool>& nonnegative);

/// A simplified expression with those of a constant exponent, finite and not 0, as powers. Zeros, infinities and NaN
/// give what they gave; other values differ by what the logarithm's rounding cost, |p log t| units. An exponent of 0 is
/// left: 2^(0 log2 0) is NaN, and 0^0 is 1.
Expr with_log_powers(const Expr& e);

}  // namespace mercer::ir
