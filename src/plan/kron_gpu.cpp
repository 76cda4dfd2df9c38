#include "plan/kron_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "core/integers.h"

namespace mercer::plan {
namespace {

/// Threads of a block, and the most outputs of a factor that one takes: more of them read what they multiply again.
constexpr std::int64_t kThreads = 256, kMostQ = 128;
/// Threads along columns; below a warp of threads tiles shrink no further.
constexpr std::int64_t kMostGroups = 128, kWarp = 32;
/// Shared memory of what a block multiplies at a time, of x and the factor: five blocks on a multiprocessor.
constexpr std::int64_t kStageBytes = 40 << 10;
constexpr std::int64_t kLeastWide = 33;  // with a factor so large
/// What kron_step reaches on an H200, bytes and flops a second, where there are blocks for all of it.
constexpr double kStepBandwidth = 0.8e12, kStepFlops = 10e12, kMultiprocessors = 132;
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;

/// Outputs of a thread: those that leave the fewest idle, of several the most.
std::int64_t thread_q_of(std::int64_t q) {
  if (q <= 8) return q;
  std::int64_t best = 8;
  for (std::int64_t candidate = 7; candidate >= 4; --candidate)
    if (round_up(q, candidate) < round_up(q, best)) best = candidate;
  return best;
}

/// A tile's columns are `tile_a` of what stands behind the factor, of `tile_b` of what stands before it.
void divide_columns(KronGpuTile& tile, std::int64_t right) {
  const std::int64_t n = tile.tile_n();
  if (right > n) {
    const std::int64_t even = ceil_div(right, ceil_div(right, n));
    tile.tile_a = std::min(n, round_up(even, kWarp));
  } else {
    tile.tile_a = right;
  }
  tile.tile_b = std::max<std::int64_t>(n / tile.tile_a, 1);
}

void choose_tile(KronGpuTile& tile, std::int64_t before, std::int64_t right) {
  const auto element = static_cast<std::int64_t>(size_of(tile.types.type));
  tile.tile_q = ceil_div(tile.q, ceil_div(tile.q, kMostQ));
  tile.thread_q = thread_q_of(tile.tile_q);
  tile.groups_q = ceil_div(tile.tile_q, tile.thread_q);
  tile.thread_n = tile.groups_q >= 8 && element <= 4 ? 8 : 4;
  tile.groups_n = kMostGroups;
  while (tile.groups_n * tile.groups_q > kThreads) tile.groups_n /= 2;
  const auto fills = [&] { return before >= ceil_div(tile.tile_n() / 2 + 1, right); };
  while (tile.groups_n > 1 && tile.groups_n / 2 * tile.groups_q >= kWarp && !fills()) tile.groups_n /= 2;
  divide_columns(tile, right);
  const std::int64_t line = tile.tile_n() + tile.groups_q * tile.thread_q;
  const std::int64_t held = std::max<std::int64_t>(kStageBytes / element / line, 1);
  tile.tile_p = ceil_div(tile.p, ceil_div(tile.p, held));
}

KronGpuTile step_tile(const KronGpuTypes& types, const KronShape& factor, const KronGpuPlace& place) {
  KronGpuTile tile;
  tile.types = types;
  tile.p = factor.p;
  tile.q = factor.q;
  choose_tile(tile, place.rows * place.left, place.right);
  return tile;
}

using Span = std::span<const KronShape>;

std::int64_t largest(const KronShape& factor) { return std::max(factor.p, factor.q); }

/// The best kernel of some neighbouring factors, if there is one.
std::optional<KronGpuKernel> kernel_of(const KronGpuTypes& types, Span factors, const KronGpuPlace& place,
                                       const KronGpuProblem& problem) {
  std::optional<KronGpuKernel> best;
  const auto offer = [&](const auto& kernel) {
    const auto seconds = [&](const auto& other) { return other.seconds(place); };
    if (!best || kernel.seconds(place) < std::visit(seconds, *best)) best = kernel;
  };
  if (factors.size() == 1) offer(step_tile(types, factors.front(), place));
  if (const auto chain = plan_kron_chain(types, factors, place, problem)) offer(*chain);
  if (const auto doubles = plan_kron_double(types, factors, place, problem)) offer(*doubles);
  if (!std::any_of(factors.begin(), factors.end(), [](const auto& f) { return largest(f) >= kLeastWide; })) return best;
  if (const auto wide = plan_kron_wide(types, factors, place, problem)) offer(*wide);
  return best;
}

/// Neighbours first .. first + count - 1.
struct Run {
  int first = 0, count = 1;
};

/// The cheapest way from the first factor to the last.
std::vector<Run> divide(const KronGpuProblem& problem) {
  const auto count = static_cast<int>(problem.factors.size());
  std::vector<double> seconds(problem.factors.size() + 1, 1e300);
  std::vector<int> from(seconds.size(), 0);
  seconds[0] = 0;
  KronGpuTypes types;
  types.type = types.in = types.out = problem.type;
  types.factor = problem.dtype;
  types.vectors_in = types.vectors_out = true;
  for (int first = 0; first < count; ++first)
    for (int last = first; last < std::min(count, first + kMostKronFactors); ++last) {
      KronGpuPlace place = {problem.items, problem.rows, 1, problem.columns};
      // What stands beside may be P or Q by then; what fits the larger one fits the other.
      for (int i = 0; i < first; ++i) place.left *= largest(problem.factors[static_cast<std::size_t>(i)]);
      for (int i = last + 1; i < count; ++i) place.right *= largest(problem.factors[static_cast<std::size_t>(i)]);
      const auto run = Span(problem.factors).subspan(static_cast<std::size_t>(first),
                                                      static_cast<std::size_t>(last - first + 1));
      const auto kernel = kernel_of(types, run, place, problem);
      if (!kernel) continue;
      const auto at = static_cast<std::size_t>(last) + 1;
      const double sum = seconds[static_cast<std::size_t>(first)] +
                         std::visit([&](const auto& k) { return k.seconds(place); }, *kernel);
      if (sum < seconds[at]) seconds[at] = sum, from[at] = first;
    }
  std::vector<Run> runs;
  for (int end = count; end > 0; end = from[static_cast<std::size_t>(end)])
    runs.push_back({from[static_cast<std::size_t>(end)], end - from[static_cast<std::size_t>(end)]});
  return runs;
}

}  // namespace

double KronGpuTile::seconds(const KronGpuPlace& place) const {
  const double rows = static_cast<double>(place.items) * static_cast<double>(place.rows * place.left) *
                      static_cast<double>(place.right);
  const double bytes = rows * (static_cast<double>(p) * static_cast<double>(size_of(types.in)) +
                               static_cast<double>(q) * static_cast<double>(size_of(types.out)));
  const double flops = 2 * rows * static_cast<double>(p) * static_cast<double>(q);
  const double idle = std::max(kMultiprocessors / static_cast<double>(blocks(place)), 1.0);
  return 3e-6 + idle * std::max(bytes / kStepBandwidth, flops / kStepFlops);
}

/// As in kron_step.cuh.
std::int64_t KronGpuTile::shared_bytes() const {
  const bool staged = tile_a < kWarp;
  const std::int64_t x = tile_p * (tile_n() + (staged ? tile_a : 0)), f = tile_p * groups_q * thread_q;
  const std::int64_t pitch = tile_a == 1 ? tile_q | 1 : tile_q * tile_a + tile_a;
  const std::int64_t z = staged ? tile_b * pitch : 0;
  return tile_b * 16 + std::max(x + f, z) * static_cast<std::int64_t>(size_of(types.type));
}

std::int64_t KronGpuTile::blocks(const KronGpuPlace& place) const {
  const std::int64_t tiles = ceil_div(q, tile_q) * ceil_div(place.right, tile_a) *
                             ceil_div(place.rows * place.left, tile_b) * place.items;
  return std::min(tiles, kMostBlocks);
}

std::string KronGpuTypes::key() const {
  return fmt::format("{} {} {} {} {}{}{}", name_of(type), name_of(in), name_of(out), name_of(factor), int{final},
                     int{vectors_in}, int{vectors_out});
}

std::string KronGpuTile::key() const {
  return fmt::format("kron {}: {} x {}, tile {} {} {} {}, thread {} {}, groups {} {}", types.key(), p, q, tile_a,
                     tile_b, tile_p, tile_q, thread_n, thread_q, groups_n, groups_q);
}

KronGpuPlan plan_kron_gpu(const KronGpuProblem& problem) {
  KronGpuPlan plan;
  std::vector<Run> runs = divide(problem);  // the last first
  const auto product = [&](const Run& run, std::int64_t KronShape::* extent) {
    std::int64_t size = 1;
    for (int i = run.first; i < run.first + run.count; ++i)
      size *= problem.factors[static_cast<std::size_t>(i)].*extent;
    return size;
  };
  const auto growth_of = [&](const Run& run) {
    return growth(static_cast<double>(product(run, &KronShape::p)), static_cast<double>(product(run, &KronShape::q)));
  };
  std::stable_sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) { return growth_of(a) < growth_of(b); });
  std::vector<std::int64_t> extents;
  std::int64_t size = problem.columns;
  for (const KronShape& factor : problem.factors) extents.push_back(factor.p), size *= factor.p;
  for (const Run& run : runs) {
    KronGpuPass& pass = plan.passes.emplace_back();
    pass.first = run.first;
    pass.count = run.count;
    pass.p = product(run, &KronShape::p);
    pass.q = product(run, &KronShape::q);
    pass.place = {problem.items, problem.rows, 1, problem.columns};
    for (int i = 0; i < static_cast<int>(extents.size()); ++i) {
      if (i < run.first) pass.place.left *= extents[static_cast<std::size_t>(i)];
      if (i >= run.first + run.count) pass.place.right *= extents[static_cast<std::size_t>(i)];
    }
    KronGpuTypes types;
    const bool is_first = plan.passes.size() == 1;
    const bool is_last = plan.passes.size() == runs.size();
    types.final = is_last && problem.combines;
    types.type = problem.type;
    types.factor = problem.dtype;
    types.in = is_first ? problem.dtype : problem.type;
    types.out = is_last ? problem.dtype : problem.type;
    types.vectors_in = !is_first || problem.vectors_in;
    types.vectors_out = !is_last || problem.vectors_out;
    const Span factors = Span(problem.factors).subspan(static_cast<std::size_t>(run.first),
                                                       static_cast<std::size_t>(run.count));
    pass.kernel = kernel_of(types, factors, pass.place, problem).value();
    for (int i = run.first; i < run.first + run.count; ++i)
      extents[static_cast<std::size_t>(i)] = problem.factors[static_cast<std::size_t>(i)].q;
    size = size / pass.p * pass.q;
    if (!is_last) plan.widest = std::max(plan.widest, size);
  }
  return plan;
}

}  // namespace mercer::plan
