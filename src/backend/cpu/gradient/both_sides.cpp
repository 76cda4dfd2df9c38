// For a block of points z and some rows of x at a time:
//
//   1. planes   sums along the features (pair_sums.h) and the epilogue: slopes, and values, [plane][row][block]
//   2. weights  slopes times u v' or the matrix
//   3. fields   what each pair adds to the rows and to the block; values times u, or times v
//
// Sums of the rows over a block, and of the block over kRows rows, are of the computing type, then of double.
#include "backend/cpu/gradient/both_sides.h"

#include <algorithm>
#include <atomic>

#include "backend/cpu/pairs/sum_range.h"
#include "backend/cpu/pairs/tile_output.h"
#include "core/integers.h"
#include "plan/cpu/ways.h"

namespace mercer::cpu {
namespace {

constexpr std::int64_t kRows = 128;  // whose sums are of the computing type

/// Sums of the computing type that go to double now and then.
template <class T>
class Totals {
 public:
  void start(std::int64_t count, bool has_parts) {
    count_ = count;
    has_parts_ = has_parts;
    if (sums_.size() < count * static_cast<std::int64_t>(sizeof(T))) sums_ = aligned_array<T>(count);
    std::fill_n(sums(), count, T(0));
    if (has_parts) totals_.assign(static_cast<std::size_t>(count), 0.0);
  }
  T* sums() { return sums_.template as<T>(); }
  void promote() {
    if (!has_parts_) return;
    for (std::int64_t i = 0; i < count_; ++i) totals_[static_cast<std::size_t>(i)] += static_cast<double>(sums()[i]);
    std::fill_n(sums(), count_, T(0));
  }
  /// All of them, in the end.
  const T* whole() {
    for (std::int64_t i = 0; has_parts_ && i < count_; ++i)
      sums()[i] = static_cast<T>(totals_[static_cast<std::size_t>(i)] + static_cast<double>(sums()[i]));
    return sums();
  }

 private:
  std::int64_t count_ = 0;
  bool has_parts_ = false;
  AlignedBuffer sums_;
  std::vector<double> totals_;
};

template <class T>
struct Workspace {
  AlignedBuffer acc, planes, z, columns, v, by_rows;
  bool is_fast = false;  // of the block
  Totals<T> by_z, to_cols;
};

template <class T>
class BothSidesRun {
 public:
  BothSidesRun(const PairProgram& program, const BothSidesJob& job, const RunOptions& run)
      : program_(program), job_(job), run_(run), sum_(program.forms.sum),
        params_(program.plan(), job.params, job.item.x.features),
        kernels_(sum_kernels(program.plan().problem.target)), range_(program), features_(job.item.x.features),
        padded_(round_up(features_, std::int64_t{64} / static_cast<std::int64_t>(sizeof(T)))),
        rows_(program.plan().tile.rows), cols_(program.plan().tile.cols()), width_(program.plan().plane_width()),
        factors_(job.u.data == nullptr ? 0 : job.u.features),
        by_columns_(features_ <= plan::cpu::kOrderedFeatures),
        sums_(by_columns_ ? kernels_.columns(sum_, T{}) : kernels_.sums(sum_, T{})) {
    workspaces_.resize(run.workers);
  }

  bool operator()() {
    const std::int64_t m = job_.item.x.count, n = job_.item.z.count;
    x_ = packed(job_.item.x, m, padded_);
    is_fast_ = program_.plan().has_fast && params_.fast_epilogue && is_within(x_, m);
    if (factors_ > 0) u_ = packed(job_.u, m, factors_);
    if (program_.forms.reads_sides) pack_slots(program_.packs.x, job_.item.x, rows_, row_slots_);
    if (program_.forms.reads_sides) pack_slots(program_.packs.z, job_.item.z, cols_, col_slots_);
    const std::int64_t blocks = ceil_div(n, width_), of_range = plan::cpu::blocks_of_range(blocks);
    const std::int64_t ranges = ceil_div(blocks, of_range);
    by_x_.assign(checked_product({ranges, m, padded_}), 0.0);
    if (job_.to_rows.data != nullptr) to_rows_.assign(checked_product({ranges, m, factors_}), 0.0);
    run_(ranges, [&](std::int64_t range, int worker) {
      for (std::int64_t b = range * of_range; b < std::min((range + 1) * of_range, blocks); ++b) {
        if (!fits_.load(std::memory_order_relaxed)) return;
        run_block(range, b * width_, workspaces_[worker]);
        stop_if_cancelled();
      }
    });
    if (!fits_) return false;
    write_totals(by_x_, ranges, padded_, features_, job_.by_x);
    if (job_.to_rows.data != nullptr) write_totals(to_rows_, ranges, factors_, factors_, job_.to_rows);
    return true;
  }

