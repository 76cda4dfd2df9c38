#include "codegen/cuda/cuda_source.h"

#include <fmt/format.h>

#include "codegen/cuda/cuda_parts.h"
#include "codegen/cuda/cuda_products.h"
#include "codegen/cuda/cuda_program.h"
#include "codegen/cuda/cuda_text.h"
#include "codegen/cuda/weight_text.h"
#include "core/error.h"
#include "plan/gpu/rank_field_tile.h"
#include "plan/promotion.h"

namespace mercer::codegen {
namespace {

using ir::Input;
using ir::Site;
using plan::GpuPairPlan;

std::string tile_defines(const plan::GpuTile& tile) {
  return define("TILE_M", tile.tile_m) + define("TILE_N", tile.tile_n) + define("TILE_K", tile.tile_k) +
         define("THREAD_M", tile.thread_m) + define("THREAD_N", tile.thread_n) + define("STAGES", tile.stages) +
         define("UNROLL", tile.unroll) + define("MIN_BLOCKS", tile.min_blocks) + define("BULK", tile.bulk);
}

std::string promoted_function(const GpuPairPlan& plan) {
  std::string text = "MERCER_INLINE constexpr bool is_promoted(int s) { return false";
  for (std::size_t s = 0; s < plan.programs.promoted.size(); ++s)
    if (plan.programs.promoted[s]) text += fmt::format(" || s == {}", s);
  return text + "; }\n";
}

/// What a tile makes of its sums.
std::string tile_epilogue_function(const GpuPairPlan& plan) {
  return plan.folding.sums_decide ? epilogue_function("  outputs[0] = acc[0];\n") : epilogue_function(plan);
}

std::string allowance_function(const GpuPairPlan& plan) {
  const bool has = !plan.loss.allowance.outputs.empty();
  std::string text = define("RATE_SLOT", plan.loss.rate_slot) + define("HAS_ALLOWANCE", has);
  if (!has) return text + "MERCER_INLINE float allowance(const REAL*) { return 0; }\n";
  text += "MERCER_INLINE float allowance(const REAL* params) {\n  REAL outputs[1];\n";
  return text + statements(plan.loss.allowance, "outputs") + "  return outputs[0];\n}\n";
}

/// One value of stage 0 for the 32 points of a block: a warp folds the features in order.
std::string stage_text(const plan::Sides::Stage& stage, int slot) {
  const auto name = [&](const Input& input) {
    switch (input.site) {
      case Site::x:
      case Site::z: return std::string("feature");
      case Site::row:
      case Site::col: return fmt::format("slots[{}][lane]", input.slot);
      default: return site_name(input);
    }
  };
  std::string text = fmt::format("  {{\n  double acc[{}] = {{", stage.identity.size());
  for (double identity : stage.identity) text += cuda_number(identity, Dtype::float64) + ", ";
  text +=
      "};\n  for_slices(a, side, tile, 0, 1, [&](int k0) {\n"
      "  if (warp == 0) for (int kk = 0; kk < PACK_FEATURES && k0 + kk < a.k; ++kk) {\n"
      "  const double feature = widen<double>(tile[kk][lane]), w = weight_of(a, k0 + kk);\n";
  text += cuda_statements(stage.update, name, [](std::size_t o) { return fmt::format("acc[{}]", o); });
  text += "  }\n  });\n  if (warp == 0) {\n";
  text += cuda_statements(stage.finish, name, [&](std::size_t) { return fmt::format("slots[{}][lane]", slot); });
  return text + "  }\n  __syncwarp();\n  }\n";
}

std::string stages_function(const plan::Sides& sides, bool of_x) {
  std::string text =
      "MERCER_INLINE void run_stages(const PackArguments& a, const PackSide& side,\n"
      "                              POINT (&tile)[PACK_FEATURES][PACK_POINTS + 1],\n"
      "                              double (&slots)[SLOTS + 1][PACK_POINTS], const double* params) {\n"
      "  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n  const double features = (double)a.k;\n";
  int slot = 1;
  for (const plan::Sides::Stage& stage : sides.stages)
    if (stage.of_x == of_x) text += stage_text(stage, slot++);
  return text + "}\n";
}

std::string streams_function(const std::vector<plan::Sides::Stream>& streams) {
  const auto name = [](const Input& input) {
    switch (input.site) {
      case Site::x:
      case Site::z: return std::string("wide");
      case Site::row:
      case Site::col: return fmt::format("slots[{}][lane]", input.slot);
      default: return site_name(input);
    }
  };
  std::string text =
      "MERCER_INLINE void make_streams(REAL (&stream)[STREAMS + (STREAMS == 0)], POINT feature,\n"
      "                                const PackArguments& a, i64 k,\n"
      "                                const double (&slots)[SLOTS + 1][PACK_POINTS], int lane,\n"
      "                                const double* params) {\n"
      "  const double features = (double)a.k;\n";
  for (std::size_t s = 0; s < streams.size(); ++s) {
    if (streams[s].plain) {
      text += fmt::format("  stream[{}] = widen<REAL>(feature);\n", s);
      continue;
    }
    text += "  {\n  const double wide = widen<double>(feature), w = weight_of(a, k);\n";
    text += cuda_statements(streams[s].program, name, [&](std::size_t) { return fmt::format("const double value"); });
    text += fmt::format("  stream[{}] = (REAL)value;\n  }}\n", s);
  }
  return text + "}\n";
}

/// What packing does in addition to writing panels (pack.cuh).
struct Packing {
  bool panels = true, bytes = false, ranges = false, pieces = false, early = false, reads_slots = false;
};

std::string pack_text(Dtype type, Dtype points, int slots, std::size_t streams, const Packing& packing,
                      const std::string& functions) {
  std::string text = prelude(type) + define("POINT", element_type(points)) + define("SLOTS", slots);
  text += define("STREAMS", static_cast<std::int64_t>(streams)) + define("PANELS", packing.panels);
  text += define("BYTES", packing.bytes) + define("RANGES", packing.ranges) + define("PIECES", packing.pieces);
  text += define("EARLY", packing.early) + define("STREAMS_READ_SLOTS", packing.reads_slots);
  if (packing.pieces) text += include("pack/difference_pieces.cuh");
  return flattened(text + include("pack/pack_slices.cuh") + functions + include("pack/pack.cuh"));
}

/// Which of both tiles this is, where there are two.
std::string expanded_text(const GpuPairPlan& plan) {
  std::string text = define("EXPANDED", plan.few.of_expanded ? 1 : plan.few.expanded ? 2 : 0);
  if (!plan.few.of_expanded && !plan.few.expanded) return text;
  text += define("FEATURES_OF_EXPANDED", plan.problem.sizes.exact_features) + define("TIMES_MANY", plan.few.mma_rhs);
  return text + include("pairs/expanded.cuh");
}

/// The function that gives the rate of f = f(0) 2^(rate |x - z|^2), 0 where values are no such powers.
std::string rate_function(const GpuPairPlan& plan) {
  if (plan.loss.rate.outputs.empty()) return "MERCER_INLINE float rate_of_squares(const REAL*) { return 0; }\n";
  return "MERCER_INLINE float rate_of_squares(const REAL* params) {\n  REAL outputs[1];\n" +
         statements(plan.loss.rate, "outputs") + "  return outputs[0];\n}\n";
}

/// Which kernel of a plan: the tile of values, or one that runs with it.
enum class TilePart : std::uint8_t { values, integers, doubles, differences };

/// Sums of squares that cancel are computed again, by products of float64 themselves.
std::string double_products_text(const GpuPairPlan& plan) {
  const bool squares = plan.products.bilinear.kind == plan::BilinearKind::square;
  std::string text = define("SQUARES", squares) + define("ROWS", true);
  text += define("READS_PARAMS", plan::reads_site(plan.programs.update, {Site::param}));
  text += define("FACTOR", cuda_number(plan.products.bilinear.factor, Dtype::float64).c_str());
  text += define("DEEP_DOUBLES", plan.products.deep_doubles);
  if (squares) text += include("pairs/row_sums.cuh");
  return text + include("gemm/double_products.cuh");
}

/// What becomes of the values of a tile.
std::string consumer_text(plan::Consumer consumer) {
  switch (consumer) {
    case plan::Consumer::product: return include("pairs/tile_products.cuh");
    case plan::Consumer::fold: return include("pairs/tile_folds.cuh");
    case plan::Consumer::nearest: return include("nearest/tile_nearest.cuh");
    default: return include("pairs/tile_stored.cuh");
  }
}

/// Parameters, and what the update reads in addition to operands.
std::string update_defines(const GpuPairPlan& plan) {
  const std::size_t params = plan.split.params.size() + plan.split.uniforms.size();
  const auto points = {Site::row, Site::col, Site::index_i, Site::index_j};
  return define("PARAMS", static_cast<std::int64_t>(params)) +
         define("UPDATE_READS_POINTS", plan::reads_site(plan.programs.update, points)) +
         define("UPDATE_READS_PARAMS", plan::reads_site(plan.programs.update, {Site::param})) +
         define("READS_WEIGHTS", plan::reads_site(plan.programs.update, {Site::w}));
}

std::string differences_text(const plan::GpuTile& tile) {
  return define("CLUSTER", 1) +
         product_function({"differences", tile.tile_n, tile.tile_n / 2, "k16.f32.bf16.bf16", false, ", 1, 1, 0, 0"});
}

/// The table, and the other programs of a parameter's powers.
std::string powers_text(const GpuPairPlan& plan) {
  if (!plan.pipes.powers) return power_functions(plan.pipes.alternative.powers[0].number, plan::kPowerBits);
  return power_functions_of_param(plan::kPowerBits) + update_function(plan, "update_one", plan.pipes.powers.one) +
         update_function(plan, "update_two", plan.pipes.powers.two) +
         update_function(plan, "update_moderate", plan.pipes.powers.moderate);
}

/// What the call asks: what becomes of values, its sizes, and the type of its output.
std::string call_defines(const GpuPairPlan& plan, TilePart part) {
  const plan::GpuPairProblem& problem = plan.problem;
  const bool doubles = part == TilePart::doubles;
  std::string text = define("CONSUMER", static_cast<int>(problem.consumer)) + define("COLUMNS", problem.use.columns);
  text += define("NUMBERS", problem.params.by_value);
  text += define("BYTES", plan.input.bytes) + define("MANY_TILES", part == TilePart::differences || plan.many_tiles());
  text += define("EXACT_FEATURES", doubles ? 0 : problem.sizes.exact_features);
  text += define("WHOLE_SLICES", doubles || problem.sizes.whole_slices);
  text += define("ALTERNATIVE_EIGHTHS", plan.pipes.alternative_eighths) + define("POWER_SLOT", plan.pipes.powers.slot);
  text += define("FOLD_KIND", static_cast<int>(problem.use.fold)) + define("OUT", element_type(problem.arrays.out));
  return text + define("FIRST_UPDATE", !plan.programs.first_update.code.empty());
}

/// The updates of a pair's first feature and of those whose powers come from tables, where a plan has them.
std::string more_updates(const GpuPairPlan& plan) {
  std::string text;
  if (!plan.programs.first_update.code.empty())
    text += update_function(plan, "first_update", plan.programs.first_update);
  if (plan.pipes.alternative_eighths == 0) return text;
  text += define("THREADS", plan.tile.threads()) + powers_text(plan);
  return text + update_function(plan, "update_alternative", plan.pipes.alternative);
}

/// How the states of ranges of features are merged.
std::string ranges_text(const GpuPairPlan& plan) {
  return "MERCER_INLINE void merge_states(REAL (&acc)[STATES], const REAL* incoming) {\n" +
         statements(plan.programs.range_merge, "acc") + "}\n" + include("pairs/pair_ranges.cuh");
}

std::string pair_text(const GpuPairPlan& plan, TilePart part) {
  const plan::GpuPairProblem& problem = plan.problem;
  const bool doubles = part == TilePart::doubles, by_differences = part == TilePart::differences;
  const bool by_ranges = plan.by_ranges() && doubles == plan.has_double_products();
  const plan::GpuTile& tile = doubles          ? plan.products.double_tile
                              : by_differences ? plan.pipes.difference_tile
                                               : plan.tile;
  std::string text = prelude(problem.type);
  text += tile_defines(tile) + define("DOUBLE_PRODUCTS", doubles);
  text += streams_defines(plan);
  text += define("STATES", plan.states()) + define("PLANES", static_cast<std::int64_t>(plan.products.planes.size()));
  text += define("PROMOTES", plan.promoted_states());
  constexpr std::int64_t kChunksOfTotal = plan::kFeaturesOfTotal / plan::kLongestChunk;
  text += define("TOTALS", plan.promoted_states() > 0 && problem.sizes.very_many_chunks ? kChunksOfTotal : 0);
  text += define("ROW_SLOTS", plan.programs.row_slots) + define("COL_SLOTS", plan.programs.col_slots);
  text += define("OUTPUTS", static_cast<std::int64_t>(problem.outputs.size()));
  text += update_defines(plan);
  text += define("LONG_EPILOGUE", plan.programs.long_epilogue);
  const int mixed = plan.pipes.mixed_sixteenths == 0 ? 0 : part == TilePart::integers ? 1 : 2;
  text += define("MIXED", mixed);
  const int differences = !plan.pipes.differs || part == TilePart::integers ? 0 : by_differences ? 1 : 2;
  text += define("DIFFERENCES", differences);
  text += expanded_text(plan);
  text += define("BY_ROWS", plan.by_rows()) + define("RANGES", by_ranges);
  const bool is_zero = plan.split.states == 1 && plan.programs.identity[0] == 0 && problem.type == Dtype::float32;
  const bool is_long = problem.sizes.features <= plan::GpuSizes::Features::several;
  text += define("ZERO_IDENTITY", is_zero && is_long && !by_differences);
  text += call_defines(plan, part);
  const bool regions =
      plan.products.bilinear && !plan.has_double_products() && problem.consumer == plan::Consumer::store;
  text += define("DIRECT", plan.input.direct) + define("REGIONS", regions);
  const bool is_fallback = plan.products.bilinear && !regions && !doubles;
  text += define("FALLBACK", is_fallback) + define("BY_TURNS", is_fallback && !plan.has_double_products());
  text += define("POINT", element_type(problem.arrays.points));
  text += identity_function(plan) + promoted_function(plan) + update_function(plan, "update", plan.programs.update);
  text += tile_epilogue_function(plan);
  text += more_updates(plan);
  if (mixed != 0 || differences != 0) text += include("pairs/mixed.cuh");
  if (mixed == 1 || problem.consumer != plan::Consumer::store) text += allowance_function(plan);
  if (by_differences) text += differences_text(tile);
  const bool repairs = mixed == 2 && !by_differences && problem.consumer == plan::Consumer::store;
  text += define("REPAIRS", repairs);
  text += guard_text(plan, plan.input.direct ? GuardSource::points
                           : doubles         ? GuardSource::rows
                           : by_differences  ? GuardSource::values
                                             : GuardSource::panels);
  if (plan.guard) text += include("pairs/pair_guard.cuh");
  if (repairs) text += include("pairs/mixed_repair.cuh");
  if (mixed == 1) text += include("pairs/pair_integers.cuh");
  text += consumer_text(problem.consumer);
  if (by_ranges) text += ranges_text(plan);
  if (by_differences) text += include("pairs/pair_differences.cuh");
  if (plan.by_rows()) text += include("pairs/pair_rows.cuh");
  if (plan.has_double_products())
    text += include("common/double_precision.cuh");
  else if (plan.products.bilinear)
    text += include("common/split_precision.cuh");
  if (doubles) text += double_products_text(plan);
  if (regions) text += include("pairs/pair_regions.cuh");
  if (mixed == 1 && !plan.loss.allowance.outputs.empty()) text += include("pairs/allowance.cuh");
  return flattened(text + include("pairs/pair_tile.cuh"));
}

/// The sum of a pair from the values themselves, and what takes its place out of range.
std::string row_sums_text(const GpuPairPlan& plan) {
  const std::string guard = guard_text(plan, plan::reads_rows(plan) ? GuardSource::rows : GuardSource::panels);
  return (plan.guard ? streams_defines(plan) : "") + guard + define("STATES", 1) +
         define("READS_WEIGHTS", plan.products.bilinear.weighted()) +
         define("READS_PARAMS", plan::reads_site(plan.programs.update, {Site::param})) +
         define("ROWS", plan::reads_rows(plan)) + update_function(plan, "update", plan.programs.update) +
         include("pairs/row_sums.cuh");
}

}  // namespace

std::string cuda_pair_source(const GpuPairPlan& plan) {
  return pair_text(plan, TilePart::values);
}

std::string cuda_integers_source(const GpuPairPlan& plan) { return pair_text(plan, TilePart::integers); }

std::string cuda_differences_source(const GpuPairPlan& plan) { return pair_text(plan, TilePart::differences); }

std::string cuda_double_source(const GpuPairPlan& plan) { return pair_text(plan, TilePart::doubles); }

std::string cuda_repair_source(const GpuPairPlan& plan) {
  const plan::GpuPairProblem& problem = plan.problem;
  std::string text = prelude(problem.type);
  text += epilogue_text(plan, epilogue_function(plan));
  return flattened(text + row_sums_text(plan) + include("gemm/repair.cuh") +
                   (problem.product.areas ? include("gemm/repair_areas.cuh") : ""));
}

std::string cuda_finish_source(const GpuPairPlan& plan) {
  std::string text = prelude(plan.problem.type);
  text += epilogue_text(plan, epilogue_function(plan));
  if (plan.guard) text += streams_defines(plan);
  text += guard_text(plan, GuardSource::points, "1");
  if (!plan.loss.allowance.outputs.empty())
    text += define("CONSUMER", static_cast<int>(plan.problem.consumer)) + allowance_function(plan) +
            include("pairs/allowance.cuh");
  return flattened(text + include("pairs/finish_stored.cuh"));
}

namespace {

/// Values of products with many columns: any, powers of two, or such that are stored.
enum class Values : std::uint8_t { any, rated, kept };

/// What tiles know of values that are powers of two.
std::string rated_text(bool rated, bool powers) {
  return rated ? include("gemm/rated_halves.cuh") : powers ? include("gemm/rated_floats.cuh") : "";
}

std::string bilinear_text(const GpuPairPlan& plan, Values values) {
  const bool rated = values == Values::rated, kept = values == Values::kept;
  const bool powers = !kept && plan.rates(), folds = plan.problem.consumer != plan::Consumer::store;
  const bool has_rate = powers || (kept && !plan.loss.rate.outputs.empty());
  const plan::BilinearTile& tile = plan.problem.product;
  std::string text = define("UNIT_DIVISION", 1) + prelude(plan.problem.type);
  text += epilogue_text(plan, tile_epilogue_function(plan));
  text += kept || folds ? allowance_function(plan) : define("HAS_ALLOWANCE", false);
  text += rate_function(plan);
  text += define("TILE_N", tile.columns) + define("STAGES", tile.stages) + define("CLUSTER", tile.cluster);
  text += define("SQUARES", plan.products.bilinear.kind == plan::BilinearKind::square);
  text += define("FACTOR", cuda_number(plan.products.bilinear.factor, Dtype::float32).c_str());
  text += define("CONSUMER", static_cast<int>(plan.problem.consumer)) + define("COLUMNS", plan.problem.use.columns);
  text += define("WIDE", tile.wide) + define("V_STAGES", tile.wide_stages);
  using plan::VPieces;
  const VPieces pieces = rated ? VPieces::halves_and_norms : powers ? VPieces::floats_and_norms : VPieces::floats;
  text += define("V_STAGE_BYTES", tile.v_bytes(pieces));
  text += define("POWERS", rated ? 1 : powers ? 2 : 0) + define("AFTER_HALVES", plan.rates() || plan.keeps()) +
          define("KEEPS", kept) + define("HAS_RATE", has_rate);
  text += define("SUBTRACTS", plan.problem.use.subtracts);
  text += define("QUADS", plan.problem.consumer == plan::Consumer::store && !kept);
  text += define("RESIDENT", tile.resident) + define("BRIEF", tile.brief) + define("SINGLE", tile.single);
  text += define("LAST_FEEDS", tile.last_feeds);
  text += define("OWN_SCALES", tile.own_scales) + define("SPREADS", tile.spreads) +
          define("SIDE_SUMS", tile.side_sums) + define("WEIGHT_UNITS", tile.weight_units) +
          define("WEIGHT_MATRIX", tile.weight_matrix);
  text += define("JOINS_RANGES",
                 plan.problem.consumer == plan::Consumer::store && tile.brief == 0 && !tile.by_warps && !kept);
  // Measured of wgmma, for sums of 64 features; of 32 it is taken to be half as much.
  text += define("TRUNCATED", tile.by_warps ? "0x1p-23f" : "0x1p-22f");
  const plan::Consumer consumer = plan.problem.consumer;
  const bool finds = consumer == plan::Consumer::nearest;
  if (finds) text += include("nearest/candidates.cuh");
  if (consumer == plan::Consumer::fold)
    text += define("FOLD_KIND", static_cast<int>(plan.problem.use.fold)) + include("pairs/fold.cuh");
  if (!tile.by_warps)
    text += define("BLOCKS", tile.blocks) + define("BILINEAR_THREADS", tile.threads()) +
            product_function({"product", tile.columns, tile.columns / 2, "k16.f32.f16.f16", false, ", 1, 1, 0, 0"});
  if (tile.wide > 0) text += wide_text(tile, rated);
  if (kept)
    text += row_sums_text(plan) + include("gemm/bilinear_kept.cuh");
  else if (consumer == plan::Consumer::store)
    text += include("gemm/bilinear_epilogue.cuh");
  else
    text += row_sums_text(plan) + rated_text(rated, powers) +
            include(tile.wide > 0 ? "gemm/bilinear_wide.cuh"
                    : finds       ? "nearest/bilinear_candidates.cuh"
                                  : "gemm/bilinear_fold.cuh");
  if (folds && !rated && !kept && !plan.loss.allowance.outputs.empty()) text += include("gemm/sample_values.cuh");
  return flattened(text + include(tile.by_warps ? "gemm/bilinear_warps.cuh" : "gemm/bilinear_tile.cuh"));
}

}  // namespace

std::string cuda_bilinear_source(const GpuPairPlan& plan, bool rated) {
  return bilinear_text(plan, rated ? Values::rated : Values::any);
}

std::string cuda_kept_source(const GpuPairPlan& plan) {
  return bilinear_text(*plan.products.kept_values, Values::kept);
}

std::string cuda_kept_operands_source() {
  return flattened(include("pack/kept_operands.cuh"));
}

std::string cuda_operands_source(bool squares, const Expr& multiplier, bool few_features) {
  std::string text = prelude(Dtype::float32) + define("SQUARES", squares) +
                     weight_text(multiplier, Dtype::float32) + define("POINT", "float");
  return flattened(text + include("pack/split_operands.cuh") + (few_features ? include("pack/split_points.cuh") : ""));
}

std::string cuda_double_operands_source(bool squares, const Expr& multiplier) {
  return flattened(prelude(Dtype::float64) + define("SQUARES", squares) + weight_text(multiplier, Dtype::float64) +
                   include("pack/double_operands.cuh"));
}

std::string cuda_expand_source(const GpuPairPlan& plan) {
  std::string text = prelude(plan.problem.type) + define("STATES", plan.split.states);
  text += epilogue_text(plan, epilogue_function(plan)) + expanded_text(plan) + rate_function(plan);
  text += weight_text(plan::bilinear_of(plan.split).multiplier, plan.problem.type);
  return flattened(text + include("pack/expanded_points.cuh") +
                   (plan.few.mma_rhs ? include("pack/expanded_chunks.cuh") : ""));
}

std::string cuda_wide_source(const GpuPairPlan& plan) {
  const plan::BilinearTile& tile = plan.problem.product;
  std::string text = define("UNIT_DIVISION", 1) + prelude(plan.problem.type);
  text += epilogue_text(plan, epilogue_function(plan)) + streams_defines(plan) + define("STATES", plan.split.states);
  text += define("EXACT_FEATURES", plan.problem.sizes.exact_features);
  text += define("READS_WEIGHTS", plan::reads_site(plan.programs.update, {Site::w}));
  text +=
      wide_defines(tile, plan.few.of_expanded ? plan::VPieces::halves : plan::VPieces::floats) + expanded_text(plan);
  text += identity_function(plan) + update_function(plan, "update", plan.programs.update);
  text += guard_text(plan, GuardSource::panels);
  if (tile.by_warps)
    return flattened(text + define("STAGES", tile.stages) + define("HALVES", true) + define("EXTRA", false) +
                     include("common/split_pieces.cuh") + include("gemm/wide_warps.cuh"));
  text += wide_text(tile, plan.few.of_expanded);
  if (plan.few.of_expanded) text += include("pairs/expanded_powers.cuh");
  return flattened(text + include("gemm/wide_tile.cuh") + include("gemm/wide_kernel.cuh"));
}

std::string cuda_wide_operands_source() {
  return flattened(include("pack/wide_halves.cuh"));
}

std::string cuda_rank_field_source(const Expr& weight) {
  return flattened(prelude(Dtype::float32) + weight_text(weight, Dtype::float32) + include("gradient/rank_field.cuh"));
}

std::string cuda_rank_rows_source(const GpuPairPlan& plan) {
  std::string text = prelude(plan.problem.type);
  text += epilogue_text(plan, epilogue_function(plan)) + define("STATES", 1);
  text += define("READS_WEIGHTS", plan.products.bilinear.weighted());
  text += define("PLAIN", plan::are_points(plan.sides.x_streams) && plan::are_points(plan.sides.z_streams));
  text += define("FEATURE_BLOCKS", plan.problem.gradient.rank_field->feature_blocks);
  text += define("SIDE_SUMS", plan.problem.product.side_sums) + define("EXTRA", plan.problem.product.extra) +
          define("WEIGHT_MATRIX", plan.problem.product.weight_matrix);
  text += weight_text(plan.problem.gradient.rank_field->weight, plan.problem.type);
  return flattened(text + update_function(plan, "update", plan.programs.update) + include("gradient/rank_rows.cuh"));
}

std::string cuda_pair_weights_source(Dtype type) {
  return flattened(prelude(type) + include("gradient/pair_weights.cuh"));
}

std::string cuda_stream_merge_source(Dtype type) {
  return flattened(prelude(type) + include("common/stream_merge.cuh"));
}

std::string cuda_quantise_source() {
  return flattened(include("pack/quantise.cuh") + include("pack/write_pieces.cuh"));
}

std::string cuda_quantise_points_source(Dtype points) {
  return flattened(include("common/prelude.cuh") + define("POINT", element_type(points)) +
                   include("pack/quantise_points.cuh"));
}

std::string cuda_pack_source(const GpuPairPlan& plan, bool of_x, Dtype points) {
  const auto& streams = of_x ? plan.sides.x_streams : plan.sides.z_streams;
  const int slots = of_x ? plan.programs.row_slots : plan.programs.col_slots;
  const bool ranges = plan.asks_ranges();  // started by a kernel ahead, start_mixed
  const bool early = ranges && slots == 0 && plan::are_points(streams);
  const Packing packing{.bytes = plan.input.bytes,
                        .ranges = ranges,
                        .pieces = plan.packs_pieces(),
                        .early = early,
                        .reads_slots = plan::streams_read_slots(plan.sides, of_x)};
  return pack_text(plan.problem.type, points, slots, streams.size(), packing,
                   stages_function(plan.sides, of_x) + streams_function(streams));
}

std::string cuda_plain_pack_source(Dtype type, Dtype points) {
  return pack_text(type, points, 0, 1, {.panels = false},
                   stages_function({}, true) + streams_function({{.plain = true, .program = {}}}));
}

std::string cuda_skipped_source(Dtype type, Dtype v, Dtype out) {
  return flattened(prelude(type) + define("POINT", element_type(v)) + define("OUT", element_type(out)) +
                   include("pairs/skipped.cuh"));
}

std::string cuda_known_folds_source(ReduceKind fold, Dtype type, Dtype out) {
  return flattened(prelude(type) + define("FOLD_KIND", static_cast<int>(fold)) + define("OUT", element_type(out)) +
                   include("pairs/known_folds.cuh"));
}

std::string cuda_known_neighbours_source(Dtype type) {
  return flattened(prelude(type) + include("nearest/known_neighbours.cuh"));
}

std::string cuda_fill_source() { return flattened(include("common/fill.cuh")); }

std::string cuda_factor_source() { return flattened(include("linalg/split_factor.cuh")); }

std::string cuda_lu_panel_source() {
  return flattened(define("CLUSTER", std::int64_t{16}) + include("linalg/lu_panel.cuh"));
}

std::string cuda_triangles_source() {
  return flattened(include("linalg/triangles.cuh"));
}

std::string cuda_few_columns_source(Dtype type) {
  return flattened(prelude(type) + include("linalg/few_columns.cuh"));
}

std::string cuda_lu_steps_source() {
  return flattened(include("linalg/lu_steps.cuh"));
}

std::string cuda_uniforms_source(Dtype type, std::size_t params, std::size_t uniforms, const ir::Program& program) {
  std::string text = prelude(type) + define("PARAMS", static_cast<std::int64_t>(params)) +
                     define("UNIFORMS", static_cast<std::int64_t>(uniforms));
  text += "MERCER_INLINE void make_uniforms(double* params, double features) {\n";
  if (uniforms > 0)
    text += cuda_statements(program, site_name, [&](std::size_t o) { return fmt::format("params[{}]", params + o); });
  return flattened(text + "}\n" + include("common/uniforms.cuh"));
}

std::string cuda_dense_source(Dtype type) {
  return flattened(prelude(type) + include("linalg/dense.cuh"));
}

std::string cuda_small_source(Dtype type, const plan::SmallTile& tile, plan::SmallVerb verb) {
  constexpr const char* kFiles[] = {"linalg/small_cholesky.cuh", "linalg/small_lu.cuh", "linalg/small_eigh.cuh"};
  return flattened(prelude(type) + define("WIDTH", tile.width) + define("TEAM", tile.team) +
         define("SMALL_THREADS", tile.threads()) + define("SMALL_BLOCKS", tile.blocks) +
         define("SMALL_BYTES", tile.shared_bytes()) +
         include(kFiles[static_cast<std::size_t>(verb)]));
}

std::string cuda_columns_source(Dtype type) {
  return flattened(prelude(type) + include("linalg/columns.cuh"));
}

std::string cuda_tridiagonal_source(int cluster, int lane_rows) {
  return flattened(define("CLUSTER", cluster) + define("LANE_ROWS", lane_rows) + include("linalg/tridiagonal.cuh"));
}

std::string cuda_cg_source(Dtype type) {
  return flattened(prelude(type) + include("linalg/cg.cuh"));
}

std::string cuda_cg_condition_source() {
  return flattened(include("linalg/cg_condition.cuh"));
}

std::string cuda_low_rank_source(Dtype type) {
  return flattened(prelude(type) + include("linalg/low_rank.cuh"));
}

std::string cuda_sum_source(Dtype type) {
  return flattened(prelude(type) + include("common/sum_splits.cuh"));
}

std::string cuda_nearest_source(Dtype type) {
  return flattened(prelude(type) + include("nearest/nearest.cuh"));
}

std::string cuda_candidates_source(const GpuPairPlan& plan) {
  const plan::GpuPairProblem& problem = plan.problem;
  std::string text = prelude(problem.type) + epilogue_text(plan, epilogue_function(plan));
  text += streams_defines(plan) + define("BYTES", plan.input.bytes) + define("RECOMPUTES", plan.recomputes());
  text += define("SPLIT", static_cast<bool>(plan.products.bilinear)) + define("STATES", plan.split.states);
  text += define("READS_WEIGHTS", plan::reads_site(plan.programs.update, {Site::w}));
  text += identity_function(plan) + promoted_function(plan) + update_function(plan, "update", plan.programs.update);
  text += guard_text(plan, plan.products.bilinear ? GuardSource::rows : GuardSource::panels);
  if (plan.products.bilinear)
    text += define("ROWS", true) + define("READS_PARAMS", plan::reads_site(plan.programs.update, {Site::param})) +
            include("pairs/row_sums.cuh");
  return flattened(text + include("nearest/nearest_candidates.cuh"));
}

std::string cuda_merge_source(plan::Consumer consumer, ReduceKind fold, Dtype type, Dtype out) {
  std::string text = prelude(type) + define("CONSUMER", static_cast<int>(consumer)) +
                     define("FOLD_KIND", static_cast<int>(fold)) + define("OUT", element_type(out));
  if (consumer == plan::Consumer::fold) text += include("pairs/fold.cuh");
  return flattened(text + include("common/merge.cuh"));
}

}  // namespace mercer::codegen
