#include "backend/cpu/pairs/digit_pairs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/cpu/pairs/digit_sums.h"
#include "backend/cpu/pairs/gemm.h"
#include "backend/cpu/pairs/sum_range.h"
#include "backend/cpu/pairs/tile_output.h"
#include "core/integers.h"

namespace mercer::cpu {
namespace {

using plan::cpu::PairSum;

constexpr std::int64_t kFloat = sizeof(float);

/// The points of one side, taken apart.
struct DigitSide {
  RowMatrix<float> points;
  AlignedBuffer own, digits, scales, norms, least;
  std::int64_t block_bytes = 0;

  std::int64_t blocks() const { return ceil_div(points.rows, kDigitBlock); }
  const std::int8_t* block(std::int64_t index) const { return digits.as<std::int8_t>() + index * block_bytes; }
  DigitNumbers numbers(std::int64_t first) const {
    return {scales.as<float>() + first, norms.as<float>() + first, least.as<float>() + first};
  }
  void reserve(std::int64_t steps) {
    block_bytes = digit_bytes(steps);
    const std::int64_t rounded = blocks() * kDigitBlock;
    digits.reserve(checked_product({blocks(), block_bytes}));
    for (AlignedBuffer* numbers : {&scales, &norms, &least}) numbers->reserve(rounded * kFloat);
  }
};

struct Workspace {
  AlignedBuffer sums, doubtful, block, tile, values;
};

class DigitPairsRun {
 public:
  DigitPairsRun(const PairProgram& program, const PairItem& item, const PairMember& member, bool by_amx,
                const RunOptions& run)
      : program_(program), item_(item), out_(member.out), run_(run), kernels_(digit_kernels(by_amx)),
        is_product_(program.forms.sum == PairSum::product),
        direct_(sum_kernels(program.plan().problem.target).sums(program.forms.sum, 0.0f)),
        params_(program.plan(), member.params, item.x.features), output_(program, params_), range_(program),
        rows_(program.plan().tile.rows), cols_(program.plan().tile.cols()), features_(item.x.features),
        steps_(ceil_div(features_, kDigitStep)), wide_(std::lcm(std::int64_t{cols_}, kDigitBlock)),
        high_(std::lcm(std::int64_t{rows_}, kDigitBlock)), workspaces_(run.workers) {}

  /// False: the points do not suit digits, or some sums leave their range. All must be computed in another way.
  bool operator()() {
    if (item_.x.count == 0 || item_.z.count == 0) return true;
    const std::int64_t any = std::numeric_limits<std::int64_t>::max();
    x_.points = as_rows<float>(item_.x, any, x_.own);
    z_.points = as_rows<float>(item_.z, any, z_.own);
    centre_ = is_product_ ? std::vector<double>(static_cast<std::size_t>(features_)) : centre();
    const std::int64_t across = panels_across(), down = ceil_div(item_.x.count, task_rows());
    if (!pack(x_, false, across * down) || !pack(z_, true, across * down) || are_doubtful()) return false;
    if (is_product_) turn_to_products();
    if (program_.forms.reads_sides) {
      pack_side_slots<float>(program_.packs.x, item_.x, rows_, item_.weights, params_.wide, row_slots_);
      pack_side_slots<float>(program_.packs.z, item_.z, cols_, item_.weights, params_.wide, col_slots_);
    }
    run_(across * down, [&](std::int64_t task, int worker) {
      run_task(task % down * task_rows(), task / down * columns_of_task(), workspaces_[worker]);
    });
    return fits_;
  }

 private:
  std::int64_t task_rows() const { return round_up(256, high_); }
  /// Columns whose digits stay in the second-level cache.
  std::int64_t columns_of_task() const {
    constexpr std::int64_t kBytes = std::int64_t{1} << 20;
    return std::max<std::int64_t>(1, kBytes / (kDigits * steps_ * kDigitStep) / wide_) * wide_;
  }
  std::int64_t panels_across() const { return ceil_div(item_.z.count, columns_of_task()); }

  /// The middle of both sides' means, of some of their points: a call with its sides in turn has the same. It has few
  /// digits next to the spread of a feature, so that differences from it need few more than the points do.
  std::vector<double> centre() const {
    constexpr std::int64_t kPoints = 64;
    constexpr int kBitsOfSpread = 6;
    const auto k = static_cast<std::size_t>(features_);
    std::vector<double> mean(k), lowest(k, std::numeric_limits<double>::infinity()), highest(k);
    for (double& value : highest) value = -std::numeric_limits<double>::infinity();
    std::vector<double> of_side(k);
    for (const RowMatrix<float>* side : {&x_.points, &z_.points}) {
      const std::int64_t taken = std::min(kPoints, side->rows);
      std::fill(of_side.begin(), of_side.end(), 0.0);
      for (std::int64_t i = 0; i < taken; ++i) {
        const float* const point = side->data + i * side->rows / taken * side->stride;
        for (std::size_t f = 0; f < k; ++f) {
          const double value = point[f];
          of_side[f] += value;
          lowest[f] = std::min(lowest[f], value);
          highest[f] = std::max(highest[f], value);
        }
      }
      for (std::size_t f = 0; f < k; ++f) mean[f] += of_side[f] / static_cast<double>(taken) / 2;
    }
    for (std::size_t f = 0; f < k; ++f) {
      const double spread = highest[f] - lowest[f];
      if (!std::isfinite(mean[f]) || !(spread > 0)) {
        mean[f] = std::isfinite(lowest[f]) ? lowest[f] : 0;
        continue;
      }
      int exponent = 0;
      std::frexp(spread, &exponent);
      mean[f] = std::ldexp(std::nearbyint(std::ldexp(mean[f], kBitsOfSpread - exponent)), exponent - kBitsOfSpread);
    }
    return mean;
  }

