// Inverses from Cholesky's factor, by halves. With a = L L^T (or U^T U, L = U^T) and M = L^-1:
//
//   [L11    ]^-1   [M11                  ]       M^T M = [M11^T M11 + M21^T M21         ]
//   [L21 L22]    = [-L22^-1 L21 L11^-1 M22]              [M22^T M21            M22^T M22]
//
// Each takes n^3 / 3 operations, in one place. diagonal of a^-1: sums of squares of the columns of M, which come by
// blocks from L[j:, j:] M[j:, j : j + w] = [1; 0] and are not kept.
#include <cmath>

#include "backend/cpu/linalg/dense_run.h"

namespace mercer::cpu {
namespace {

/// Triangles up to here are inverted and multiplied by loops, and products of a triangle made dense.
constexpr std::int64_t kLeaf = 32, kDenseTriangle = 64;
/// Columns of the inverse that are solved for at a time.
constexpr std::int64_t kPanel = 64;

template <class T>
Matrix<T> block(Matrix<T> m, std::int64_t i, std::int64_t j, std::int64_t rows, std::int64_t cols) {
  return {&m(i, j), rows, cols, m.row_stride, m.col_stride};
}

std::int64_t half_of(std::int64_t n) { return (n / 2 + kLeaf - 1) / kLeaf * kLeaf; }

/// A factor that has an inverse: pivots are positive, and nothing is NaN or infinite.
template <class T>
bool has_pivots(Matrix<T> factor) {
  for (std::int64_t i = 0; i < factor.rows; ++i)
    if (!(factor(i, i) > 0)) return false;
  return true;
}

template <class T>
void invert_leaf(Matrix<T> l) {
  const std::int64_t n = l.rows;
  for (std::int64_t j = n; j-- > 0;) {
    T* const column = &l(0, j);
    const T inverse = T(1) / column[j];
    column[j] = inverse;
    for (std::int64_t p = n - 1; p > j; --p) {
      const T* const known = &l(0, p);
      const T value = -column[p] * inverse;
      column[p] = value * known[p];
      for (std::int64_t i = p + 1; i < n; ++i) column[i] += value * known[i];
    }
  }
}

/// M in the place of L, column-major.
template <class T>
void invert(const Lapack& lapack, Matrix<T> l) {
  const std::int64_t n = l.rows;
  if (n <= kLeaf) return invert_leaf(l);
  const std::int64_t half = half_of(n), rest = n - half;
  const Matrix<T> first = block(l, 0, 0, half, half), second = block(l, half, half, rest, rest),
                  below = block(l, half, 0, rest, half);
  lapack.trsm(false, true, false, false, rest, half, second.data, l.stride(), below.data, l.stride());
  lapack.trsm(true, true, false, false, rest, half, first.data, l.stride(), below.data, l.stride());
  for (std::int64_t j = 0; j < half; ++j)
    for (std::int64_t i = 0; i < rest; ++i) below(i, j) = -below(i, j);
  invert(lapack, first);
  invert(lapack, second);
}

/// b = m^T b of a lower triangle m. `scratch`: kDenseTriangle * (kDenseTriangle + columns of b).
template <class T>
void multiply_turned(const Lapack& lapack, Matrix<T> m, Matrix<T> b, T* scratch) {
  const std::int64_t n = m.rows, k = b.cols;
  if (n <= kDenseTriangle) {
    const Matrix<T> dense = packed_columns(scratch, n, n), copied = packed_columns(scratch + n * n, n, k);
    copy(m, dense, Part::lower);
    clear_other_half(dense, true);
    copy(b, copied);
    return lapack.gemm(true, false, n, k, n, T(1), dense.data, n, copied.data, n, T(0), b.data, b.stride());
  }
  const std::int64_t half = half_of(n), rest = n - half;
  const Matrix<T> upper = block(b, 0, 0, half, k), lower = block(b, half, 0, rest, k);
  multiply_turned(lapack, block(m, 0, 0, half, half), upper, scratch);
  lapack.gemm(true, false, half, k, rest, T(1), &m(half, 0), m.stride(), lower.data, b.stride(), T(1), upper.data,
              b.stride());
  multiply_turned(lapack, block(m, half, half, rest, rest), lower, scratch);
}

template <class T>
void square_leaf(Matrix<T> m) {
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t j = 0; j <= i; ++j) {
      T sum = 0;
      for (std::int64_t p = i; p < m.rows; ++p) sum += m(p, i) * m(p, j);
      m(i, j) = sum;
    }
}

/// The lower triangle of M^T M in the place of M.
template <class T>
void square(const Lapack& lapack, Matrix<T> m, T* scratch) {
  const std::int64_t n = m.rows;
  if (n <= kLeaf) return square_leaf(m);
  const std::int64_t half = half_of(n), rest = n - half;
  const Matrix<T> first = block(m, 0, 0, half, half), second = block(m, half, half, rest, rest),
                  below = block(m, half, 0, rest, half);
  square(lapack, first, scratch);
  lapack.syrk(true, true, half, rest, T(1), below.data, m.stride(), T(1), first.data, m.stride());
  multiply_turned(lapack, second, below, scratch);
  square(lapack, second, scratch);
}

template <class T>
void cho_inverse_of(const DenseJob& job, const DenseArray& given, const DenseArray& out, const DenseTools& tools) {
  const std::int64_t n = job.order;
  const bool direct = item<T>(job, out, 0).suits_lapack();
  Layout layout;
  const std::int64_t matrix_memory = direct ? 0 : layout.add<T>({n, n});
  const std::int64_t scratch_memory = layout.add<T>({kDenseTriangle, kDenseTriangle + n});
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    const Matrix<T> target = item<T>(job, out, matrix), factor = item<T>(job, given, matrix);
    const Matrix<T> home =
        direct ? as_columns(target) : packed_columns(reinterpret_cast<T*>(memory + matrix_memory), n, n);
    const Matrix<T> lower = job.lower ? factor : factor.transposed();
    const bool is_there = home.data == factor.data;
    if (is_there && !lower.is_column_major()) transpose_in_place(home);
    const bool finite = is_there ? all_finite(home, Part::lower) : copy(lower, home, Part::lower);
    if (!finite || !has_pivots(home)) return fill(target, nan_of<T>());
    invert(tools.lapack, home);
    square(tools.lapack, home, reinterpret_cast<T*>(memory + scratch_memory));
    copy(home.transposed(), home, Part::upper);
    if (!direct) copy(home, target);
  });
}

