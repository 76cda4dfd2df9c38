// All pairs of uint8 or int8 points from exact sums of whole numbers (byte_sums.h), then the epilogue.
#pragma once

#include <vector>

#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

/// The program's forms have a sum of pairs, the item's points are of one of these types.
void byte_pairs(const PairProgram& program, const PairItem& item, const PairMember& member, const RunOptions& run);

}  // namespace mercer::cpu
