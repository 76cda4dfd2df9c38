// LU with partial pivoting: a = P L U, and, of a square a, a^T = P L U where rows are what lies together:
//
//   a x = b:    x = U^-1 L^-1 P^T b         a^T x = b:  x = P L^-T U^-T b
#include "backend/cpu/linalg/dense_run.h"
#include "core/error.h"

namespace mercer::cpu {
namespace {

template <class T>
void solve_factored(const Lapack& lapack, Matrix<T> lu, const std::int64_t* pivots, bool transposed, Matrix<T> x) {
  if (!transposed) {
    swap_rows(x, pivots, lu.rows, false);
    solve_triangular(lapack, lu, true, false, true, x);
    solve_triangular(lapack, lu, false, false, false, x);
  } else {
    solve_triangular(lapack, lu, false, true, false, x);
    solve_triangular(lapack, lu, true, true, true, x);
    swap_rows(x, pivots, lu.rows, true);
  }
}

/// Factors the columns of `lu`, which suits LAPACK as it is; `is_there`: they hold the matrix already.
template <class T>
std::int64_t factor_columns(const Lapack& lapack, Matrix<T> a, Matrix<T> columns, bool is_there, std::int64_t* pivots) {
  const bool finite = is_there ? all_finite(columns, Part::all) : copy(a, columns);
  if (!finite) return kNotFinite;
  if (columns.rows == 0 || columns.cols == 0) return 0;
  return lapack.getrf(columns.rows, columns.cols, columns.data, columns.stride(), pivots);
}

template <class T>
void lu_factor_of(const DenseJob& job, const DenseArray& a, const DenseArray& lu, const DenseArray& pivots,
                  const DenseArray& info, const DenseTools& tools) {
  const std::int64_t n = job.order;
  const Matrix<T> model = item<T>(job, lu, 0);
  const bool direct = model.is_column_major() || (job.rows == job.cols && model.suits_lapack());
  const bool in_place = lu.data == a.data;
  Layout layout;
  const std::int64_t pivot_memory = layout.add<std::int64_t>({n});
  const std::int64_t matrix_memory = direct ? 0 : layout.add<T>({job.rows, job.cols});
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    auto* const found = reinterpret_cast<std::int64_t*>(memory + pivot_memory);
    const Matrix<T> given = item<T>(job, a, matrix), target = item<T>(job, lu, matrix);
    const bool by_rows = direct && !target.is_column_major();  // the columns of the memory are factored, then it turns
    const Matrix<T> columns =
        direct ? as_columns(target)
               : packed_columns(reinterpret_cast<T*>(memory + matrix_memory), job.rows, job.cols);
    if (by_rows && in_place) transpose_in_place(columns);
    const std::int64_t failed = factor_columns(tools.lapack, given, columns, in_place && direct, found);
    set_info(job, info, matrix, failed);
    const Matrix<std::int64_t> swaps = item<std::int64_t>(job, pivots, matrix);
    for (std::int64_t i = 0; i < n; ++i) swaps(i, 0) = failed != 0 ? i : found[i];
    if (failed != 0) return fill(target, nan_of<T>());
    if (by_rows) transpose_in_place(columns);
    if (!direct) copy(columns, target);
  });
}

template <class T>
void solve_lu_of(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                 const DenseArray& info, bool overwrite_a, const DenseTools& tools) {
  const std::int64_t n = job.order;
  const bool in_place = overwrite_a && item<T>(job, a, 0).suits_lapack();
  Layout layout;
  const std::int64_t pivot_memory = layout.add<std::int64_t>({n});
  const std::int64_t matrix_memory = in_place ? 0 : layout.add<T>({n, n});
  const std::int64_t column_memory = add_columns<T>(layout, job, x);
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    auto* const pivots = reinterpret_cast<std::int64_t*>(memory + pivot_memory);
    const Matrix<T> given = item<T>(job, a, matrix);
    const Matrix<T> factor = in_place ? given : packed_like(given, memory + matrix_memory);
    const bool transposed = !factor.is_column_major();
    const Matrix<T> columns = as_columns(factor);
    const std::int64_t failed =
        factor_columns(tools.lapack, transposed ? given.transposed() : given, columns, in_place, pivots);
    set_info(job, info, matrix, failed);
    solve_repeats<T>(job, b, x, matrix, failed != 0, memory + column_memory,
                     [&](Matrix<T> rhs) { solve_factored(tools.lapack, columns, pivots, transposed, rhs); });
  });
}

void check_pivots(const DenseJob& job, const DenseArray& pivots) {
  const std::int64_t n = job.order;
  for (std::int64_t matrix = 0; matrix < job.matrices; ++matrix) {
    const Matrix<std::int64_t> swaps = item<std::int64_t>(job, pivots, matrix);
    for (std::int64_t i = 0; i < n; ++i)
      require(swaps(i, 0) >= i && swaps(i, 0) < n, "{}: pivot {} must be from {} to {}. Received {}.", job.op, i, i,
              n - 1, swaps(i, 0));
  }
}

template <class T>
void lu_solve_of(const DenseJob& job, const DenseArray& lu, const DenseArray& pivots, const DenseArray& b,
                 const DenseArray& x, bool transposed, const DenseTools& tools) {
  const std::int64_t n = job.order;
  const bool direct = item<T>(job, lu, 0).suits_lapack();
  Layout layout;
  const std::int64_t pivot_memory = layout.add<std::int64_t>({n});
  const std::int64_t matrix_memory = direct ? 0 : layout.add<T>({n, n});
  const std::int64_t column_memory = add_columns<T>(layout, job, x);
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    auto* const swaps = reinterpret_cast<std::int64_t*>(memory + pivot_memory);
    const Matrix<std::int64_t> given = item<std::int64_t>(job, pivots, matrix);
    for (std::int64_t i = 0; i < n; ++i) swaps[i] = given(i, 0);
    Matrix<T> factor = item<T>(job, lu, matrix);
    if (!direct) {
      const Matrix<T> packed = packed_like(factor, memory + matrix_memory);
      copy(factor, packed);
      factor = packed;
    }
    solve_repeats<T>(job, b, x, matrix, false, memory + column_memory,
                     [&](Matrix<T> rhs) { solve_factored(tools.lapack, factor, swaps, transposed, rhs); });
  });
}

}  // namespace

void lu_factor(const DenseJob& job, const DenseArray& a, const DenseArray& lu, const DenseArray& pivots,
               const DenseArray& info, DenseTools tools) {
  with_type(job, [&](auto type) { lu_factor_of<decltype(type)>(job, a, lu, pivots, info, tools); });
}

void lu_solve(const DenseJob& job, const DenseArray& lu, const DenseArray& pivots, const DenseArray& b,
              const DenseArray& x, bool transposed, DenseTools tools) {
  check_pivots(job, pivots);
  with_type(job, [&](auto type) { lu_solve_of<decltype(type)>(job, lu, pivots, b, x, transposed, tools); });
}

void solve_lu(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
              const DenseArray& info, bool overwrite_a, DenseTools tools) {
  with_type(job, [&](auto type) { solve_lu_of<decltype(type)>(job, a, b, x, info, overwrite_a, tools); });
}

}  // namespace mercer::cpu
