// From which sizes on the ways of a backward pay, a row for each generation of processors.
#pragma once

#include <cstdint>

namespace mercer::plan {

struct BackwardCosts {
  int capability = 0;  // of CUDA devices, from this one on; 0: CPUs
  /// Pairs times features of an item from which it pays to make other points of the given ones (ir/point_form.h).
  std::int64_t least_work_of_points = 0;
};
/// The row of this compute capability, or of the newest one before it; rows are in targets/backward.cpp.
const BackwardCosts& backward_costs(int capability);

}  // namespace mercer::plan
