// Whether a call item's sums of absolute differences are taken of integers, and of which: a look at some points of both
// sides and at tiles between them. It depends on the item alone, not on the threads; and what is looked at for the
// scale is the same where a verb swaps the sides, so that distances agree from verb to verb.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/pair_engine.h"

namespace mercer::cpu {

/// Null where too many of the tiles would have to be made from the values again. `params`: of stage 0 and the streams.
std::shared_ptr<const Quantiser> choose_quantiser(const PairProgram& program, const PairItem& item,
                                                  const std::vector<double>& params);

/// The parameters of kernels on integers.
std::vector<float> with_step(const plan::PairPlan& plan, std::vector<float> params, const Quantiser& quantiser);

}  // namespace mercer::cpu
