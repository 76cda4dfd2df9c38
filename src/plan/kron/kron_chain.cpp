#include "plan/kron/kron_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/integers.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

constexpr std::int64_t kWarp = 32, kBanks = 32, kVector = 4;
/// Up to here multiply-adds take fewer issue slots than splits into pieces.
constexpr std::int64_t kMostMultiplied = 8;
constexpr std::int64_t kFewestEights = 5;      // fewer multiply-adds than products of tensor cores otherwise
constexpr std::int64_t kMostExtent = 32;       // of an axis: registers
constexpr std::int64_t kMostPair = 64;         // values of two axes in the registers of one thread
constexpr std::int64_t kFragment = 512;        // bytes of 32 lanes
constexpr std::int64_t kPlain = 32 << 10, kMostPlain = 64 << 10;  // bytes of a tile that is not forced to be larger
constexpr std::int64_t kLeastNeighbours = 8, kNeighbours = 32;
constexpr std::int64_t kRegisters = 65536, kThreadRegisters = 128, kSharedRegisters = 80;
constexpr std::int64_t kLeastThreads = 256;  // of a multiprocessor, in what is measured
constexpr std::int64_t kTurns = 4, kMostRows = 8;  // of clusters on a device, of rows that one of them takes
constexpr std::int64_t kPlaces = 6, kStaticBytes = 1024;
constexpr std::int64_t kBarriers = 16;  // bytes of a slot's
constexpr std::int64_t kLeastRow = 100 << 10, kFewestSlots = 3;
constexpr std::size_t kSharedAxes = 6;  // of a row that comes through the rings of a cluster

std::int64_t bytes_of(const KronChain& chain) { return static_cast<std::int64_t>(size_of(chain.types.type)); }

/// Neighbouring factors become one axis while their product stays tiny.
std::vector<KronChainAxis> merged(std::span<const KronShape> factors) {
  std::vector<KronChainAxis> axes;
  for (int i = static_cast<int>(factors.size()) - 1; i >= 0; --i) {
    const KronShape& f = factors[static_cast<std::size_t>(i)];
    if (!axes.empty() && axes.front().p * f.p <= kMostMultiplied && axes.front().q * f.q <= kMostMultiplied) {
      KronChainAxis& axis = axes.front();
      axis.first = i;
      ++axis.count;
      axis.p *= f.p;
      axis.q *= f.q;
    } else {
      axes.insert(axes.begin(), {.first = i, .p = f.p, .q = f.q});
    }
  }
  return axes;
}

/// Whether phases of this axis may be products of 8 x 8.
bool is_eight(const KronChainAxis& axis) {
  return std::min(axis.p, axis.q) >= kFewestEights && axis.extent() <= kMostMultiplied;
}

/// Pairs from the end; what is left over is the first axis, after which comes all the rest of a row. An axis that
/// blocks share comes last, the first one alone, another one with that after it.
void add_phases(KronChain& chain, bool tensor_cores, bool eights, bool any_behind) {
  const bool is_float = chain.types.type == Dtype::float32;
  const auto takes_eights = [&](int axis) { return eights && is_eight(chain.axes[static_cast<std::size_t>(axis)]); };
  const bool pair_is_last = chain.shared_axis > 0;
  for (int i = static_cast<int>(chain.axes.size()) - (pair_is_last ? 3 : 1); i >= 0; --i) {
    const auto extent = [&](int axis) { return chain.axes[static_cast<std::size_t>(axis)].extent(); };
    const auto large = [&](int axis) { return extent(axis) > kMostMultiplied; };
    KronChainPhase& phase = chain.phases.emplace_back();
    phase.axis = i;
    phase.tensor = tensor_cores && (large(i) || (i > 0 && large(i - 1)));
    const bool alone = chain.cluster > 1 && !pair_is_last && i <= 1;
    phase.eights = !phase.tensor && takes_eights(i) && i > 0 && !alone && takes_eights(i - 1);
    const bool few = is_float && extent(i) * extent(i > 0 ? i - 1 : 0) <= kMostPair;
    const bool pair = i > 0 && !alone && ((phase.tensor && is_float) || phase.eights || few);
    if (pair) phase.axis = --i, phase.axes = 2;
    else phase.tensor = phase.tensor && large(i);
    const bool behind = any_behind || i + 1 < static_cast<int>(chain.axes.size());
    if (!pair && !phase.tensor) phase.eights = takes_eights(i) && behind;
  }
  if (pair_is_last) chain.phases.push_back({.axis = chain.shared_axis, .axes = 2, .tensor = true});
}

