#include "plan/differences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace mercer::plan {
namespace {


/// Two warpgroups of 64 x 128 pairs; of five pairs of features the loop stays in the instruction cache.
constexpr GpuTile kDifferences{128, 128, 32, 2, 32, 2, 5, 1, true};

/// Whether points are read as differences of x and z alone.
bool reads_differences(const Expr& e) {
  using ir::Op;
  const auto is_of = [&](Op left, Op right) { return e->args[0]->op == left && e->args[1]->op == right; };
  if (e->op == Op::sub && (is_of(Op::x, Op::z) || is_of(Op::z, Op::x))) return true;
  if (e->op == Op::x || e->op == Op::z) return false;
  return std::all_of(e->args.begin(), e->args.end(), reads_differences);
}

/// Weights and parameters beside 192 registers of differences and sums spill.
bool reads_only_points(const ir::Program& update) {
  using enum ir::Site;
  return !reads_site(update, {w, row, col, param, index_i, index_j});
}

/// Measured on an H200: a product takes as long as an addition, or one and a half that meet others in their banks, and
/// half-rate instructions take longer beside it. Of three instructions without them a tenth is saved. Beside integers
/// they cost two launches more, of kernels that leave at once.
bool pays_differences(const GpuPairPlan& plan) {
  const GpuCost cost = count_gpu(plan.update);
  const MixedWork least = plan.mixed_sixteenths > 0 ? MixedWork::more : MixedWork::some;
  return plan.problem.differs && plan.problem.sizes.features <= GpuSizes::Features::hundreds &&
         plan.problem.mixed_work >= least && cost.issue <= 3 && cost.issue == cost.fma;
}

}  // namespace

bool fills_waves(std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors, bool symmetric) {
  constexpr std::int64_t kShort = 128;  // features, which other tiles serve
  constexpr double kWhole = 0.9, kSide = 128, kLeastRounds = 24;
  const auto tiles_of = [](std::int64_t points) { return std::ceil(static_cast<double>(points) / kSide); };
  const double rounds = std::ceil(tiles_of(m) * tiles_of(n) / multiprocessors);
  if (symmetric && rounds < kLeastRounds) return false;
  const double pairs = static_cast<double>(m) * static_cast<double>(n);
  return k > kShort && pairs >= kWhole * rounds * multiprocessors * kSide * kSide;
}

void add_differences(GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  const bool serves = problem.consumer == Consumer::store && problem.type == Dtype::float32 && !plan.bytes &&
                      !plan.bilinear && plan.planes.empty() && plan.split.states == 1 && plan.promoted[0] &&
                      problem.capability == kOfWarpgroups && !problem.product.by_warps &&
                      plan.sides.x_streams.size() == 1 && plan.sides.z_streams.size() == 1 &&
                      reads_differences(plan.split.updates()[0]) && reads_only_points(plan.update);
  if (!serves || !pays_differences(plan)) return;
  plan.difference_tile = kDifferences;
  plan.differs = plan.difference_shared_bytes() <= problem.shared_per_block;
}

std::string differences_text(const GpuPairPlan& plan) {
  return fmt::format(
      "tensor cores: differences of values in three pieces of eight binary digits, within 2^-23 of each; tile {}; "
      "infinities, NaN and digits below 2^-126 take the values themselves\n",
      plan.difference_tile.to_text());
}

std::int64_t GpuPairPlan::difference_shared_bytes() const {
  constexpr std::int64_t kOfValue = 8, kNumber = 2, kDepth = 16, kFloat = 4;  // bytes of pieces; ones of two features
  const GpuTile& of = difference_tile;
  const std::int64_t points = of.tile_m + of.tile_n, ones = (of.tile_m / 2 + of.tile_n) * kDepth * kNumber;
  const std::int64_t promoted = promoted_states() * std::int64_t{of.tile_m} * of.tile_n * kFloat;
  // Where promoted sums were, edges have their scratch memory.
  const std::int64_t scratch = std::int64_t{of.thread_n} * of.threads() * kFloat;
  return of.stages * of.tile_k * points * kOfValue + ones + std::max(promoted, scratch);
}

}  // namespace mercer::plan
