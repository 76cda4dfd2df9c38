// Programs that compute a sum of absolute differences as a sum of maxima (docs/design/sums_of_maxima.md). With p, q
// numbers that stand for the values of the two sides,
//
//   sum |q - p| = sum max(2 q, 2 p) - sum q - sum p
//
// so that a term costs a maximum and an addition. For float32 they are integers, round(value / step), and all is exact
// modulo 2^32; for float64 they are value - centre, and what the sums round away is bounded.
#pragma once

#include <cstdint>
#include <span>

#include "ir/expr/program.h"
#include "ir/passes/split.h"
#include "plan/cpu/target.h"

namespace mercer::plan {

struct MaximaSums {
  double factor = 0;    // of the sum; 0: none
  int scale_slot = 0;  // the parameter slot of the factor, times a step of integers, after those of the best variant
  ir::Program start;    // of a panel's head, - sum q of each side over the chunk
  ir::Program update;   // of 2 q
  ir::Program promote;  // a chunk's sum, as a float and scaled
  /// Cycles a vector of pairs for every chunk: start and promotion.
  double chunk_cycles = 0;
};
/// Empty where the target gains nothing by maxima. `terms`: the update on the values themselves.
MaximaSums plan_maxima_sums(const ir::Split& split, const ir::Program& terms, int scale_slot,
                            const TargetInfo& target);

/// The longest chunks of features to try, the data deciding: shorter ones leave the integers more digits, and are added
/// up more often. What float64 rounds away grows with a chunk.
std::span<const std::int64_t> maxima_chunks(Dtype type);
/// Features of a chunk: at most `longest`, of equal lengths where possible.
std::int64_t maxima_chunk(std::int64_t features, std::int64_t longest);

}  // namespace mercer::plan
