#include "plan/gpu/sums/differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/gpu/costs/costs.h"
#include "plan/gpu/pair_tiles.h"

namespace mercer::plan {
namespace {

/// Whether points are read as differences of x and z alone.
bool reads_differences(const Expr& e) {
  using ir::Op;
  const auto is_of = [&](Op left, Op right) { return e->args[0]->op == left && e->args[1]->op == right; };
  if (e->op == Op::sub && (is_of(Op::x, Op::z) || is_of(Op::z, Op::x))) return true;
  if (e->op == Op::x || e->op == Op::z) return false;
  return std::all_of(e->args.begin(), e->args.end(), reads_differences);
}

/// Weights and parameters next to 192 registers of differences and sums spill.
bool reads_only_points(const ir::Program& update) {
  using enum ir::Site;
  return !reads_site(update, {w, row, col, param, index_i, index_j});
}

/// Where integers serve too, differences cost two more launches, of kernels that return at once.
bool pays_differences(const GpuPairPlan& plan, const DifferenceCosts& costs) {
  const GpuCost cost = count_gpu(plan.programs.update);
  const MixedWork least = plan.pipes.mixed_sixteenths > 0 ? MixedWork::more : MixedWork::some;
  return plan.problem.tries.differs && plan.problem.sizes.features <= GpuSizes::Features::hundreds &&
         plan.problem.tries.mixed_work >= least && cost.issue <= costs.slots && cost.issue == cost.fma;
}

}  // namespace

bool fills_waves(std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors,
                 const DifferenceCosts& costs, bool symmetric) {
  constexpr double kSide = 128;
  const auto tiles_of = [](std::int64_t points) { return std::ceil(static_cast<double>(points) / kSide); };
  const double rounds = std::ceil(tiles_of(m) * tiles_of(n) / multiprocessors);
  if (symmetric && rounds < costs.symmetric_rounds) return false;
  const double pairs = static_cast<double>(m) * static_cast<double>(n);
  return k > costs.features && pairs >= costs.busy * rounds * multiprocessors * kSide * kSide;
}

void add_differences(GpuPairPlan& plan, const DifferenceCosts& costs) {
  const GpuPairProblem& problem = plan.problem;
  const bool serves = problem.consumer == Consumer::store && problem.type == Dtype::float32 && !plan.input.bytes &&
                      !plan.products.bilinear && plan.products.planes.empty() && plan.split.states == 1 &&
                      plan.programs.promoted[0] && problem.device.capability == kOfWarpgroups &&
                      !problem.product.by_warps && plan.sides.x_streams.size() == 1 &&
                      plan.sides.z_streams.size() == 1 && reads_differences(plan.split.updates()[0]) &&
                      reads_only_points(plan.programs.update);
  if (!serves || !pays_differences(plan, costs)) return;
  plan.pipes.difference_tile = pair_tiles(problem.device.capability).differences;
  plan.pipes.differs = plan.difference_shared_bytes() <= problem.device.shared_per_block;
}

std::string differences_text(const GpuPairPlan& plan) {
  return fmt::format(
      "tensor cores: differences of values in three pieces of eight binary digits, within 2^-23 of each; tile {}; "
      "infinities, NaN and digits below 2^-126 take the values themselves\n",
      plan.pipes.difference_tile.to_text());
}

std::int64_t GpuPairPlan::difference_shared_bytes() const {
  constexpr std::int64_t kOfValue = 8, kNumber = 2, kDepth = 16, kFloat = 4;  // bytes of pieces; ones of two features
  const GpuTile& of = pipes.difference_tile;
  const std::int64_t points = of.tile_m + of.tile_n, ones = (of.tile_m / 2 + of.tile_n) * kDepth * kNumber;
  const std::int64_t promoted = promoted_states() * std::int64_t{of.tile_m} * of.tile_n * kFloat;
  // Where promoted sums were, edges have their scratch memory.
  const std::int64_t scratch = std::int64_t{of.thread_n} * of.threads() * kFloat;
  return of.stages * of.tile_k * points * kOfValue + ones + std::max(promoted, scratch);
}

}  // namespace mercer::plan
