// out[m, e] = sum over n of P[n, m] v[n, e]: every block of P, still in cache, goes through the register tile of a
// plain dot product with n as its "feature". Blocks are summed in the computing type over at most 96 points, then in
// double.
#include <cmath>

#include "backend/cpu/pairs/panel_sweep.h"
#include "core/integers.h"
#include "core/system/parallel.h"

namespace mercer::cpu {
namespace {

/// v as the dot kernels read it: tiles of `height` columns, [tile][n][height], the last tile padded with zeros.
template <class T>
AlignedBuffer pack_columns(const ProductMember& member, std::int64_t points, std::int64_t columns, int height) {
  const std::int64_t tiles = ceil_div(columns, height);
  AlignedBuffer packed = aligned_array<T>(checked_product({tiles, points, height}));
  T* target = packed.as<T>();
  for (std::int64_t t = 0; t < tiles; ++t) {
    stop_if_cancelled();  // many columns take seconds
    for (std::int64_t n = 0; n < points; ++n)
      for (int h = 0; h < height; ++h) {
        const std::int64_t e = t * height + h;
        const std::int64_t index = n * member.v_row_stride + e * member.v_col_stride;
        *target++ = e < columns ? static_cast<T>(read_element(member.v, member.v_dtype, index)) : T(0);
      }
  }
  return packed;
}

/// How many of the first n points have an element of v that is infinite or NaN, for n from 0 to `points`.
template <class T>
std::vector<std::int64_t> count_not_finite(const T* packed, std::int64_t points, std::int64_t tiles, int height) {
  std::vector<std::int64_t> counts(points + 1, 0);
  for (std::int64_t t = 0; t < tiles; ++t)
    for (std::int64_t n = 0; n < points; ++n)
      for (int h = 0; h < height; ++h)
        if (!std::isfinite(*packed++)) counts[n + 1] = 1;
  for (std::int64_t n = 0; n < points; ++n) counts[n + 1] += counts[n];
  return counts;
}

template <class T>
void run_product(const PairProgram& program, const PairItem& item, const std::vector<ProductMember>& members,
                 std::int64_t columns, const jit::UpdateKernel& kernel, int height, const RunOptions& run) {
  std::vector<AlignedBuffer> packed;
  for (const ProductMember& m : members) packed.push_back(pack_columns<T>(m, item.x.count, columns, height));
  PanelSweep<T> sweep(program, item, param_blocks<T>(program.plan(), members, item.x.features), run);
  const std::int64_t cols = sweep.cols(), tiles = ceil_div(columns, height), ranges = sweep.ranges();
  const std::int64_t state = tiles * height * cols;  // doubles per (range, panel, member)
  const std::int64_t panels = sweep.panels(), count = static_cast<std::int64_t>(members.size());
  AlignedBuffer sums = aligned_array<double>(checked_product({ranges, panels, count, state}));
  std::fill_n(sums.as<double>(), ranges * panels * count * state, 0.0);
  std::vector<AlignedBuffer> partial(run.workers);
  const T zero = 0;
  // Zeros times infinities and NaN are none.
  std::vector<std::int64_t> not_finite;
  if (sweep.has_mask()) not_finite = count_not_finite(packed[0].template as<T>(), item.x.count, tiles, height);
  sweep(run, [&](std::int64_t range, std::int64_t q, std::size_t member, std::int64_t n0, std::int64_t rows,
                 const T* values, int worker) {
    partial[worker].reserve(height * cols * sizeof(T));
    T* tile = partial[worker].template as<T>();
    double* sum = sums.as<double>() + ((range * panels + q) * count + member) * state;
    for (std::int64_t t = 0; t < tiles; ++t, sum += height * cols) {
      plan::UpdateArgs args{};
      args.x = packed[member].template as<T>() + (t * item.x.count + n0) * height;
      args.z = values;
      args.acc = tile;
      args.identity = &zero;
      args.k = args.chunk = rows;
      kernel(args);
      for (std::int64_t i = 0; i < height * cols; ++i) sum[i] += static_cast<double>(tile[i]);
    }
  }, [&](std::int64_t, std::int64_t, std::int64_t n0, std::int64_t points, T value, int) {
    return value == 0 && not_finite[n0] == not_finite[n0 + points];
  });
  std::vector<T> row(columns);
  for (std::int64_t m = 0; m < item.z.count; ++m) {
    if (m % cols == 0) stop_if_cancelled();
    for (std::int64_t member = 0; member < count; ++member) {
      for (std::int64_t e = 0; e < columns; ++e) {
        double total = 0;
        for (std::int64_t range = 0; range < ranges; ++range)
          total += sums.as<double>()[((range * panels + m / cols) * count + member) * state + e * cols + m % cols];
        row[e] = static_cast<T>(total);
      }
      write_block<T>(row.data(), columns, 1, columns, members[member].out, m, 0);
    }
  }
}

}  // namespace

void product(const PairProgram& program, const PairItem& item, const std::vector<ProductMember>& members,
             std::int64_t columns, const jit::UpdateKernel& kernel, int height, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64)
    run_product<double>(program, item, members, columns, kernel, height, run);
  else run_product<float>(program, item, members, columns, kernel, height, run);
}

}  // namespace mercer::cpu
