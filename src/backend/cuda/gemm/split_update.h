// c -= x z^T of float32 by products on tensor cores, in split precision (kernels/cuda/common/split_precision.cuh): what
// blocked factorisations spend their time on.
#pragma once

#include <memory>

#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"

namespace mercer::cuda {

/// Rows of a product, strided; one object for both sides where they are the same.
struct UpdateSide {
  const float* data = nullptr;
  std::int64_t count = 0, point_stride = 0, feature_stride = 0;
};

class SplitUpdate {
 public:
  /// For sizes up to these. `place`: the stream and what errors say; `same`: of one side for both.
  SplitUpdate(const PairJob& place, std::int64_t rows, std::int64_t columns, std::int64_t features, bool same);
  /// Whether the device serves such products.
  explicit operator bool() const { return bytes_ > 0; }
  /// Bytes of scratch memory.
  std::int64_t bytes() const { return bytes_; }

  /// Compiles and loads what a call of these sizes runs.
  void prepare(std::int64_t rows, std::int64_t columns, std::int64_t features, bool same) const;
  /// Values are those that pieces carry: rows of x and z whose largest is in [2^-50, 2^50]; smaller ones count as
  /// zeros.
  /// c[m, n] lies at c + m stride + n, aligned to 16 bytes, as the stride is. Where both sides are the same, n >= m.
  void run(const UpdateSide& x, const UpdateSide& z, std::int64_t features, float* c, std::int64_t stride,
           char* memory) const;

 private:
  PairJob job_of(const UpdateSide& x, const UpdateSide& z, std::int64_t features) const;

  PairJob place_;
  std::int64_t bytes_ = 0;
};

}  // namespace mercer::cuda
