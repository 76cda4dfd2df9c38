// Whether a call item's sums of absolute differences are sums of maxima, and of which numbers: a look at some points of
// both sides and at tiles between them. It depends on the item alone, not on the threads; and what is looked at for the
// scale is the same where a verb swaps the sides, so that distances agree from verb to verb.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/pairs/pair_engine.h"

namespace mercer::cpu {

/// Null where too many of the tiles would have to be made from the values again. `params`: of stage 0 and the streams.
template <class T>
std::shared_ptr<const MaximaOf<T>> choose_maxima(const PairProgram& program, const PairItem& item,
                                                 const std::vector<double>& params);

/// The parameters of kernels of maxima.
template <class T>
std::vector<T> with_scale(const plan::PairPlan& plan, std::vector<T> params, const MaximaOf<T>& maker);

}  // namespace mercer::cpu
