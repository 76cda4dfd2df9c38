#include "plan/kron/kron_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "core/integers.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {
namespace {

/// Threads of a block, and the most outputs of a factor that one takes: more of them read what they multiply again.
constexpr std::int64_t kThreads = 256, kMostQ = 128;
/// Threads along columns; below a warp of threads tiles shrink no more.
constexpr std::int64_t kMostGroups = 128, kWarp = 32;
/// Shared memory of what a block multiplies at a time, of x and the factor: five blocks on a multiprocessor.
constexpr std::int64_t kStageBytes = 40 << 10;
constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
/// Bounds of what is measured: divisions into passes, and times the least estimate.
constexpr std::size_t kMostDivisions = 8;
constexpr double kMostTimes = 2;
constexpr std::string_view kRecord = "1\n";  // the version of records

/// Outputs of a thread: those that leave the fewest idle, of several the most.
std::int64_t thread_q_of(std::int64_t q) {
  if (q <= 8) return q;
  std::int64_t best = 8;
  for (std::int64_t candidate = 7; candidate >= 4; --candidate)
    if (round_up(q, candidate) < round_up(q, best)) best = candidate;
  return best;
}

/// A tile's columns are `tile_a` of what comes after the factor, of `tile_b` of what stands before it.
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

void choose_tile(KronGpuTile& tile, std::int64_t before, std::int64_t right, std::int64_t stage_bytes) {
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
  const std::int64_t held = std::max<std::int64_t>(stage_bytes / element / line, 1);
  tile.tile_p = ceil_div(tile.p, ceil_div(tile.p, held));
}

KronGpuTile step_tile(const KronGpuTypes& types, const KronShape& factor, const KronGpuPlace& place,
                      std::int64_t stage_bytes = kStageBytes) {
  KronGpuTile tile;
  tile.types = types;
  tile.p = factor.p;
  tile.q = factor.q;
  choose_tile(tile, place.rows * place.left, place.right, stage_bytes);
  return tile;
}

using Span = std::span<const KronShape>;

std::int64_t largest(const KronShape& factor) { return std::max(factor.p, factor.q); }

const KronStepCosts& costs_of(const KronGpuTile&, const KronCosts& costs) { return costs.step; }
const KronChainCosts& costs_of(const KronChain&, const KronCosts& costs) { return costs.chain; }
const KronWideCosts& costs_of(const KronWide&, const KronCosts& costs) { return costs.wide; }
const KronDoubleCosts& costs_of(const KronDouble&, const KronCosts& costs) { return costs.doubles; }

double seconds_of(const KronGpuKernel& kernel, const KronGpuPlace& place, const KronCosts& costs) {
  return std::visit([&](const auto& k) { return k.seconds(place, costs_of(k, costs)); }, kernel);
}

std::string key_of(const KronGpuKernel& kernel) {
  return std::visit([](const auto& k) { return k.key(); }, kernel);
}

bool is_wide(Span factors, const KronWideCosts& costs) {
  return std::any_of(factors.begin(), factors.end(), [&](const auto& f) { return largest(f) >= costs.from; });
}

/// The best kernel of some neighbouring factors, if there is one.
std::optional<KronGpuKernel> kernel_of(const KronGpuTypes& types, Span factors, const KronGpuPlace& place,
                                       const KronGpuProblem& problem) {
  const KronCosts& costs = problem.costs();
  std::optional<KronGpuKernel> best;
  const auto offer = [&](const auto& kernel) {
    if (!best || kernel.seconds(place, costs_of(kernel, costs)) < seconds_of(*best, place, costs)) best = kernel;
  };
  if (factors.size() == 1) offer(step_tile(types, factors.front(), place));
  if (const auto chain = plan_kron_chain(types, factors, place, problem)) offer(*chain);
  if (const auto doubles = plan_kron_double(types, factors, place, problem)) offer(*doubles);
  if (!is_wide(factors, costs.wide)) return best;
  if (const auto wide = plan_kron_wide(types, factors, place, problem)) offer(*wide);
  return best;
}

/// All kernels of them that are worth measuring, each once, the best one by its estimate first.
std::vector<KronGpuKernel> kernels_of(const KronGpuTypes& types, Span factors, const KronGpuPlace& place,
                                      const KronGpuProblem& problem) {
  std::vector<KronGpuKernel> kernels;
  std::set<std::string> known;
  const auto offer = [&](const KronGpuKernel& kernel) {
    if (known.insert(key_of(kernel)).second) kernels.push_back(kernel);
  };
  if (const auto best = kernel_of(types, factors, place, problem)) offer(*best);
  for (const std::int64_t bytes : {kStageBytes, kStageBytes / 2, 2 * kStageBytes}) {
    if (factors.size() != 1) break;
    const KronGpuTile tile = step_tile(types, factors.front(), place, bytes);
    if (tile.shared_bytes() <= problem.shared_per_block) offer(tile);
  }
  for (const KronChain& chain : kron_chain_options(types, factors, place, problem)) offer(chain);
  for (const KronDouble& doubles : kron_double_options(types, factors, place, problem)) offer(doubles);
  const KronCosts& costs = problem.costs();
  if (is_wide(factors, costs.wide))
    for (const KronWide& wide : kron_wide_options(types, factors, place, problem)) offer(wide);
  std::stable_sort(kernels.begin(), kernels.end(), [&](const KronGpuKernel& a, const KronGpuKernel& b) {
    return seconds_of(a, place, costs) < seconds_of(b, place, costs);
  });
  return kernels;
}

/// Neighbours first .. first + count - 1.
struct Run {
  int first = 0, count = 1;
};

Span factors_of(const KronGpuProblem& problem, const Run& run) {
  return Span(problem.factors).subspan(static_cast<std::size_t>(run.first), static_cast<std::size_t>(run.count));
}

std::int64_t product(Span factors, std::int64_t KronShape::* extent) {
  std::int64_t size = 1;
  for (const KronShape& factor : factors) size *= factor.*extent;
  return size;
}

/// A way from the first factor to the last.
struct Way {
  double seconds = 0;
  std::vector<Run> runs;
};

/// The cheapest ways, so many of them.
std::vector<Way> divide(const KronGpuProblem& problem, std::size_t most) {
  const auto count = static_cast<int>(problem.factors.size());
  std::vector<std::vector<Way>> ways(problem.factors.size() + 1);  // to each factor
  ways[0].emplace_back();
  KronGpuTypes types;
  types.type = types.in = types.out = problem.type;
  types.factor = problem.dtype;
  types.vectors_in = problem.vectors_in;  // between passes there always are: what serves without serves with them
  types.vectors_out = problem.vectors_out;
  for (int first = 0; first < count; ++first)
    for (int last = first; last < std::min(count, first + kMostKronFactors); ++last) {
      KronGpuPlace place = {problem.items, problem.rows, 1, problem.columns};
      // The neighbouring axes may have P or Q by then; what fits the larger one fits the other.
      for (int i = 0; i < first; ++i) place.left *= largest(problem.factors[static_cast<std::size_t>(i)]);
      for (int i = last + 1; i < count; ++i) place.right *= largest(problem.factors[static_cast<std::size_t>(i)]);
      const Run run = {first, last - first + 1};
      const auto kernel = kernel_of(types, factors_of(problem, run), place, problem);
      if (!kernel) continue;
      const double seconds = seconds_of(*kernel, place, problem.costs());
      std::vector<Way>& to = ways[static_cast<std::size_t>(last) + 1];
      for (const Way& from : ways[static_cast<std::size_t>(first)]) {
        Way way = {from.seconds + seconds, from.runs};
        way.runs.push_back(run);
        to.insert(std::upper_bound(to.begin(), to.end(), way,
                                   [](const Way& a, const Way& b) { return a.seconds < b.seconds; }),
                  std::move(way));
        if (to.size() > most) to.pop_back();
      }
    }
  return ways.back();
}

}  // namespace