void measure_phases(KronChain& chain) {
  for (std::size_t p = 0; p < chain.phases.size(); ++p) {
    KronChainPhase& phase = chain.phases[p];
    phase.outer = chain.tile_l;
    phase.inner = chain.tile_r;
    for (std::size_t axis = 0; axis < chain.axes.size(); ++axis) {
      const auto at = static_cast<int>(axis);
      if (at < phase.axis) phase.outer *= chain.extent(p, axis);
      if (at >= phase.axis + phase.axes) phase.inner *= chain.extent(p, axis);
    }
    // Neighbours must be neighbours throughout: the innermost extent decides.
    const std::size_t last = chain.axes.size() - 1;
    const bool behind = phase.axis + phase.axes <= static_cast<int>(last);
    const std::int64_t innermost = chain.tile_r > 1 ? chain.tile_r : behind ? chain.extent(p, last) : 1;
    const KronChainAxis& second = chain.axes[static_cast<std::size_t>(phase.axis + phase.axes - 1)];
    const std::int64_t vector = 16 / bytes_of(chain);
    phase.along = phase.axes == 2 && phase.inner == 1 && second.p % (phase.tensor ? 16 : vector) == 0 &&
                  second.q % (phase.tensor ? 16 : vector) == 0;
    phase.width = 1;
    if (innermost % vector != 0) continue;
    const std::int64_t extent = chain.axes[static_cast<std::size_t>(phase.axis)].extent();
    const bool fits = phase.tensor ? phase.axes == 1 || (extent <= 16 && second.extent() <= 16)
                                   : phase.eights || (phase.axes == 1 && extent <= kMostMultiplied);
    if (fits) phase.width = static_cast<int>(vector);
  }
}

/// Turns that shared memory takes for what a warp reads or writes at once, `width` values a lane: powers of two, as the
/// bytes of a value. Asked hundreds of times a plan.
int turns(const std::array<std::int64_t, kWarp>& places, int width, std::int64_t value_bytes) {
  const auto group = static_cast<std::size_t>(kBanks * 4 / (width * value_bytes));
  const int shift = std::countr_zero(static_cast<unsigned>(width));
  int sum = 0;
  for (std::size_t first = 0; first < places.size(); first += group) {
    std::array<int, kBanks> used{};
    int most = 0;
    for (std::size_t lane = first; lane < first + group; ++lane)
      most = std::max(most, ++used[static_cast<std::size_t>(places[lane] >> shift) & (group - 1)]);
    sum += most;
  }
  return sum;
}

int tensor_turns(const KronChain& chain, const KronChainPhase& phase) {
  const std::int64_t a = chain.axes[static_cast<std::size_t>(phase.axis)].step;
  const KronChainAxis& second = chain.axes[static_cast<std::size_t>(phase.axis + phase.axes - 1)];
  const std::int64_t tiles = 2 * ceil_div(second.p, 16);
  std::array<std::int64_t, kWarp> read{}, written{};
  for (std::int64_t lane = 0; lane < kWarp; ++lane) {
    const std::int64_t g = lane / 4, t = lane % 4;
    const auto at = static_cast<std::size_t>(lane);
    if (phase.axes == 1) {
      read[at] = t * a + (phase.width > 1 ? g % 2 * 16 + g / 2 * 4 : g);
      written[at] = g * a + t * (phase.width > 1 ? 4 : 2);
    } else if (phase.along) {
      read[at] = t * a + g * tiles;
      written[at] = g * a + 4 * t;
    } else {
      read[at] = t * a + g * second.step;
      const std::int64_t row = phase.width > 1 ? (g & 4) | (g & 1) << 1 | (g >> 1 & 1) : g;  // apart_row
      written[at] = row * a + t * second.step;
    }
  }
  const bool along = phase.axes == 2 && phase.along;
  const std::int64_t bytes = bytes_of(chain);
  const int read_width = along ? static_cast<int>(std::min<std::int64_t>(tiles, 4)) : phase.width;
  return 4 * turns(read, read_width, bytes) / read_width +
         4 * turns(written, along ? 4 : phase.width, bytes) / (along ? 4 : phase.width);
}

