// Powers of GPU programs whose exponents are numbers, or parameters that the device looks at.
#pragma once

#include "plan/gpu/plan.h"

namespace mercer::plan {

/// Gives a plan that has its update `alternative`: fixed powers by table and polynomial, for as many pairs as keep the
/// special-function unit and the other pipes equally busy; and `powers` where the exponent is a parameter. `options`
/// are those of the update.
void add_alternative(GpuPairPlan& plan, ir::LowerOptions options);

}  // namespace mercer::plan