 private:
  /// Rows of points in the computing type, zeros after their features.
  AlignedBuffer packed(const Points& points, std::int64_t count, std::int64_t padded) const {
    AlignedBuffer made = aligned_array<T>(checked_product({count, padded}));
    for (std::int64_t p = 0; p < count; ++p) pack_row(points, p, padded, made.as<T>() + p * padded);
    return made;
  }
  /// Whether these points are of the fast variant's magnitudes.
  bool is_within(const AlignedBuffer& points, std::int64_t count) const {
    return all_within(program_.plan().fast.magnitudes, points.as<T>(), count * padded_);
  }

  void pack_slots(const PackPrograms::Side& side, const Points& points, int width, AlignedBuffer& slots) const {
    pack_side_slots<T>(side, points, width, job_.item.weights, params_.wide, slots);
  }

  void run_block(std::int64_t range, std::int64_t n0, Workspace<T>& w) {
    const std::int64_t m = job_.item.x.count, count = std::min(width_, job_.item.z.count - n0);
    prepare(n0, count, w);
    const bool has_parts = m > kRows;
    w.by_z.start(count * padded_, has_parts);
    if (job_.to_cols.data != nullptr) w.to_cols.start(factors_ * width_, has_parts);
    for (std::int64_t r = 0; r < m; r += rows_) {
      if (has_parts && r % kRows == 0 && r > 0) {
        w.by_z.promote();
        if (job_.to_cols.data != nullptr) w.to_cols.promote();
      }
      if (!run_rows(range, r, n0, count, w)) {
        fits_.store(false, std::memory_order_relaxed);
        return;
      }
    }
    write_block<T>(w.by_z.whole(), padded_, count, features_, job_.by_z, n0, 0);
    if (job_.to_cols.data == nullptr) return;
    const OutputMatrix& out = job_.to_cols;  // the other way round
    write_block<T>(w.to_cols.whole(), width_, factors_, count, {out.data, out.dtype, out.col_stride, out.row_stride}, 0,
                   n0);
  }

  /// The block's points, as rows and where features are few as columns, and the factors of them.
  void prepare(std::int64_t n0, std::int64_t count, Workspace<T>& w) const {
    const auto make = [](AlignedBuffer& buffer, std::int64_t size) {
      if (buffer.size() > 0) return;
      buffer = aligned_array<T>(size);
      std::fill_n(buffer.as<T>(), size, T(0));
    };
    make(w.acc, rows_ * cols_);
    make(w.planes, planes() * rows_ * width_);
    make(w.z, width_ * padded_);
    make(w.by_rows, rows_ * padded_);
    for (std::int64_t c = 0; c < count; ++c) pack_row(job_.item.z, n0 + c, padded_, w.z.template as<T>() + c * padded_);
    w.is_fast = is_fast_ && is_within(w.z, count);
    if (by_columns_) {
      make(w.columns, features_ * width_);
      for (std::int64_t c = 0; c < count; ++c)
        for (std::int64_t k = 0; k < features_; ++k)
          w.columns.template as<T>()[k * width_ + c] = w.z.template as<T>()[c * padded_ + k];
    }
    if (factors_ == 0) return;
    make(w.v, factors_ * width_);
    for (std::int64_t c = 0; c < count; ++c)
      for (std::int64_t e = 0; e < factors_; ++e)
        w.v.template as<T>()[e * width_ + c] = static_cast<T>(read_element(
            job_.v.data, job_.v.dtype, (n0 + c) * job_.v.point_stride + e * job_.v.feature_stride));
  }

  std::int64_t planes() const {
    return static_cast<std::int64_t>(program_.plan().general.epilogue.outputs.size());
  }

  /// Rows from r on. False: sums are out of their range.
  bool run_rows(std::int64_t range, std::int64_t r, std::int64_t n0, std::int64_t count, Workspace<T>& w) {
    const std::int64_t rows = std::min<std::int64_t>(rows_, job_.item.x.count - r);
    for (std::int64_t c = 0; c < count; c += cols_)
      if (!make_planes(r, rows, n0, c, std::min<std::int64_t>(cols_, count - c), w)) return false;
    T* const slopes = w.planes.template as<T>();
    FactorBlock<T> values{slopes, width_, rows, count, factors_, u_.as<T>() + r * factors_, w.v.template as<T>()};
    if (factors_ > 0) kernels_.weigh(values);
    else weigh_by_matrix(r, rows, n0, count, slopes);
    T* const by_rows = w.by_rows.template as<T>();
    std::fill_n(by_rows, rows * padded_, T(0));
    kernels_.fields(sum_, {slopes, width_, x_.as<T>() + r * padded_, w.z.template as<T>(), rows, count, padded_,
                           by_rows, w.by_z.sums()});
    double* const total = by_x_.data() + (range * job_.item.x.count + r) * padded_;
    for (std::int64_t i = 0; i < rows * padded_; ++i) total[i] += static_cast<double>(by_rows[i]);
    values.values = slopes + rows_ * width_;
    if (job_.to_cols.data != nullptr) kernels_.to_cols(values, w.to_cols.sums());
    if (job_.to_rows.data != nullptr)
      kernels_.to_rows(values, to_rows_.data() + (range * job_.item.x.count + r) * factors_);
    return true;
  }

