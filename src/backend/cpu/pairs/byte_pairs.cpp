#include "backend/cpu/pairs/byte_pairs.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/pairs/byte_sums.h"
#include "backend/cpu/pairs/tile_mask.h"
#include "backend/cpu/pairs/tile_output.h"
#include "core/integers.h"

namespace mercer::cpu {
namespace {

using plan::cpu::PairSum;

constexpr std::uint8_t kSign = 0x80;
constexpr std::int64_t kLine = 64 / sizeof(float);

struct Workspace {
  AlignedBuffer panel, terms, line, tiles, col_slots;
  std::vector<MaskRun> runs;
};

class BytePairsRun {
 public:
  BytePairsRun(const PairProgram& program, const PairItem& item, const PairMember& member, const RunOptions& run)
      : item_(item), out_(member.out), run_(run), sum_(program.forms.sum), group_(group_bytes(sum_)),
        groups_(ceil_div(item.x.features, group_)), kernels_(byte_kernels(program.plan().problem.target)),
        params_(program.plan(), member.params, item.x.features), output_(program, params_),
        reads_sides_(program.forms.reads_sides), packs_(program.packs), rows_(program.plan().tile.rows),
        cols_(program.plan().tile.cols()), is_signed_(item.x.dtype == Dtype::int8),
        line_(groups_ * group_ * (is_wide() ? 2 : 1)), mask_(program.plan(), item, params_.wide, run.least_gain),
        workspaces_(run.workers) {}

  void operator()() {
    constexpr double kTaskTerms = 1 << 22;
    const std::int64_t panels = ceil_div(item_.z.count, cols_), tiles = ceil_div(item_.x.count, rows_);
    const double terms = static_cast<double>(item_.x.count) * static_cast<double>(item_.z.count) *
                         static_cast<double>(item_.x.features + 8);
    const auto wanted = static_cast<std::int64_t>(terms / kTaskTerms);
    const std::int64_t across = std::clamp<std::int64_t>(wanted, 1, panels);
    const std::int64_t down = std::clamp<std::int64_t>(wanted / across, 1, tiles);
    pack_rows(across * down);
    if (reads_sides_) {
      pack_side_slots<float>(packs_.x, item_.x, rows_, item_.weights, params_.wide, row_slots_);
      pack_side_slots<float>(packs_.z, item_.z, cols_, item_.weights, params_.wide, col_slots_);
    }
    run_(across * down, [&](std::int64_t task, int worker) {
      const std::int64_t q = task / down, part = task % down;
      run_panels(panels * q / across, panels * (q + 1) / across, tiles * part / down, tiles * (part + 1) / down,
                 workspaces_[worker]);
    });
  }

 private:
  bool is_product() const { return sum_ == PairSum::product || sum_ == PairSum::square; }
  bool is_wide() const { return is_product() && kernels_.wide_rows; }

  /// A point as bytes without a sign, int8 128 larger than they are. Sums are those of its own values.
  ByteLine read_line(const Points& points, std::int64_t p, std::uint8_t* line) const {
    const auto* const from = static_cast<const std::uint8_t*>(points.data) + p * points.point_stride;
    if (points.feature_stride == 1) std::memcpy(line, from, static_cast<std::size_t>(points.features));
    else
      for (std::int64_t k = 0; k < points.features; ++k) line[k] = from[k * points.feature_stride];
    ByteLine sums;
    if (is_product())
      sums = is_signed_ ? kernels_.of_signed(reinterpret_cast<const std::int8_t*>(line), points.features)
                        : kernels_.of_unsigned(line, points.features);
    if (is_signed_)
      for (std::int64_t k = 0; k < points.features; ++k) line[k] ^= kSign;
    return sums;
  }

  /// The term of a point that makes 128 good, and of squares its own. One side of a product is u8, the other s8.
  std::int32_t term(const ByteLine& line, bool of_x) const {
    if (!is_product()) return 0;
    const std::int32_t moved = is_signed_ == of_x ? (is_signed_ ? -128 : 128) * line.sum : 0;
    return sum_ == PairSum::product ? moved : line.squares - 2 * moved;
  }

  /// Progress says meanwhile that none of the `tasks` that follow is done.
  void pack_rows(std::int64_t tasks) {
    constexpr std::int64_t kPoints = 64;
    const std::int64_t count = item_.x.count;
    lines_.reserve(checked_product({round_up(count, rows_), line_}));
    row_terms_.reserve(count * static_cast<std::int64_t>(sizeof(std::int32_t)));
    const Pool::Progress asked = [&](double, double) { return (*run_.progress)(0, static_cast<double>(tasks)); };
    RunOptions run = run_;
    if (run_.progress != nullptr) run.progress = &asked;
    run(ceil_div(count, kPoints), [&](std::int64_t task, int worker) {
      AlignedBuffer& own = workspaces_[worker].line;
      own.reserve(groups_ * group_);
      for (std::int64_t p = task * kPoints; p < std::min(count, (task + 1) * kPoints); ++p)
        pack_row(p, own.as<std::uint8_t>());
    });
  }

