// The sweep behind the second stages (product, reduce, nearest): for each panel of the points that stay (vectors along
// m), blocks of function values P[n][m] of all points n of the broadcast side, in order of n.
//
//   formula with its sides swapped: x = the N points that are folded, z = the M points that stay
//
//        m ─────▶ one panel (48 points with AVX-512 and float)
//     n  ┌──────┐
//     │  │ P    │  kBlock rows at a time, in the first-level cache, handed to the fold
//     ▼  └──────┘
//
// Tasks are (panel, range of n). Ranges depend on the sizes alone, so results do not depend on the number of threads.
//
// Points n whose values a mask knows for all of a panel are offered to the fold at once, which may take them without
// looking at each; otherwise rows of that value are handed to it. Blocks keep their places, so a sum over the points of
// a block has the bits that it has with zeros for those that were skipped at its ends.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/pairs/operations.h"
#include "backend/cpu/pairs/tile_mask.h"

namespace mercer::cpu {

struct SweepWorkspace {
  AlignedBuffer z, z_slots, values;
  std::vector<MaskRun> runs;
  TileScratch scratch;  // its accumulators: of a block, where several members share them
};

template <class T>
class PanelSweep {
 public:
  static constexpr std::int64_t kBlock = 96;                          // rows of P, a multiple of every tile height
  static constexpr std::int64_t kRangeRows = 4096;                    // shortest range of n
  static constexpr std::int64_t kEnoughTasks = 32;

  PanelSweep(const PairProgram& program, const PairItem& item, std::vector<ParamBlock<T>> blocks,
             const RunOptions& run)
      : item_(item), blocks_(std::move(blocks)), engine_(program, item, blocks_[0]),
        mask_(of_one_member(program.plan(), item, run.least_gain)) {}

  /// Whether some points may have values that a mask knows.
  bool has_mask() const { return bool(mask_); }
  std::int64_t panels() const { return engine_.z_packer().panels(); }
  int cols() const { return engine_.tile().cols(); }
  int points_in(std::int64_t panel) const { return engine_.z_packer().points_in(panel); }
  /// Ranges into which n is split; a fold keeps one state per (range, panel) and merges them in order.
  std::int64_t ranges() const {
    const std::int64_t wanted = (kEnoughTasks + panels() - 1) / std::max<std::int64_t>(1, panels());
    return std::clamp<std::int64_t>(item_.x.count / kRangeRows, 1, std::max<std::int64_t>(1, wanted));
  }

  /// fold(range, panel, member, n0, rows, P, worker): P [rows][cols] holds the values of points n0 … n0 + rows - 1.
  /// take(range, panel, n0, rows, value, worker): points that all have this value; false where they are wanted as P.
  template <class Fold, class Take>
  void operator()(const RunOptions& run, const Fold& fold, const Take& take) {
    engine_.look(run.least_gain);
    std::vector<SweepWorkspace> workspaces(run.workers);
    const std::int64_t tile_rows = engine_.tile().rows, all = engine_.x_packer().panels();
    const std::int64_t splits = ranges();
    const std::int64_t bytes = std::max<std::int64_t>(1, engine_.x_packer().panel_size() * sizeof(T));
    const std::int64_t block = std::max<std::int64_t>(1, kBlock / tile_rows);
    const std::int64_t step = std::max(block, kPackedBytes / bytes / block * block);
    // Range boundaries are multiples of the block, so that blocks never straddle them.
    auto boundary = [&](std::int64_t range) { return range == splits ? all : all * range / splits / block * block; };
    for (std::int64_t first = 0; first < all; first += step) {
      const std::int64_t end = std::min(all, first + step);
      x_.pack(engine_.x_packer(), first, end - first, *run.pool);
      run(panels() * splits, [&](std::int64_t task, int worker) {
        const std::int64_t q = task / splits, range = task % splits;
        const std::int64_t p0 = std::max(first, boundary(range)), p1 = std::min(end, boundary(range + 1));
        if (p0 < p1) sweep({q, range, p0, p1, block}, workspaces[worker], worker, fold, take);
      });
    }
    for (const SweepWorkspace& w : workspaces) run.count(w.scratch.counts);
  }

