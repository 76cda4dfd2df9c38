// Functions of squared differences or inner products of float32 points, which are made from digits of 8 bits
// (digit_sums.h).
#pragma once

#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

/// Values of all pairs of an item. `by_amx`: the process has been granted AMX; plain loops otherwise.
void digit_pairs(const PairProgram& program, const PairItem& item, const PairMember& member, bool by_amx,
                 const RunOptions& run);

}  // namespace mercer::cpu