  bool make_planes(std::int64_t r, std::int64_t rows, std::int64_t n0, std::int64_t c, std::int64_t cols,
                   Workspace<T>& w) const {
    SumBlock<T> block;
    const T* const z = w.z.template as<T>() + c * padded_;
    block.x = x_.as<T>() + r * padded_;
    block.z = by_columns_ ? w.columns.template as<T>() + c : z;
    block.x_stride = padded_;
    block.z_stride = by_columns_ ? width_ : padded_;
    block.rows = rows;
    block.cols = cols;
    block.features = features_;
    block.out = w.acc.template as<T>();
    block.out_stride = cols_;
    sums_(block);
    const bool fits = range_.holds(block, [&](std::int64_t i) { return block.x + i * padded_; },
                                   [&](std::int64_t j) { return z + j * padded_; });
    if (!fits) return false;
    plan::EpilogueArgs args{};
    args.acc = block.out;
    args.row = row_slots_.as<T>() + r * program_.packs.x.slots;
    args.col = col_slots_.as<T>() + (n0 + c) * program_.packs.z.slots;
    args.params = (w.is_fast ? params_.fast : params_.general).data();
    args.out = w.planes.template as<T>() + c;
    args.out_stride = width_ * static_cast<std::int64_t>(sizeof(T));
    args.rows = rows;
    (*program_.kernels.variant(w.is_fast).epilogue)(args);
    return true;
  }

  void weigh_by_matrix(std::int64_t r, std::int64_t rows, std::int64_t n0, std::int64_t count, T* slopes) const {
    const std::int64_t row = job_.matrix_row_stride, col = job_.matrix_col_stride;
    if (job_.matrix_dtype != dtype_of<T>()) {
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t c = 0; c < count; ++c)
          slopes[i * width_ + c] *=
              static_cast<T>(read_element(job_.matrix, job_.matrix_dtype, (r + i) * row + (n0 + c) * col));
      return;
    }
    const T* const first = static_cast<const T*>(job_.matrix) + r * row + n0 * col;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t c = 0; c < count; ++c) slopes[i * width_ + c] *= first[i * row + c * col];
  }

  static void add(const double* values, std::vector<double>& sums) {
    for (double& sum : sums) sum += *values++;
  }
  /// The totals of all ranges, in their order.
  void write_totals(const std::vector<double>& totals, std::int64_t ranges, std::int64_t stride, std::int64_t count,
                    const OutputMatrix& out) const {
    const std::int64_t rows = job_.item.x.count;
    std::vector<double> sums(static_cast<std::size_t>(stride));
    std::vector<T> row(static_cast<std::size_t>(stride));
    for (std::int64_t m = 0; m < rows; ++m) {
      std::copy_n(totals.data() + m * stride, stride, sums.data());
      for (std::int64_t range = 1; range < ranges; ++range)
        add(totals.data() + (range * rows + m) * stride, sums);
      std::ranges::transform(sums, row.begin(), [](double sum) { return static_cast<T>(sum); });
      write_block<T>(row.data(), stride, 1, count, out, m, 0);
    }
  }

  const PairProgram& program_;
  const BothSidesJob& job_;
  const RunOptions& run_;
  const plan::cpu::PairSum sum_;
  const ParamBlock<T> params_;
  const SumKernels& kernels_;
  const SumRange<T> range_;
  const std::int64_t features_, padded_;
  const int rows_, cols_;
  const std::int64_t width_, factors_;
  const bool by_columns_;
  const SumKernels::Sums<T> sums_;
  bool is_fast_ = false;  // of the rows
  AlignedBuffer x_, u_, row_slots_, col_slots_;
  std::vector<double> by_x_, to_rows_;  // [range][row][padded features], [range][row][factor]
  std::atomic<bool> fits_{true};
  std::vector<Workspace<T>> workspaces_;
};

}  // namespace

bool both_sides(const PairProgram& program, const BothSidesJob& job, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64) return BothSidesRun<double>(program, job, run)();
  return BothSidesRun<float>(program, job, run)();
}

}  // namespace mercer::cpu
