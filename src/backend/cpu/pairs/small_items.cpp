#include "backend/cpu/pairs/small_items.h"

#include <algorithm>

#include "backend/cpu/pairs/sum_range.h"
#include "backend/cpu/pairs/tile_output.h"
#include "core/integers.h"
#include "plan/cpu/ways.h"

namespace mercer::cpu {
namespace {

/// Values that a part of the batch has of each kind: two of these arrays fit the first-level cache.
constexpr std::int64_t kPartBytes = 8192;
/// Lanes of items pay while what is turned for them stays in the first-level cache.
constexpr std::int64_t kTurnedBytes = 32768;
constexpr std::int64_t kMostItems = 256;
constexpr std::int64_t kLanes = 16;  // the most of any type

bool takes_lanes(const FewPointsJob& job) {
  const Points &x = job.item.x, &z = job.item.z;
  const auto turned = static_cast<std::int64_t>(sizeof(float)) * item_scratch<float>(x.count, z.count, x.features);
  return x.features <= plan::cpu::kOrderedFeatures && job.items >= kLanes / 2 && turned <= kTurnedBytes;
}

bool is_in_place(const Points& points, Dtype type) {
  return points.dtype == type && (points.feature_stride == 1 || points.features == 1);
}

template <class T>
struct Workspace {
  std::vector<const T*> x, z;  // of the items of a part
  AlignedBuffer sums, values, scratch;
  T* tile = nullptr;  // of the sums' memory: what a tile goes through that is not whole
  std::vector<std::int64_t> flagged;
};

template <class T>
class SmallItemsRun {
 public:
  SmallItemsRun(const PairProgram& program, const FewPointsJob& job, const RunOptions& run)
      : program_(program), job_(job), run_(run), params_(program.plan(), job.params, job.item.x.features),
        kernels_(sum_kernels(program.plan().problem.target)), rows_(job.item.x.count), cols_(job.item.z.count),
        pairs_(rows_ * cols_), tile_rows_(program.plan().tile.rows), tile_cols_(program.plan().tile.cols()),
        by_lanes_(takes_lanes(job)), is_dense_(is_dense()), range_(program), output_(program, params_),
        workspaces_(run.workers) {
    const std::int64_t fitting = kPartBytes / static_cast<std::int64_t>(sizeof(T)) / pairs_;
    part_ = std::clamp<std::int64_t>(fitting - fitting % kLanes, by_lanes_ ? kLanes : 1, kMostItems);
  }

  std::vector<std::int64_t> operator()() {
    constexpr double kTaskTerms = 1 << 19;
    const std::int64_t parts = ceil_div(job_.items, part_);
    const double terms =
        static_cast<double>(job_.items) * static_cast<double>(pairs_) * static_cast<double>(job_.item.x.features + 8);
    const std::int64_t tasks = std::clamp<std::int64_t>(static_cast<std::int64_t>(terms / kTaskTerms), 1, parts);
    run_(tasks, [&](std::int64_t task, int worker) {
      Workspace<T>& w = workspaces_[worker];
      if (w.sums.data() == nullptr) take_memory(w);
      for (std::int64_t p = parts * task / tasks; p < parts * (task + 1) / tasks; ++p) {
        stop_if_cancelled();
        run_part(p * part_, std::min(part_, job_.items - p * part_), w);
      }
    });
    std::vector<std::int64_t> flagged;
    for (const Workspace<T>& w : workspaces_) flagged.insert(flagged.end(), w.flagged.begin(), w.flagged.end());
    std::sort(flagged.begin(), flagged.end());
    return flagged;
  }

 private:
  /// Whether the outputs of the items lie one after the other.
  bool is_dense() const {
    std::int64_t step = pairs_;
    for (std::size_t axis = job_.batch.size(); axis-- > 0; step *= job_.batch[axis])
      if (job_.batch[axis] != 1 && job_.out_strides[axis] != step) return false;
    return TileOutput<T>::is_direct(job_.out) && (rows_ == 1 || job_.out.row_stride == cols_);
  }

  void take_memory(Workspace<T>& w) const {
    // Whole tiles, of which the last one of a part need not be full.
    const std::int64_t tile = static_cast<std::int64_t>(tile_rows_) * tile_cols_;
    const std::int64_t values = round_up(part_ * pairs_, tile);
    w.x.resize(part_);
    w.z.resize(part_);
    w.sums = aligned_array<T>(values + tile);
    w.values = aligned_array<T>(values);
    std::fill_n(w.sums.template as<T>(), values, T(0));
    w.tile = w.sums.template as<T>() + values;
    if (by_lanes_) w.scratch = aligned_array<T>(item_scratch<T>(rows_, cols_, job_.item.x.features));
  }

