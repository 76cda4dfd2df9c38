#include "backend/cpu/pairs/second_look.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/system/cpu_features.h"

namespace mercer::cpu {
namespace {

#if defined(__x86_64__)
template <class Body>
__attribute__((target("avx2"), flatten)) void run_avx2(const Body& body) {
  body();
}
#endif

/// Runs loops that the compiler turns into vectors, with longer ones where the processor has them.
template <class Body>
void by_vectors(const Body& body) {
#if defined(__x86_64__)
  if (cpu_features().avx2) return run_avx2(body);
#endif
  body();
}

// 32 bytes of values, wherever they lie: tiles have a multiple of so many columns.
template <class T>
struct LanesOf;
template <>
struct LanesOf<float> {
  using Values __attribute__((vector_size(32), aligned(4), may_alias)) = float;
  using Marks __attribute__((vector_size(32), aligned(4), may_alias)) = std::int32_t;
  using Mark = std::uint32_t;  // all bits: a pair needs a second look; none: it does not
};
template <>
struct LanesOf<double> {
  using Values __attribute__((vector_size(32), aligned(8), may_alias)) = double;
  using Marks __attribute__((vector_size(32), aligned(8), may_alias)) = std::int64_t;
  using Mark = std::uint64_t;
};
template <class T>
using Values = typename LanesOf<T>::Values;
template <class T>
using Marks = typename LanesOf<T>::Marks;
template <class T>
using Mark = typename LanesOf<T>::Mark;
template <class T>
constexpr std::int64_t kLanes = 32 / sizeof(T);

template <class T>
const Values<T>& vector(const T* values) {
  return *reinterpret_cast<const Values<T>*>(values);
}

/// Whether any mark seen is set. Rows are short: to ask for the answer after each would take longer than the marks.
template <class T>
class AnyMark {
 public:
  void see(const Marks<T>& marks) { all_ |= marks; }
  Marks<T>& marks() { return all_; }
  explicit operator bool() const {
    std::uint64_t parts[4];
    std::memcpy(parts, &all_, sizeof(parts));
    return (parts[0] | parts[1] | parts[2] | parts[3]) != 0;
  }

 private:
  Marks<T> all_{};
};

/// The range of a sum in its type.
template <class T>
struct Range {
  explicit Range(const plan::SumGuard& sum)
      : least(static_cast<T>(sum.least)), most(static_cast<T>(sum.most)), scaled(sum.scaled) {}
  T least, most;
  bool scaled;
};

/// Negative weights may make negative sums.
template <class T>
void mark_out_of_range(const Values<T>& value, const Range<T>& range, Marks<T>& marks) {
  marks |= ((value < range.least) & (value > -range.least)) | (value >= range.most) | (value <= -range.most);
  if (range.scaled) marks |= value != value;
}

/// NaN is neither below nor, but for scaled sums, out of range.
template <class T>
void see_below(const T* values, T bound, std::int64_t count, AnyMark<T>& found) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>) found.see(vector(values + i) < bound);
}
template <class T>
void see_from(const T* values, T bound, std::int64_t count, AnyMark<T>& found) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>) found.see(vector(values + i) >= bound);
}
template <class T>
void see_out_of_range(const T* values, const Range<T>& range, std::int64_t count, AnyMark<T>& found) {
  for (std::int64_t i = 0; i < count; i += kLanes<T>) mark_out_of_range<T>(vector(values + i), range, found.marks());
}

/// 0 of none above it. Sizes of points without a number do not count. Bits of floats from 0 on rise as they do.
template <class T>
T largest(const T* sizes, int count) {
  using Bits = std::make_signed_t<Mark<T>>;
  const auto infinite = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  Bits most = 0;
  for (int i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<Bits>(sizes[i]);
    most = std::max(most, bits > infinite ? Bits(0) : bits);
  }
  return std::bit_cast<T>(most);
}

