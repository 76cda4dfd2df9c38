// Dense linear algebra on batches, as back ends get it: arguments checked, batches broadcast.
//
//   for outer in matrices                 each matrix a is factored once,
//     for inner in repeats                and serves every right-hand side that is broadcast against it
//
// An array lies at data + (sum_i o_i outer_strides[i] + sum_j i_j inner_strides[j]) elements, o and i the indices of
// outer and inner along their axes; what does not vary along one has no strides for it.
#pragma once

#include <cstdint>
#include <vector>

#include "mercer/pairwise.h"
#include "mercer/tensor.h"
#include "plan/gpu/costs/costs.h"

namespace mercer {

/// A batched matrix; a vector is a matrix of one column, a number one of one row and one column.
struct DenseArray {
  char* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0, col_stride = 0;  // in elements, as the next two
  std::vector<std::int64_t> outer_strides = {}, inner_strides = {};
};

/// What info says of a matrix that holds NaN or an infinity.
inline constexpr std::int64_t kNotFinite = -1;

/// How a triangle is solved with: as it is or transposed, with ones on its diagonal or what lies there.
struct TriangleUse {
  bool transposed = false, unit_diagonal = false;
};

struct DenseJob {
  const char* op = "";
  Dtype type = Dtype::float32;
  int device = 0;
  const Queue* queue = nullptr;
  std::vector<std::int64_t> outer = {}, inner = {};  // extents of the batch axes along which a varies, and of the rest
  std::int64_t matrices = 1, repeats = 1;            // their products
  std::int64_t rows = 0, cols = 0;                   // of a, which is square but for lu_factor
  std::int64_t order = 0;                            // the smaller of the two
  bool lower = true;  // which triangle of a is read
  plan::DenseCosts costs = plan::costs_of(plan::kMeasuredCapability).dense;  // of the device
  std::vector<double> jitter = {};  // parts of the mean of the diagonal to add to it, tried in this order

  /// Where an item of the array lies.
  static std::int64_t offset(std::int64_t index, const std::vector<std::int64_t>& extents,
                             const std::vector<std::int64_t>& strides) {
    std::int64_t sum = 0;
    if (index == 0 || strides.empty()) return sum;
    for (std::size_t axis = extents.size(); axis-- > 0;) {
      sum += index % extents[axis] * strides[axis];
      index /= extents[axis];
    }
    return sum;
  }
  char* at(const DenseArray& array, std::int64_t matrix, std::int64_t repeat) const {
    const std::int64_t elements =
        offset(matrix, outer, array.outer_strides) + offset(repeat, inner, array.inner_strides);
    return array.data + elements * static_cast<std::int64_t>(size_of(array.dtype));
  }
};

}  // namespace mercer
