// Batches of small items, many of them in one call of a kernel: no item is dispatched by itself, and the epilogue takes
// the pairs of several items as if they were those of one.
//
//   sums [items][m n], of one part of the batch   ──▶   range   ──▶   epilogue, rows of a tile at a time   ──▶   out
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/pairs/few_points.h"

namespace mercer::cpu {

/// Whether the items of this job are computed so: points of the computing type that are read in place, and values that
/// read nothing of one side.
bool are_small_items(const PairProgram& program, const FewPointsJob& job);

/// The items whose sums left their range, of which the values are still to be computed.
std::vector<std::int64_t> small_items(const PairProgram& program, const FewPointsJob& job, const RunOptions& run);

}  // namespace mercer::cpu