int eights_turns(const KronChain& chain, const KronChainPhase& phase) {
  const std::int64_t a = chain.axes[static_cast<std::size_t>(phase.axis)].step;
  const std::int64_t b = chain.axes[static_cast<std::size_t>(phase.axis + phase.axes - 1)].step;
  const auto column = [&](std::int64_t n) {
    return phase.axes == 2 ? n * b : (n % 2 * 4 + n / 2) * static_cast<std::int64_t>(phase.width);
  };
  std::array<std::int64_t, kWarp> read{}, written{};
  for (std::int64_t lane = 0; lane < kWarp; ++lane) {
    const std::int64_t g = lane / 4, t = lane % 4;
    read[static_cast<std::size_t>(lane)] = t * a + column(g);
    written[static_cast<std::size_t>(lane)] = g * a + column(2 * t);
  }
  const int write_width = phase.axes == 2 && phase.along ? 2 : phase.width;
  return 8 * turns(read, phase.width, bytes_of(chain)) / phase.width +
         8 * turns(written, write_width, bytes_of(chain)) / write_width;
}

/// Where the lanes of a warp are in a tile, whatever the steps: along each axis, after all axes, before all of them.
using LaneDigits = std::vector<std::array<std::int64_t, kWarp>>;

/// Digits of the lanes for multiply-adds: lanes run along what comes after, then along what stands before.
LaneDigits lane_digits(const KronChain& chain, std::size_t index) {
  const KronChainPhase& phase = chain.phases[index];
  const std::size_t axes = chain.axes.size();
  LaneDigits digits(axes + 2);
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    std::int64_t rest = static_cast<std::int64_t>(lane) * phase.width;
    digits[axes][lane] = rest % chain.tile_r;
    rest /= chain.tile_r;
    for (std::size_t axis = axes; axis-- > 0;) {
      const auto at = static_cast<int>(axis);
      if (at >= phase.axis && at < phase.axis + phase.axes) continue;
      digits[axis][lane] = rest % chain.extent(index, axis);
      rest /= chain.extent(index, axis);
    }
    digits[axes + 1][lane] = rest;
  }
  return digits;
}

int multiplied_turns(const KronChain& chain, const KronChainPhase& phase, const LaneDigits& digits) {
  const std::size_t axes = chain.axes.size();
  std::array<std::int64_t, kWarp> places = digits[axes];
  for (std::size_t axis = 0; axis <= axes; ++axis) {
    const auto& along = digits[axis < axes ? axis : axes + 1];
    const std::int64_t step = axis < axes ? chain.axes[axis].step : chain.step_l;
    for (std::size_t lane = 0; lane < kWarp; ++lane) places[lane] += along[lane] * step;
  }
  const int width = phase.along ? static_cast<int>(16 / bytes_of(chain)) : phase.width;
  return 8 * turns(places, width, bytes_of(chain)) / width;
}

void set_steps(KronChain& chain, const std::vector<std::int64_t>& gaps) {
  std::int64_t size = chain.tile_r;
  for (std::size_t axis = chain.axes.size(); axis-- > 0;) {
    chain.axes[axis].step = size == 1 ? 1 : round_up(size, kVector) + gaps[axis];
    size = chain.axes[axis].step * chain.room(axis);
  }
  chain.step_l = chain.tile_l > 1 ? round_up(size, kVector) + gaps.back() : round_up(size, kVector);
}

/// Gaps between neighbours of an axis so that a warp meets few banks twice.
void choose_steps(KronChain& chain, std::int64_t most_bytes) {
  std::vector<std::int64_t> gaps(chain.axes.size() + 1, 0);
  std::vector<LaneDigits> digits(chain.phases.size());
  for (std::size_t p = 0; p < digits.size(); ++p)
    if (!chain.phases[p].tensor && !chain.phases[p].eights) digits[p] = lane_digits(chain, p);
  const auto cost = [&] {
    set_steps(chain, gaps);
    int sum = chain.shared_bytes() > most_bytes ? 1 << 20 : 0;
    for (std::size_t p = 0; p < digits.size(); ++p) {
      const KronChainPhase& phase = chain.phases[p];
      sum += phase.tensor   ? tensor_turns(chain, phase)
             : phase.eights ? eights_turns(chain, phase)
                            : multiplied_turns(chain, phase, digits[p]);
    }
    return sum;
  };
  int best = cost();
  for (int sweep = 0, before = best + 1; sweep < 2 && best < before; ++sweep) {
    before = best;
    for (std::size_t axis = gaps.size(); axis-- > 0;) {
      std::int64_t best_gap = gaps[axis];
      for (std::int64_t gap = 0; gap < 4 * kBanks / bytes_of(chain); gap += 16 / bytes_of(chain)) {
        if (gap == best_gap) continue;
        gaps[axis] = gap;
        const int turns = cost();
        if (turns < best) best = turns, best_gap = gap;
      }
      gaps[axis] = best_gap;
    }
  }
  set_steps(chain, gaps);
}

