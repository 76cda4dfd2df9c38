#include "backend/cpu/pairs/few_points.h"

#include <algorithm>
#include <array>
#include <functional>

#include "backend/cpu/pairs/gemm.h"
#include "backend/cpu/pairs/small_items.h"
#include "backend/cpu/pairs/sum_range.h"
#include "backend/cpu/pairs/tile_mask.h"
#include "backend/cpu/pairs/tile_output.h"
#include "core/integers.h"
#include "plan/cpu/ways.h"

namespace mercer::cpu {
namespace {

template <class T>
struct Workspace {
  T *acc = nullptr, *tile = nullptr;
  T* columns = nullptr;  // a panel of z by features
  AlignedBuffer tiles;   // these, where they are too large for the run's own memory
  AlignedBuffer row_slots, col_slots;
  AlignedBuffer x, z, panel;  // of points of another type, or whose features are not contiguous
  std::vector<std::int64_t> flagged;  // items with sums out of their range
  std::vector<MaskRun> runs;
};

template <class T>
class FewPointsRun {
 public:
  FewPointsRun(const PairProgram& program, const FewPointsJob& job, const RunOptions& run)
      : program_(program), job_(job), run_(run), params_(program.plan(), job.params, job.item.x.features),
        kernels_(sum_kernels(program.plan().problem.target)),
        by_columns_(job.item.x.features <= plan::cpu::kOrderedFeatures),
        sums_(by_columns_ ? kernels_.columns(program.forms.sum, T{}) : kernels_.sums(program.forms.sum, T{})),
        rows_(program.plan().tile.rows), cols_(program.plan().tile.cols()), range_(program), output_(program, params_),
        mask_(program.plan(), job.item, params_.wide, run.least_gain), workspaces_(run.workers) {}

  void operator()() {
    constexpr double kTaskTerms = 1 << 19;
    const std::int64_t panels = ceil_div(job_.item.z.count, cols_);
    const double terms = static_cast<double>(job_.item.x.count) * static_cast<double>(job_.item.z.count) *
                         static_cast<double>(job_.item.x.features + 8);
    if (job_.items > 1) {
      const auto wanted = static_cast<std::int64_t>(static_cast<double>(job_.items) * terms / kTaskTerms);
      const std::int64_t tasks = std::clamp<std::int64_t>(wanted, 1, job_.items);
      run_(tasks, [&](std::int64_t task, int worker) {
        for (std::int64_t i = job_.items * task / tasks; i < job_.items * (task + 1) / tasks; ++i)
          run_item(i, workspaces_[worker]);
      });
    } else {
      const PairItem item = in_place(job_.item_at(0), shared_);
      pack_slots(item, shared_);
      const auto wanted = static_cast<std::int64_t>(terms / kTaskTerms);
      const std::int64_t tasks = std::clamp<std::int64_t>(wanted, 1, panels);
      const auto run_task = [&](std::int64_t task, int worker) {
        run_panels(item, 0, panels * task / tasks, panels * (task + 1) / tasks, shared_, workspaces_[worker]);
      };
      run_(tasks, std::cref(run_task));  // small enough to need no memory
    }
    compute_flagged();
  }

 private:
  static bool is_in_place(const Points& points) {
    return points.dtype == dtype_of<T>() && (points.feature_stride == 1 || points.features == 1);
  }
  /// Converts points to the type, their features side by side.
  static void place(Points& points, AlignedBuffer& own) {
    if (is_in_place(points)) return;
    const RowMatrix<T> rows = as_rows<T>(points, 0, own);
    points.data = rows.data;
    points.dtype = dtype_of<T>();
    points.point_stride = rows.stride;
    points.feature_stride = 1;
  }
  /// Points of z are taken a panel at a time, but for those that sums of one side read first.
  PairItem in_place(PairItem item, Workspace<T>& w) const {
    place(item.x, w.x);
    if (program_.forms.reads_sides) place(item.z, w.z);
    return item;
  }
  Points panel_of(const Points& z, std::int64_t n, AlignedBuffer& own) const {
    Points panel = z;
    panel.count = std::min<std::int64_t>(cols_, z.count - n);
    panel.data = static_cast<const char*>(z.data) + n * z.point_stride * static_cast<std::int64_t>(size_of(z.dtype));
    place(panel, own);
    return panel;
  }
  void run_item(std::int64_t index, Workspace<T>& w) {
    const PairItem item = in_place(job_.item_at(index), w);
    pack_slots(item, w);
    run_panels(item, index, 0, ceil_div(item.z.count, cols_), w, w);
  }

