#include "backend/cpu/second_look.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace mercer::cpu {
namespace {

/// Whether any is; NaN is not. Negative weights may make negative sums.
bool any_out_of_range(const float* values, float least, std::int64_t count) {
  unsigned found = 0;
  for (std::int64_t i = 0; i < count; ++i)
    found |= static_cast<unsigned>(std::fabs(values[i]) < least) |
             static_cast<unsigned>(std::fabs(values[i]) >= plan::kMostSum);
  return found != 0;
}

bool any_below(const float* values, float bound, std::int64_t count) {
  unsigned found = 0;
  for (std::int64_t i = 0; i < count; ++i) found |= static_cast<unsigned>(values[i] < bound);
  return found != 0;
}

/// Sizes of points without a number do not count.
float largest(const float* sizes, int count) {
  constexpr int kChains = 8;
  std::array<float, kChains> most{};
  const auto see = [&](int i, float size) { most[i] = size > most[i] ? size : most[i]; };
  int first = 0;
  for (; first + kChains <= count; first += kChains)
    for (int i = 0; i < kChains; ++i) see(i, sizes[first + i]);
  for (; first < count; ++first) see(0, sizes[first]);
  return *std::max_element(most.begin(), most.end());
}

float close_below(float of_row, float of_col) { return plan::kCloseSum * (of_row + of_col); }

/// Features of a point are read one at a time where a pair may stand as it is: of more pairs float64 takes less.
constexpr int kMostCompared = 8;

using Mark = std::uint32_t;  // all bits: a pair needs a second look; none: it does not
constexpr Mark mark_where(bool needed) { return -static_cast<Mark>(needed); }

/// A thread's own memory, which serves one tile after the other.
struct LookMemory {
  AlignedBuffer marks, values;
  std::vector<std::int64_t> marked_rows;
  PackedSide<double> x, z;
  TileScratch scratch;
};

LookMemory& memory_of_thread() {
  thread_local LookMemory memory;
  return memory;
}

class SecondLook {
 public:
  SecondLook(const PairProgram& program, const PairItem& item, const SummedTile& summed)
      : program_(program), item_(item), summed_(summed), m0_(summed.x.index * tile().rows),
        n0_(summed.z.index * tile().cols()), rows_(std::min<std::int64_t>(tile().rows, item.x.count - m0_)),
        cols_(std::min<std::int64_t>(tile().cols(), item.z.count - n0_)),
        far_(common(summed.x.kind, summed.z.kind) != PanelKind::finite) {}

  /// False: no pair of the tile needs it. A pass without branches over sums that lie in cache, which takes the largest
  /// points of the tile for all, and pairs that fill the tile up.
  bool finds_any() const {
    const std::int64_t size = std::int64_t{tile().rows} * tile().cols();
    for (const plan::SumGuard& sum : guard().sums) {
      const float* const values = summed_.acc + sum.state * size;
      if (sum.ranged && far_ && any_out_of_range(values, sum.least, size)) return true;
      if (sum.close.power == 0) continue;
      const float *const rows = sizes_of_rows(sum), *const cols = sizes_of_cols(sum);
      if (any_below(values, close_below(largest(rows, tile().rows), largest(cols, tile().cols())), size)) return true;
    }
    return false;
  }

  /// Marks the pairs that need it, and some that would stand. False: all would.
  bool mark() {
    memory_.marks.reserve(rows_ * cols_ * static_cast<std::int64_t>(sizeof(Mark)));
    marks_ = memory_.marks.as<Mark>();
    std::fill_n(marks_, rows_ * cols_, Mark{0});
    for (const plan::SumGuard& sum : guard().sums)
      for (std::int64_t r = 0; r < rows_; ++r) mark_row(sum, r);
    memory_.marked_rows.clear();
    for (std::int64_t r = 0; r < rows_; ++r)
      if (any(marks(r), cols_)) memory_.marked_rows.push_back(r);
    return !memory_.marked_rows.empty() && !all_stand();
  }