bool set_tile(KronChain& chain, std::int64_t tile_l, std::int64_t tile_r, std::int64_t most_bytes) {
  chain.tile_l = tile_l;
  chain.tile_r = tile_r;
  measure_phases(chain);
  set_steps(chain, std::vector<std::int64_t>(chain.axes.size() + 1, 0));
  return chain.shared_bytes() <= most_bytes;
}

/// Neighbours after the axes first, whole lines of memory if they fit; then several tiles side by side. What a block
/// has on its way from memory should outlast the latency.
bool choose_tile(KronChain& chain, const KronGpuPlace& place, std::int64_t most_bytes, std::int64_t plain) {
  std::int64_t r = place.right, one = bytes_of(chain);
  for (std::size_t axis = 0; axis < chain.axes.size(); ++axis) one *= chain.room(axis);
  const std::int64_t most = std::max(kNeighbours, plain / 2 / one);
  if (r > most) r = round_up(ceil_div(r, ceil_div(r, most)), kVector);
  const auto fits = [&](std::int64_t l, std::int64_t bytes) {
    return set_tile(chain, l, r, std::min(bytes, most_bytes));
  };
  while (r > kLeastNeighbours && !fits(1, kMostPlain)) r = round_up(r / 2, kVector);
  if (!set_tile(chain, 1, r, most_bytes)) return false;
  std::int64_t l = 1;
  const std::int64_t before = place.rows * place.left;
  while (chain.cluster == 1 && r == place.right && 2 * l <= before && fits(2 * l, plain)) l *= 2;
  return set_tile(chain, l, r, most_bytes);
}

/// Blocks that the shared memory of a multiprocessor holds: the device keeps 1 KB of it for each, and 1 KB more than a
/// block may have is there. Scales of 16-bit pieces come on top of what a launch asks for.
std::int64_t fitting_blocks(const KronChain& chain, std::int64_t most_bytes) {
  const auto axes = static_cast<std::int64_t>(chain.axes.size());
  const std::int64_t scales = chain.has_tensor() ? axes * 4 * (1 + chain.block_threads / kWarp) : 0;
  return (most_bytes + 2 * kStaticBytes) / (chain.shared_bytes() + kStaticBytes + scales);
}

/// Blocks of a cluster wait for one another: others are to run meanwhile.
void choose_shared_threads(KronChain& chain, std::int64_t most_bytes) {
  const std::int64_t fitting = fitting_blocks(chain, most_bytes);
  const bool pairs = std::any_of(chain.phases.begin(), chain.phases.end(), [](const auto& p) { return p.axes == 2; });
  const bool by_warps = chain.has_tensor() || chain.has_eights();
  chain.block_threads = fitting <= 1 ? 512 : by_warps ? 256 : 128;
  chain.resident = std::clamp<std::int64_t>(fitting, 1, pairs ? 3 : 4);
}

void choose_threads(KronChain& chain, std::int64_t most_bytes) {
  if (chain.cluster > 1) {
    choose_shared_threads(chain, most_bytes);
    return;
  }
  const std::int64_t bytes = chain.shared_bytes();
  chain.block_threads = bytes > (100 << 10) ? 512 : bytes > (20 << 10) ? 256 : 128;
  chain.resident = std::max<std::int64_t>(kRegisters / kThreadRegisters / chain.block_threads, 1);
}

}  // namespace

bool KronChain::has_tensor() const {
  return std::any_of(phases.begin(), phases.end(), [](const KronChainPhase& phase) { return phase.tensor; });
}

