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
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cpu/pairs/operations.h"

namespace mercer::cpu {

struct SweepWorkspace {
  AlignedBuffer z, z_slots, values;
  TileScratch scratch;  // its accumulators: of a block, where several members share them
};

template <class T>
class PanelSweep {
 public:
  static constexpr std::int64_t kBlock = 96;                          // rows of P, a multiple of every tile height
  static constexpr std::int64_t kRangeRows = 4096;                    // shortest range of n
  static constexpr std::int64_t kEnoughTasks = 32;

  PanelSweep(const PairProgram& program, const PairItem& item, std::vector<ParamBlock<T>> blocks)
      : item_(item), blocks_(std::move(blocks)), engine_(program, item, blocks_[0]) {}

  std::int64_t panels() const { return engine_.z_packer().panels(); }
  int cols() const { return engine_.tile().cols(); }
  int points_in(std::int64_t panel) const { return engine_.z_packer().points_in(panel); }
  /// Ranges into which n is split; a fold keeps one state per (range, panel) and merges them in order.
  std::int64_t ranges() const {
    const std::int64_t wanted = (kEnoughTasks + panels() - 1) / std::max<std::int64_t>(1, panels());
    return std::clamp<std::int64_t>(item_.x.count / kRangeRows, 1, std::max<std::int64_t>(1, wanted));
  }

  /// fold(range, panel, member, n0, rows, P, worker): P [rows][cols] holds the values of points n0 … n0 + rows - 1.
  template <class Fold>
  void operator()(const RunOptions& run, const Fold& fold) {
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
        if (p0 < p1) sweep(q, range, p0, p1, block, workspaces[worker], worker, fold);
      });
    }
    for (const SweepWorkspace& w : workspaces) run.count(w.scratch.counts);
  }

 private:
  template <class Fold>
  void sweep(std::int64_t q, std::int64_t range, std::int64_t p0, std::int64_t p1, std::int64_t block,
             SweepWorkspace& w, int worker, const Fold& fold) {
    const Packer<T>& z = engine_.z_packer();
    const std::int64_t rows = engine_.tile().rows, cols = engine_.tile().cols();
    const std::int64_t acc_size = engine_.accumulator_size();
    w.z.reserve(z.panel_size() * sizeof(T));
    w.z_slots.reserve(z.slots_size() * sizeof(T));
    w.scratch.acc.reserve(acc_size * block * sizeof(T));
    w.values.reserve(block * rows * cols * sizeof(T));
    T* values = w.values.as<T>();
    T* acc = w.scratch.acc.as<T>();
    const PanelView<T> columns{w.z.as<T>(), w.z_slots.as<T>(), q,
                               z.pack(q, w.z.as<T>(), w.z_slots.as<T>())};
    const bool single = blocks_.size() == 1;
    const std::int64_t tile = rows * cols;
    for (std::int64_t b = p0; b < p1; b += block) {
      const std::int64_t end = std::min(p1, b + block);
      for (std::int64_t p = b; p < end;) {
        // Panels of one kind make one run of tiles.
        std::int64_t last = p + 1;
        while (single && last < end && x_.view(last).kind == x_.view(p).kind) ++last;
        if (single) engine_.compute(x_.view(p), columns, w.scratch, values + (p - b) * tile, cols, last - p);
        else engine_.accumulate(x_.view(p), columns, w.scratch, acc + (p - b) * acc_size);
        p = last;
      }
      const std::int64_t n0 = b * rows, present = std::min(item_.x.count, end * rows) - n0;
      for (std::size_t member = 0; member < blocks_.size(); ++member) {
        for (std::int64_t p = b; p < end && !single; ++p)
          engine_.finish(acc + (p - b) * acc_size, x_.view(p), columns, blocks_[member], values + (p - b) * tile, cols);
        fold(range, q, member, n0, present, values, worker);
      }
    }
  }

  const PairItem& item_;
  std::vector<ParamBlock<T>> blocks_;
  PairEngine<T> engine_;
  PackedSide<T> x_;
};

}  // namespace mercer::cpu