template <class T>
T close_below(T of_row, T of_col) {
  return static_cast<T>(plan::kCloseSum) * (of_row + of_col);
}

/// Features of a point are read one at a time where a pair may stand as it is: of more pairs float64 takes less.
constexpr int kMostCompared = 8;

/// A thread's own memory, which serves one tile after the other. Each type has one: the float64 tiles of a look at
/// float32 are looked at themselves.
struct LookMemory {
  AlignedBuffer marks, values;
  std::vector<std::int64_t> marked_rows;
  PackedSide<double> x, z;
  TileScratch scratch;
};

template <class T>
LookMemory& memory_of_thread() {
  thread_local LookMemory memory;
  return memory;
}

template <class T>
class SecondLook {
 public:
  SecondLook(const PairProgram& program, const PairItem& item, const SummedTile<T>& summed)
      : program_(program), item_(item), summed_(summed), m0_(summed.x.index * tile().rows),
        n0_(summed.z.index * tile().cols()), rows_(std::min<std::int64_t>(tile().rows, item.x.count - m0_)),
        cols_(std::min<std::int64_t>(tile().cols(), item.z.count - n0_)),
        far_(common(summed.x.kind, summed.z.kind) != PanelKind::finite) {}

  /// False: no pair of the tile needs it. A pass without branches over sums that lie in cache, which takes the largest
  /// points of the tile for all, and pairs that fill the tile up.
  bool finds_any() const {
    const std::int64_t size = std::int64_t{tile().rows} * tile().cols();
    AnyMark<T> found;
    for (const plan::SumGuard& sum : guard().sums) {
      const T* const values = summed_.acc + sum.state * size;
      if (sum.ranged && far_) see_out_of_range(values, Range<T>(sum), size, found);
      if (sum.close.power == 0) continue;
      const T *const rows = sizes_of_rows(sum), *const cols = sizes_of_cols(sum);
      see_below(values, close_below(largest(rows, tile().rows), largest(cols, tile().cols())), size, found);
    }
    return static_cast<bool>(found);
  }