const KronCosts& KronGpuProblem::costs() const {
  return own_costs != nullptr ? *own_costs : costs_of(capability).kron;
}

double KronGpuTile::seconds(const KronGpuPlace& place, const KronStepCosts& costs) const {
  const double rows = static_cast<double>(place.items) * static_cast<double>(place.rows * place.left) *
                      static_cast<double>(place.right);
  const double bytes = rows * (static_cast<double>(p) * static_cast<double>(size_of(types.in)) +
                               static_cast<double>(q) * static_cast<double>(size_of(types.out)));
  const double flops = 2 * rows * static_cast<double>(p) * static_cast<double>(q);
  const double idle = std::max(costs.multiprocessors / static_cast<double>(blocks(place)), 1.0);
  return costs.start + idle * std::max(bytes / costs.bytes, flops / costs.flops);
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

namespace {

/// What goes first: what saves most multiplications, or what leaves the least between passes.
enum class Order : std::uint8_t { multiplications, bytes };
constexpr Order kOrders[] = {Order::multiplications, Order::bytes};

void put_in_order(std::vector<Run>& runs, const KronGpuProblem& problem, Order order) {
  const auto weight = [&](const Run& run) {
    const Span factors = factors_of(problem, run);
    const auto p = static_cast<double>(product(factors, &KronShape::p)),
               q = static_cast<double>(product(factors, &KronShape::q));
    return order == Order::bytes ? q / p : growth(p, q);
  };
  std::reverse(runs.begin(), runs.end());
  std::stable_sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) { return weight(a) < weight(b); });
}