bool KronChain::has_eights() const {
  return std::any_of(phases.begin(), phases.end(), [](const KronChainPhase& phase) { return phase.eights; });
}

std::int64_t KronChain::in() const {
  std::int64_t values = tile_r;
  for (const KronChainAxis& axis : axes) values *= axis.p;
  return values;
}

std::int64_t KronChain::out() const {
  std::int64_t values = tile_r;
  for (const KronChainAxis& axis : axes) values *= axis.q;
  return values;
}

std::int64_t KronChain::tile_values() const {
  std::int64_t factor_values = 0;  // as they are read
  for (const KronChainAxis& axis : axes) factor_values += axis.p * axis.q;
  return round_up(std::max(tile_l * step_l, factor_values), kVector);
}

std::int64_t KronChain::room(std::size_t axis) const {
  return shares(axis) ? axes[axis].p / cluster : axes[axis].extent();
}

bool KronChain::refills() const {
  return cluster == 1 && types.vectors_in == types.vectors_out &&
         std::all_of(axes.begin(), axes.end(), [](const KronChainAxis& axis) { return axis.p == axis.q; });
}

bool KronChain::direct() const {
  const KronChainPhase& last = phases.back();
  const bool by_vectors = last.axes == 1 && last.width == 16 / bytes_of(*this);
  if (cluster > 1) return types.vectors_out && (by_vectors || (shared_axis > 0 && last.along));
  return refills() && by_vectors && types.vectors_in && types.in == types.type;
}

bool KronChain::alternates() const {
  if (cluster > 1 || resident > 1 || tile_l > 1 || phases.size() != 2 || !direct()) return false;
  // The first phase refills what a lane reads of a row: 16 bytes, where the second axis has more than 16 elements.
  const KronChainPhase& first = phases.front();
  return first.tensor && phases.back().tensor && first.along && axes[static_cast<std::size_t>(first.axis) + 1].p > 16;
}

std::int64_t KronChain::extent(std::size_t phase, std::size_t axis) const {
  if (shares(axis) && phase < phases.size()) return room(axis);
  for (std::size_t p = 0; p < phase; ++p)
    if (phases[p].axis <= static_cast<int>(axis) && static_cast<int>(axis) < phases[p].axis + phases[p].axes)
      return axes[axis].q;
  return axes[axis].p;
}

const KronChainPhase& KronChain::phase_of(std::size_t axis) const {
  return *std::find_if(phases.begin(), phases.end(), [&](const KronChainPhase& phase) {
    return phase.axis <= static_cast<int>(axis) && static_cast<int>(axis) < phase.axis + phase.axes;
  });
}

std::int64_t KronChain::operand_at(std::size_t axis) const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < axis; ++i) {
    const std::int64_t p = axes[i].p, q = axes[i].q;
    if (phase_of(i).tensor) bytes += ceil_div(p, 16) * ceil_div(q, 16) * 2 * kFragment;
    else if (phase_of(i).eights) bytes += kFragment;
    else bytes += round_up(p * round_up(q, kVector) * bytes_of(*this), 16);
  }
  return bytes;
}

bool KronChain::is_early() const {
  std::int64_t raw = 0;
  for (const KronChainAxis& axis : axes) raw += axis.p * axis.q * bytes_of(*this);
  const std::int64_t bytes = operand_at(axes.size());
  return cluster > 1 && std::all_of(phases.begin(), phases.end(), [](const auto& phase) { return phase.tensor; }) &&
         raw <= bytes && bytes <= block_threads * (kFragment / kWarp);
}

/// As in kron_ring_run.cuh.
std::int64_t KronChain::ring_bytes() const {
  if (ring == 0) return 0;
  return ring * axes.front().p * kRingStep * bytes_of(*this) + (ring + 1) * kBarriers;
}

std::int64_t KronChain::shared_bytes() const {
  return tile_values() * bytes_of(*this) + operand_at(axes.size()) + kPlaces * tile_l * 8 + ring_bytes();
}

