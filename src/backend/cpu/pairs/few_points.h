// Pairs of a few points, and batches of them, without packing: sums along the features of points where they lie
// (pair_sums.h), then the epilogue. Sums that leave the range of their type send their item of the batch to `pairwise`.
#pragma once

#include <vector>

#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

/// Items of a batch that differ in their points alone.
struct FewPointsJob {
  PairItem item;               // the first
  std::vector<double> params;
  OutputMatrix out;            // of the first
  std::int64_t items = 1;
  std::vector<std::int64_t> batch, x_strides, z_strides, out_strides;  // elements
};

/// The program's forms have a sum of pairs.
void few_points(const PairProgram& program, const FewPointsJob& job, const RunOptions& run);

}  // namespace mercer::cpu
