#include "plan/kron/kron_wide.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/integers.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

constexpr int kCapability = 90;
constexpr std::int64_t kMostExtent = 128;  // of a factor
constexpr std::int64_t kLeastRight = 8, kSingleColumns = 64;  // after a factor that stands alone; of its tile
/// A multiprocessor has 65536 registers: values of a tile that one thread holds, and registers for all else.
constexpr std::int64_t kMostHeld = 64, kRegisters = 65536, kOtherRegisters = 28;
constexpr std::int64_t kRows = 64, kStep = 16, kImageBlock = 64, kLine = 128;  // of wgmma; of images, bytes
constexpr std::int64_t kTail = 256;  // bytes: maxima of warps
constexpr std::int64_t kColumnBlock = 32;
constexpr std::int64_t kStage = 16 * 40 * 4;  // bytes of a warp through which single elements go
constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;

/// High and low pieces, `rows` of `depth`.
std::int64_t image_bytes(std::int64_t rows, std::int64_t depth) {
  return 2 * ceil_div(depth, kImageBlock) * rows * kLine;
}

/// Values of a tile that each of its threads holds.
std::int64_t held(const KronWide& wide) {
  const std::int64_t pieces = ceil_div(wide.p1, kStep) * ceil_div(wide.tile_n, 2 * kStep);
  return 16 * ceil_div(pieces, 4 * wide.warpgroups);
}

/// Elements at a time, 4, 2 or 1, of lines of `extent`.
std::int64_t width_of(bool vectors, std::int64_t extent) {
  return !vectors ? 1 : extent % 4 == 0 ? 4 : extent % 2 == 0 ? 2 : 1;
}

}  // namespace

/// As in kron_wide.cuh.
std::int64_t KronWide::shared_bytes() const {
  const std::int64_t first = image_bytes(round_up(q1, kRows), p1);
  const std::int64_t second = pair ? image_bytes(round_up(q2, kStep), p2) : 0;
  const std::int64_t maxima = column_scales ? groups * 2 * round_up(tile_n, kColumnBlock) * 4 : 0;
  const std::int64_t stages = in_width == 1 || out_width == 1 ? threads() / 32 * kStage : 0;
  return first + second + groups * image_bytes(tile_n, p1) + kTail + maxima + stages;
}

int KronWide::x_exponent() const {
  return pair ? (kExponent - std::bit_width(static_cast<std::uint64_t>(p1 - 1))) / 2 : kExponent;
}

int KronWide::first_exponent() const {
  return pair ? kExponent - std::bit_width(static_cast<std::uint64_t>(p1 - 1)) - x_exponent() : kExponent;
}

std::int64_t KronWide::tiles(const KronGpuPlace& place) const {
  return place.items * place.rows * place.left * (pair ? 1 : ceil_div(place.right, tile_n));
}

std::int64_t KronWide::blocks(const KronGpuPlace& place) const {
  return std::min(tiles(place), multiprocessors);
}

std::string KronWide::key() const {
  return fmt::format(
      "kron wide {}: {} x {}, {} x {}, {}, columns {} {} {}, groups {} of {}, width {} {}",
      types.key(), p1, q1, p2, q2, pair, tile_n, whole_n, column_scales, groups, warpgroups, in_width, out_width);
}

double KronWide::seconds(const KronGpuPlace& place, const KronWideCosts& costs) const {
  const double columns = static_cast<double>(pair ? p2 : tile_n), outputs = pair ? static_cast<double>(q2) : columns;
  const double bytes = static_cast<double>(p1) * columns * static_cast<double>(size_of(types.in)) +
                       static_cast<double>(q1) * outputs * static_cast<double>(size_of(types.out));
  const auto rows = static_cast<double>(round_up(q1, kRows));
  const double depth = static_cast<double>(round_up(p1, kStep)) + static_cast<double>(pair ? round_up(q2, kStep) : 0);
  const double products = rows * depth * static_cast<double>(tile_n);
  const double at_a_time = static_cast<double>(multiprocessors);
  const double tile = std::max({bytes * at_a_time / costs.bytes, products * costs.product,
                                costs.tile / static_cast<double>(groups)});
  const double images = static_cast<double>(p1 * q1 + p2 * q2) * costs.image;
  return costs.start + images * std::ceil(static_cast<double>(place.items) / at_a_time) +
         tile * std::max(static_cast<double>(tiles(place)) / at_a_time, 1.0);
}

std::vector<KronWide> kron_wide_options(const KronGpuTypes& types, std::span<const KronShape> factors,
                                        const KronGpuPlace& place, const KronGpuProblem& problem) {
  if (problem.capability != kCapability || types.type != Dtype::float32) return {};
  if (factors.empty() || factors.size() > 2) return {};
  for (const KronShape& factor : factors)
    if (std::min(factor.p, factor.q) < 1 || std::max(factor.p, factor.q) > kMostExtent) return {};
  KronWide wide;
  wide.types = types;
  wide.multiprocessors = problem.multiprocessors;
  wide.column_scales = problem.columns != 1;
  wide.pair = factors.size() == 2;
  if (wide.pair ? place.right != 1 : place.right < kLeastRight) return {};
  wide.p1 = factors[0].p;
  wide.q1 = factors[0].q;
  if (wide.pair) {
    wide.p2 = factors[1].p;
    wide.q2 = factors[1].q;
    wide.tile_n = round_up(wide.p2, kStep);
  } else {
    wide.tile_n = round_up(ceil_div(place.right, ceil_div(place.right, kSingleColumns)), kStep);
  }
  wide.whole_n = wide.pair || place.right % wide.tile_n == 0;
  if (wide.tiles(place) > kMostTiles) return {};
  wide.in_width = width_of(types.vectors_in, wide.pair ? wide.p2 : place.right);
  wide.out_width = width_of(types.vectors_out, wide.pair ? wide.q2 : place.right);
  wide.warpgroups = ceil_div(wide.q1, kRows);
  if (held(wide) > kMostHeld) wide.warpgroups = 2;
  // Sums of the first factor, or their pieces and sums of a strip of the second.
  const std::int64_t strip = wide.pair ? std::min(round_up(wide.q2, kStep), KronWide::kStrip) : 0;
  const std::int64_t sums = (wide.tile_n + strip) / 2;
  const auto fits = [&] {
    return held(wide) * 9 / 8 + sums + kOtherRegisters <= kRegisters / wide.threads() &&
           wide.shared_bytes() <= problem.shared_per_block;
  };
  std::vector<KronWide> options;
  for (wide.groups = 4 / wide.warpgroups; wide.groups > 0; --wide.groups)
    if (fits()) options.push_back(wide);
  return options;
}

std::optional<KronWide> plan_kron_wide(const KronGpuTypes& types, std::span<const KronShape> factors,
                                       const KronGpuPlace& place, const KronGpuProblem& problem) {
  const std::vector<KronWide> options = kron_wide_options(types, factors, place, problem);
  return options.empty() ? std::nullopt : std::optional(options.front());
}

}  // namespace mercer::plan
