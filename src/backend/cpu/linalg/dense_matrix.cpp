#include "backend/cpu/linalg/dense_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/system/parallel.h"

namespace mercer::cpu {
namespace {

/// Copies between layouts that differ go by squares of so many elements: both sides stay in the first level of cache.
constexpr std::int64_t kBlock = 32;

template <class T>
using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
template <class T>
constexpr Bits<T> kExponent = sizeof(T) == 4 ? Bits<T>{0x7f800000} : static_cast<Bits<T>>(0x7ff0000000000000);

/// Not 0 for NaN and infinities. On integers, which the compiler may reorder and so vectorise.
template <class T>
Bits<T> not_finite(T value) {
  return (std::bit_cast<Bits<T>>(value) & kExponent<T>) == kExponent<T>;
}

/// Asked for each column or row; few of them are none of the long work.
void ask_now_and_then(std::int64_t index) {
  constexpr std::int64_t kEvery = 64;
  if (index % kEvery == kEvery - 1) stop_if_cancelled();
}

struct Range {
  std::int64_t first, last;
};

/// Rows of the column j that belong to the part.
Range rows_of(Part part, std::int64_t j, std::int64_t rows) {
  switch (part) {
    case Part::lower: return {std::min(j, rows), rows};
    case Part::upper: return {0, std::min(j + 1, rows)};
    default: return {0, rows};
  }
}

Part flipped(Part part) { return part == Part::all ? part : part == Part::lower ? Part::upper : Part::lower; }

/// A column from row `first` up to `last`.
template <class T>
Bits<T> copy_column(Matrix<T> from, Matrix<T> to, std::int64_t j, Range rows) {
  const T* source = &from(0, j);
  T* target = &to(0, j);
  Bits<T> bad = 0;
  if (from.row_stride == 1 && to.row_stride == 1) {
    for (std::int64_t i = rows.first; i < rows.last; ++i) {
      bad |= not_finite(source[i]);
      target[i] = source[i];
    }
    return bad;
  }
  for (std::int64_t i = rows.first; i < rows.last; ++i) {
    const T value = source[i * from.row_stride];
    bad |= not_finite(value);
    target[i * to.row_stride] = value;
  }
  return bad;
}

/// Fewer steps from row to row than from column to column.
template <class T>
bool goes_down(Matrix<T> m) {
  return std::abs(m.row_stride) <= std::abs(m.col_stride) || m.cols <= 1;
}

/// Row by row, all columns of b at once; t_ip is read once for each.
template <class T>
void solve_small(Matrix<T> t, bool forward, bool unit, Matrix<T> b) {
  const std::int64_t n = b.rows, steps = b.cols, across = b.col_stride;
  for (std::int64_t count = 0; count < n; ++count) {
    const std::int64_t i = forward ? count : n - 1 - count;
    T* const row = &b(i, 0);
    if (!unit)
      for (std::int64_t j = 0; j < steps; ++j) row[j * across] /= t(i, i);
    const std::int64_t end = forward ? n : i;
    for (std::int64_t p = forward ? i + 1 : 0; p < end; ++p) {
      const T factor = t(p, i);
      T* const target = &b(p, 0);
      for (std::int64_t j = 0; j < steps; ++j) target[j * across] -= factor * row[j * across];
    }
  }
}

}  // namespace

template <class T>
std::int64_t factor_small(Matrix<T> lower) {
  const std::int64_t n = lower.rows, down = lower.row_stride;
  for (std::int64_t j = 0; j < n; ++j) {
    T* const column = &lower(0, j);
    for (std::int64_t k = 0; k < j; ++k) {
      const T factor = lower(j, k);
      const T* const before = &lower(0, k);
      if (down == 1) {
        for (std::int64_t i = j; i < n; ++i) column[i] -= factor * before[i];
      } else {
        for (std::int64_t i = j; i < n; ++i) column[i * down] -= factor * before[i * down];
      }
    }
    if (!(lower(j, j) > 0)) return j + 1;
    const T root = std::sqrt(lower(j, j));
    lower(j, j) = root;
    for (std::int64_t i = j + 1; i < n; ++i) column[i * down] /= root;
  }
  return 0;
}

template <class T>
bool copy(Matrix<T> from, Matrix<T> to, Part part) {
  if (from.rows == 0 || from.cols == 0) return true;
  if (!goes_down(to)) return copy(from.transposed(), to.transposed(), flipped(part));
  Bits<T> bad = 0;
  if (goes_down(from)) {
    for (std::int64_t j = 0; j < to.cols; ++j) {
      ask_now_and_then(j);
      bad |= copy_column(from, to, j, rows_of(part, j, to.rows));
    }
    return bad == 0;
  }
  for (std::int64_t top = 0; top < to.rows; top += kBlock) {
    ask_now_and_then(top + kBlock - 1);
    for (std::int64_t left = 0; left < to.cols; left += kBlock) {
      for (std::int64_t j = left; j < std::min(left + kBlock, to.cols); ++j) {
        Range rows = rows_of(part, j, to.rows);
        rows = {std::max(rows.first, top), std::min(rows.last, top + kBlock)};
        bad |= copy_column(from, to, j, rows);
      }
    }
  }
  return bad == 0;
}

template <class T>
bool all_finite(Matrix<T> matrix, Part part) {
  if (matrix.rows == 0 || matrix.cols == 0) return true;
  if (!goes_down(matrix)) return all_finite(matrix.transposed(), flipped(part));
  Bits<T> bad = 0;
  for (std::int64_t j = 0; j < matrix.cols; ++j) {
    ask_now_and_then(j);
    const Range rows = rows_of(part, j, matrix.rows);
    const T* column = &matrix(0, j);
    if (matrix.row_stride == 1) {
      for (std::int64_t i = rows.first; i < rows.last; ++i) bad |= not_finite(column[i]);
    } else {
      for (std::int64_t i = rows.first; i < rows.last; ++i) bad |= not_finite(column[i * matrix.row_stride]);
    }
  }
  return bad == 0;
}

template <class T>
void fill(Matrix<T> matrix, T value) {
  if (!goes_down(matrix)) matrix = matrix.transposed();
  for (std::int64_t j = 0; j < matrix.cols; ++j)
    for (std::int64_t i = 0; i < matrix.rows; ++i) matrix(i, j) = value;
}

template <class T>
void clear_other_half(Matrix<T> square, bool keeps_lower) {
  if (!goes_down(square)) {
    square = square.transposed();
    keeps_lower = !keeps_lower;
  }
  for (std::int64_t j = 0; j < square.cols; ++j) {
    const Range rows = keeps_lower ? Range{0, j} : Range{j + 1, square.rows};
    for (std::int64_t i = rows.first; i < rows.last; ++i) square(i, j) = 0;
  }
}

template <class T>
void transpose_in_place(Matrix<T> square) {
  for (std::int64_t top = 0; top < square.rows; top += kBlock) {
    ask_now_and_then(top + kBlock - 1);
    for (std::int64_t left = 0; left <= top; left += kBlock) {
      for (std::int64_t i = top; i < std::min(top + kBlock, square.rows); ++i) {
        const std::int64_t end = std::min(left + kBlock, i);
        for (std::int64_t j = left; j < end; ++j) std::swap(square(i, j), square(j, i));
      }
    }
  }
}

template <class T>
void solve_triangular(const Lapack& lapack, Matrix<T> t, bool lower, bool transposed, bool unit, Matrix<T> b) {
  if (b.rows == 0 || b.cols == 0) return;
  const bool by_rows = b.cols == 1 || (b.col_stride == 1 && b.cols <= kSmallOrder);
  if (b.rows <= kSmallOrder && by_rows)
    return solve_small(transposed ? t.transposed() : t, lower != transposed, unit, b);
  if (!t.is_column_major()) {
    t = t.transposed();
    lower = !lower;
    transposed = !transposed;
  }
  if (b.cols == 1) {
    const std::int64_t step = b.rows > 1 ? b.row_stride : 1;
    return lapack.trsv(lower, transposed, unit, b.rows, t.data, t.stride(), b.data, step);
  }
  const bool right = !b.is_column_major();  // op(t)^-1 b = (b^T op(t)^-T)^T
  if (right) b = b.transposed();
  lapack.trsm(right, lower, transposed != right, unit, b.rows, b.cols, t.data, t.stride(), b.data, b.stride());
}

template <class T>
void swap_rows(Matrix<T> b, const std::int64_t* pivots, std::int64_t count, bool descending) {
  const auto swap_one = [&](std::int64_t i, std::int64_t first, std::int64_t last) {
    if (pivots[i] == i) return;
    for (std::int64_t j = first; j < last; ++j) std::swap(b(i, j), b(pivots[i], j));
  };
  // A column at a time where columns are what lies together.
  const std::int64_t width = goes_down(b) ? 1 : b.cols;
  for (std::int64_t left = 0; left < b.cols; left += width) {
    if (descending) {
      for (std::int64_t i = count; i-- > 0;) swap_one(i, left, left + width);
    } else {
      for (std::int64_t i = 0; i < count; ++i) swap_one(i, left, left + width);
    }
  }
}

// NOLINTBEGIN: one line a type and function.
#define MERCER_INSTANTIATE(T)                                                            \
  template bool copy(Matrix<T>, Matrix<T>, Part);                                        \
  template bool all_finite(Matrix<T>, Part);                                             \
  template std::int64_t factor_small(Matrix<T>);                                         \
  template void fill(Matrix<T>, T);                                                      \
  template void clear_other_half(Matrix<T>, bool);                                       \
  template void transpose_in_place(Matrix<T>);                                           \
  template void solve_triangular(const Lapack&, Matrix<T>, bool, bool, bool, Matrix<T>); \
  template void swap_rows(Matrix<T>, const std::int64_t*, std::int64_t, bool);
MERCER_INSTANTIATE(float)
MERCER_INSTANTIATE(double)
#undef MERCER_INSTANTIATE
// NOLINTEND

}  // namespace mercer::cpu
