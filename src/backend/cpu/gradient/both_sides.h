// Gradients by the points of both sides of pairs that are made once: functions of one sum of (x - z)^2 or of x z
// (plan/cpu/sum_field.h), whose slopes are weighed by factors u v' or by a matrix.
#pragma once

#include <vector>

#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

struct BothSidesJob {
  PairItem item;                   // few points of x go with many of z: the blocks are of z
  std::vector<double> params;
  Points u, v;                     // [M, E], [N, E]; without data the matrix
  const void* matrix = nullptr;    // [M, N]
  Dtype matrix_dtype = Dtype::float32;
  std::int64_t matrix_row_stride = 0, matrix_col_stride = 0;
  OutputMatrix by_x, by_z;         // [M, K], [N, K]
  OutputMatrix to_rows, to_cols;   // sums of values times v [M, E], and times u [N, E]; without data they are not made
};

/// The program's forms have a sum of pairs; its outputs are the slope, and the value where sums of values are asked
/// for. False where sums leave the range of their type: the results are then to be made in another way.
bool both_sides(const PairProgram& program, const BothSidesJob& job, const RunOptions& run);

}  // namespace mercer::cpu
