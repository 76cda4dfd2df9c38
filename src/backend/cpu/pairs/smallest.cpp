#include "backend/cpu/pairs/smallest.h"

#include <algorithm>

#include "core/integers.h"
#include "plan/cpu/ways.h"

namespace mercer::cpu {
namespace {

template <class T>
void insert(Neighbour<T>* kept, std::int64_t count, const Neighbour<T>& candidate) {
  std::int64_t at = count;
  for (; at > 0 && candidate < kept[at - 1]; --at) kept[at] = kept[at - 1];
  kept[at] = candidate;
}

template <class T>
void replace_largest(Neighbour<T>* kept, std::int64_t k, const Neighbour<T>& candidate) {
  if (k <= plan::cpu::kOrderedNeighbours) return insert(kept, k - 1, candidate);
  std::pop_heap(kept, kept + k);
  kept[k - 1] = candidate;
  std::push_heap(kept, kept + k);
}

/// Whether any of these may be wanted: a NaN for the largest one that is kept wants everything.
template <class T>
bool any_below(const T* values, std::int64_t count, T largest) {
  int found = 0;
  for (std::int64_t i = 0; i < count; ++i) found |= static_cast<int>(!(values[i] >= largest));
  return found != 0;
}

template <class T>
void of_row(const T* row, std::int64_t cols, std::int64_t k, Neighbour<T>* kept) {
  constexpr std::int64_t kLook = 32;
  const bool in_order = k <= plan::cpu::kOrderedNeighbours;
  for (std::int64_t n = 0; n < k; ++n) {
    if (in_order) insert<T>(kept, n, {row[n], n});
    else kept[n] = {row[n], n};
  }
  if (!in_order) std::make_heap(kept, kept + k);
  const Neighbour<T>& largest = in_order ? kept[k - 1] : kept[0];
  for (std::int64_t n = k; n < cols; n += kLook) {
    const std::int64_t end = std::min(n + kLook, cols);
    if (!any_below(row + n, end - n, largest.value)) continue;
    for (std::int64_t i = n; i < end; ++i) {
      const Neighbour<T> candidate{row[i], i};
      if (candidate < largest) replace_largest(kept, k, candidate);
    }
  }
  if (!in_order) std::sort_heap(kept, kept + k);
}

}  // namespace

template <class T>
void smallest(const RowMatrix<T>& rows, std::int64_t k, const OutputMatrix& values, const OutputMatrix& indices,
              const RunOptions& run) {
  constexpr std::int64_t kValuesOfTask = 1 << 16;
  const std::int64_t height = std::clamp<std::int64_t>(kValuesOfTask / rows.cols, 1, rows.rows);
  std::vector<std::vector<Neighbour<T>>> kept(static_cast<std::size_t>(run.workers));
  run(ceil_div(rows.rows, height), [&](std::int64_t task, int worker) {
    std::vector<Neighbour<T>>& own = kept[static_cast<std::size_t>(worker)];
    own.resize(static_cast<std::size_t>(k));
    for (std::int64_t m = task * height; m < std::min((task + 1) * height, rows.rows); ++m) {
      of_row(rows.data + m * rows.stride, rows.cols, k, own.data());
      for (std::int64_t i = 0; i < k; ++i) {
        const Neighbour<T>& one = own[static_cast<std::size_t>(i)];
        static_cast<T*>(values.data)[m * values.row_stride + i * values.col_stride] = one.value;
        static_cast<std::int64_t*>(indices.data)[m * indices.row_stride + i * indices.col_stride] = one.index;
      }
    }
  });
}

template void smallest(const RowMatrix<float>&, std::int64_t, const OutputMatrix&, const OutputMatrix&,
                       const RunOptions&);
template void smallest(const RowMatrix<double>&, std::int64_t, const OutputMatrix&, const OutputMatrix&,
                       const RunOptions&);

}  // namespace mercer::cpu
