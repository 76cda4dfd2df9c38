// Small matrices of the host, column-major, in double precision: what block methods do with them, eigenvalues apart.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/system/parallel.h"

namespace mercer {

struct SmallMatrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;

  SmallMatrix() = default;
  SmallMatrix(std::int64_t rows_in, std::int64_t cols_in, std::vector<double> values_in)
      : rows(rows_in), cols(cols_in), values(std::move(values_in)) {}
  SmallMatrix(std::int64_t rows_in, std::int64_t cols_in)
      : SmallMatrix(rows_in, cols_in, std::vector<double>(static_cast<std::size_t>(rows_in * cols_in), 0)) {}
  double* column(std::int64_t j) { return values.data() + j * rows; }
  const double* column(std::int64_t j) const { return values.data() + j * rows; }
  double& operator()(std::int64_t i, std::int64_t j) { return column(j)[i]; }
  double operator()(std::int64_t i, std::int64_t j) const { return column(j)[i]; }
  double squares() const {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return sum;
  }
};

/// u with a + shift = u^T u, upper, in place of a; false where a pivot is not positive.
inline bool factor_upper(SmallMatrix& a, double shift) {
  for (std::int64_t j = 0; j < a.cols; ++j) {
    stop_if_cancelled();
    a(j, j) += shift;
    for (std::int64_t i = 0; i <= j; ++i) {
      double sum = a(i, j);
      for (std::int64_t p = 0; p < i; ++p) sum -= a(p, i) * a(p, j);
      if (i == j && !(sum > 0)) return false;
      a(i, j) = i == j ? std::sqrt(sum) : sum / a(i, i);
    }
    for (std::int64_t i = j + 1; i < a.rows; ++i) a(i, j) = 0;
  }
  return true;
}

inline SmallMatrix transposed(const SmallMatrix& a) {
  SmallMatrix turned(a.cols, a.rows);
  for (std::int64_t j = 0; j < a.cols; ++j)
    for (std::int64_t i = 0; i < a.rows; ++i) turned(j, i) = a(i, j);
  return turned;
}

/// Algebra of matrices of some hundred rows: by LAPACK on so many threads where it is found, else by loops.
class SmallAlgebra {
 public:
  explicit SmallAlgebra(int threads) : threads_(threads) {}
  bool factor_upper(SmallMatrix& a, double shift) const;
  /// op(a) b, where op transposes when asked to.
  SmallMatrix product(const SmallMatrix& a, const SmallMatrix& b, bool a_transposed = false) const;
  /// The inverse of an upper triangle.
  SmallMatrix inverse_upper(const SmallMatrix& u) const;

 private:
  int threads_;
};

}  // namespace mercer
