#include "backend/cpu/pairs/gemm.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cpu {

template <class T>
RowMatrix<T> as_rows(const Points& points, std::int64_t most_stride, AlignedBuffer& own) {
  const std::int64_t features = points.features, stride = points.point_stride;
  const bool fits = stride >= std::max<std::int64_t>(features, 1) && stride <= most_stride;
  if (points.dtype == dtype_of<T>() && (points.feature_stride == 1 || features == 1) && (fits || points.count == 1))
    return {static_cast<const T*>(points.data), points.count, features, fits ? stride : features};
  own.reserve(checked_product({points.count, features, static_cast<std::int64_t>(sizeof(T))}));
  for (std::int64_t p = 0; p < points.count; ++p) pack_row<T>(points, p, features, own.as<T>() + p * features);
  return {own.as<T>(), points.count, features, features};
}

template <class T>
void multiply(const Lapack& lapack, const RowMatrix<T>& a, const RowMatrix<T>& b, bool b_transposed,
              std::int64_t chunk, const OutputMatrix& out, const RunOptions& run) {
  constexpr std::int64_t kRows = 512;
  const std::int64_t cols = b_transposed ? b.rows : b.cols;
  const bool is_direct = out.dtype == dtype_of<T>() && (out.col_stride == 1 || cols == 1) && out.row_stride >= cols &&
                         out.row_stride <= lapack.largest_size();
  std::vector<AlignedBuffer> tiles(run.workers);
  const LapackThreads threads(lapack, 1);
  run(ceil_div(a.rows, kRows), [&](std::int64_t task, int worker) {
    const std::int64_t first = task * kRows, rows = std::min(kRows, a.rows - first);
    if (!is_direct) tiles[worker].reserve(rows * cols * static_cast<std::int64_t>(sizeof(T)));
    T* const to = is_direct ? static_cast<T*>(out.data) + first * out.row_stride : tiles[worker].template as<T>();
    const std::int64_t stride = is_direct ? out.row_stride : cols;
    for (std::int64_t k = 0; k < a.cols; k += chunk)
      lapack.gemm<T>(b_transposed, false, cols, rows, std::min(chunk, a.cols - k), T(1),
                     b.data + (b_transposed ? k : k * b.stride), b.stride, a.data + first * a.stride + k, a.stride,
                     k == 0 ? T(0) : T(1), to, stride);
    if (!is_direct) write_block<T>(to, cols, rows, cols, out, first, 0);
  });
}

template RowMatrix<float> as_rows(const Points&, std::int64_t, AlignedBuffer&);
template RowMatrix<double> as_rows(const Points&, std::int64_t, AlignedBuffer&);
template void multiply(const Lapack&, const RowMatrix<float>&, const RowMatrix<float>&, bool, std::int64_t,
                       const OutputMatrix&, const RunOptions&);
template void multiply(const Lapack&, const RowMatrix<double>&, const RowMatrix<double>&, bool, std::int64_t,
                       const OutputMatrix&, const RunOptions&);

}  // namespace mercer::cpu
