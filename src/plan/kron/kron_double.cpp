#include "plan/kron/kron_double.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/integers.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

constexpr int kCapability = 80, kDeepCapability = 90;
constexpr std::int64_t kLeastExtent = 12;  // of the larger one: zeros fill up to 16
constexpr std::int64_t kRows = 16, kColumns = 8;  // of an instruction's result
constexpr std::int64_t kDouble = 8;  // bytes
constexpr std::int64_t kMostStages = 6, kLeastStages = 3;
constexpr std::int64_t kMostHeldTiles = 8;  // tiles of outputs next to each other
constexpr std::size_t kMostOptions = 12;  // that are measured
constexpr std::int64_t kMostTiles = std::int64_t{1} << 30, kMostColumns = std::int64_t{1} << 40;

double real(std::int64_t value) { return static_cast<double>(value); }

std::int64_t columns_of(const KronGpuPlace& place) { return place.rows * place.left * place.right; }

/// Sums of a warp, as results of an instruction: 8 registers each, of 255 or 168.
struct Groups {
  bool held;
  std::int64_t count, warps, sums;
};
constexpr Groups kGroups[] = {{true, 3, 4, 8}, {true, 2, 4, 16}, {false, 1, 8, 16}};

/// The shape of a group's tile, with its outputs filled up to whole units.
struct Shape {
  std::int64_t warps_q, q, n;
};

/// How the warps of a group may share a tile; each has so many results of an instruction.
template <class Offer>
void each_shape(const KronDouble& kernel, std::int64_t tile_q, std::int64_t sums, const Offer& offer) {
  const std::int64_t unit_q = kernel.last ? kColumns : kRows, unit_n = kernel.last ? kRows : kColumns;
  for (std::int64_t warps = 1; warps <= kernel.group_warps; warps *= 2) {
    const std::int64_t warps_q = kernel.last ? warps : kernel.group_warps / warps;
    const std::int64_t units_q = ceil_div(tile_q, unit_q * warps_q), most = sums / units_q;
    for (std::int64_t units_n = 1; units_n <= std::min<std::int64_t>(most, 8); units_n *= 2)
      offer(Shape{warps_q, units_q * unit_q * warps_q, units_n * unit_n * kernel.group_warps / warps_q});
  }
}

/// Bytes of shared memory that warps of a group read for a stage, and that copies write.
double stage_traffic(const KronDouble& k) {
  const std::int64_t warps_n = k.group_warps / k.warps_q;
  const std::int64_t read = k.group_warps * (k.tile_q / k.warps_q + k.tile_n / warps_n);
  return real(k.depth * kDouble * (read + k.tile_n + (k.held ? 0 : k.tile_q)));
}

/// Multiply-adds a second of all multiprocessors.
double products_per_second(const KronDouble& k, const KronDoubleCosts& costs) {
  return k.groups == 3 ? costs.three_groups : k.groups == 2 ? costs.two_groups : costs.one_group;
}

/// Pitch of a line in shared memory, in elements.
std::int64_t pitch(std::int64_t line) { return round_up(line, kRows) + 4; }

}  // namespace

std::int64_t KronDouble::steps() const { return ceil_div(p, depth); }

std::int64_t KronDouble::q_tiles() const { return ceil_div(q, tile_q); }

/// As in kron_double.cuh.
std::int64_t KronDouble::shared_bytes() const {
  const std::int64_t x = last ? tile_n * pitch(depth) : depth * pitch(tile_n);
  const std::int64_t places = (ceil_div(stages, steps()) + 1) * (2 + (types.final ? 1 : 0)) * tile_n;
  const std::int64_t group = stages * (x + (held ? 0 : depth * pitch(tile_q))) + places;
  return kDouble * ((held ? round_up(p, kRows) * pitch(tile_q) : 0) + groups * group);
}

std::int64_t KronDouble::blocks(const KronGpuPlace& place) const {
  const std::int64_t n_tiles = place.items * ceil_div(columns_of(place), tile_n);
  if (!held) return std::min(multiprocessors, n_tiles * q_tiles());
  return std::min(multiprocessors / q_tiles(), n_tiles) * q_tiles();
}

std::string KronDouble::key() const {
  return fmt::format(
      "kron double {}: {} x {}, {} {} {}, tile {} {} by {}, groups {} of {}, stages {} of {}, width {} {}", types.key(),
      p, q, int{last}, int{held}, int{deep}, tile_q, tile_n, warps_q, groups, group_warps, stages, depth, in_width,
      out_width);
}

