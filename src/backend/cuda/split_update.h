// c -= x z^T of float32 by products on tensor cores, in split precision (kernels/cuda/split_precision.cuh): what blocked
// factorisations spend their time on.
#pragma once

#include <memory>

#include "backend/cuda/kernels.h"
#include "backend/cuda/workspace.h"

namespace mercer::cuda {

/// Rows of a product, strided; one object for both sides where they are the same.
struct UpdateSide {
  const float* data = nullptr;
  std::int64_t count = 0, point_stride = 0, feature_stride = 0;
};

/// c[m, n] at data + m row_stride + n col_stride. Where both sides are the same, only one triangle of it is touched;
/// n runs along memory, or m does (`lower`: of the memory's rows).
struct UpdateTarget {
  float* data = nullptr;
  std::int64_t stride = 0;  // from one row of memory to the next
  bool lower = false;       // the pairs below the diagonal, in rows of memory; else those above it, or all
};

class SplitUpdate {
 public:
  /// For sizes up to these. `place`: the stream and what errors say; `same`: of one side for both.
  SplitUpdate(const PairJob& place, std::int64_t rows, std::int64_t columns, std::int64_t features, bool same);
  /// Whether the device serves such products.
  explicit operator bool() const { return bytes_ > 0; }
  /// Of scratch memory.
  std::int64_t bytes() const { return bytes_; }

  /// Values are those that pieces carry: rows of x and z whose largest is in [2^-50, 2^50]; smaller ones count as zeros.
  void run(const UpdateSide& x, const UpdateSide& z, std::int64_t features, const UpdateTarget& c, char* memory) const;

 private:
  PairJob job_of(const UpdateSide& x, const UpdateSide& z, std::int64_t features) const;

  PairJob place_;
  std::int64_t bytes_ = 0;
};

}  // namespace mercer::cuda
