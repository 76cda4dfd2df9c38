// out[m, n] = epilogue(sum over k …): blocks of rows of x against panels of z.
//
//             z panels (packed once, shared by all threads)
//            ┌────┬────┬────┬────┐
//   block of │tile│    │    │    │   a task packs its block of x (12 panels stay in the second-level cache) and walks
//   x panels │    │    │    │    │   over a range of z panels
//            └────┴────┴────┴────┘
//
// Tiles whose value a mask knows are filled.
#include <algorithm>
#include <span>

#include "backend/cpu/pairs/operations.h"
#include "backend/cpu/pairs/tile_mask.h"
#include "core/integers.h"

namespace mercer::cpu {
namespace {

constexpr std::int64_t kBlockRows = 96;

struct Workspace {
  AlignedBuffer x, x_slots, tile;
  std::vector<PanelKind> kinds;
  std::vector<double> known;
  TileScratch scratch;
};

template <class T>
std::vector<std::span<const double>> params_of(const std::vector<ParamBlock<T>>& blocks) {
  std::vector<std::span<const double>> params;
  for (const ParamBlock<T>& block : blocks) params.emplace_back(block.wide);
  return params;
}

template <class T>
class PairwiseRun {
 public:
  PairwiseRun(const PairProgram& program, const PairItem& item, const std::vector<PairMember>& members, bool symmetric,
              const RunOptions& run)
      : item_(item), members_(members), symmetric_(symmetric), run_(run),
        blocks_(param_blocks<T>(program.plan(), members, item.x.features)), engine_(program, item, blocks_[0]),
        mask_(program.plan(), item, params_of(blocks_), run.least_gain), workspaces_(run.workers) {
    engine_.look(run.least_gain);
  }

  void operator()() {
    const Packer<T>& z = engine_.z_packer();
    const std::int64_t bytes = std::max<std::int64_t>(1, z.panel_size() * static_cast<std::int64_t>(sizeof(T)));
    const std::int64_t step = std::max<std::int64_t>(1, kPackedBytes / bytes);
    for (std::int64_t first = 0; first < z.panels(); first += step) {
      z_.pack(z, first, std::min(step, z.panels() - first), *run_.pool);
      run_panels();
    }
    for (const Workspace& w : workspaces_) run_.count(w.scratch.counts);
  }

 private:
  void run_panels() {
    const std::int64_t tile_rows = engine_.tile().rows, panels = engine_.x_packer().panels();
    const std::int64_t block = std::max<std::int64_t>(1, kBlockRows / tile_rows);
    const std::int64_t row_blocks = ceil_div(panels, block);
    // Few blocks of rows: their panels of z are split too, so that every thread finds work.
    const std::int64_t wanted = 4 * run_.workers;
    const std::int64_t ranges = std::clamp<std::int64_t>(ceil_div(wanted, row_blocks), 1, (z_.count + 7) / 8);
    run_(row_blocks * ranges, [&](std::int64_t task, int worker) {
      const std::int64_t b = task / ranges, r = task % ranges;
      const std::int64_t z0 = z_.first + z_.count * r / ranges, z1 = z_.first + z_.count * (r + 1) / ranges;
      run_block(b * block, std::min(panels, (b + 1) * block), z0, z1, workspaces_[worker]);
    });
  }

  void run_block(std::int64_t x0, std::int64_t x1, std::int64_t z0, std::int64_t z1, Workspace& w) {
    const Packer<T>& x = engine_.x_packer();
    const std::int64_t cols = engine_.tile().cols(), rows = engine_.tile().rows;
    const std::int64_t m0 = x0 * rows, m1 = std::min(item_.x.count, x1 * rows);
    if (symmetric_) z0 = std::max(z0, m0 / cols);
    if (z0 >= z1) return;
    w.x.reserve((x1 - x0) * x.panel_size() * sizeof(T));
    w.x_slots.reserve((x1 - x0) * x.slots_size() * sizeof(T));
    w.scratch.acc.reserve(engine_.accumulator_size() * sizeof(T));
    w.tile.reserve(engine_.tile_size() * sizeof(T));
    w.kinds.resize(x1 - x0);
    for (std::int64_t p = x0; p < x1; ++p) {
      const std::int64_t at = p - x0;
      w.kinds[at] = x.pack(p, w.x.as<T>() + at * x.panel_size(), w.x_slots.as<T>() + at * x.slots_size());
    }
    w.known.resize(mask_.values());
    mask_.each_panel(x0, x1, z0, z1, [&](std::int64_t q, std::int64_t end, const double* known, bool is_open) {
      const std::int64_t n0 = q * cols, n1 = std::min(item_.z.count, end * cols);
      if (known != nullptr && (!symmetric_ || n0 >= m1)) return fill_pairs(m0, m1, n0, n1, known);
      for (; q < end; ++q) {
        if (known != nullptr) fill_tiles(x0, x1, q, known, w);
        else if (is_open) run_open(x0, x1, q, w);
        else run_tiles(x0, x1, q, x0, w);
      }
      if (symmetric_) mirror(m0, m1, n0, n1);
    });
  }

