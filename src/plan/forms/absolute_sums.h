// Sums of absolute differences: what of a split is one, and how a formula depends on it.
#pragma once

#include "ir/passes/split.h"
#include "mercer/tensor.h"

namespace mercer::plan {

/// c where the split is one sum of c |x - z|, c a positive number of `type` and x and z anything of one side; 0
/// elsewhere.
double factor_of_absolute_differences(const ir::Split& split, Dtype type = Dtype::float32);

/// f' / f where the epilogue is f = c exp(r s) of the only sum s, c and r free of points; empty elsewhere.
Expr relative_slope_of(const ir::Split& split);
/// |f / f'| where the epilogue is f = c exp(r s) of the only sum s, c and r free of points: added to s it bounds an
/// error of s that f does not notice, since f keeps 1e-6 (1 + |s f' / f|) of itself. Empty elsewhere.
Expr allowance_of(const ir::Split& split);

}  // namespace mercer::plan
