// Products of a matrix with few columns on a device, by kernels of our own (few_columns.cuh): they need no handles, and
// scratch memory that is known before.
#pragma once

#include "backend/cuda/runtime/job.h"
#include "mercer/tensor.h"

namespace mercer::cuda {

/// Up to so many columns a product is a kernel of our own, which takes 1 to 1.7 times as long as memory. More of them
/// go to cuBLAS where that may be called: in float64 its tensor cores take half the time.
constexpr std::int64_t few_columns_of(Dtype type) { return type == Dtype::float32 ? 64 : 8; }

class FewColumns {
 public:
  /// a [rows, depth] of float32 or float64 with neighbouring elements along columns or rows, times so many columns.
  FewColumns(const PairJob& place, const Tensor& a, std::int64_t columns);

  /// Bytes of the scratch memory that `run` gets, at a multiple of 16.
  std::int64_t bytes() const;
  /// out = alpha a v + beta b; v [depth, columns], out and b, if there, [rows, columns] with neighbouring elements
  /// along columns. b may be out.
  void run(const Tensor& v, const Tensor& out, void* scratch, double alpha = 1, const Tensor* b = nullptr,
           double beta = 0) const;

 private:
  const PairJob& place_;
  Tensor a_;
  std::int64_t columns_, width_ = 0, tiles_ = 0, groups_ = 0, part_ = 0, parts_ = 0, sums_stride_ = 0;
  bool by_rows_;
};

/// out = a v for a symmetric a, whichever of both it lies by; nothing in a rehearsal of the scratch memory.
void multiply_few_columns(const PairJob& place, const Tensor& a, const Tensor& v, const Tensor& out);

}  // namespace mercer::cuda
