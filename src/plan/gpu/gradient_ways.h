// Ways to compute gradients: in one pass over the pairs, or of values of the pairs that are stored, a part at a time.
#pragma once

#include "plan/gpu/ways.h"

namespace mercer::plan {

extern const Way kMatrixTimesPoints, kFewFeaturesGradient, kGradLowrank, kGradGemm, kGradGemmFloat64, kGradContract,
    kStoredValues;

}  // namespace mercer::plan