  /// Progress says meanwhile that none of the `tasks` that follow is done. False: some points do not suit digits.
  bool pack(DigitSide& side, bool as_columns, std::int64_t tasks) {
    side.reserve(steps_);
    std::atomic<bool> fits{true};
    const Pool::Progress asked = [&](double, double) { return (*run_.progress)(0, static_cast<double>(tasks)); };
    RunOptions run = run_;
    if (run_.progress != nullptr) run.progress = &asked;
    run(side.blocks(), [&](std::int64_t b, int) {
      if (!fits.load(std::memory_order_relaxed)) return;
      DigitPoints points{};
      points.points = side.points.data + b * kDigitBlock * side.points.stride;
      points.stride = side.points.stride;
      points.count = std::min(kDigitBlock, side.points.rows - b * kDigitBlock);
      points.features = features_;
      points.centre = centre_.data();
      points.as_columns = as_columns;
      points.digits = side.digits.as<std::int8_t>() + b * side.block_bytes;
      points.numbers = side.numbers(b * kDigitBlock);
      if (!kernels_.pack(points)) fits.store(false, std::memory_order_relaxed);
    });
    return fits.load();
  }

  /// Whether more than an eighth of the points have features so large, next to their norms, that most of their pairs
  /// would be made again.
  bool are_doubtful() const {
    std::int64_t doubtful = 0;
    for (const DigitSide* side : {&x_, &z_})
      for (std::int64_t p = 0; p < side->points.rows; ++p)
        if (is_doubtful(*side, p, 0.75f)) ++doubtful;
    return doubtful > (item_.x.count + item_.z.count) / 8;
  }
  static bool is_doubtful(const DigitSide& side, std::int64_t p, float share) {
    return side.least.as<float>()[p] > share * side.norms.as<float>()[p];
  }

  /// Numbers with which |x|^2 + |z|^2 - 2 x z is x z. All products of points with few large features are made again,
  /// and no others.
  void turn_to_products() {
    constexpr float kAlways = 3e38f, kNever = -1.5e38f;  // their sum is above all products, and twice kNever below
    constexpr float kShare = 1;
    for (const DigitSide* side : {&x_, &z_})
      for (std::int64_t p = 0; p < side->points.rows; ++p) {
        side->least.as<float>()[p] = is_doubtful(*side, p, kShare) ? kAlways : kNever;
        side->norms.as<float>()[p] = 0;
        if (side == &x_) side->scales.as<float>()[p] *= -0.5f;
      }
  }

  void run_task(std::int64_t m0, std::int64_t n0, Workspace& w) {
    const std::int64_t blocks = wide_ / kDigitBlock, size = static_cast<std::int64_t>(rows_) * cols_;
    w.sums.reserve(high_ * wide_ * kFloat);
    w.block.reserve(kDigitBlock * kDigitBlock * kFloat);
    w.doubtful.reserve(blocks * kDigitBlock * static_cast<std::int64_t>(sizeof(std::uint32_t)));
    w.tile.reserve(size * kFloat);
    w.values.reserve(size * kFloat);
    std::fill_n(w.tile.as<float>(), size, 0.0f);  // an epilogue reads rows that are not there
    const std::int64_t m1 = std::min(item_.x.count, m0 + task_rows());
    const std::int64_t n1 = std::min(item_.z.count, n0 + columns_of_task());
    for (std::int64_t m = m0; m < m1 && fits_; m += high_) {
      if (m > m0) stop_if_cancelled();
      for (std::int64_t n = n0; n < n1; n += wide_) run_part(m, n, std::min(high_, m1 - m), std::min(wide_, n1 - n), w);
    }
  }

  /// Rows and columns of whole blocks and of whole tiles.
  void run_part(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols, Workspace& w) {
    const bool goes_straight = output_.is_bare() && TileOutput<float>::is_direct(out_) && cols % kDigitBlock == 0;
    for (std::int64_t r = 0; r < rows; r += kDigitBlock) {
      const std::int64_t present = std::min(kDigitBlock, rows - r);
      const bool is_direct = goes_straight && present == kDigitBlock;
      float* const sums = is_direct ? TileOutput<float>::at(out_, m + r, n) : w.sums.as<float>() + r * wide_;
      const std::int64_t stride = is_direct ? out_.row_stride : wide_;
      make_sums(m + r, n, present, cols, sums, stride, w);
      if (goes_straight && !is_direct) write_block<float>(sums, stride, present, cols, out_, m + r, n);
    }
    if (!goes_straight) write_tiles(m, n, rows, cols, w);
  }