  /// Tiles of the float64 plan that hold marked pairs.
  void compute(const SecondPass& pass, const ParamBlock<double>& params, bool own) const {
    const std::int64_t height = pass.engine.tile().rows, width = pass.engine.tile().cols();
    TileScratch& scratch = memory_.scratch;
    scratch.x.index = scratch.z.index = -1;  // of another call's points
    const std::int64_t bytes = sizeof(double), size = height * width;
    scratch.acc.reserve(pass.engine.accumulator_size() * bytes);
    memory_.values.reserve(planes() * size * bytes);
    double* const target = memory_.values.as<double>();
    for (std::int64_t q = n0_ / width; q * width < n0_ + cols_; ++q)
      for (std::int64_t p = m0_ / height; p * height < m0_ + rows_; ++p) {
        const Part part{std::max(m0_, p * height) - m0_, std::min(m0_ + rows_, (p + 1) * height) - m0_,
                        std::max(n0_, q * width) - n0_, std::min(n0_ + cols_, (q + 1) * width) - n0_};
        if (!is_marked(part)) continue;
        const PanelView<double> rows = pass.x.view(p, memory_.x), cols = pass.z.view(q, memory_.z);
        if (own) {
          pass.engine.compute(rows, cols, scratch, target, width);
        } else {
          pass.engine.accumulate(rows, cols, scratch, scratch.acc.as<double>());
          pass.engine.finish(scratch.acc.as<double>(), rows, cols, params, target, width);
        }
        // Where the part begins, if it began at the tile's first pair.
        take(part, target + (m0_ - p * height) * width + n0_ - q * width, size, width);
      }
  }

 private:
  struct Part {
    std::int64_t r0, r1, c0, c1;
  };

  const plan::TileShape& tile() const { return program_.plan().tile; }
  const plan::PairGuard& guard() const { return program_.plan().guard; }
  std::int64_t planes() const { return static_cast<std::int64_t>(program_.plan().general.epilogue.outputs.size()); }
  Mark* marks(std::int64_t r) const { return marks_ + r * cols_; }
  const float* sums(const plan::SumGuard& sum, std::int64_t r) const {
    return summed_.acc + (sum.state * tile().rows + r) * tile().cols();
  }
  const float* sizes_of_rows(const plan::SumGuard& sum) const {
    return summed_.x.slots + sum.close.row_slot * tile().rows;
  }
  const float* sizes_of_cols(const plan::SumGuard& sum) const {
    return summed_.z.slots + sum.close.col_slot * tile().cols();
  }

  void mark_row(const plan::SumGuard& sum, std::int64_t r) {
    Mark* const found = marks(r);
    const float* const values = sums(sum, r);
    if (sum.close.power > 0) {
      const float of_row = sizes_of_rows(sum)[r], *const of_cols = sizes_of_cols(sum);
      for (std::int64_t c = 0; c < cols_; ++c)
        found[c] |= mark_where(values[c] < close_below(of_row, of_cols[c]));
    }
    if (!sum.ranged || !far_) return;
    for (std::int64_t c = 0; c < cols_; ++c)
      found[c] |= mark_where(std::fabs(values[c]) < sum.least) | mark_where(std::fabs(values[c]) >= plan::kMostSum);
  }

  static bool any(const Mark* list, std::int64_t count) {
    Mark found = 0;
    for (std::int64_t i = 0; i < count; ++i) found |= list[i];
    return found != 0;
  }
  bool is_marked(const Part& part) const {
    const auto in_part = [&](std::int64_t r) {
      return r >= part.r0 && r < part.r1 && any(marks(r) + part.c0, part.c1 - part.c0);
    };
    return std::any_of(memory_.marked_rows.begin(), memory_.marked_rows.end(), in_part);
  }

  /// Whether all marked pairs are few that stand as they are.
  bool all_stand() const {
    int compared = 0;
    for (const std::int64_t r : memory_.marked_rows)
      for (std::int64_t c = 0; c < cols_; ++c)
        if (marks(r)[c] != 0 && (++compared > kMostCompared || !stands(r, c))) return false;
    return true;
  }
  bool stands(std::int64_t r, std::int64_t c) const {
    const auto settled = [&](const plan::SumGuard& sum) { return stands(sums(sum, r)[c], r, c); };
    return std::all_of(guard().sums.begin(), guard().sums.end(), settled);
  }
  /// 0 of equal points, or Inf of a point that is not finite.
  bool stands(float value, std::int64_t r, std::int64_t c) const {
    if (value == 0) return is_same_point(r, c);
    return std::isinf(value) && !(is_finite(item_.x, m0_ + r) && is_finite(item_.z, n0_ + c));
  }
  static double feature(const Points& points, std::int64_t p, std::int64_t k) {
    return read_element(points.data, points.dtype, p * points.point_stride + k * points.feature_stride);
  }
  bool is_same_point(std::int64_t r, std::int64_t c) const {
    const Points &x = item_.x, &z = item_.z;
    bool same = true;
    if (x.data == z.data && x.point_stride == z.point_stride && m0_ + r == n0_ + c) return true;
    for (std::int64_t k = 0; same && k < x.features; ++k) same = feature(x, m0_ + r, k) == feature(z, n0_ + c, k);
    return same;
  }
  static bool is_finite(const Points& points, std::int64_t p) {
    bool finite = true;
    for (std::int64_t k = 0; finite && k < points.features; ++k) finite = std::isfinite(feature(points, p, k));
    return finite;
  }

