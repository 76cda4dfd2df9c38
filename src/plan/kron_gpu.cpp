#include "plan/kron_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/integers.h"

namespace mercer::plan {
namespace {

/// Threads of a block, and the most outputs of a factor that one takes: more of them read what they multiply again.
constexpr std::int64_t kThreads = 256, kMostQ = 128;
/// Threads along columns; below a warp of threads tiles shrink no further.
constexpr std::int64_t kMostGroups = 128, kWarp = 32;
/// Shared memory of what a block multiplies at a time, of x and the factor: five blocks on a multiprocessor.
constexpr std::int64_t kStageBytes = 40 << 10;
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

/// Factors below have more to gain from others.
constexpr std::int64_t kLeastWide = 33;
bool is_wide(const KronShape& factor) { return std::max(factor.p, factor.q) >= kLeastWide; }

/// Factors first .. first + count - 1 of each pass. The last two go together where tensor cores take them; of single
/// ones those that shrink the array most go first, the last first among equals.
std::vector<std::pair<int, int>> runs_of(const KronGpuProblem& problem) {
  const auto count = static_cast<int>(problem.factors.size());
  std::vector<std::pair<int, int>> runs;
  int singles = count;
  if (count >= 2 && problem.columns == 1) {
    const std::span last = std::span(problem.factors).last(2);
    KronGpuTypes types;
    types.type = problem.type;
    const bool serves = is_wide(last[0]) && is_wide(last[1]) && plan_kron_wide(types, last, {}, problem);
    if (serves) runs.emplace_back(singles -= 2, 2);
  }
  const auto first = static_cast<std::ptrdiff_t>(runs.size());
  for (int factor = singles; factor-- > 0;) runs.emplace_back(factor, 1);
  std::stable_sort(runs.begin() + first, runs.end(), [&](const auto& a, const auto& b) {
    const KronShape &f = problem.factors[a.first], &g = problem.factors[b.first];
    return growth(static_cast<double>(f.p), static_cast<double>(f.q)) <
           growth(static_cast<double>(g.p), static_cast<double>(g.q));
  });
  return runs;
}

void choose_kernel(KronGpuPass& pass, const KronGpuTypes& types, const KronGpuProblem& problem) {
  const std::span factors = std::span(problem.factors).subspan(pass.first, pass.count);
  if (std::all_of(factors.begin(), factors.end(), is_wide))
    if (const auto wide = plan_kron_wide(types, factors, pass.place, problem)) {
      pass.kernel = *wide;
      return;
    }
  KronGpuTile tile;
  tile.types = types;
  tile.p = pass.p;
  tile.q = pass.q;
  choose_tile(tile, pass.place.rows * pass.place.left, pass.place.right);
  pass.kernel = tile;
}

}  // namespace

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
  const auto count = static_cast<int>(problem.factors.size());
  const auto runs = runs_of(problem);
  std::vector<std::int64_t> extents;
  std::int64_t size = problem.columns;
  for (const KronShape& factor : problem.factors) extents.push_back(factor.p), size *= factor.p;
  for (const auto& [first, length] : runs) {
    KronGpuPass& pass = plan.passes.emplace_back();
    pass.first = first;
    pass.count = length;
    pass.place.items = problem.items;
    pass.place.rows = problem.rows;
    for (int i = 0; i < first; ++i) pass.place.left *= extents[i];
    for (int i = first + length; i < count; ++i) pass.place.right *= extents[i];
    pass.place.right *= problem.columns;
    for (int i = first; i < first + length; ++i) {
      pass.p *= problem.factors[i].p;
      pass.q *= extents[i] = problem.factors[i].q;
    }
    KronGpuTypes types;
    const bool begins = plan.passes.size() == 1;
    types.final = plan.passes.size() == runs.size();
    types.type = problem.type;
    types.factor = problem.dtype;
    types.in = begins ? problem.dtype : problem.type;
    types.out = types.final ? problem.dtype : problem.type;
    types.vectors_in = begins ? problem.vectors_in : true;
    types.vectors_out = types.final ? problem.vectors_out : true;
    choose_kernel(pass, types, problem);
    size = size / pass.p * pass.q;
    if (!types.final) plan.widest = std::max(plan.widest, size);
  }
  return plan;
}

}  // namespace mercer::plan
