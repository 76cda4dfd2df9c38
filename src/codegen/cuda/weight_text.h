// WEIGHTED and the function `weight_of`, of the weight of a feature (plan/forms/weight_factors.h).
#pragma once

#include <string>

#include "mercer/formula.h"
#include "mercer/tensor.h"

namespace mercer::codegen {

/// `weight`: over w; empty: WEIGHTED is 0, and nobody needs the function. The text wants a prelude with REAL.
std::string weight_text(const Expr& weight, Dtype type);

}  // namespace mercer::codegen
