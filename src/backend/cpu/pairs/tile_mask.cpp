#include "backend/cpu/pairs/tile_mask.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/integers.h"

namespace mercer::cpu {
namespace {

constexpr plan::Interval kEmpty{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};

plan::Interval joined(const plan::Interval& a, const plan::Interval& b) {
  return {std::min(a.least, b.least), std::max(a.most, b.most), a.has_nan || b.has_nan};
}

/// The indices of panels first … end - 1.
plan::Interval indices(const Points& points, std::int64_t first, std::int64_t end, std::int64_t width) {
  const std::int64_t last = std::min(points.count, end * width) - 1;
  return {static_cast<double>(points.index_offset + first * width), static_cast<double>(points.index_offset + last)};
}

}  // namespace

PanelIntervals::PanelIntervals(const Points& points, int width, Dtype type)
    : leaves_(static_cast<std::int64_t>(
          std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(1, ceil_div(points.count, width)))))),
      tree_(2 * static_cast<std::size_t>(leaves_), kEmpty) {
  for (std::int64_t p = 0; p < points.count; ++p) {
    double value = points.user[p];
    if (type != Dtype::float64) value = static_cast<double>(static_cast<float>(value));
    plan::Interval& panel = tree_[static_cast<std::size_t>(leaves_ + p / width)];
    if (std::isnan(value)) panel.has_nan = true;
    else panel = joined(panel, {value, value});
  }
  for (std::int64_t i = leaves_ - 1; i > 0; --i) {
    const auto below = 2 * static_cast<std::size_t>(i);
    tree_[static_cast<std::size_t>(i)] = joined(tree_[below], tree_[below + 1]);
  }
}

plan::Interval PanelIntervals::of(std::int64_t first, std::int64_t end) const {
  if (tree_.empty()) return {};
  plan::Interval all = kEmpty;
  for (first += leaves_, end += leaves_; first < end; first /= 2, end /= 2) {
    if (first % 2 == 1) all = joined(all, tree_[static_cast<std::size_t>(first++)]);
    if (end % 2 == 1) all = joined(all, tree_[static_cast<std::size_t>(--end)]);
  }
  return all;
}

TileMask::TileMask(const plan::PairPlan& plan, const PairItem& item, const std::vector<std::span<const double>>& params,
                   double least_gain)
    : mask_(plan.mask), item_(item), rows_(plan.tile.rows), cols_(plan.tile.cols()) {
  if (!mask_ || !mask_pays(item.x.count, item.z.count, item.x.features, least_gain)) return;
  params_ = params;
  if (params_.empty()) return;
  if (mask_.reads(ir::Op::row)) row_values_ = PanelIntervals(item.x, plan.tile.rows, plan.problem.type);
  if (mask_.reads(ir::Op::col)) col_values_ = PanelIntervals(item.z, plan.tile.cols(), plan.problem.type);
  if (least_gain > 0 && !knows_enough()) params_.clear();
}

bool TileMask::knows_enough() const {
  constexpr std::int64_t kTiles = 64, kLeast = kTiles / 8;
  constexpr double kStep = 0.6180339887498949;  // spreads rows over the columns
  const std::int64_t rows = ceil_div(item_.x.count, rows_), cols = ceil_div(item_.z.count, cols_);
  std::vector<double> known(values());
  std::int64_t count = 0;
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    const double place = static_cast<double>(tile) * kStep;
    const auto x = static_cast<std::int64_t>((place - std::floor(place)) * static_cast<double>(rows));
    const std::int64_t z = tile * cols / kTiles;
    if (of(x, x + 1, z, z + 1, known.data()) == plan::MaskAnswer::known) ++count;
  }
  return count >= kLeast;
}

TileMask::TileMask(const plan::PairPlan& plan, const PairItem& item, const std::vector<double>& params,
                   double least_gain)
    : TileMask(plan, item, plan.mask ? std::vector<std::span<const double>>{params}
                                     : std::vector<std::span<const double>>{}, least_gain) {}

plan::MaskAnswer TileMask::of(std::int64_t x0, std::int64_t x1, std::int64_t z0, std::int64_t z1,
                              double* known) const {
  const plan::Rectangle pairs{indices(item_.x, x0, x1, rows_), indices(item_.z, z0, z1, cols_),
                              row_values_.of(x0, x1), col_values_.of(z0, z1)};
  plan::MaskAnswer answer = plan::MaskAnswer::known;
  for (const std::span<const double>& params : params_) {
    const plan::MaskAnswer own = mask_.of(pairs, params, item_.x.features, known);
    if (own == plan::MaskAnswer::computed) return own;
    if (own == plan::MaskAnswer::open) answer = own;
    known += mask_.outputs();
  }
  return answer;
}

void TileMask::runs(std::int64_t x0, std::int64_t x1, std::int64_t z, std::vector<MaskRun>& to) const {
  to.clear();
  if (*this) add_runs(x0, x1, z, to);
  else to.push_back({x0, x1});
}

void TileMask::add_runs(std::int64_t x0, std::int64_t x1, std::int64_t z, std::vector<MaskRun>& to) const {
  double value = 0;
  const plan::MaskAnswer answer = of(x0, x1, z, z + 1, &value);
  if (answer == plan::MaskAnswer::open && x1 - x0 > 1) {
    const std::int64_t middle = x0 + (x1 - x0) / 2;
    add_runs(x0, middle, z, to);
    return add_runs(middle, x1, z, to);
  }
  const bool is_known = answer == plan::MaskAnswer::known;
  if (!is_known) value = 0;
  const bool extends = !to.empty() && to.back().is_known == is_known &&
                       std::bit_cast<std::uint64_t>(to.back().value) == std::bit_cast<std::uint64_t>(value);
  if (extends) to.back().end = x1;
  else to.push_back({x0, x1, is_known, value});
}

}  // namespace mercer::cpu