KronGpuTypes types_of(const KronGpuProblem& problem, bool is_first, bool is_last) {
  KronGpuTypes types;
  types.final = is_last && problem.combines;
  types.type = problem.type;
  types.factor = problem.dtype;
  types.in = is_first ? problem.dtype : problem.type;
  types.out = is_last ? problem.dtype : problem.type;
  types.vectors_in = !is_first || problem.vectors_in;
  types.vectors_out = !is_last || problem.vectors_out;
  return types;
}

struct Division {
  KronGpuPlan plan;                 // without kernels
  std::vector<KronGpuTypes> types;  // of each pass
};

Division division_of(std::vector<Run> runs, const KronGpuProblem& problem, Order order) {
  Division division;
  put_in_order(runs, problem, order);
  std::vector<std::int64_t> extents;
  std::int64_t size = problem.columns;
  for (const KronShape& factor : problem.factors) extents.push_back(factor.p), size *= factor.p;
  for (const Run& run : runs) {
    const bool is_first = division.types.empty(), is_last = division.types.size() + 1 == runs.size();
    KronGpuPass& pass = division.plan.passes.emplace_back();
    pass.first = run.first;
    pass.count = run.count;
    pass.p = product(factors_of(problem, run), &KronShape::p);
    pass.q = product(factors_of(problem, run), &KronShape::q);
    pass.place = {problem.items, problem.rows, 1, problem.columns};
    for (int i = 0; i < static_cast<int>(extents.size()); ++i) {
      if (i < run.first) pass.place.left *= extents[static_cast<std::size_t>(i)];
      if (i >= run.first + run.count) pass.place.right *= extents[static_cast<std::size_t>(i)];
    }
    division.types.push_back(types_of(problem, is_first, is_last));
    for (int i = run.first; i < run.first + run.count; ++i)
      extents[static_cast<std::size_t>(i)] = problem.factors[static_cast<std::size_t>(i)].q;
    size = size / pass.p * pass.q;
    if (!is_last) division.plan.widest = std::max(division.plan.widest, size);
  }
  return division;
}

KronGpuPlan with_best_kernels(Division division, const KronGpuProblem& problem) {
  for (std::size_t i = 0; i < division.types.size(); ++i) {
    KronGpuPass& pass = division.plan.passes[i];
    pass.kernel =
        kernel_of(division.types[i], factors_of(problem, {pass.first, pass.count}), pass.place, problem).value();
  }
  return std::move(division.plan);
}

/// The plan in the order that takes less time.
KronGpuPlan best_plan(const std::vector<Run>& runs, const KronGpuProblem& problem) {
  KronGpuPlan plan = with_best_kernels(division_of(runs, problem, Order::multiplications), problem);
  KronGpuPlan other = with_best_kernels(division_of(runs, problem, Order::bytes), problem);
  return other.seconds(problem.costs()) < plan.seconds(problem.costs()) ? other : plan;
}

/// The kernels for one pass of a plan.
std::vector<KronGpuKernel> kernels_of(const KronGpuPlan& plan, std::size_t index, const KronGpuProblem& problem) {
  const KronGpuPass& pass = plan.passes[index];
  return kernels_of(types_of(problem, index == 0, index + 1 == plan.passes.size()),
                    factors_of(problem, {pass.first, pass.count}), pass.place, problem);
}

