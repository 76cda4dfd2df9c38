// Derivatives of a user's reduce.
//
// separated  A state that follows nothing but itself, by a sum, a product, a maximum, a norm or a logsumexp, is one of
//            the known reductions. A reduce of such states is an expression of those, with their derivatives: by a
//            feature too, for what the term of one feature weighs follows from the final value.
// moved      Any reduce along anything but a feature: each state has its derivative b with it, which the partial
//            derivatives of the combine carry from feature to feature,
//              b'_s = sum_j dc_s/da_j b_j + dc_s/dt_j dt_j + (what c_s reads itself)
//            and those of `merge` and `finish` likewise. Exact where these have derivatives; by the rows of the op
//            table where they have not.
//
// By a feature of any other reduce the weight of term k is a product of the partial derivatives of all combines after
// it, which no value of the pair has.
#pragma once

#include <functional>

#include "ir/expr/expr.h"

namespace mercer::ir {

/// r as an expression of known reductions, or an empty one.
Expr separated(const Expr& r);

/// The derivative of expressions along one thing, the states and terms of a reduce held.
using Derivative = std::function<Expr(const Expr&)>;
/// That of r, whose terms and parts have these.
Expr moved(const Expr& r, const Derivative& along);

}  // namespace mercer::ir
