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

  PairItem item_at(std::int64_t index) const;
  OutputMatrix out_at(std::int64_t index) const;
  /// The first point of an item, on one side.
  template <class T>
  const T* point_of(const Points& points, const std::vector<std::int64_t>& strides, std::int64_t index) const {
    return static_cast<const T*>(points.data) + offset(index, strides);
  }

 private:
  std::int64_t offset(std::int64_t index, const std::vector<std::int64_t>& strides) const {
    if (strides.size() == 1) return index * strides[0];
    std::int64_t offset = 0;
    for (std::size_t axis = strides.size(); axis-- > 0;) {
      offset += index % batch[axis] * strides[axis];
      index /= batch[axis];
    }
    return offset;
  }
};

/// The program's forms have a sum of pairs.
void few_points(const PairProgram& program, const FewPointsJob& job, const RunOptions& run);

}  // namespace mercer::cpu
