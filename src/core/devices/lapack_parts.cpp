// Long calls of BLAS and LAPACK as short ones, by halves, so that a call can be cancelled between them:
//
//   [A11    ]   A11 = L11 L11^T            A P = L U of the left columns, of the rows of the rest
//   [A21 A22]   L21 = A21 L11^-T           U12 = L11^-1 A12
//               A22 - L21 L21^T = …        A22 - L21 U12 = …
//
// Where a call is cut depends on its sizes and on the number of threads alone.
#include <algorithm>
#include <utility>

#include "core/devices/lapack.h"
#include "core/system/parallel.h"

namespace mercer {
namespace {

/// Extents below are not cut: what they would be cut into is too thin for BLAS to be fast.
constexpr std::int64_t kThin = 256;

/// The first part of a cut, a multiple of what BLAS takes at a time.
std::int64_t half_of(std::int64_t extent) {
  constexpr std::int64_t kStep = 64;
  return std::max(kStep, extent / 2 / kStep * kStep);
}

double product_of(std::int64_t a, std::int64_t b, std::int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

/// Where element (i, j) of op(m) lies.
template <class T>
T* at(T* m, std::int64_t stride, std::int64_t i, std::int64_t j, bool transposed = false) {
  return transposed ? m + j + i * stride : m + i + j * stride;
}

/// Swaps rows i and pivots[i] of these columns, for i ascending.
template <class T>
void swap_rows(T* columns, std::int64_t count, std::int64_t stride, const std::int64_t* pivots, std::int64_t first,
               std::int64_t last) {
  for (std::int64_t j = 0; j < count; ++j) {
    T* const column = columns + j * stride;
    for (std::int64_t i = first; i < last; ++i) std::swap(column[i], column[pivots[i]]);
  }
}

}  // namespace

template <class T>
void Lapack::gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                  const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T beta, T* c,
                  std::int64_t c_stride) const {
  const bool is_thin = std::max({m, n, k}) <= kThin;
  if (is_thin || 2 * product_of(m, n, k) <= most_operations())
    return gemm_at_once(a_transposed, b_transposed, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
  const auto part = [&](std::int64_t m0, std::int64_t rows, std::int64_t n0, std::int64_t cols, std::int64_t k0,
                        std::int64_t sum) {
    stop_if_cancelled();
    gemm<T>(a_transposed, b_transposed, rows, cols, sum, alpha, at(a, a_stride, m0, k0, a_transposed), a_stride,
            at(b, b_stride, k0, n0, b_transposed), b_stride, k0 == 0 ? beta : T(1), at(c, c_stride, m0, n0), c_stride);
  };
  // Sums are cut last: their parts are rounded.
  if (n >= m && n > kThin) {
    const std::int64_t half = half_of(n);
    part(0, m, 0, half, 0, k);
    part(0, m, half, n - half, 0, k);
  } else if (m > kThin) {
    const std::int64_t half = half_of(m);
    part(0, half, 0, n, 0, k);
    part(half, m - half, 0, n, 0, k);
  } else {
    const std::int64_t half = half_of(k);
    part(0, m, 0, n, 0, half);
    part(0, m, 0, n, half, k - half);
  }
}

template <class T>
void Lapack::syrk(bool lower, bool transposed, std::int64_t n, std::int64_t k, T alpha, const T* a,
                  std::int64_t a_stride, T beta, T* c, std::int64_t c_stride) const {
  if (n <= kThin || product_of(n, n, k) <= most_operations())
    return syrk_at_once(lower, transposed, n, k, alpha, a, a_stride, beta, c, c_stride);
  stop_if_cancelled();
  const std::int64_t half = half_of(n), rest = n - half;
  const T* const below = at(a, a_stride, half, 0, transposed);
  syrk<T>(lower, transposed, half, k, alpha, a, a_stride, beta, c, c_stride);
  if (lower)
    gemm<T>(transposed, !transposed, rest, half, k, alpha, below, a_stride, a, a_stride, beta, at(c, c_stride, half, 0),
            c_stride);
  else
    gemm<T>(transposed, !transposed, half, rest, k, alpha, a, a_stride, below, a_stride, beta, at(c, c_stride, 0, half),
            c_stride);
  syrk<T>(lower, transposed, rest, k, alpha, below, a_stride, beta, at(c, c_stride, half, half), c_stride);
}

template <class T>
void Lapack::trsm(bool right, bool lower, bool transposed, bool unit, std::int64_t rows, std::int64_t cols, const T* t,
                  std::int64_t stride, T* b, std::int64_t b_stride) const {
  const std::int64_t order = right ? cols : rows, columns = right ? rows : cols;
  const bool is_thin = std::max(order, columns) <= kThin;
  if (is_thin || product_of(order, order, columns) <= most_operations())
    return trsm_at_once(right, lower, transposed, unit, rows, cols, t, stride, b, b_stride);
  stop_if_cancelled();
  const auto place = [&](std::int64_t along_order, std::int64_t along_columns) {
    return right ? at(b, b_stride, along_columns, along_order) : at(b, b_stride, along_order, along_columns);
  };
  const auto solve = [&](std::int64_t first, std::int64_t count, std::int64_t column, std::int64_t width) {
    trsm<T>(right, lower, transposed, unit, right ? width : count, right ? count : width, at(t, stride, first, first),
            stride, place(first, column), b_stride);
  };
  if (columns > kThin) {  // each is solved for by itself
    const std::int64_t half = half_of(columns);
    solve(0, order, 0, half);
    return solve(0, order, half, columns - half);
  }
  const std::int64_t half = half_of(order), rest = order - half;
  const bool is_lower = lower != transposed;     // of op(t)
  const bool begins_above = is_lower != right;   // what is solved for first
  const auto [from, from_count] = begins_above ? std::pair(std::int64_t{0}, half) : std::pair(half, rest);
  const auto [to, to_count] = begins_above ? std::pair(half, rest) : std::pair(std::int64_t{0}, half);
  solve(from, from_count, 0, columns);
  if (right)
    gemm<T>(false, transposed, columns, to_count, from_count, T(-1), place(from, 0), b_stride,
            at(t, stride, from, to, transposed), stride, T(1), place(to, 0), b_stride);
  else
    gemm<T>(transposed, false, to_count, columns, from_count, T(-1), at(t, stride, to, from, transposed), stride,
            place(from, 0), b_stride, T(1), place(to, 0), b_stride);
  solve(to, to_count, 0, columns);
}

template <class T>
std::int64_t Lapack::potrf(bool lower, std::int64_t n, T* a, std::int64_t stride) const {
  if (n <= kThin || product_of(n, n, n) / 3 <= most_operations()) return potrf_at_once(lower, n, a, stride);
  stop_if_cancelled();
  const std::int64_t half = half_of(n), rest = n - half;
  if (const std::int64_t failed = potrf<T>(lower, half, a, stride); failed != 0) return failed;
  T* const side_block = lower ? at(a, stride, half, 0) : at(a, stride, 0, half);
  trsm<T>(lower, lower, true, false, lower ? rest : half, lower ? half : rest, a, stride, side_block, stride);
  T* const corner = at(a, stride, half, half);
  syrk<T>(lower, !lower, rest, half, T(-1), side_block, stride, T(1), corner, stride);
  const std::int64_t failed = potrf<T>(lower, rest, corner, stride);
  return failed > 0 ? failed + half : failed;
}

template <class T>
std::int64_t Lapack::getrf(std::int64_t m, std::int64_t n, T* a, std::int64_t stride, std::int64_t* pivots) const {
  return getrf_parts<T>(m, n, a, stride, pivots);
}

template <class T>
std::int64_t Lapack::getrf_parts(std::int64_t m, std::int64_t n, T* a, std::int64_t stride,
                                 std::int64_t* pivots) const {
  if (n <= kThin / 2 || product_of(m, n, n) <= most_operations()) return getrf_at_once<T>(m, n, a, stride, pivots);
  stop_if_cancelled();
  if (n > m) {  // the columns on the right have no pivots
    const std::int64_t failed = getrf_parts<T>(m, m, a, stride, pivots);
    T* const side_block = at(a, stride, 0, m);
    swap_rows(side_block, n - m, stride, pivots, 0, m);
    trsm<T>(false, true, false, true, m, n - m, a, stride, side_block, stride);
    return failed;
  }
  const std::int64_t half = half_of(n), rest = n - half;
  const std::int64_t failed = getrf_parts<T>(m, half, a, stride, pivots);
  T *const above = at(a, stride, 0, half), *const corner = at(a, stride, half, half);
  swap_rows(above, rest, stride, pivots, 0, half);
  trsm<T>(false, true, false, true, half, rest, a, stride, above, stride);
  gemm<T>(false, false, m - half, rest, half, T(-1), at(a, stride, half, 0), stride, above, stride, T(1), corner,
          stride);
  const std::int64_t later = getrf_parts<T>(m - half, rest, corner, stride, pivots + half);
  for (std::int64_t i = half; i < n; ++i) pivots[i] += half;
  swap_rows(a, half, stride, pivots, half, n);
  return failed != 0 ? failed : later > 0 ? later + half : later;
}

// NOLINTBEGIN: one line a type and function.
#define MERCER_INSTANTIATE(T)                                                                                          \
  template std::int64_t Lapack::potrf(bool, std::int64_t, T*, std::int64_t) const;                                     \
  template std::int64_t Lapack::getrf(std::int64_t, std::int64_t, T*, std::int64_t, std::int64_t*) const;              \
  template void Lapack::gemm(bool, bool, std::int64_t, std::int64_t, std::int64_t, T, const T*, std::int64_t,          \
                             const T*, std::int64_t, T, T*, std::int64_t) const;                                       \
  template void Lapack::syrk(bool, bool, std::int64_t, std::int64_t, T, const T*, std::int64_t, T, T*, std::int64_t)   \
      const;                                                                                                           \
  template void Lapack::trsm(bool, bool, bool, bool, std::int64_t, std::int64_t, const T*, std::int64_t, T*,           \
                             std::int64_t) const;
MERCER_INSTANTIATE(float)
MERCER_INSTANTIATE(double)
#undef MERCER_INSTANTIATE
// NOLINTEND

}  // namespace mercer
