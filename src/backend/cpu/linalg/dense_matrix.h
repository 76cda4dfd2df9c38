// A strided matrix of the host, and what linear algebra does to it apart from LAPACK: copies that look for NaN, fills,
// triangular solves in any layout.
#pragma once

#include <cstdint>

#include "backend/dense_job.h"
#include "core/devices/lapack.h"

namespace mercer::cpu {

/// Element (i, j) at data[i * row_stride + j * col_stride].
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0, row_stride = 0, col_stride = 0;

  T& operator()(std::int64_t i, std::int64_t j) const { return data[i * row_stride + j * col_stride]; }
  Matrix transposed() const { return {data, cols, rows, col_stride, row_stride}; }
  /// LAPACK's layout: columns of neighbouring elements that do not overlap. Strides along an extent of 1 mean nothing.
  bool is_column_major() const {
    return (row_stride == 1 || rows <= 1) && (col_stride >= rows || cols <= 1) && (col_stride >= 1 || cols <= 1);
  }
  /// LAPACK reads it or its transpose.
  bool suits_lapack() const { return is_column_major() || transposed().is_column_major(); }
  /// The stride of a column-major matrix: elements from one column to the next, as LAPACK wants it said.
  std::int64_t stride() const {
    const std::int64_t least = rows > 1 ? rows : 1;
    return cols <= 1 || col_stride < least ? least : col_stride;
  }
};

/// A column-major matrix without gaps.
template <class T>
Matrix<T> packed_columns(T* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, 1, rows};
}

/// One item of a batch.
template <class T>
Matrix<T> item(const DenseJob& job, const DenseArray& array, std::int64_t matrix, std::int64_t repeat = 0) {
  return {reinterpret_cast<T*>(job.at(array, matrix, repeat)), array.rows, array.cols, array.row_stride,
          array.col_stride};
}

/// The diagonal belongs to both triangles.
enum class Part { all, lower, upper };
inline Part triangle_part(bool lower) { return lower ? Part::lower : Part::upper; }

/// to = from in this part; false when a value of it is NaN or infinite.
template <class T>
bool copy(Matrix<T> from, Matrix<T> to, Part part = Part::all);
template <class T>
bool all_finite(Matrix<T> matrix, Part part);
template <class T>
void fill(Matrix<T> matrix, T value);
/// Zeros above the diagonal, or below it.
template <class T>
void clear_other_half(Matrix<T> square, bool keeps_lower);
template <class T>
void transpose_in_place(Matrix<T> square);

/// Up to this order a call of LAPACK, which takes locks and buffers, costs more than the arithmetic.
inline constexpr std::int64_t kSmallOrder = 24;
/// Cholesky's factor L in the lower triangle; 0, or the order of the first leading minor that is not positive.
template <class T>
std::int64_t factor_small(Matrix<T> lower);

/// b = op(t)^-1 b. t suits LAPACK; so does b, unless it has one column.
template <class T>
void solve_triangular(const Lapack& lapack, Matrix<T> t, bool lower, bool transposed, bool unit, Matrix<T> b);
/// Swaps rows i and pivots[i], for i ascending or descending.
template <class T>
void swap_rows(Matrix<T> b, const std::int64_t* pivots, std::int64_t count, bool descending);

}  // namespace mercer::cpu