std::int64_t KronChain::blocks(const KronGpuPlace& place) const {
  const std::int64_t tiles =
      place.items * ceil_div(place.rows * place.left, tile_l) * ceil_div(place.right, tile_r);
  const std::int64_t most = at_once > 0 ? at_once : std::max<std::int64_t>(resident * multiprocessors / cluster, 1);
  if (cluster == 1 || asks()) return ceil_div(tiles, ceil_div(tiles, most)) * cluster;
  // Clusters that come and go run out of step with each other, so that some load while others multiply.
  // Clusters of the last round have a row less where that makes it a whole round.
  const std::int64_t rows = std::clamp<std::int64_t>(tiles / (kTurns * most), 1, kMostRows);
  return std::min(round_up(ceil_div(tiles, rows), most), tiles) * cluster;
}

double KronChain::seconds(const KronGpuPlace& place, const KronChainCosts& costs) const {
  const double rows = static_cast<double>(place.items) * static_cast<double>(place.rows * place.left) *
                      static_cast<double>(place.right) / static_cast<double>(tile_r);
  const double bytes = rows * (static_cast<double>(in()) * static_cast<double>(size_of(types.in)) +
                               static_cast<double>(out()) * static_cast<double>(size_of(types.out)));
  // Blocks of a cluster load, multiply and store by turns: only other clusters work meanwhile.
  const bool pairs = types.type == Dtype::float32 && !has_tensor();  // of multiply-adds: few accesses to the tile
  const double shared = ring > 0       ? costs.shared_ring
                        : resident > 2 ? (pairs ? costs.shared_pairs : costs.shared_many)
                        : resident > 1 ? costs.shared_two
                                       : costs.shared_one;
  const double own = resident > 1 || ring > 0 ? costs.own_many : pairs ? costs.own_pairs : costs.own_one;
  double rate = costs.bytes * (cluster > 1 ? shared : own);
  const std::int64_t line = (tile_r == place.right ? in() : tile_r) * static_cast<std::int64_t>(size_of(types.in));
  if (line < 128) rate *= line < 64 ? costs.tiny_lines : costs.short_lines;
  double slots = 0;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const auto p = static_cast<double>(axes[axis].p);
    const bool waits = types.type == Dtype::float64 && axes[axis].p > kMostMultiplied;
    slots += phase_of(axis).tensor   ? costs.tensor + p / costs.tensor_elements
             : phase_of(axis).eights ? costs.eights
                                     : (1 + p) * (waits ? costs.doubles : 1);
  }
  const double arithmetic = rows * static_cast<double>(std::max(in(), out())) * slots / costs.slots;
  // The shares are estimates: they need only rank the ways through a row.
  return costs.start + bytes / rate + costs.arithmetic * arithmetic;
}

std::string KronChain::key() const {
  std::string text = fmt::format("kron chain {}: tile {} {} {} of {}, {} threads, {} resident, cluster {} by {}{};",
                                 types.key(), tile_l, tile_r, int{whole_r}, step_l, block_threads, resident, cluster,
                                 shared_axis, ring > 0 ? fmt::format(", ring of {}", ring) : "");
  for (const KronShape& factor : factors) text += fmt::format(" {} x {}", factor.p, factor.q);
  for (const KronChainAxis& axis : axes) text += fmt::format(", axis {} by {}", axis.count, axis.step);
  for (const KronChainPhase& phase : phases)
    text += fmt::format(", phase {} {} {} {} {}", phase.axis, phase.axes, phase.tensor ? 1 : phase.eights ? 2 : 0,
                        phase.width, int{phase.along});
  return text;
}