/// values[j] = |M_j|^2 of the columns from `first` on.
template <class T>
void square_columns(Matrix<T> panel, std::int64_t first, Matrix<T> values) {
  for (std::int64_t j = 0; j < panel.cols; ++j) {
    double squares = 0;
    for (std::int64_t i = j; i < panel.rows; ++i) {
      const double value = panel(i, j);
      squares += value * value;
    }
    values(first + j, 0) = static_cast<T>(squares);
  }
}

template <class T>
void cho_inverse_diagonal_of(const DenseJob& job, const DenseArray& given, const DenseArray& out,
                             const DenseTools& tools) {
  const std::int64_t n = job.order, width = std::min(n, kPanel);
  const bool direct = item<T>(job, given, 0).suits_lapack();
  Layout layout;
  const std::int64_t matrix_memory = direct ? 0 : layout.add<T>({n, n});
  const std::int64_t panel_memory = layout.add<T>({n, width});
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    const Matrix<T> target = item<T>(job, out, matrix);
    Matrix<T> factor = item<T>(job, given, matrix);
    const Matrix<T> packed = packed_like(factor, memory + matrix_memory);
    const Part part = triangle_part(job.lower);
    const bool finite = direct ? all_finite(factor, part) : copy(factor, packed, part);
    if (!direct) factor = packed;
    if (!finite || !has_pivots(factor)) return fill(target, nan_of<T>());
    for (std::int64_t j = 0; j < n; j += width) {
      const std::int64_t rows = n - j, columns = std::min(width, rows);
      const Matrix<T> panel = packed_columns(reinterpret_cast<T*>(memory + panel_memory), rows, columns);
      fill(panel, T(0));
      for (std::int64_t i = 0; i < columns; ++i) panel(i, i) = 1;
      solve_triangular(tools.lapack, block(factor, j, j, rows, rows), job.lower, !job.lower, false, panel);
      square_columns(panel, j, target);
    }
  });
}

}  // namespace

void cho_inverse(const DenseJob& job, const DenseArray& factor, const DenseArray& out, DenseTools tools) {
  with_type(job, [&](auto type) { cho_inverse_of<decltype(type)>(job, factor, out, tools); });
}

void cho_inverse_diagonal(const DenseJob& job, const DenseArray& factor, const DenseArray& out, DenseTools tools) {
  with_type(job, [&](auto type) { cho_inverse_diagonal_of<decltype(type)>(job, factor, out, tools); });
}

void solve_triangular(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                      TriangleUse use, DenseTools tools) {
  with_type(job, [&](auto type) {
    using T = decltype(type);
    solve_by_triangle<T>(job, a, b, x, tools, [&](Matrix<T> triangle, Matrix<T> rhs) {
      solve_triangular(tools.lapack, triangle, job.lower, use.transposed, use.unit_diagonal, rhs);
    });
  });
}

}  // namespace mercer::cpu
