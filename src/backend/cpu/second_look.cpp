#include "backend/cpu/second_look.h"

#include <algorithm>
#include <cmath>

namespace mercer::cpu {
namespace {

/// `count` points from `first` on.
Points part_of(Points points, std::int64_t first, std::int64_t count) {
  const auto from = [](const void* data, Dtype dtype, std::int64_t elements) -> const void* {
    return data ? static_cast<const char*>(data) + elements * static_cast<std::int64_t>(size_of(dtype)) : nullptr;
  };
  points.data = from(points.data, points.dtype, first * points.point_stride);
  points.user.data = from(points.user.data, points.user.dtype, first * points.user.stride);
  points.index_offset += first;
  points.count = count;
  return points;
}

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
  float result = 0;
  for (int i = 0; i < count; ++i) result = sizes[i] > result ? sizes[i] : result;
  return result;
}

float close_below(float of_row, float of_col) { return plan::kCloseSum * (of_row + of_col); }

class SecondLook {
 public:
  SecondLook(const PairProgram& program, const PairItem& item, const float* acc, const PanelView<float>& x,
             const PanelView<float>& z)
      : program_(program), item_(item), acc_(acc), x_(x), z_(z), m0_(x.index * tile().rows),
        n0_(z.index * tile().cols()), rows_(std::min<std::int64_t>(tile().rows, item.x.count - m0_)),
        cols_(std::min<std::int64_t>(tile().cols(), item.z.count - n0_)),
        far_(common(x.kind, z.kind) != PanelKind::finite) {}

  /// False: no pair of the tile needs it. A pass without branches over sums that lie in cache, which takes the largest
  /// points of the tile for all, and pairs that fill the tile up.
  bool finds_any() const {
    const std::int64_t size = std::int64_t{tile().rows} * tile().cols();
    for (const plan::SumGuard& sum : program_.plan().guard.sums) {
      const float* const values = acc_ + sum.state * size;
      if (sum.ranged && far_ && any_out_of_range(values, sum.least, size)) return true;
      if (sum.close.power == 0) continue;
      const float *const rows = sizes_of_rows(sum), *const cols = sizes_of_cols(sum);
      if (any_below(values, close_below(largest(rows, tile().rows), largest(cols, tile().cols())), size)) return true;
    }
    return false;
  }

  void operator()(const std::vector<double>& params, float* out, std::int64_t out_stride) {
    marks_.assign(rows_ * cols_, false);
    for (const plan::SumGuard& sum : program_.plan().guard.sums)
      for (std::int64_t r = 0; r < rows_; ++r)
        for (std::int64_t c = 0; c < cols_; ++c)
          if (is_doubtful(sum, r, c) && !stands(sum, r, c)) marks_[r * cols_ + c] = true;
    if (std::find(marks_.begin(), marks_.end(), true) != marks_.end()) compute(params, out, out_stride);
  }

 private:
  const plan::TileShape& tile() const { return program_.plan().tile; }
  float sum_of(const plan::SumGuard& sum, std::int64_t r, std::int64_t c) const {
    return acc_[(sum.state * tile().rows + r) * tile().cols() + c];
  }
  bool is_doubtful(const plan::SumGuard& sum, std::int64_t r, std::int64_t c) const {
    const float value = sum_of(sum, r, c);
    return (sum.ranged && far_ && any_out_of_range(&value, sum.least, 1)) ||
           (sum.close.power > 0 && value < close_below(sizes_of_rows(sum)[r], sizes_of_cols(sum)[c]));
  }
  const float* sizes_of_rows(const plan::SumGuard& sum) const { return x_.slots + sum.close.row_slot * tile().rows; }
  const float* sizes_of_cols(const plan::SumGuard& sum) const { return z_.slots + sum.close.col_slot * tile().cols(); }

  /// 0 of equal points, or Inf of a point that is not finite.
  bool stands(const plan::SumGuard& sum, std::int64_t r, std::int64_t c) const {
    const float value = sum_of(sum, r, c);
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

  /// Tiles of the float64 plan that hold marked pairs.
  void compute(const std::vector<double>& params, float* out, std::int64_t out_stride) const {
    const PairProgram& wide = program_.wide();
    const PairItem part{part_of(item_.x, m0_, rows_), part_of(item_.z, n0_, cols_), item_.weights};
    const std::size_t given = wide.plan().general.split.params.size();
    const ParamBlock<double> block(wide.plan(), {params.begin(), params.begin() + static_cast<std::ptrdiff_t>(given)},
                                   part.x.features);
    const PairEngine<double> engine(wide, part, block);
    thread_local PackedSide<double> x, z;  // their memory serves the next tile
    pack(engine.x_packer(), x);
    pack(engine.z_packer(), z);
    const std::int64_t height = engine.tile().rows, width = engine.tile().cols(), size = engine.tile_size();
    const std::int64_t planes = static_cast<std::int64_t>(wide.plan().general.epilogue.outputs.size());
    const std::int64_t plane = tile().rows * program_.plan().plane_width();
    thread_local TileScratch scratch;
    thread_local AlignedBuffer values;
    scratch.x.index = scratch.z.index = -1;  // of another tile's points
    scratch.acc.reserve(engine.accumulator_size() * static_cast<std::int64_t>(sizeof(double)));
    values.reserve(planes * size * static_cast<std::int64_t>(sizeof(double)));
    for (std::int64_t p = 0; p < x.count; ++p)
      for (std::int64_t q = 0; q < z.count; ++q) {
        const std::int64_t r1 = std::min(rows_, (p + 1) * height), c1 = std::min(cols_, (q + 1) * width);
        if (!any_marked(p * height, r1, q * width, c1)) continue;
        engine.compute(x.view(p), z.view(q), scratch, values.as<double>(), width);
        for (std::int64_t r = p * height; r < r1; ++r)
          for (std::int64_t c = q * width; c < c1; ++c)
            for (std::int64_t o = 0; marks_[r * cols_ + c] && o < planes; ++o)
              out[o * plane + r * out_stride + c] = static_cast<float>(
                  values.as<double>()[o * size + (r - p * height) * width + c - q * width]);
      }
  }

  static void pack(const Packer<double>& packer, PackedSide<double>& side) {
    side.reserve(packer, 0, packer.panels());
    for (std::int64_t p = 0; p < side.count; ++p) side.pack_one(packer, p);
  }

  bool any_marked(std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) const {
    for (std::int64_t r = r0; r < r1; ++r)
      for (std::int64_t c = c0; c < c1; ++c)
        if (marks_[r * cols_ + c]) return true;
    return false;
  }

  const PairProgram& program_;
  const PairItem& item_;
  const float* acc_;
  const PanelView<float>&x_, &z_;
  std::int64_t m0_, n0_, rows_, cols_;  // of the pairs that exist
  bool far_;                            // ranged sums may leave the range
  std::vector<bool> marks_;
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

void second_look(const PairProgram& program, const PairItem& item, const std::vector<double>& params, const float* acc,
                 const PanelView<float>& x, const PanelView<float>& z, float* out, std::int64_t out_stride) {
  SecondLook look(program, item, acc, x, z);
  if (look.finds_any()) look(params, out, out_stride);
}

}  // namespace mercer::cpu