  void run_part(std::int64_t first, std::int64_t items, Workspace<T>& w) const {
    for (std::int64_t i = 0; i < items; ++i) {
      w.x[i] = job_.point_of<T>(job_.item.x, job_.x_strides, first + i);
      w.z[i] = job_.point_of<T>(job_.item.z, job_.z_strides, first + i);
    }
    T* const out = is_dense_ ? static_cast<T*>(job_.out_at(first).data) : w.values.template as<T>();
    T* const sums = output_.is_bare() ? out : w.sums.template as<T>();
    add_sums(items, sums, w);
    look(first, items, sums, w);
    write_values(items * pairs_, sums, out, w.tile);
    if (!is_dense_)
      for (std::int64_t i = 0; i < items; ++i)
        write_block<T>(out + i * pairs_, cols_, rows_, cols_, job_.out_at(first + i), 0, 0);
  }

  void add_sums(std::int64_t items, T* sums, Workspace<T>& w) const {
    const Points &x = job_.item.x, &z = job_.item.z;
    if (by_lanes_)
      return kernels_.items(program_.forms.sum,
                            ItemBlock<T>{w.x.data(), w.z.data(), x.point_stride, z.point_stride, items, rows_, cols_,
                                         x.features, sums, w.scratch.template as<T>()});
    const auto add = kernels_.sums(program_.forms.sum, T{});
    for (std::int64_t i = 0; i < items; ++i) add(block_of(i, sums, w));
  }

  SumBlock<T> block_of(std::int64_t i, T* sums, const Workspace<T>& w) const {
    return {w.x[i], w.z[i], job_.item.x.point_stride, job_.item.z.point_stride,
            rows_,  cols_,  job_.item.x.features,     sums + i * pairs_,
            cols_};
  }

  /// Which items have sums out of their range.
  void look(std::int64_t first, std::int64_t items, T* sums, Workspace<T>& w) const {
    if (!range_.is_left_by(sums, items * pairs_)) return;
    for (std::int64_t i = 0; i < items; ++i) {
      const bool holds = range_.holds(
          block_of(i, sums, w), [&](std::int64_t r) { return w.x[i] + r * job_.item.x.point_stride; },
          [&](std::int64_t c) { return w.z[i] + c * job_.item.z.point_stride; });
      if (!holds) w.flagged.push_back(first + i);
    }
  }

  /// Pairs side by side, in rows of a tile; what is left over of a row goes by way of scratch.
  void write_values(std::int64_t count, T* sums, T* out, T* scratch) const {
    if (output_.is_bare()) return;
    const std::int64_t rows = count / tile_cols_;
    const OutputMatrix to{out, dtype_of<T>(), tile_cols_, 1};
    const auto write = [&](std::int64_t r, std::int64_t height, std::int64_t width) {
      output_.write({r, 0, height, width, sums + r * tile_cols_, tile_cols_, nullptr, nullptr, scratch}, to);
    };
    for (std::int64_t r = 0; r < rows; r += tile_rows_)
      write(r, std::min<std::int64_t>(tile_rows_, rows - r), tile_cols_);
    if (const std::int64_t rest = count - rows * tile_cols_; rest > 0) write(rows, 1, rest);
  }

  const PairProgram& program_;
  const FewPointsJob& job_;
  const RunOptions& run_;
  const ParamBlock<T> params_;
  const SumKernels& kernels_;
  const std::int64_t rows_, cols_, pairs_;
  const int tile_rows_, tile_cols_;
  const bool by_lanes_, is_dense_;
  const SumRange<T> range_;
  const TileOutput<T> output_;
  std::vector<Workspace<T>> workspaces_;
  std::int64_t part_ = 1;
};

}  // namespace

bool are_small_items(const PairProgram& program, const FewPointsJob& job) {
  constexpr std::int64_t kMostPairs = 1024;
  const Points &x = job.item.x, &z = job.item.z;
  const Dtype type = program.plan().problem.type;
  return job.items > 1 && !program.forms.reads_sides && x.count * z.count <= kMostPairs && is_in_place(x, type) &&
         is_in_place(z, type) && (x.features > plan::cpu::kOrderedFeatures || takes_lanes(job));
}

std::vector<std::int64_t> small_items(const PairProgram& program, const FewPointsJob& job, const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64) return SmallItemsRun<double>(program, job, run)();
  return SmallItemsRun<float>(program, job, run)();
}

}  // namespace mercer::cpu