double KronDouble::seconds(const KronGpuPlace& place, const KronDoubleCosts& costs) const {
  const double all = real(multiprocessors), columns = real(place.items) * real(columns_of(place));
  double rate = costs.bytes;
  const std::int64_t line = kDouble * (last ? std::min(p, q) : place.right * std::min(p, q));
  if (!last && place.right * kDouble < 32) rate *= real(place.right * kDouble) / 32;
  else if (line < 128) rate *= costs.narrow_lines;
  if (in_width == 1 || out_width == 1) rate *= costs.single;
  const double again = costs.again * real(q_tiles() - 1);  // from the second-level cache
  const double memory = columns * kDouble * (real(p) * (1 + again) + real(q)) / rate;
  const double tiles = real(place.items * ceil_div(columns_of(place), tile_n) * q_tiles());
  const double stage = all * (real(depth * tile_q * tile_n) / products_per_second(*this, costs) +
                              costs.overlap * stage_traffic(*this) / costs.shared_bytes);
  const double steady = real(steps()) * stage * tiles / all;
  // Time of a tile where a group that nobody disturbs takes one after the other.
  const double alone = real(steps()) * (stage * costs.alone + costs.stage) + costs.store;
  const double rounds = std::max(tiles / (real(groups) * real(blocks(place))), 1.0);
  const double image = held ? real(p * tile_q * kDouble) / costs.image_bytes : 0;
  const double products = std::max(steady, alone * rounds);
  return costs.start + image * std::max(real(place.items * q_tiles()) / all, 1.0) + std::max(memory, products) +
         costs.overlap * std::min(memory, products);
}

namespace {

/// All that serve.
template <class Offer>
void each_kernel(const KronGpuTypes& types, std::span<const KronShape> factors, const KronGpuPlace& place,
                 const KronGpuProblem& problem, const Offer& offer_to) {
  if (types.type != Dtype::float64 || problem.capability < kCapability || factors.size() != 1) return;
  KronDouble kernel;
  kernel.types = types;
  kernel.p = factors[0].p;
  kernel.q = factors[0].q;
  if (std::min(kernel.p, kernel.q) < 1 || std::max(kernel.p, kernel.q) < kLeastExtent) return;
  if (real(place.rows) * real(place.left) * real(place.right) > real(kMostColumns)) return;
  kernel.last = place.right == 1;
  kernel.deep = problem.capability >= kDeepCapability;
  kernel.multiprocessors = problem.multiprocessors;
  const auto width = [&](bool vectors, std::int64_t extent) { return vectors && extent % 2 == 0 ? 2 : 1; };
  kernel.in_width = width(types.vectors_in, kernel.last ? kernel.p : place.right);
  kernel.out_width = width(types.vectors_out, kernel.last ? kernel.q : place.right);
  const auto offer = [&] {
    for (kernel.stages = kMostStages; kernel.stages > kLeastStages; --kernel.stages)
      if (kernel.shared_bytes() <= problem.shared_per_block) break;
    if (kernel.shared_bytes() > problem.shared_per_block) return;
    if (kernel.held && kernel.q_tiles() > std::min(kMostHeldTiles, kernel.multiprocessors)) return;
    if (real(place.items * ceil_div(columns_of(place), kernel.tile_n) * kernel.q_tiles()) > real(kMostTiles)) return;
    offer_to(kernel);
  };
  for (const Groups& groups : kGroups) {
    kernel.held = groups.held;
    kernel.groups = groups.count;
    kernel.group_warps = groups.warps;
    for (const std::int64_t most : {128, 96, 64, 32, 16})
      each_shape(kernel, ceil_div(kernel.q, ceil_div(kernel.q, most)), groups.sums, [&](const Shape& shape) {
        kernel.warps_q = shape.warps_q;
        kernel.tile_q = shape.q;
        kernel.tile_n = shape.n;
        for (const std::int64_t depth : {32, 16}) {
          kernel.depth = depth;
          offer();
        }
      });
  }
}

}  // namespace

std::optional<KronDouble> plan_kron_double(const KronGpuTypes& types, std::span<const KronShape> factors,
                                           const KronGpuPlace& place, const KronGpuProblem& problem) {
  const KronDoubleCosts& costs = problem.costs().doubles;
  std::optional<KronDouble> best;
  each_kernel(types, factors, place, problem, [&](const KronDouble& kernel) {
    if (!best || kernel.seconds(place, costs) < best->seconds(place, costs)) best = kernel;
  });
  return best;
}

std::vector<KronDouble> kron_double_options(const KronGpuTypes& types, std::span<const KronShape> factors,
                                            const KronGpuPlace& place, const KronGpuProblem& problem) {
  const KronDoubleCosts& costs = problem.costs().doubles;
  std::vector<KronDouble> options;
  each_kernel(types, factors, place, problem, [&](const KronDouble& kernel) { options.push_back(kernel); });
  std::stable_sort(options.begin(), options.end(), [&](const KronDouble& a, const KronDouble& b) {
    return a.seconds(place, costs) < b.seconds(place, costs);
  });
  if (options.size() > kMostOptions) options.resize(kMostOptions);
  return options;
}

}  // namespace mercer::plan