 private:
  struct Task {
    std::int64_t q, range, p0, p1, block;
  };

  TileMask of_one_member(const plan::PairPlan& plan, const PairItem& item, double least_gain) const {
    if (blocks_.size() == 1) return {plan, item, blocks_[0].wide, least_gain};
    return {plan, item, std::vector<std::span<const double>>{}, least_gain};
  }

  template <class Fold, class Take>
  void sweep(const Task& task, SweepWorkspace& w, int worker, const Fold& fold, const Take& take) {
    const Packer<T>& z = engine_.z_packer();
    const std::int64_t rows = engine_.tile().rows, tile = engine_.tile_size();
    w.z.reserve(z.panel_size() * sizeof(T));
    w.z_slots.reserve(z.slots_size() * sizeof(T));
    w.scratch.acc.reserve(engine_.accumulator_size() * task.block * sizeof(T));
    w.values.reserve(task.block * tile * sizeof(T));
    T* values = w.values.as<T>();
    const PanelView<T> columns{w.z.as<T>(), w.z_slots.as<T>(), task.q,
                               z.pack(task.q, w.z.as<T>(), w.z_slots.as<T>())};
    mask_.runs(task.p0, task.p1, task.q, w.runs);
    for (const MaskRun& run : w.runs) {
      const auto value = static_cast<T>(run.value);
      if (run.is_known) {
        stop_if_cancelled();
        const std::int64_t n0 = run.first * rows, points = std::min(item_.x.count, run.end * rows) - n0;
        if (take(task.range, task.q, n0, points, value, worker)) continue;
        std::fill_n(values, task.block * tile, value);
      }
      for (std::int64_t b = run.first; b < run.end;) {
        const std::int64_t end = std::min(run.end, (b / task.block + 1) * task.block);
        const std::int64_t n0 = b * rows, present = std::min(item_.x.count, end * rows) - n0;
        if (blocks_.size() > 1) fold_members(task, columns, b, end, w, worker, fold);
        else if (!run.is_known) compute(columns, b, end, w);
        if (blocks_.size() == 1) fold(task.range, task.q, std::size_t{0}, n0, present, values, worker);
        b = end;
      }
    }
  }

  /// The values of panels b … end - 1. Panels of one kind make one run of tiles.
  void compute(const PanelView<T>& columns, std::int64_t b, std::int64_t end, SweepWorkspace& w) const {
    for (std::int64_t p = b; p < end;) {
      std::int64_t last = p + 1;
      while (last < end && x_.view(last).kind == x_.view(p).kind) ++last;
      engine_.compute(x_.view(p), columns, w.scratch, w.values.as<T>() + (p - b) * engine_.tile_size(),
                      engine_.tile().cols(), last - p);
      p = last;
    }
  }

  template <class Fold>
  void fold_members(const Task& task, const PanelView<T>& columns, std::int64_t b, std::int64_t end, SweepWorkspace& w,
                    int worker, const Fold& fold) const {
    const std::int64_t acc_size = engine_.accumulator_size(), tile = engine_.tile_size(), rows = engine_.tile().rows;
    T *const acc = w.scratch.acc.as<T>(), *const values = w.values.as<T>();
    for (std::int64_t p = b; p < end; ++p)
      engine_.accumulate(x_.view(p), columns, w.scratch, acc + (p - b) * acc_size);
    const std::int64_t n0 = b * rows, present = std::min(item_.x.count, end * rows) - n0;
    for (std::size_t member = 0; member < blocks_.size(); ++member) {
      for (std::int64_t p = b; p < end; ++p)
        engine_.finish(acc + (p - b) * acc_size, x_.view(p), columns, blocks_[member], values + (p - b) * tile,
                       engine_.tile().cols());
      fold(task.range, task.q, member, n0, present, values, worker);
    }
  }

  const PairItem& item_;
  std::vector<ParamBlock<T>> blocks_;
  PairEngine<T> engine_;
  TileMask mask_;
  PackedSide<T> x_;
};

}  // namespace mercer::cpu
