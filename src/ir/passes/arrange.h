// Products of a field sorted by what they depend on, so that A * φ can be read off.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// Rewrites each product of a field as (number * values of the pair) * (values at the feature). Equal up to rounding.
Expr arrange_field(const Expr& field);

}  // namespace mercer::ir