  /// The marked values of a part. `values`: of the tile's first pair, planes `size` apart.
  void take(const Part& part, const double* values, std::int64_t size, std::int64_t width) const {
    const std::int64_t plane = tile().rows * program_.plan().plane_width();
    for (std::int64_t o = 0; o < planes(); ++o)
      for (const std::int64_t r : memory_.marked_rows) {
        if (r < part.r0 || r >= part.r1) continue;
        take_row(marks(r) + part.c0, values + o * size + r * width + part.c0,
                 summed_.out + o * plane + r * summed_.out_stride + part.c0, part.c1 - part.c0);
      }
  }
  /// Without branches.
  static void take_row(const Mark* marked, const double* from, float* to, std::int64_t count) {
    for (std::int64_t c = 0; c < count; ++c) {
      const Mark value = std::bit_cast<Mark>(static_cast<float>(from[c])), before = std::bit_cast<Mark>(to[c]);
      to[c] = std::bit_cast<float>((value & marked[c]) | (before & ~marked[c]));
    }
  }

  const PairProgram& program_;
  const PairItem& item_;
  const SummedTile& summed_;
  std::int64_t m0_, n0_, rows_, cols_;  // of the pairs that exist
  bool far_;                            // ranged sums may leave the range
  LookMemory& memory_ = memory_of_thread();
  Mark* marks_ = nullptr;  // [row][col]
};

}  // namespace

bool may_need_second_look(const PairProgram& program, const PanelView<float>& x, const PanelView<float>& z,
                          const float* out, std::int64_t out_stride) {
  const plan::SumGuard& sum = program.plan().guard.sums[0];
  const plan::TileShape& tile = program.plan().tile;
  float bound = 0, above = HUGE_VALF;
  if (sum.ranged && common(x.kind, z.kind) != PanelKind::finite) {
    bound = sum.least;
    above = program.output_below(plan::kMostSum / 2);
  }
  if (sum.close.power > 0) {
    const float *const rows = x.slots + sum.close.row_slot * tile.rows,
                *const cols = z.slots + sum.close.col_slot * tile.cols();
    bound = std::max(bound, close_below(largest(rows, tile.rows), largest(cols, tile.cols())));
  }
  const float below = program.output_below(bound);
  unsigned found = 0;
  for (int r = 0; r < tile.rows; ++r) {
    const float* const values = out + r * out_stride;
    for (int c = 0; c < tile.cols(); ++c)
      found |= static_cast<unsigned>(values[c] < below) | static_cast<unsigned>(values[c] >= above);
  }
  return found != 0;
}

SharedPanels::SharedPanels(const Packer<double>& packer) : packer_(packer) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
  const std::int64_t bytes = (packer.panel_size() + packer.slots_size()) * static_cast<std::int64_t>(sizeof(double)) +
                             2 * static_cast<std::int64_t>(sizeof(PackedSide<double>));
  if (packer.panels() <= kMostBytes / bytes)
    panels_ = std::vector<MadeOnce<PackedSide<double>>>(static_cast<std::size_t>(packer.panels()));
}

PanelView<double> SharedPanels::view(std::int64_t p, PackedSide<double>& own) const {
  const auto pack = [&](PackedSide<double>& side) {
    side.reserve(packer_, p, 1);
    side.pack_one(packer_, 0);
  };
  if (panels_.empty()) {
    pack(own);
    return own.view(p);
  }
  return panels_[static_cast<std::size_t>(p)].get([&] {
    auto made = std::make_unique<PackedSide<double>>();
    pack(*made);
    return made;
  }).view(p);
}

SecondPass::SecondPass(const PairProgram& program, const PairItem& item, const ParamBlock<float>& params)
    : engine(program.wide(), item, params.again(program, item.x.features)), x(engine.x_packer()),
      z(engine.z_packer()) {}

void second_look(const PairProgram& program, const PairItem& item, const MadeOnce<SecondPass>& pass,
                 const ParamBlock<float>& own, const ParamBlock<float>& params, const SummedTile& tile) {
  SecondLook look(program, item, tile);
  if (!look.finds_any() || !look.mark()) return;
  const SecondPass& shared = pass.get([&] { return std::make_unique<SecondPass>(program, item, own); });
  look.compute(shared, params.again(program, item.x.features), &params == &own);
}

}  // namespace mercer::cpu