/// Plans with another kernel for one of its passes, the least estimates first, of equal ones all passes by turns.
std::vector<KronGpuPlan> with_other_kernels(const KronGpuPlan& plan, const KronGpuProblem& problem) {
  std::vector<std::vector<KronGpuKernel>> kernels;
  std::size_t most = 0;
  for (std::size_t pass = 0; pass < plan.passes.size(); ++pass)
    most = std::max(most, kernels.emplace_back(kernels_of(plan, pass, problem)).size());
  std::vector<KronGpuPlan> others;
  for (std::size_t i = 0; i < most; ++i)
    for (std::size_t pass = 0; pass < plan.passes.size(); ++pass)
      if (i < kernels[pass].size()) others.emplace_back(plan).passes[pass].kernel = kernels[pass][i];
  std::stable_sort(others.begin(), others.end(), [&](const KronGpuPlan& a, const KronGpuPlan& b) {
    return a.seconds(problem.costs()) < b.seconds(problem.costs());
  });
  return others;
}

std::string beginning(const KronGpuPass& pass) { return fmt::format("{} {} ", pass.first, pass.count); }

/// The kernels that a record has for the passes; false where they are not those of this plan.
bool read_kernels(KronGpuPlan& plan, const KronGpuProblem& problem, std::string_view record) {
  for (std::size_t i = 0; i < plan.passes.size(); ++i) {
    KronGpuPass& pass = plan.passes[i];
    const std::string_view line = record.substr(0, record.find('\n'));
    const std::string opening = beginning(pass);
    if (!line.starts_with(opening) || line.size() == record.size()) return false;
    const std::vector<KronGpuKernel> kernels = kernels_of(plan, i, problem);
    const auto kernel = std::find_if(kernels.begin(), kernels.end(), [&](const KronGpuKernel& k) {
      return key_of(k) == line.substr(opening.size());
    });
    if (kernel == kernels.end()) return false;
    pass.kernel = *kernel;
    record.remove_prefix(line.size() + 1);
  }
  return record.empty();
}

}  // namespace

KronGpuPlan plan_kron_gpu(const KronGpuProblem& problem) {
  return best_plan(divide(problem, 1).front().runs, problem);
}

double KronGpuPlan::seconds(const KronCosts& costs) const {
  double sum = 0;
  for (const KronGpuPass& pass : passes) sum += seconds_of(pass.kernel, pass.place, costs);
  return sum;
}

std::string KronGpuPlan::to_text() const {
  std::string text;
  for (const KronGpuPass& pass : passes) {
    const std::string key = key_of(pass.kernel);  // "kron chain float32 ...: tile 1 4 ...; 8 x 8 ..."
    const std::string types = std::visit([](const auto& kernel) { return kernel.types.key(); }, pass.kernel);
    const std::size_t at = key.find(types), end = key.find(';');
    text += fmt::format("{}{}{}: {}{}", text.empty() ? "" : "; then ", pass.count == 1 ? "factor " : "factors ",
                        pass.count == 1 ? fmt::format("{}", pass.first + 1)
                                        : fmt::format("{} to {}", pass.first + 1, pass.first + pass.count),
                        key.substr(0, at - 1), key.substr(at + types.size(), end - at - types.size()));
  }
  return text;
}

std::string KronGpuPlan::record() const {
  std::string record(kRecord);
  for (const KronGpuPass& pass : passes) record += beginning(pass) + key_of(pass.kernel) + '\n';
  return record;
}

std::vector<KronGpuPlan> kron_gpu_candidates(const KronGpuProblem& problem, const KronGpuPlan& plan) {
  std::vector<KronGpuPlan> candidates = {plan};
  std::set<std::string> known = {plan.record()};
  double most = 0;
  const auto offer = [&](KronGpuPlan other) {
    if (other.seconds(problem.costs()) > most || !known.insert(other.record()).second) return;
    candidates.push_back(std::move(other));
  };
  for (const Way& way : divide(problem, kMostDivisions)) {
    if (most == 0) most = kMostTimes * best_plan(way.runs, problem).seconds(problem.costs());
    for (const Order order : kOrders) offer(with_best_kernels(division_of(way.runs, problem, order), problem));
  }
  for (KronGpuPlan& other : with_other_kernels(plan, problem)) offer(std::move(other));
  if (candidates.size() > kMostKronCandidates) candidates.resize(kMostKronCandidates);
  return candidates;
}

std::optional<KronGpuPlan> kron_gpu_plan_of(const KronGpuProblem& problem, std::string_view record) {
  if (!record.starts_with(kRecord)) return std::nullopt;
  record.remove_prefix(kRecord.size());
  for (const Way& way : divide(problem, kMostDivisions))
    for (const Order order : kOrders) {
      KronGpuPlan plan = division_of(way.runs, problem, order).plan;
      if (read_kernels(plan, problem, record)) return plan;
    }
  return std::nullopt;
}

}  // namespace mercer::plan
