// Sizes from which on the ways of a backward pay, a row for each generation of processors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mercer::plan {

struct BackwardCosts {
  int capability = 0;  // of CUDA devices, from this one on; 0: CPUs
  /// Pairs times features of an item from which it pays to make other points of the given ones
  /// (ir/passes/point_form.h).
  std::int64_t least_work_of_points = 0;
  /// Pairs times features of a tiny item, and how many of these are a batch that the engine does not take, since it
  /// launches once for an item. 0: it takes all.
  std::int64_t tiny_item = 0, many_items = 0;
  /// So many sums, which no field goes with, are made one by one sooner than in a pass, which has a field; weights are
  /// u v', or a matrix where features are many.
  std::size_t names_alone_of_factors = 0, names_alone_of_matrix = 0;
};
/// The row of this compute capability, or of the newest one before it; rows are in targets/backward.cpp.
const BackwardCosts& backward_costs(int capability);

}  // namespace mercer::plan
