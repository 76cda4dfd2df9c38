// Sums of absolute differences: what of a split is one, and the programs that compute it with integers
// (docs/design/integer_sums.md). With q = round(value / step) on both sides,
//
//   sum |qx - qz| = sum max(2 qx, 2 qz) - sum qx - sum qz        exact modulo 2^32
//
// so that a term costs a maximum and an addition.
#pragma once

#include <cstdint>

#include "ir/program.h"
#include "ir/split.h"
#include "plan/target.h"

namespace mercer::plan {

/// c where the split is one sum of c |x - z|, c a positive number and x and z anything of one side; 0 elsewhere.
double factor_of_absolute_differences(const ir::Split& split);

struct IntegerSums {
  double factor = 0;    // of the sum; 0: none
  int step_slot = 0;    // the parameter slot of step * factor, behind those of the fast variant
  ir::Program start;    // of a panel's head, - sum q of each side over the chunk
  ir::Program update;   // of 2 q
  ir::Program promote;  // a chunk's sum as a float
  /// Cycles a vector of pairs for every chunk: start and promotion.
  double chunk_cycles = 0;
};
/// Empty where the target gains nothing by integers.
IntegerSums plan_integer_sums(const ir::Split& split, const ir::Program& floats, int step_slot,
                              const TargetInfo& target);

/// Features of a chunk whose sums of integers fit 32 bits: at most `longest`, of equal lengths where possible.
std::int64_t integer_chunk(std::int64_t features, std::int64_t longest);
/// A shorter chunk leaves the integers more digits and is added up more often; the data decide between these.
inline constexpr std::int64_t kIntegerChunks[] = {512, 128};

}  // namespace mercer::plan
