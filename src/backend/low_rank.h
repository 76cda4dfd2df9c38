// What preconditioners of low rank are made of, on the CPU or a CUDA device: a tall matrix U that stays, maps that are
// one of low rank away from a multiple of the identity, and Cholesky's factor by columns.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/small_matrix.h"
#include "core/system/parallel.h"
#include "mercer/device.h"
#include "mercer/pairwise.h"
#include "mercer/tensor.h"

namespace mercer {

/// scale (1 - U diag(w) U^T), the same for all columns or another one for each.
struct LowRankWeights {
  std::vector<double> weights;  // [rank, count], of one column after another
  std::vector<double> scales;   // [count]
  std::int64_t count() const { return static_cast<std::int64_t>(scales.size()); }
};

class LowRankMap {
 public:
  virtual ~LowRankMap() = default;
  /// out = map r, both [length, k] with the elements of a column one after another; k is the count, if that is not 1.
  virtual void apply(const Tensor& r, const Tensor& out, const Queue& queue) const = 0;
  /// apply, as a part of a loop in a captured graph; nothing in a rehearsal of the memory.
  virtual void apply_in(const Tensor& r, const Tensor& out, const Queue& queue) const { apply(r, out, queue); }
};

/// U [length, rank], columns one after another, in memory of its own.
class TallFactor : public std::enable_shared_from_this<TallFactor> {
 public:
  virtual ~TallFactor() = default;
  virtual Tensor columns() const = 0;
  /// The columns to memory of the host, one after another, or from there.
  virtual void copy(void* host, bool to_host) const = 0;
  /// The map of these weights, which keeps U. On a device it takes memory and waits for the queue: all streams may use
  /// it.
  virtual std::unique_ptr<LowRankMap> map(const LowRankWeights& weights, const Queue& queue) const = 0;
  /// The sums over j of weights_j u_ij^2, [length].
  virtual std::vector<double> row_squares(const std::vector<double>& weights, const Queue& queue) const = 0;
  /// to = diag(rows) U diag(columns), [length, rank] where U is, columns one after another.
  virtual void scaled(const std::vector<double>& rows, const std::vector<double>& columns, const Tensor& to,
                      const Queue& queue) const = 0;
};

/// Cholesky's factor L of a matrix k by columns, and what is left of the diagonal of k - L L^T.
class PivotedColumns {
 public:
  virtual ~PivotedColumns() = default;
  /// The diagonal of k, [length].
  virtual void begin(const Tensor& diagonal) = 0;
  /// What is left of it; values may be set, to say that they are rounding.
  virtual std::vector<double>& left() = 0;
  /// Some rows of columns [length, count] as [rows, count].
  virtual SmallMatrix rows(const Tensor& columns, const std::vector<std::int64_t>& indices) = 0;
  /// The last columns hold those of k at the pivots and become those of L. `above` has the pivots' rows of the columns
  /// before them [count, before], `factor` is u [count, count] of what is left of k there: u^T u.
  virtual void add(const Tensor& columns, const std::vector<std::int64_t>& pivots, const SmallMatrix& above,
                   const SmallMatrix& factor) = 0;
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