  void make_sums(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols, float* sums,
                 std::int64_t stride, Workspace& w) {
    DigitBlock block{};
    block.x = x_.block(m / kDigitBlock);
    block.z = z_.block(n / kDigitBlock);
    block.steps = steps_;
    block.blocks = ceil_div(cols, kDigitBlock);
    block.x_numbers = x_.numbers(m);
    block.z_numbers = z_.numbers(n);
    block.out = sums;
    block.out_stride = stride;
    if (TileOutput<float>::is_direct(out_)) {
      block.ahead = TileOutput<float>::at(out_, m, n);
      block.ahead_stride = out_.row_stride;
    }
    block.doubtful = w.doubtful.as<std::uint32_t>();
    kernels_.squares(block);
    for (std::int64_t b = 0; b < block.blocks; ++b)
      make_again(m, n + b * kDigitBlock, rows, std::min(kDigitBlock, cols - b * kDigitBlock), sums + b * kDigitBlock,
                 stride, block.doubtful + b * kDigitBlock, w);
  }

  /// Sums of the differences themselves, where those from digits may be wrong.
  void make_again(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols, float* sums,
                  std::int64_t stride, std::uint32_t* doubtful, const Workspace& w) {
    constexpr int kMany = 256, kManyOfRow = 8;  // of a block's 1024 pairs, of a row's 32
    const std::uint32_t present = cols == kDigitBlock ? ~std::uint32_t{0} : (std::uint32_t{1} << cols) - 1;
    int count = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      doubtful[r] &= present;
      count += std::popcount(doubtful[r]);
    }
    if (count == 0) return;
    float* const block = w.block.as<float>();
    const bool by_block = count > kMany;
    if (by_block) make_directly(m, n, rows, cols, block);
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool by_row = !by_block && std::popcount(doubtful[r]) > kManyOfRow;
      if (by_row) make_directly(m + r, n, 1, cols, block + r * kDigitBlock);
      for (std::uint32_t marks = doubtful[r]; marks != 0; marks &= marks - 1) {
        const std::int64_t c = std::countr_zero(marks);
        float* const value = block + r * kDigitBlock + c;
        if (!by_block && !by_row) make_directly(m + r, n + c, 1, 1, value);
        if (!is_in_range(m + r, n + c, value)) fits_ = false;
        sums[r * stride + c] = *value;
      }
    }
  }

  static const float* point(const DigitSide& side, std::int64_t p) { return side.points.data + p * side.points.stride; }
  void make_directly(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols, float* out) const {
    direct_(sum_block(m, n, rows, cols, out));
  }
  SumBlock<float> sum_block(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols, float* out) const {
    return {point(x_, m), point(z_, n), x_.points.stride, z_.points.stride, rows, cols, features_, out, kDigitBlock};
  }
  bool is_in_range(std::int64_t m, std::int64_t n, float* value) const {
    return range_.holds(sum_block(m, n, 1, 1, value), [&](std::int64_t) { return point(x_, m); },
                        [&](std::int64_t) { return point(z_, n); });
  }

  void write_tiles(std::int64_t m, std::int64_t n, std::int64_t rows, std::int64_t cols, const Workspace& w) const {
    for (std::int64_t r = 0; r < rows; r += rows_)
      for (std::int64_t c = 0; c < cols; c += cols_) {
        SumTile<float> tile{m + r, n + c, std::min<std::int64_t>(rows_, rows - r),
                            std::min<std::int64_t>(cols_, cols - c)};
        for (std::int64_t i = 0; i < tile.rows; ++i)
          std::memcpy(w.tile.as<float>() + i * cols_, w.sums.as<float>() + (r + i) * wide_ + c,
                      static_cast<std::size_t>(cols_ * kFloat));
        tile.sums = w.tile.as<float>();
        tile.stride = cols_;
        tile.row_slots = row_slots_.as<float>();
        tile.col_slots = col_slots_.as<float>();
        tile.values = w.values.as<float>();
        output_.write(tile, out_);
      }
  }

  const PairProgram& program_;
  const PairItem& item_;
  const OutputMatrix& out_;
  const RunOptions& run_;
  const DigitKernels& kernels_;
  const bool is_product_;
  const SumKernels::Sums<float> direct_;
  const ParamBlock<float> params_;
  const TileOutput<float> output_;
  const SumRange<float> range_;
  const int rows_, cols_;
  const std::int64_t features_, steps_;
  const std::int64_t wide_, high_;  // of parts: whole blocks and whole tiles
  DigitSide x_, z_;
  std::vector<double> centre_;
  AlignedBuffer row_slots_, col_slots_;
  std::vector<Workspace> workspaces_;
  std::atomic<bool> fits_{true};
};

}  // namespace

void digit_pairs(const PairProgram& program, const PairItem& item, const PairMember& member, bool by_amx,
                 const RunOptions& run) {
  if (!DigitPairsRun(program, item, member, by_amx, run)()) pairwise(program, item, {member}, false, run);
}

}  // namespace mercer::cpu
