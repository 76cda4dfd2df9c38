// One batch item of a call as the CPU back end sees it: two sets of points, and the numbers that go with them.
#pragma once

#include <cstdint>
#include <vector>

#include "mercer/tensor.h"

namespace mercer::cpu {

/// A strided vector of one value per point, or nothing.
struct PointValues {
  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t stride = 0;  // elements
};

struct Points {
  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t count = 0, features = 0;
  std::int64_t point_stride = 0, feature_stride = 0;  // elements
  PointValues user;                                   // row[m] or col[n]
  std::int64_t index_offset = 0;                      // of i or j
};

/// What a group of batch items shares: points, weights and the parameters of the accumulation.
struct PairItem {
  Points x, z;
  const double* weights = nullptr;  // [K], or null when the formula reads none
};

/// Element `index` of an array of any dtype, as double.
double read_element(const void* data, Dtype dtype, std::int64_t index);

}  // namespace mercer::cpu
