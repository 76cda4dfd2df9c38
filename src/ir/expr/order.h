// A total order of expressions by structure alone: the same in every run, equal to 0 exactly for equal expressions.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// Negative, 0 or positive. Constants come first, then leaves as Op lists them (x, z, w, …), then ops.
int compare(const Expr& a, const Expr& b);

}  // namespace mercer::ir