namespace {

constexpr double kAnyTime = 1e300;

/// The chain with rows shared by so many blocks, that have parts of this axis. Nothing where it takes `worth` seconds
/// or more even without gaps: to search for them takes most of the time here.
std::optional<KronChain> plan_shared(const KronGpuTypes& types, std::span<const KronShape> factors,
                                     const KronGpuPlace& place, const KronGpuProblem& problem, int cluster,
                                     int shared_axis, std::int64_t plain = kPlain, double worth = kAnyTime) {
  KronChain chain;
  chain.types = types;
  chain.factors.assign(factors.begin(), factors.end());
  chain.multiprocessors = problem.multiprocessors;
  chain.cluster = cluster;
  chain.shared_axis = shared_axis;
  chain.axes = merged(factors);
  // Columns are rows of their own, of which a scale may be shared by none.
  const bool tensor_cores = types.type == Dtype::float32 && problem.columns == 1 && problem.capability >= 80;
  if (cluster > 1) {
    const std::int64_t p = chain.axes[static_cast<std::size_t>(shared_axis)].p;
    if (place.right > 1 || chain.axes.size() < 2 || p % cluster != 0) return std::nullopt;
    if (shared_axis > 0 && (!tensor_cores || p <= kMostMultiplied)) return std::nullopt;
  }
  // float32 as two pieces of tf32 gains nothing where rows come into their tiles: 0.118 ms for 8^5, 0.111 by
  // multiply-adds.
  const bool eights = types.type == Dtype::float64 && problem.capability >= 80;
  add_phases(chain, tensor_cores, eights, place.right > 1);
  if (shared_axis == 0 && chain.phases.front().tensor && chain.phases.front().axes == 1 && place.right == 1) {
    chain.phases.clear();  // a row has nothing to share a scale with
    add_phases(chain, false, eights, false);
  }
  const std::int64_t most_bytes = problem.shared_per_block - kStaticBytes;
  if (!choose_tile(chain, place, most_bytes, plain)) return std::nullopt;
  choose_threads(chain, most_bytes);
  if (chain.seconds(place, problem.costs().chain) >= worth) return std::nullopt;
  choose_steps(chain, most_bytes);
  choose_threads(chain, most_bytes);
  chain.whole_r = place.right % chain.tile_r == 0;
  const bool whole_lines = place.right == 1 || (place.right % kVector == 0 && chain.tile_r % kVector == 0);
  const auto by_vectors = [&](bool aligned, std::int64_t last, std::int64_t all) {
    return aligned && whole_lines && (place.right > 1 || (last % kVector == 0 && all % kVector == 0));
  };
  chain.types.vectors_in = by_vectors(types.vectors_in, chain.axes.back().p, chain.in());
  chain.types.vectors_out = by_vectors(types.vectors_out, chain.axes.back().q, chain.out());
  if (cluster > 1 && !chain.direct()) return std::nullopt;
  return chain;
}

/// One axis from the ring, another one if their number is even, pairs, and the last pair to memory.
void add_ring_phases(KronChain& chain) {
  const auto count = static_cast<int>(chain.axes.size());
  for (int axis = 0; axis < count;) {
    const int axes = axis == 0 || (axis == 1 && count % 2 == 0) ? 1 : 2;
    chain.phases.push_back({.axis = axis, .axes = axes, .eights = true});
    axis += axes;
  }
}

/// Vectors of 16 bytes that eight lanes read or write at once lie in other banks each: of one axis three steps or fewer
/// and two neighbouring vectors; of a pair three steps or fewer of either axis, and none or four of the other.
void set_ring_steps(KronChain& chain) {
  const std::size_t last = chain.axes.size() - 1;
  std::int64_t size = 1;
  for (std::size_t axis = chain.axes.size(); axis-- > 0; size = chain.axes[axis].step * chain.room(axis)) {
    const std::int64_t rest = chain.phase_of(axis).axes == 1 ? 2 * kVector : kVector;  // an odd number of these
    chain.axes[axis].step = axis + 1 >= last ? size : rest * (ceil_div(size, rest) | 1);
  }
  chain.step_l = round_up(size, kVector);
}

/// A row of its own on each multiprocessor, of axes that tensor cores multiply by eights; or of each cluster, whose
/// blocks have an element each of the first axis, and of the second one on the way in.
std::optional<KronChain> plan_ring(const KronGpuTypes& types, std::span<const KronShape> factors,
                                   const KronGpuPlace& place, const KronGpuProblem& problem, int cluster) {
  const bool vectors = types.in == Dtype::float32 && types.vectors_in && types.vectors_out;
  if (problem.capability < 90 || types.type != Dtype::float32 || !vectors || place.right > 1) return std::nullopt;
  KronChain chain;
  chain.types = types;
  chain.factors.assign(factors.begin(), factors.end());
  chain.multiprocessors = problem.multiprocessors;
  chain.cluster = cluster;
  chain.axes = merged(factors);
  const bool eights = std::all_of(chain.axes.begin(), chain.axes.end(), is_eight);
  const auto is_whole = [](const KronChainAxis& a) { return a.p == kMostMultiplied && a.q == kMostMultiplied; };
  if (!eights || chain.axes.size() < 4 || !is_whole(chain.axes.back())) return std::nullopt;
  if (chain.in() / cluster * bytes_of(chain) < kLeastRow) return std::nullopt;
  const bool all_whole = std::all_of(chain.axes.begin(), chain.axes.end(), is_whole);
  if (cluster > 1 && (!all_whole || chain.axes.size() != kSharedAxes)) return std::nullopt;
  add_ring_phases(chain);
  measure_phases(chain);
  set_ring_steps(chain);
  chain.block_threads = KronChain::kRingColumns;  // a vector of each slot a thread
  const std::int64_t columns = chain.in() / chain.axes.front().p / cluster;
  const std::int64_t chunks = ceil_div(columns, KronChain::kRingColumns);
  const std::int64_t free = problem.shared_per_block - kStaticBytes - chain.shared_bytes();
  chain.ring = 1;
  chain.ring = std::min(chunks, (free - kBarriers) / (chain.ring_bytes() - kBarriers));
  return chain.ring < kFewestSlots ? std::nullopt : std::optional(chain);
}

/// `better_ones`: each is to take less time than the one before.
std::vector<KronChain> plans_of_clusters(const KronGpuTypes& types, std::span<const KronShape> factors,
                                         const KronGpuPlace& place, const KronGpuProblem& problem,
                                         bool better_ones = false) {
  const KronChainCosts& costs = problem.costs().chain;
  std::vector<KronChain> plans;
  if (problem.capability < 90) return plans;
  const int pair = static_cast<int>(merged(factors).size()) - 2;
  for (const int cluster : {2, 4, 8})
    for (const int axis : {pair, 0}) {
      if (axis < 0) continue;
      const double worth = better_ones && !plans.empty() ? plans.back().seconds(place, costs) : kAnyTime;
      const auto chain = plan_shared(types, factors, place, problem, cluster, axis, kPlain, worth);
      if (chain && chain->seconds(place, costs) < worth) plans.push_back(*chain);
    }
  return plans;
}

}  // namespace