  /// Tiles of panels p … end - 1 of a block whose first one is x0.
  void run_tiles(std::int64_t p, std::int64_t end, std::int64_t q, std::int64_t x0, Workspace& w) {
    while (p < end) {
      const std::int64_t run = run_length(p, end, q, x0, w);
      if (run > 0) run_direct(p, run, q, x0, w);
      else if (has_pairs(p, q)) run_tile(p, q, x0, w);
      p += std::max<std::int64_t>(run, 1);
    }
  }

  /// Some of these tiles may be known.
  void run_open(std::int64_t x0, std::int64_t x1, std::int64_t q, Workspace& w) {
    for (std::int64_t p = x0; p < x1;) {
      std::int64_t end = p;
      bool is_known = false;
      while (end < x1 && !is_known) {
        is_known = mask_.of(end, end + 1, q, q + 1, w.known.data()) == plan::MaskAnswer::known;
        if (!is_known) ++end;
      }
      run_tiles(p, end, q, x0, w);
      if (is_known) fill_tiles(end, end + 1, q, w.known.data(), w);
      p = end + 1;
    }
  }

  /// Whether a tile has pairs that are computed: of a symmetric result those above the diagonal.
  bool has_pairs(std::int64_t p, std::int64_t q) const {
    return !symmetric_ || (q + 1) * engine_.tile().cols() > p * engine_.tile().rows;
  }

  /// Pairs of rows m0 … m1 - 1 and columns n0 … n1 - 1, of one value for each member, and those across the diagonal.
  void fill_pairs(std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1, const double* known) const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      fill_rows(members_[i].out, m0, m1, n0, n1, static_cast<T>(known[i]));
      if (symmetric_) fill_rows(members_[i].out, n0, n1, m0, m1, static_cast<T>(known[i]));
    }
  }
  static void fill_rows(const OutputMatrix& out, std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1,
                        T value) {
    const bool is_direct = out.dtype == dtype_of<T>() && out.col_stride == 1;
    for (std::int64_t m = m0; m < m1; ++m) {
      const std::int64_t row = m * out.row_stride;
      if (is_direct) std::fill_n(static_cast<T*>(out.data) + row + n0, n1 - n0, value);
      for (std::int64_t n = n0; n < n1 && !is_direct; ++n) store_element<T>(out, row + n * out.col_stride, value);
    }
  }

  /// Tiles of panels p … end - 1, of one value for each member.
  void fill_tiles(std::int64_t p, std::int64_t end, std::int64_t q, const double* known, Workspace& w) const {
    const std::int64_t cols = engine_.tile().cols(), rows = engine_.tile().rows;
    for (std::size_t i = 0; i < members_.size(); ++i) {
      std::fill_n(w.tile.as<T>(), engine_.tile_size(), static_cast<T>(known[i]));
      for (std::int64_t one = p; one < end; ++one)
        if (has_pairs(one, q))
          copy_tile(members_[i].out, one * rows, q * cols, engine_.x_packer().points_in(one),
                    engine_.z_packer().points_in(q), w.tile.as<T>());
    }
  }

  PanelView<T> x_view(std::int64_t p, std::int64_t x0, const Workspace& w) const {
    const Packer<T>& x = engine_.x_packer();
    return {w.x.as<T>() + (p - x0) * x.panel_size(), w.x_slots.as<T>() + (p - x0) * x.slots_size(), p,
            w.kinds[p - x0]};
  }

  /// Tiles from p on that one kernel call can write straight into the output: whole ones, with contiguous rows there,
  /// above the diagonal of a symmetric result, their panels of one kind.
  std::int64_t run_length(std::int64_t p, std::int64_t x1, std::int64_t q, std::int64_t x0,
                          const Workspace& w) const {
    const OutputMatrix& out = members_[0].out;
    const std::int64_t rows = engine_.tile().rows, cols = engine_.tile().cols();
    const bool direct = members_.size() == 1 && out.dtype == dtype_of<T>() && out.col_stride == 1;
    if (!direct || engine_.z_packer().points_in(q) < cols) return 0;
    std::int64_t last = p;
    while (last < x1 && engine_.x_packer().points_in(last) == rows && (!symmetric_ || q * cols >= (last + 1) * rows) &&
           w.kinds[last - x0] == w.kinds[p - x0])
      ++last;
    return last - p;
  }

