// What preconditioners of low rank are made of, on the CPU or a CUDA device: a tall matrix F that stays, and the choice
// of pivots of Cholesky's factor.
#pragma once

#include <cstdint>
#include <memory>

#include "core/parallel.h"
#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// F [length, rank], columns one after another, in memory of its own.
class TallFactor {
 public:
  virtual ~TallFactor() = default;
  virtual Tensor columns() const = 0;
  /// The columns to memory of the host, one after another, or from there.
  virtual void copy(void* host, bool to_host) const = 0;
  /// out = scale (r - F F^T r), both [length, k] with the elements of a column one after another.
  virtual void apply(double scale, const Tensor& r, const Tensor& out, const Queue& queue) const = 0;
  /// The same as a part of a loop in a captured graph; nothing in a rehearsal of the memory.
  virtual void apply_in(double scale, const Tensor& r, const Tensor& out, const Queue& queue) const {
    apply(scale, r, out, queue);
  }
};

/// Cholesky's factor L of a matrix k by columns, each that with the largest diagonal of k - L L^T.
class PivotedColumns {
 public:
  struct Pivot {
    std::int64_t index = 0;
    double left = 0;  // of the diagonal; NaN where a value of it is not finite
  };
  struct Start {
    Pivot pivot;
    double lowest = 0;  // of the diagonal, where all of it is finite
  };
  virtual ~PivotedColumns() = default;
  /// The diagonal of k, [length]; gives the first pivot.
  virtual Start begin(const Tensor& diagonal) = 0;
  /// The last of these columns holds the pivot's column of k, and becomes that of L; gives the next pivot.
  virtual Pivot add(const Tensor& columns, Pivot pivot) = 0;
};

namespace cpu {
std::shared_ptr<TallFactor> tall_factor(const char* op, Dtype type, std::int64_t length, std::int64_t rank, Pool& pool);
std::unique_ptr<PivotedColumns> pivoted_columns(const char* op, Dtype type, std::int64_t length, Pool& pool);
}  // namespace cpu
namespace cuda {
std::shared_ptr<TallFactor> tall_factor(const char* op, Dtype type, std::int64_t length, std::int64_t rank,
                                        Device device);
std::unique_ptr<PivotedColumns> pivoted_columns(const char* op, Dtype type, std::int64_t length, Device device,
                                                const Queue& queue);
}  // namespace cuda

}  // namespace mercer
