// One batch item of a call as the CPU back end sees it: two sets of points, and the numbers that go with them.
#pragma once

#include <cstdint>

#include "mercer/tensor.h"

namespace mercer::cpu {

/// Element `index` of an array of any dtype, as double.
double read_element(const void* data, Dtype dtype, std::int64_t index);

/// A strided vector of one value per point, or nothing.
struct PointValues {
  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t stride = 0;  // elements

  /// 0 where nothing was given: no program reads it then.
  double operator[](std::int64_t point) const { return data ? read_element(data, dtype, point * stride) : 0.0; }
};

/// Points [count, features] of any dtype, strides in elements.
struct Points {
  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  std::int64_t count = 0, features = 0;
  std::int64_t point_stride = 0, feature_stride = 0;
  PointValues user;                                   // row[m] or col[n]
  std::int64_t index_offset = 0;                      // of i or j
};

/// What a group of batch items shares in addition to the parameters of the accumulation.
struct PairItem {
  Points x, z;
  const double* weights = nullptr;  // [K], or null when the formula reads none
};

/// Features of point p in the type of a computation, then zeros, `padded` in all.
template <class T>
void pack_row(const Points& points, std::int64_t p, std::int64_t padded, T* row);

}  // namespace mercer::cpu