  void run_direct(std::int64_t p, std::int64_t run, std::int64_t q, std::int64_t x0, Workspace& w) {
    const OutputMatrix& out = members_[0].out;
    T* target = static_cast<T*>(out.data) + p * engine_.tile().rows * out.row_stride + q * engine_.tile().cols();
    engine_.compute(x_view(p, x0, w), z_.view(q), w.scratch, target, out.row_stride, run);
  }

  /// One tile for every member through a tile of scratch memory.
  void run_tile(std::int64_t p, std::int64_t q, std::int64_t x0, Workspace& w) {
    const std::int64_t cols = engine_.tile().cols(), m0 = p * engine_.tile().rows, n0 = q * cols;
    const bool diagonal = symmetric_ && n0 < m0 + engine_.tile().rows;
    const PanelView<T> z = z_.view(q);
    const PanelView<T> x = diagonal ? engine_.values_of(x_view(p, x0, w), w.scratch) : x_view(p, x0, w);
    T* acc = w.scratch.acc.as<T>();
    T* tile = w.tile.as<T>();
    const bool single = members_.size() == 1;
    if (!single) engine_.accumulate(x, z, w.scratch, acc);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (single) engine_.compute(x, z, w.scratch, tile, cols);
      else engine_.finish(acc, x, z, blocks_[i], tile, cols);
      copy_tile(members_[i].out, m0, n0, engine_.x_packer().points_in(p), engine_.z_packer().points_in(q), tile);
    }
  }

  void copy_tile(const OutputMatrix& out, std::int64_t m0, std::int64_t n0, int rows, int present,
                 const T* tile) const {
    const std::int64_t cols = engine_.tile().cols();
    if (!symmetric_ || n0 >= m0 + rows) return write_block<T>(tile, cols, rows, present, out, m0, n0);
    for (int r = 0; r < rows; ++r)
      for (std::int64_t n = std::max(n0, m0 + r); n < n0 + present; ++n)
        store_element<T>(out, (m0 + r) * out.row_stride + n * out.col_stride, tile[r * cols + n - n0]);
  }

  /// Copies the part of rows m0 … m1 and columns n0 … n1 that lies above the diagonal to below it.
  /// Inlined into the walk over panels, its loops take longer.
  [[gnu::noinline]] void mirror(std::int64_t m0, std::int64_t m1, std::int64_t n0, std::int64_t n1) {
    for (const PairMember& member : members_) {
      switch (size_of(member.out.dtype)) {
        case 2: mirror_elements<std::uint16_t>(member.out, m0, m1, n0, n1); break;
        case 8: mirror_elements<std::uint64_t>(member.out, m0, m1, n0, n1); break;
        default: mirror_elements<std::uint32_t>(member.out, m0, m1, n0, n1); break;
      }
    }
  }

  template <class Bits>
  static void mirror_elements(const OutputMatrix& out, std::int64_t m0, std::int64_t m1, std::int64_t n0,
                              std::int64_t n1) {
    Bits* data = static_cast<Bits*>(out.data);
    constexpr std::int64_t kSquare = 16;
    for (std::int64_t mb = m0; mb < m1; mb += kSquare)
      for (std::int64_t nb = n0; nb < n1; nb += kSquare) {
        const std::int64_t me = std::min(mb + kSquare, m1), ne = std::min(nb + kSquare, n1);
        for (std::int64_t n = nb; n < ne; ++n)
          for (std::int64_t m = mb; m < std::min(me, n); ++m)
            data[n * out.row_stride + m * out.col_stride] = data[m * out.row_stride + n * out.col_stride];
      }
  }

  const PairItem& item_;
  const std::vector<PairMember>& members_;
  bool symmetric_;
  RunOptions run_;
  std::vector<ParamBlock<T>> blocks_;
  PairEngine<T> engine_;
  TileMask mask_;
  PackedSide<T> z_;
  std::vector<Workspace> workspaces_;
};

}  // namespace

void pairwise(const PairProgram& program, const PairItem& item, const std::vector<PairMember>& members, bool symmetric,
              const RunOptions& run) {
  if (program.plan().problem.type == Dtype::float64) PairwiseRun<double>(program, item, members, symmetric, run)();
  else PairwiseRun<float>(program, item, members, symmetric, run)();
}

}  // namespace mercer::cpu