  /// What values read of one side.
  void pack_slots(const PairItem& item, Workspace<T>& w) const {
    if (!program_.forms.reads_sides) return;
    pack_side_slots<T>(program_.packs.x, item.x, rows_, item.weights, params_.wide, w.row_slots);
    pack_side_slots<T>(program_.packs.z, item.z, cols_, item.weights, params_.wide, w.col_slots);
  }

  void run_panels(const PairItem& item, std::int64_t index, std::int64_t q0, std::int64_t q1, const Workspace<T>& slots,
                  Workspace<T>& w) {
    const OutputMatrix out = job_.out_at(index);
    if (w.acc == nullptr) take_tiles(item.x.features, w);
    bool fits = true;
    for (std::int64_t q = q0; q < q1 && fits; ++q) {
      if (q > q0) stop_if_cancelled();
      const Points panel = panel_of(item.z, q * cols_, w.panel);
      if (by_columns_) turn_panel(panel, w.columns);
      const auto run_tiles = [&](std::int64_t m, std::int64_t end) {
        for (; m < end && fits; m += rows_) fits = run_tile(item.x, panel, m, q * cols_, out, slots, w);
      };
      if (!mask_) {
        run_tiles(0, item.x.count);
        continue;
      }
      mask_.runs(0, ceil_div(item.x.count, rows_), q, w.runs);
      for (const MaskRun& run : w.runs) {
        const std::int64_t end = std::min(item.x.count, run.end * rows_);
        if (!run.is_known) run_tiles(run.first * rows_, end);
        for (std::int64_t m = run.first * rows_; m < end && run.is_known; m += rows_)
          fill_tile(m, std::min<std::int64_t>(rows_, end - m), q * cols_, panel.count, run, out, w);
      }
    }
    if (!fits) w.flagged.push_back(index);
  }

  void fill_tile(std::int64_t m, std::int64_t rows, std::int64_t n, std::int64_t cols, const MaskRun& run,
                 const OutputMatrix& out, Workspace<T>& w) const {
    SumTile<T> tile{m, n, rows, cols};
    tile.values = w.tile;
    output_.fill(tile, static_cast<T>(run.value), out);
  }

  /// An allocation of their size is a tenth of a call of a few points.
  void take_tiles(std::int64_t features, Workspace<T>& w) {
    const std::int64_t tile = static_cast<std::int64_t>(rows_) * cols_, columns = by_columns_ ? features * cols_ : 0;
    const bool fits = &w == workspaces_.data() && 2 * tile + columns <= std::ssize(first_tiles_);
    if (!fits) w.tiles = aligned_array<T>(2 * tile + columns);
    w.acc = fits ? first_tiles_.data() : w.tiles.template as<T>();
    w.tile = w.acc + tile;
    w.columns = w.tile + tile;
    std::fill_n(w.acc, tile, T(0));
    std::fill_n(w.columns, columns, T(0));
  }

  /// Writes a panel of points feature by feature.
  void turn_panel(const Points& panel, T* columns) const {
    const T* point = static_cast<const T*>(panel.data);
    for (std::int64_t c = 0; c < panel.count; ++c, point += panel.point_stride)
      for (std::int64_t k = 0; k < panel.features; ++k) columns[k * cols_ + c] = point[k];
  }

