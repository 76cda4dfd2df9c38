#include "plan/gpu/sums/feature_split.h"

#include <algorithm>

#include "core/integers.h"
#include "plan/gpu/floor.h"

namespace mercer::plan {
namespace {

constexpr double kSchedulers = 4, kWarp = 32;

double real(std::int64_t count) { return static_cast<double>(count); }

/// Time of a thread for a feature, in clocks of its scheduler.
double clocks_of_thread(const GpuPairPlan& plan, const GpuTile& tile) {
  constexpr double kDoubleProducts = 128;  // multiply-adds of float64 a clock and multiprocessor
  const double warps = real(tile.threads()) / (kSchedulers * kWarp);
  if (plan.has_double_products()) return real(tile.tile_m) * tile.tile_n / (kDoubleProducts * warps);
  const double pairs = real(tile.thread_m) * tile.thread_n;
  return pairs * count_gpu(plan.programs.update).slots() * (plan.problem.type == Dtype::float64 ? 2 : 1);
}

/// Time of the multiprocessor with most blocks: it issues all of their instructions, and a scheduler with a warp alone
/// waits for its results.
double time_of(const GpuPairPlan& plan, std::int64_t tiles, std::int64_t length, int ranges, int multiprocessors,
               const RangeCosts& costs) {
  const GpuTile& tile = adding_tile(plan);
  const std::int64_t blocks = ceil_div(tiles * ranges, multiprocessors);
  const double warps = real(blocks) * tile.threads() / (kSchedulers * kWarp);
  const double waves = real(ceil_div(blocks, tile.min_blocks));
  const double clocks = real(length) * clocks_of_thread(plan, tile) * std::max(costs.latency * waves, warps);
  const double merges = ranges > 1 ? costs.start + costs.join * ranges : 0;
  return clocks / (gpu_info(plan.problem.device.capability).gigahertz * 1e3) + merges;
}

/// Number of tiles, as many where sides are swapped, as for an output that is stored by columns: layouts change no bit.
std::int64_t tiles_of(const GpuPairPlan& plan, std::int64_t m, std::int64_t n) {
  const GpuTile& tile = adding_tile(plan);
  const auto tiles = [&](std::int64_t rows, std::int64_t columns) {
    return ceil_div(rows, tile.tile_m) * ceil_div(columns, tile.tile_n);
  };
  return std::max(tiles(m, n), tiles(n, m));
}

}  // namespace

const GpuTile& adding_tile(const GpuPairPlan& plan) {
  return plan.has_double_products() ? plan.products.double_tile : plan.tile;
}

ir::Program merge_of_ranges(const GpuPairPlan& plan) {
  using enum ir::Site;
  using ir::Op;
  const GpuPairProblem& problem = plan.problem;
  const bool serves = problem.tries.by_ranges && problem.consumer == Consumer::store && !problem.use.subtracts &&
                      problem.outputs.size() == 1 && problem.sizes.exact_features == 0 && plan.split.states > 0 &&
                      plan.products.planes.empty() && !plan.input.bytes && !plan.asks_ranges() &&
                      (!plan.products.bilinear || plan.has_double_products());
  if (!serves) return {};
  std::vector<Expr> merges;
  for (const ir::Reduction& r : plan.split.reductions) {
    if (r.merge.empty()) return {};
    ir::ExprMap<Expr> moved;
    for (int s = 0; s < static_cast<int>(r.merge.size()); ++s)
      moved[ir::leaf(Op::incoming, s)] = ir::leaf(Op::incoming, r.first_slot + s);
    for (const Expr& e : r.merge) merges.push_back(ir::substitute(e, moved));
  }
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = plan.split.param_leaves();
  options.processor = ir::Processor::gpu;
  ir::Program merge = ir::lower(merges, options);
  return reads_site(merge, {param, row, col, index_i, index_j, w}) ? ir::Program{} : merge;
}

FeatureSplit split_features(const GpuPairPlan& plan, std::int64_t m, std::int64_t n, std::int64_t k,
                            int multiprocessors, const RangeCosts& costs) {
  const std::int64_t slice = adding_tile(plan).tile_k, slices = std::max<std::int64_t>(1, ceil_div(k, slice));
  FeatureSplit best{.ranges = 1, .length = static_cast<int>(slices * slice), .microseconds = 0};
  for (std::int64_t wanted = 2; wanted <= std::min<std::int64_t>(kMostRanges, slices); ++wanted) {
    const std::int64_t length = ceil_div(slices, wanted);
    const int ranges = static_cast<int>(ceil_div(slices, length));
    const double time = time_of(plan, tiles_of(plan, m, n), length * slice, ranges, multiprocessors, costs);
    if (best.ranges > 1 && time >= best.microseconds) continue;
    best = {ranges, static_cast<int>(length * slice), time};
  }
  return best;
}

double whole_tiles_time(const GpuPairPlan& plan, std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors,
                        const RangeCosts& costs) {
  return time_of(plan, tiles_of(plan, m, n), k, 1, multiprocessors, costs);
}

}  // namespace mercer::plan