  void pack_row(std::int64_t p, std::uint8_t* line) {
    const std::int64_t features = item_.x.features, padded = groups_ * group_;
    row_terms_.as<std::int32_t>()[p] = term(read_line(item_.x, p, line), true);
    if (is_product())
      for (std::int64_t k = 0; k < features; ++k) line[k] ^= kSign;  // s8
    std::memset(line + features, 0, static_cast<std::size_t>(padded - features));
    std::uint8_t* const to = lines_.as<std::uint8_t>() + p * line_;
    if (!is_wide()) {
      std::memcpy(to, line, static_cast<std::size_t>(padded));
      return;
    }
    auto* const wide = reinterpret_cast<std::int16_t*>(to);
    for (std::int64_t g = 0; g < groups_; ++g)
      for (int i = 0; i < 4; ++i) wide[4 * g + i] = static_cast<std::int8_t>(line[4 * g + 2 * (i % 2) + i / 2]);
  }

  /// z from point n on: [group][cols][bytes], zeros where there are no points.
  void pack_panel(std::int64_t n, Workspace& w) const {
    const std::int64_t present = std::min<std::int64_t>(cols_, item_.z.count - n), features = item_.z.features;
    w.panel.reserve(groups_ * group_ * cols_);
    w.terms.reserve(cols_ * static_cast<std::int64_t>(sizeof(std::int32_t)));
    w.line.reserve(groups_ * group_);
    auto *const panel = w.panel.as<std::uint8_t>(), *const line = w.line.as<std::uint8_t>();
    for (std::int64_t c = 0; c < cols_; ++c) {
      ByteLine sums;
      if (c < present) sums = read_line(item_.z, n + c, line);
      const std::int64_t filled = c < present ? features : 0;
      std::memset(line + filled, 0, static_cast<std::size_t>(groups_ * group_ - filled));
      w.terms.as<std::int32_t>()[c] = term(sums, false);
      std::uint8_t* to = panel + c * group_;
      if (group_ == 4)
        for (std::int64_t g = 0; g < groups_; ++g, to += cols_ * 4) std::memcpy(to, line + g * 4, 4);
      else
        for (std::int64_t g = 0; g < groups_; ++g, to += cols_ * 8) std::memcpy(to, line + g * 8, 8);
    }
  }

  void run_panels(std::int64_t q0, std::int64_t q1, std::int64_t tile0, std::int64_t tile1, Workspace& w) const {
    const std::int64_t size = static_cast<std::int64_t>(rows_) * cols_;
    w.tiles.reserve(2 * size * static_cast<std::int64_t>(sizeof(float)));
    std::fill_n(w.tiles.as<float>(), size, 0.0f);  // an epilogue reads rows that are not there
    for (std::int64_t q = q0; q < q1; ++q) {
      if (q > q0) stop_if_cancelled();
      pack_panel(q * cols_, w);
      mask_.runs(tile0, tile1, q, w.runs);
      for (const MaskRun& run : w.runs)
        for (std::int64_t t = run.first; t < run.end; ++t) {
          SumTile<float> tile = tile_at(t * rows_, q * cols_);
          tile.values = w.tiles.as<float>() + size;
          if (run.is_known) output_.fill(tile, static_cast<float>(run.value), out_);
          else run_tile(tile, w);
        }
    }
  }

  SumTile<float> tile_at(std::int64_t m, std::int64_t n) const {
    return {m, n, std::min<std::int64_t>(rows_, item_.x.count - m), std::min<std::int64_t>(cols_, item_.z.count - n)};
  }

  void run_tile(SumTile<float> tile, const Workspace& w) const {
    const std::int64_t m = tile.m, n = tile.n;
    const bool goes_straight = output_.is_bare() && TileOutput<float>::is_direct(out_) && tile.cols == cols_;
    if (TileOutput<float>::is_direct(out_))  // the lines are here by the time that the sums are
      for (std::int64_t r = 0; r < tile.rows; ++r)
        for (std::int64_t c = 0; c < tile.cols; c += kLine)
          __builtin_prefetch(TileOutput<float>::at(out_, m + r, n + c), 1);
    tile.sums = goes_straight ? TileOutput<float>::at(out_, m, n) : w.tiles.as<float>();
    tile.stride = goes_straight ? out_.row_stride : cols_;
    tile.row_slots = row_slots_.as<float>();
    tile.col_slots = col_slots_.as<float>();
    ByteBlock block;
    block.x = lines_.as<std::uint8_t>() + m * line_;
    block.x_stride = line_;
    block.z = w.panel.as<std::uint8_t>();
    block.cols = cols_;
    block.rows = tile.rows;
    block.groups = groups_;
    block.row_terms = row_terms_.as<std::int32_t>() + m;
    block.col_terms = w.terms.as<std::int32_t>();
    block.factor = sum_ == PairSum::square ? -2 : 1;
    block.out = tile.sums;
    block.out_stride = tile.stride;
    kernels_.sums[static_cast<int>(sum_)](block);
    output_.write(tile, out_);
  }

  const PairItem& item_;
  const OutputMatrix& out_;
  const RunOptions& run_;
  const PairSum sum_;
  const int group_;
  const std::int64_t groups_;
  const ByteKernels& kernels_;
  const ParamBlock<float> params_;
  const TileOutput<float> output_;
  const bool reads_sides_;
  const PackPrograms& packs_;
  const int rows_, cols_;
  const bool is_signed_;
  const std::int64_t line_;  // bytes of a row
  const TileMask mask_;
  AlignedBuffer lines_, row_terms_, row_slots_, col_slots_;
  std::vector<Workspace> workspaces_;
};

}  // namespace

void byte_pairs(const PairProgram& program, const PairItem& item, const PairMember& member, const RunOptions& run) {
  BytePairsRun(program, item, member, run)();
}

}  // namespace mercer::cpu