  /// False: sums of it are out of their range.
  bool run_tile(const Points& x, const Points& panel, std::int64_t m, std::int64_t n, const OutputMatrix& out,
                const Workspace<T>& slots, Workspace<T>& w) const {
    SumBlock<T> block;
    block.x = static_cast<const T*>(x.data) + m * x.point_stride;
    block.z = static_cast<const T*>(panel.data);
    block.x_stride = x.point_stride;
    block.z_stride = panel.point_stride;
    block.rows = std::min<std::int64_t>(rows_, x.count - m);
    block.cols = panel.count;
    block.features = x.features;
    // Rows far apart share no lines; vectors must be whole.
    const bool goes_straight = output_.is_bare() && TileOutput<T>::is_direct(out) &&
                               (by_columns_ ? block.cols == cols_ : block.rows == 1);
    block.out = goes_straight ? TileOutput<T>::at(out, m, n) : w.acc;
    block.out_stride = goes_straight ? out.row_stride : cols_;
    if (by_columns_) {
      block.z = w.columns;
      block.z_stride = cols_;
    }
    sums_(block);
    if (!in_range(x, panel, m, block)) return false;
    output_.write({m, n, block.rows, block.cols, block.out, block.out_stride, slots.row_slots.template as<T>(),
                   slots.col_slots.template as<T>(), w.tile},
                  out);
    return true;
  }

  bool in_range(const Points& x, const Points& panel, std::int64_t m, const SumBlock<T>& b) const {
    const auto point = [](const Points& points, std::int64_t p) {
      return static_cast<const T*>(points.data) + p * points.point_stride;
    };
    return range_.holds(b, [&](std::int64_t r) { return point(x, m + r); },
                        [&](std::int64_t c) { return point(panel, c); });
  }

  void compute_flagged() {
    std::vector<std::int64_t> flagged;
    for (const Workspace<T>& w : workspaces_) flagged.insert(flagged.end(), w.flagged.begin(), w.flagged.end());
    std::sort(flagged.begin(), flagged.end());
    flagged.erase(std::unique(flagged.begin(), flagged.end()), flagged.end());
    for (const std::int64_t index : flagged)
      pairwise(program_, job_.item_at(index), {{job_.params, job_.out_at(index)}}, false, run_);
  }

  const PairProgram& program_;
  const FewPointsJob& job_;
  const RunOptions& run_;
  const ParamBlock<T> params_;
  const SumKernels& kernels_;
  const bool by_columns_;
  const SumKernels::Sums<T> sums_;
  const int rows_, cols_;
  const SumRange<T> range_;
  const TileOutput<T> output_;
  const TileMask mask_;  // of all items, which differ in their points alone
  std::vector<Workspace<T>> workspaces_;
  Workspace<T> shared_;
  alignas(64) std::array<T, 8192 / sizeof(T)> first_tiles_;  // of the first worker
};

}  // namespace

PairItem FewPointsJob::item_at(std::int64_t index) const {
  PairItem moved = item;
  if (index == 0) return moved;
  const auto move = [&](Points& points, const std::vector<std::int64_t>& strides) {
    points.data = static_cast<const char*>(points.data) +
                  offset(index, strides) * static_cast<std::int64_t>(size_of(points.dtype));
  };
  move(moved.x, x_strides);
  move(moved.z, z_strides);
  return moved;
}

OutputMatrix FewPointsJob::out_at(std::int64_t index) const {
  OutputMatrix moved = out;
  if (index > 0)
    moved.data =
        static_cast<char*>(moved.data) + offset(index, out_strides) * static_cast<std::int64_t>(size_of(moved.dtype));
  return moved;
}

void few_points(const PairProgram& program, const FewPointsJob& job, const RunOptions& run) {
  if (are_small_items(program, job)) {
    for (const std::int64_t index : small_items(program, job, run))
      pairwise(program, job.item_at(index), {{job.params, job.out_at(index)}}, false, run);
    return;
  }
  if (program.plan().problem.type == Dtype::float64) FewPointsRun<double>(program, job, run)();
  else FewPointsRun<float>(program, job, run)();
}

}  // namespace mercer::cpu