std::optional<KronChain> plan_kron_chain(const KronGpuTypes& types, std::span<const KronShape> factors,
                                         const KronGpuPlace& place, const KronGpuProblem& problem) {
  for (const KronShape& factor : factors)
    if (factor.p < 1 || factor.q < 1 || factor.p > kMostExtent || factor.q > kMostExtent) return std::nullopt;
  std::optional<KronChain> best = plan_shared(types, factors, place, problem, 1, 0);
  if (best && best->resident > 1) return best;
  if (const auto ring = plan_ring(types, factors, place, problem, 1)) return ring;
  const KronChainCosts& costs = problem.costs().chain;
  if (const auto ring = plan_ring(types, factors, place, problem, static_cast<int>(kMostMultiplied)))
    if (!best || ring->seconds(place, costs) < best->seconds(place, costs)) best = ring;
  const std::vector<KronChain> plans = plans_of_clusters(types, factors, place, problem, true);
  if (!plans.empty() && (!best || plans.back().seconds(place, costs) < best->seconds(place, costs)))
    best = plans.back();
  return best;
}

std::vector<KronChain> kron_chain_options(const KronGpuTypes& types, std::span<const KronShape> factors,
                                          const KronGpuPlace& place, const KronGpuProblem& problem) {
  std::vector<KronChain> options;
  const auto own = plan_kron_chain(types, factors, place, problem);
  if (!own) return options;
  options.push_back(*own);
  const auto add = [&](KronChain chain) {
    const std::int64_t registers = chain.cluster > 1 ? kSharedRegisters : kThreadRegisters;
    const std::int64_t fitting = fitting_blocks(chain, problem.shared_per_block - kStaticBytes);
    for (const std::int64_t threads : {512, 256, 128})
      for (std::int64_t resident = 1; resident <= std::clamp<std::int64_t>(fitting, 1, 4); ++resident) {
        const std::int64_t all = threads * resident;
        if (all < kLeastThreads || all * registers > kRegisters) continue;
        chain.block_threads = threads;
        chain.resident = resident;
        options.push_back(chain);
      }
  };
  for (const std::int64_t plain : {kPlain, kPlain / 2, 2 * kPlain})
    if (const auto chain = plan_shared(types, factors, place, problem, 1, 0, plain)) add(*chain);
  for (const KronChain& chain : plans_of_clusters(types, factors, place, problem)) add(chain);
  return options;
}

}  // namespace mercer::plan