  /// Marks the pairs that need it, and some that would stand. False: all would.
  bool mark() {
    const std::int64_t cols = tile().cols();
    memory_.marks.reserve(rows_ * cols * static_cast<std::int64_t>(sizeof(Mark<T>)));
    marks_ = memory_.marks.as<Mark<T>>();
    memory_.marked_rows.clear();
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::fill_n(marks(r), cols, Mark<T>{0});
      AnyMark<T> found;
      for (const plan::SumGuard& sum : guard().sums) mark_row(sum, r, found);
      if (found) memory_.marked_rows.push_back(r);
    }
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
        take(part, target, (m0_ - p * height) * width + n0_ - q * width, size, width);
      }
  }

 private:
  struct Part {
    std::int64_t r0, r1, c0, c1;
  };

  const plan::TileShape& tile() const { return program_.plan().tile; }
  const plan::PairGuard& guard() const { return program_.plan().guard; }
  std::int64_t planes() const { return static_cast<std::int64_t>(program_.plan().general.epilogue.outputs.size()); }
  Mark<T>* marks(std::int64_t r) const { return marks_ + r * tile().cols(); }
  const T* sums(const plan::SumGuard& sum, std::int64_t r) const {
    return summed_.acc + (sum.state * tile().rows + r) * tile().cols();
  }
  const T* sizes_of_rows(const plan::SumGuard& sum) const {
    return summed_.x.slots + sum.close.row_slot * tile().rows;
  }
  const T* sizes_of_cols(const plan::SumGuard& sum) const {
    return summed_.z.slots + sum.close.col_slot * tile().cols();
  }

  void mark_row(const plan::SumGuard& sum, std::int64_t r, AnyMark<T>& any) {
    const T* const values = sums(sum, r);
    const bool close = sum.close.power > 0, ranged = sum.ranged && far_;
    const T of_row = close ? sizes_of_rows(sum)[r] : 0, *const of_cols = close ? sizes_of_cols(sum) : nullptr;
    const Range<T> range(sum);
    Mark<T>* const to = marks(r);
    for (std::int64_t c = 0, cols = tile().cols(); c < cols; c += kLanes<T>) {
      const Values<T>& value = vector(values + c);
      Marks<T> found{};
      if (close) found |= value < static_cast<T>(plan::kCloseSum) * (of_row + vector(of_cols + c));
      if (ranged) mark_out_of_range<T>(value, range, found);
      *reinterpret_cast<Marks<T>*>(to + c) |= found;
      any.see(found);
    }
  }

  bool is_marked(std::int64_t r, std::int64_t c0, std::int64_t c1) const {
    const Mark<T>* const row = marks(r);
    Mark<T> found = 0;
    for (std::int64_t c = c0; c < c1; ++c) found |= row[c];
    return found != 0;
  }
  bool is_marked(const Part& part) const {
    const auto in_part = [&](std::int64_t r) {
      return r >= part.r0 && r < part.r1 && is_marked(r, part.c0, part.c1);
    };
    return std::any_of(memory_.marked_rows.begin(), memory_.marked_rows.end(), in_part);
  }

  /// Whether all marked pairs are few that stand as they are.
  bool all_stand() const {
    int compared = 0;
    for (const std::int64_t r : memory_.marked_rows) {
      const Mark<T>* const row = marks(r);
      for (std::int64_t c = 0; c < cols_; ++c)
        if (row[c] != 0 && (++compared > kMostCompared || !stands(r, c))) return false;
    }
    return true;
  }
  bool stands(std::int64_t r, std::int64_t c) const {
    const auto settled = [&](const plan::SumGuard& sum) { return stands(sums(sum, r)[c], r, c); };
    return std::all_of(guard().sums.begin(), guard().sums.end(), settled);
  }
  /// 0 of equal points, or what a point gives that is not finite.
  bool stands(T value, std::int64_t r, std::int64_t c) const {
    if (value == 0) return is_same_point(r, c);
    return !std::isfinite(value) && !(is_finite(item_.x, m0_ + r) && is_finite(item_.z, n0_ + c));
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

  /// The marked values of a part, in planes `size` apart; at `first` would be that of the tile's first pair.
  void take(const Part& part, const double* values, std::int64_t first, std::int64_t size, std::int64_t width) const {
    const std::int64_t plane = tile().rows * program_.plan().plane_width();
    for (std::int64_t o = 0; o < planes(); ++o)
      for (const std::int64_t r : memory_.marked_rows) {
        if (r < part.r0 || r >= part.r1) continue;
        take_row(marks(r) + part.c0, values + (first + o * size + r * width + part.c0),
                 summed_.out + o * plane + r * summed_.out_stride + part.c0, part.c1 - part.c0);
      }
  }
  /// Without branches.
  static void take_row(const Mark<T>* marked, const double* from, T* to, std::int64_t count) {
    for (std::int64_t c = 0; c < count; ++c) {
      const auto value = std::bit_cast<Mark<T>>(static_cast<T>(from[c])), before = std::bit_cast<Mark<T>>(to[c]);
      to[c] = std::bit_cast<T>((value & marked[c]) | (before & ~marked[c]));
    }
  }

  const PairProgram& program_;
  const PairItem& item_;
  const SummedTile<T>& summed_;
  std::int64_t m0_, n0_, rows_, cols_;  // of the pairs that exist
  bool far_;                            // ranged sums may leave the range
  LookMemory& memory_ = memory_of_thread<T>();
  Mark<T>* marks_ = nullptr;  // [row][col]
};

