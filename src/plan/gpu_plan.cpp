#include "plan/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/passes.h"

namespace mercer::plan {
namespace {

using ir::Op;

/// Partial sums of more terms than this lose the contract of 1e-6 (docs/design/promotion.md).
constexpr int kLongestChunk = 256;
/// Accumulators a thread can keep in registers, in units of 32 bits.
constexpr int kAccumulatorWords = 64;

ir::LowerOptions options_of(const GpuPairProblem& problem, const ir::Split& split, ir::Processor processor) {
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = split.param_leaves();
  options.processor = processor;
  return options;
}

int words(Dtype type) { return type == Dtype::float64 ? 2 : 1; }

std::int64_t tiles(const GpuTile& tile, const GpuPairProblem& problem) {
  return ((problem.m + tile.tile_m - 1) / tile.tile_m) * ((problem.n + tile.tile_n - 1) / tile.tile_n);
}

}  // namespace

std::string GpuTile::to_text() const {
  return fmt::format("{}x{}x{}, {}x{} a thread, {} stages, unrolled {}, {} blocks", tile_m, tile_n, tile_k, thread_m,
                     thread_n, stages, unroll, min_blocks);
}

GpuTile choose_gpu_tile(const GpuPairProblem& problem, int states) {
  GpuTile tile;
  const int per_pair = std::max(1, states) * words(problem.type);
  // The accumulators of 8 x 8 pairs fill half of the registers; more states, or wider ones, take fewer pairs.
  while (tile.thread_m * tile.thread_n * per_pair > kAccumulatorWords && tile.thread_n > 1) {
    if (tile.thread_m > tile.thread_n) {
      tile.thread_m /= 2;
      tile.tile_m /= 2;
    } else {
      tile.thread_n /= 2;
      tile.tile_n /= 2;
    }
  }
  if (problem.type == Dtype::float64) tile.tile_k = 8;
  // Few pairs: smaller tiles, until every multiprocessor has one.
  while (tiles(tile, problem) < problem.multiprocessors && tile.thread_m * tile.thread_n > 4 && tile.thread_m > 2) {
    if (tile.thread_m >= tile.thread_n) {
      tile.thread_m /= 2;
      tile.tile_m /= 2;
    } else {
      tile.thread_n /= 2;
      tile.tile_n /= 2;
    }
  }
  if (problem.k <= 8) tile.tile_k = 8;
  tile.unroll = std::min(tile.tile_k, per_pair > 1 ? 4 : 8);
  return tile;
}

int GpuPairPlan::promoted_states() const {
  return problem.type == Dtype::float64 ? 0 : static_cast<int>(std::count(promoted.begin(), promoted.end(), true));
}

int GpuPairPlan::chunk() const { return kLongestChunk / tile.tile_k * tile.tile_k; }

std::int64_t GpuPairPlan::shared_bytes(std::int64_t features) const {
  const std::int64_t element = words(problem.type) * 4;
  const std::int64_t streams_x = static_cast<std::int64_t>(sides.x_streams.size());
  const std::int64_t streams_z = static_cast<std::int64_t>(sides.z_streams.size());
  std::int64_t bytes = tile.stages * tile.tile_k * (streams_x * tile.tile_m + streams_z * tile.tile_n) * element;
  if (features > chunk()) bytes += promoted_states() * std::int64_t{4} * tile.tile_m * tile.tile_n;
  // Folds over n exchange their states through the same memory.
  const std::int64_t strips = tile.tile_n / tile.thread_n;
  if (problem.consumer == Consumer::product) bytes = std::max(bytes, strips * tile.tile_m * element);
  if (problem.consumer == Consumer::fold) bytes = std::max<std::int64_t>(bytes, std::int64_t{16} * tile.threads());
  return bytes;
}

std::string GpuPairPlan::to_text() const {
  std::string text = fmt::format("{}, tile {}\n", name_of(problem.type), tile.to_text());
  for (std::size_t s = 0; s < promoted.size(); ++s)
    text += fmt::format("acc{}: starts at {}{}\n", s, identity[s], promoted[s] ? ", partial sums promoted" : "");
  return text;
}

std::shared_ptr<const GpuPairPlan> plan_gpu_pairs(const GpuPairProblem& problem) {
  auto plan = std::make_shared<GpuPairPlan>();
  plan->problem = problem;
  plan->split = ir::split(problem.outputs, {.reciprocal_uniforms = problem.reciprocals, .hoist = true});
  const ir::Split& split = plan->split;
  plan->identity = numbers_of(split.identities());
  plan->update.type = plan->epilogue.type = problem.type;
  if (split.states > 0)
    plan->update = ir::lower(split.updates(), options_of(problem, split, ir::Processor::gpu_terms));
  plan->epilogue = ir::lower(split.epilogue, options_of(problem, split, ir::Processor::gpu));
  plan->uniforms = lower_uniforms(split.uniforms, split.params);
  for (std::size_t u = 0; u < split.uniforms.size(); ++u)
    if (split.uniforms[u]->op == Op::rcp) plan->reciprocals.push_back(static_cast<int>(u));
  plan->promoted.assign(static_cast<std::size_t>(split.states), false);
  for (const ir::Reduction& r : split.reductions)
    if (r.kind == Op::sum) plan->promoted[static_cast<std::size_t>(r.first_slot)] = true;
  plan->sides = lower_sides(split);
  plan->accumulation_params = params_of_reductions(problem.outputs);
  bool row = split.row_stages > 0, col = split.col_stages > 0;
  for (const ir::Program* p : {&plan->update, &plan->epilogue}) {
    row = row || reads_site(*p, {ir::Site::row});
    col = col || reads_site(*p, {ir::Site::col});
  }
  for (const Sides::Stream& s : plan->sides.x_streams) row = row || reads_site(s.program, {ir::Site::row});
  for (const Sides::Stream& s : plan->sides.z_streams) col = col || reads_site(s.program, {ir::Site::col});
  plan->row_slots = row ? 1 + split.row_stages : 0;
  plan->col_slots = col ? 1 + split.col_stages : 0;
  plan->tile = choose_gpu_tile(problem, split.states);
  return plan;
}

}  // namespace mercer::plan
