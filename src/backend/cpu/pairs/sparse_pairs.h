// Sums over the features of pairs of sparse points, as dense rows of the matrix of pairs in double.
//
//   x_i:            feature 3: 0.5     feature 7: 2.0     …            each feature of x_i is read once,
//                       │                  │                           with the points of z that have it
//   z by features:  (z_1, 4.0)         (z_1, 1.0) (z_6, 3.0)
//                       ▼                  ▼          ▼
//   out[i]:         [1] += 0.5*4.0     [1] += 2.0*1.0 [6] += 2.0*3.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/system/mutex.h"
#include "core/system/parallel.h"
#include "mercer/tensor.h"

namespace mercer::cpu {

/// Compressed sparse rows: the features of point i are columns[starts[i]], …, columns[starts[i + 1] - 1].
struct SparseRows {
  const Tensor& starts;   // int32 or int64 [points + 1]
  const Tensor& columns;  // int32 or int64, ascending within a point
  const Tensor& values;   // double, as many as columns
};

class SparsePairs {
 public:
  /// Copies starts and columns, so that nothing that the caller does with them later matters; the values must stay
  /// where they are. `z` null: the same points as x. `weights`: double [features], or null for none. `unit`: sums are
  /// those of the points divided by their norms sqrt(sum w x^2), NaN for a point of norm 0. Throws unless starts and
  /// columns are in range and in order, and refuses more than 2^32 features or points.
  SparsePairs(const SparseRows& x, const SparseRows* z, std::int64_t features, const Tensor* weights,
              bool unit = false);

  std::int64_t rows() const { return static_cast<std::int64_t>(x_.starts.size()) - 1; }
  std::int64_t cols() const { return static_cast<std::int64_t>(z().starts.size()) - 1; }
  /// Sums of w x z for the points of x from `row` on and those of z from `col` on: `out` is double
  /// [count, cols() - col] with its columns side by side. A task of the pool is some rows; between tasks the call may
  /// be cancelled.
  void dots(std::int64_t row, std::int64_t col, const Tensor& out, Pool& pool) const;
  /// Sums of w (x - z)^2 likewise, by norms and dots. Where the result is at most `near` of the sums of |w| x^2 and
  /// |w| z^2, which means that digits cancel, it is the sum of the squared differences itself; 0 of a point and itself.
  /// `root`: writes square roots.
  void squares(std::int64_t row, std::int64_t col, double near, const Tensor& out, Pool& pool, bool root = false) const;

 private:
  struct Compressed {
    std::vector<std::int64_t> starts;
    std::vector<std::uint32_t> indices;
    std::vector<double> owned;  // empty: the values are the caller's
    const double* values = nullptr;
  };
  struct Norms {
    std::vector<double> squares;  // sums of w x^2
    std::vector<double> sizes;    // sums of |w| x^2; empty where no weight is negative
    std::vector<double> factors;  // what unit points are multiplied by; empty without
    const double* bounds() const { return (sizes.empty() ? squares : sizes).data(); }
  };
  /// Where the points from `col` on begin in each feature's list.
  struct Begins {
    std::int64_t col;
    std::vector<std::int64_t> places;
  };

  const Compressed& z() const { return same_ ? x_ : z_; }
  const Norms& z_norms() const { return same_ ? x_norms_ : z_norms_; }
  void find_norms() const;
  void collect_features(std::int64_t features);
  Norms norms(const Compressed& points) const;
  std::shared_ptr<const Begins> begins_at(std::int64_t col) const;
  void dot_row(std::int64_t i, const Begins& begins, double* out) const;
  void square_row(std::int64_t i, const Begins& begins, double near, bool root, double* out) const;
  double difference(std::int64_t i, std::int64_t j) const;
  template <class Row>
  void each_row(std::int64_t row, std::int64_t col, const Tensor& out, Pool& pool, const Row& make) const;
  static Compressed copied(const char* name, const SparseRows& rows, std::int64_t features);

  std::vector<double> weights_;  // empty: 1
  bool same_, unit_;
  Compressed x_, z_, features_;  // features_: the points of z that have a feature, and w z
  mutable Norms x_norms_, z_norms_;  // once their first reader has called find_norms
  mutable Once have_norms_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const Begins> begins_;  // of the last call
};

/// Whether these are compressed rows with columns from 0 to features - 1 that ascend within each point, and values of
/// float or double whose sizes lie between `least` and `most`.
bool are_plain(const SparseRows& rows, std::int64_t features, double least, double most);

/// Copies matrix[i, j] to matrix[j, i] for the rows i from `first` to `last` - 1 and all j > i. The matrix is square,
/// of float or double, with its columns side by side.
void mirror_rows(const Tensor& matrix, std::int64_t first, std::int64_t last, Pool& pool);

}  // namespace mercer::cpu