/// What outputs of doubtful pairs lie below, or from where on.
template <class T>
class OutputBounds {
 public:
  OutputBounds(const PairProgram& program, const TileRun<T>& run)
      : program_(program), run_(run), sum_(program.plan().guard.sums[0]), rows_(program.plan().tile.rows) {
    if (sum_.ranged && common(run.x.kind, run.z.kind) != PanelKind::finite) {
      least_ = Range<T>(sum_).least;
      above_ = program.output_below(Range<T>(sum_).most / 2);
    }
    const int cols = program.plan().tile.cols();
    if (sum_.close.power > 0) largest_col_ = largest(run.z.slots + sum_.close.col_slot * cols, cols);
    set(least_);
  }
  T above() const { return above_; }
  T below(std::int64_t t) {
    if (sum_.close.power == 0) return below_;
    const T* const rows = run_.x.slots + t * run_.slots_size + sum_.close.row_slot * rows_;
    const T bound = std::max(least_, close_below(largest(rows, rows_), largest_col_));
    if (!(bound <= bound_ && 2 * bound > bound_)) set(bound);  // neighbours are mostly of a size
    return below_;
  }

 private:
  void set(T bound) {
    bound_ = bound;
    below_ = program_.output_below(bound);
  }

  const PairProgram& program_;
  const TileRun<T>& run_;
  const plan::SumGuard& sum_;
  int rows_;
  T least_ = 0, above_ = std::numeric_limits<T>::infinity(), largest_col_ = 0;
  T bound_ = 0, below_ = 0;  // of sums, of outputs
};

template <class T>
std::int64_t next_tile(const PairProgram& program, const TileRun<T>& run, std::int64_t from) {
  OutputBounds<T> bounds(program, run);
  const std::int64_t rows = program.plan().tile.rows, cols = program.plan().tile.cols();
  for (std::int64_t t = from; t < run.tiles; ++t) {
    AnyMark<T> found;
    const T below = bounds.below(t);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const values = run.out + (t * rows + r) * run.out_stride;
      see_below(values, below, cols, found);
      if (bounds.above() < std::numeric_limits<T>::infinity()) see_from(values, bounds.above(), cols, found);
    }
    if (found) return t;
  }
  return run.tiles;
}

}  // namespace

template <class T>
std::int64_t next_to_look_at(const PairProgram& program, const TileRun<T>& run, std::int64_t from) {
  std::int64_t tile = run.tiles;
  by_vectors([&] { tile = next_tile(program, run, from); });
  return tile;
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

SecondPass::SecondPass(const PairProgram& program, const PairItem& item, const ParamBlock<double>& params)
    : engine(program.wide(), item, params), x(engine.x_packer()),
      z(engine.z_packer()) {}

template <class T>
void second_look(const PairProgram& program, const PairItem& item, const MadeOnce<SecondPass>& pass,
                 const ParamBlock<T>& own, const ParamBlock<T>& params, const SummedTile<T>& tile) {
  SecondLook<T> look(program, item, tile);
  bool needed = false;
  by_vectors([&] { needed = look.finds_any() && look.mark(); });
  if (!needed) return;
  const auto again = [&](const ParamBlock<T>& of) -> const ParamBlock<double>& {
    return of.again(program, item.x.features);
  };
  const SecondPass& shared = pass.get([&] { return std::make_unique<SecondPass>(program, item, again(own)); });
  by_vectors([&] { look.compute(shared, again(params), &params == &own); });
}

template std::int64_t next_to_look_at(const PairProgram&, const TileRun<float>&, std::int64_t);
template std::int64_t next_to_look_at(const PairProgram&, const TileRun<double>&, std::int64_t);
template void second_look(const PairProgram&, const PairItem&, const MadeOnce<SecondPass>&, const ParamBlock<float>&,
                          const ParamBlock<float>&, const SummedTile<float>&);
template void second_look(const PairProgram&, const PairItem&, const MadeOnce<SecondPass>&, const ParamBlock<double>&,
                          const ParamBlock<double>&, const SummedTile<double>&);

}  // namespace mercer::cpu
