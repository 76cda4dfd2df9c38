#include "plan/gpu/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/integers.h"
#include "ir/expr/ptx.h"
#include "ir/passes/passes.h"
#include "plan/forms/absolute_sums.h"
#include "plan/forms/separate_sums.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/pair_tiles.h"
#include "plan/gpu/powers.h"
#include "plan/gpu/sums/differences.h"
#include "plan/gpu/sums/expanded.h"
#include "plan/gpu/sums/feature_split.h"
#include "plan/gpu/sums/sum_planes.h"
#include "plan/promotion.h"

namespace mercer::plan {
namespace {

using ir::Op;

constexpr double kLog2OfE = 1.4426950408889634;

/// A sum of more terms than this loses the contract of 1e-6 by itself, and partial sums of more than that
/// (docs/design/promotion.md).
constexpr int kLongestSum = 128;

ir::LowerOptions options_of(const GpuPairProblem& problem, const ir::Split& split, ir::Processor processor) {
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = split.param_leaves();
  options.processor = processor;
  return options;
}

int words(Dtype type) { return type == Dtype::float64 ? 2 : 1; }

/// Operands of a point of z that a thread holds next to those of four points of x; more than a few take the registers
/// of a fourth block.
constexpr int kMostByRows = 8, kFewByRows = 4;
static_assert(std::tuple_size_v<decltype(PairTiles::blocks_by_rows)> == kFewByRows + 1);

int operands_of_point(const GpuPairPlan& plan) {
  const std::size_t streams = std::max(plan.sides.x_streams.size(), plan.sides.z_streams.size());
  return plan.problem.sizes.exact_features * static_cast<int>(streams);
}

/// Whether the items of a batch may share an accumulation.
bool has_several_outputs(const GpuPairPlan& plan) {
  return !plan.problem.params.by_value && plan.programs.accumulation_params.size() < plan.split.params.size();
}

GpuTile base_tile(const GpuPairPlan& plan, int words_a_pair, const EpilogueCosts& costs) {
  const GpuPairProblem& problem = plan.problem;
  const GpuSizes& sizes = problem.sizes;
  const PairTiles& tiles = pair_tiles(problem.device.capability);
  const GpuCost cost = count_gpu(plan.programs.update);
  if (sizes.narrow_m && sizes.narrow_n) return tiles.tiny;
  if (sizes.narrow_n) return tiles.tall;
  if (sizes.narrow_m) return tiles.flat;
  if (sizes.pairs == GpuSizes::Pairs::very_few) return tiles.tiny;
  if (words_a_pair > 1 || (sizes.pairs == GpuSizes::Pairs::few && !plan.by_ranges())) return tiles.small;
  const bool is_brief = problem.consumer == Consumer::product &&
                        static_cast<std::int64_t>(plan.programs.epilogue.code.size()) <= costs.row_instructions;
  if (plan.by_rows() && operands_of_point(plan) <= kFewByRows && is_brief) {
    GpuTile tile = tiles.fold_rows;
    tile.min_blocks = tiles.blocks_by_rows[static_cast<std::size_t>(operands_of_point(plan))];
    return tile;
  }
  if (plan.pipes.mixed_sixteenths > 0 && sizes.exact_features == 0) return tiles.two_slots;
  if (plan.pipes.mixed_sixteenths > 0 && problem.consumer != Consumer::store) return tiles.mixed_sixteen;
  if (problem.consumer != Consumer::store)
    return sizes.features == GpuSizes::Features::few ? tiles.fold_few : tiles.more_slots;
  if (sizes.features == GpuSizes::Features::few) return tiles.few_features;
  if (cost.unit >= 2) return tiles.two_units;
  if (cost.unit >= 1) return tiles.one_unit;
  if (sizes.features == GpuSizes::Features::some)
    return sizes.exact_features > 0 || sizes.less_than_a_slice ? tiles.sixteen_features : tiles.some_features;
  if (sizes.features > GpuSizes::Features::many && has_several_outputs(plan)) return tiles.several_outputs;
  if (plan.input.bytes) return tiles.bytes;
  const bool three = cost.issue <= 3 && cost.alu == 0 && sizes.features == GpuSizes::Features::many;
  if (cost.issue > 2) return three ? tiles.three_slots : tiles.more_slots;
  if (plan.promoted_states() > 0) return tiles.two_slots;
  return sizes.features == GpuSizes::Features::many ? tiles.maxima : tiles.deep;
}

void halve_thread(GpuTile& tile) {
  const bool rows = tile.thread_m >= tile.thread_n;
  (rows ? tile.thread_m : tile.thread_n) /= 2;
  (rows ? tile.tile_m : tile.tile_n) /= 2;
}

// c * e with the factor moved into what is computed once: a uniform factor or divisor. Empty when there is none.
Expr scaled(const Expr& e, double c) {
  if (ir::is_uniform(e)) return e * c;
  if (e->op == Op::neg) {
    const Expr inner = scaled(e->args[0], c);
    return inner.empty() ? inner : -inner;
  }
  if (e->op == Op::mul)
    for (std::size_t i : {0, 1})
      if (const Expr part = scaled(e->args[i], c); !part.empty()) return part * e->args[1 - i];
  if (e->op == Op::div) {
    if (ir::is_uniform(e->args[1])) return e->args[0] / (e->args[1] * (1 / c));
    if (const Expr part = scaled(e->args[0], c); !part.empty()) return part / e->args[1];
  }
  return {};
}

// exp(u s) becomes exp2((u log2 e) s): the special-function unit computes powers of two, and the factor costs nothing.
Expr with_powers_of_two(const Expr& e) {
  constexpr double kLog2OfE = 1.4426950408889634;
  ir::ExprMap<Expr> replaced;
  ir::for_each(e, [&](const Expr& part) {
    if (part->op == Op::pinned) replaced[part] = part;  // as the field has it
    if (part->op != Op::exp) return;
    if (const Expr power = scaled(part->args[0], kLog2OfE); !power.empty()) replaced[part] = exp2(power);
  });
  return replaced.empty() ? e : ir::substitute(e, replaced);
}

// Whether a parameter is a number, an array or on the device makes no difference to the bits.
ir::UniformDivisors divisors_of(const GpuPairProblem& problem) {
  if (problem.type != Dtype::float32) return ir::UniformDivisors::divide;
  return problem.params.normal_reciprocals ? ir::UniformDivisors::reciprocal : ir::UniformDivisors::scaled;
}

bool sizes_are_few(const GpuPairProblem& problem) {
  return problem.sizes.exact_features > 0 && problem.sizes.features == GpuSizes::Features::few;
}

// States start at numbers: 0 + |x - z| is |x - z|. Tiles of few features were slower without that addition.
void add_first_update(GpuPairPlan& plan) {
  const GpuSizes& sizes = plan.problem.sizes;
  if (sizes.exact_features == 0 || (sizes.features != GpuSizes::Features::some && !plan.by_rows())) return;
  if (plan.input.bytes || plan.pipes.alternative_eighths > 0) return;
  ir::ExprMap<Expr> starts;
  for (int s = 0; s < plan.split.states; ++s) starts[ir::leaf(Op::accumulator, s)] = plan.programs.identity[s];
  std::vector<Expr> updates = plan.split.updates();
  for (Expr& update : updates) update = ir::simplify(ir::substitute(update, starts));
  ir::Program first = ir::lower(updates, options_of(plan.problem, plan.split, ir::Processor::gpu_terms));
  if (count_gpu(first).slots() < count_gpu(plan.programs.update).slots()) plan.programs.first_update = std::move(first);
}

/// One sum, of |x - z|, where x and z may stand for anything of one side.
bool is_absolute_difference(const ir::Split& split) { return factor_of_absolute_differences(split) == 1; }

/// Whether the streams of this side are nothing but its points.
bool are_points(const std::vector<Expr>& streams, Op side) {
  return std::all_of(streams.begin(), streams.end(), [&](const Expr& e) { return e->op == side && e->slot == 0; });
}

bool streams_are_points(const ir::Split& split) {
  return are_points(split.x_streams, Op::x) && are_points(split.z_streams, Op::z);
}

/// A launch costs more than such a call's arithmetic, so packing has none of its own.
bool reads_points_directly(const GpuPairPlan& plan) {
  const GpuSizes& sizes = plan.problem.sizes;
  return sizes.pairs == GpuSizes::Pairs::very_few && sizes.features >= GpuSizes::Features::some && !plan.input.bytes &&
         plan.programs.row_slots == 0 && plan.programs.col_slots == 0 && streams_are_points(plan.split) &&
         !reads_site(plan.programs.update, {ir::Site::w});
}

/// The parameter that is read once, as the factor of the only sum; -1 where there is none.
int rate_slot(const GpuPairPlan& plan) {
  const std::vector<Expr> leaves = plan.split.param_leaves();
  if (plan.programs.long_epilogue) return -1;
  Expr rate;
  ir::for_each(plan.split.epilogue[0], [&](const Expr& e) {
    if (e->op != Op::mul) return;
    for (std::size_t i : {0, 1})
      if (e->args[i]->op == Op::accumulator && e->args[1 - i]->op == Op::param) rate = e->args[1 - i];
  });
  if (rate.empty()) return -1;
  int reads = 0;
  ir::for_each(plan.split.epilogue[0], [&](const Expr& e) {
    for (const Expr& part : e->args) reads += part->op == Op::accumulator || same(part, rate);
  });
  if (reads != 2) return -1;
  const auto found = std::find_if(leaves.begin(), leaves.end(), [&](const Expr& leaf) { return same(leaf, rate); });
  return found == leaves.end() ? -1 : static_cast<int>(found - leaves.begin());
}

/// Products need an allowance; without one sums of few features have many pairs to repair. Matrices of fewer than 32
/// features are bound by their stores, and their tile of two additions is the better one.
bool pays_mixed_pipes(const GpuPairProblem& problem, bool has_allowance) {
  using enum GpuSizes::Features;
  const GpuSizes& sizes = problem.sizes;
  if (problem.consumer == Consumer::product) return has_allowance && problem.tries.mixed_work == MixedWork::much;
  if (sizes.features >= few || sizes.exact_features > 0 || sizes.less_than_a_slice) return false;
  if (sizes.features <= hundreds) return problem.tries.mixed_work >= MixedWork::some;
  if (has_allowance) return problem.params.by_value && problem.tries.mixed_work >= MixedWork::more;
  return sizes.features == several && problem.tries.mixed_work == MixedWork::much;
}

/// Splits a thread's pairs between two pipes: `sad` takes two slots of the integer pipe, two FADDs one each of the
/// other.
void add_mixed_pipes(GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  const bool stores = problem.consumer == Consumer::store;
  const bool serves = problem.tries.mixed_work != MixedWork::little && !plan.input.bytes && !plan.few.mma_rhs &&
                      problem.type == Dtype::float32 && (stores || problem.consumer == Consumer::product) &&
                      problem.outputs.size() == 1 && problem.sizes.features <= GpuSizes::Features::some &&
                      is_absolute_difference(plan.split);
  if (!serves) return;
  const Expr allowance = allowance_of(plan.split);
  if (!pays_mixed_pipes(problem, !allowance.empty())) return;
  plan.pipes.mixed_sixteenths = 11;
  if (allowance.empty()) return;
  plan.loss.allowance = ir::lower({allowance}, options_of(problem, plan.split, ir::Processor::gpu));
  if (!stores) plan.loss.rate_slot = rate_slot(plan);
}

/// The products of a plan whose tile serves what they leave to it: regions of 64 x 64 pairs, or the whole fold over n.
Bilinear on_tensor_cores(const GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  const auto outputs = static_cast<std::size_t>(1 + problem.product.side_sums + (problem.product.extra > 0));
  const bool serves = problem.product && !problem.product.of_values && problem.outputs.size() == outputs;
  const Bilinear found = serves ? bilinear_of(plan.split) : Bilinear{};
  const bool is_number = problem.type == Dtype::float64 || std::isnormal(static_cast<float>(found.factor));
  return is_number && plan.guard.serves_products(found.factor) ? found : Bilinear{};
}

GpuTile double_tile(const GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  const bool stores = problem.consumer == Consumer::store, many = problem.sizes.features == GpuSizes::Features::many;
  const PairTiles& tiles = pair_tiles(problem.device.capability);
  GpuTile tile = many ? tiles.doubles : stores ? tiles.small_doubles : tiles.double_folds;
  if (problem.sizes.pairs != GpuSizes::Pairs::many) tile = tiles.small_doubles;
  else if (plan.by_ranges()) tile = tiles.double_folds;
  tile.bulk = can_be_bulk(plan, tile);
  while (plan.shared_bytes(tile, 1 << 20) * tile.min_blocks > problem.device.shared_per_block && tile.stages > 2)
    --tile.stages;
  return tile;
}

/// Whether a plan whose programs are there takes `wide_tile`.
bool is_wide(const GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  return problem.product.of_values && problem.consumer == Consumer::product && problem.type == Dtype::float32 &&
         problem.device.capability == kOfWarpgroups && !problem.product.by_warps && problem.sizes.exact_features > 0 &&
         plan.split.states > 0 && !plan.input.bytes && !plan.programs.long_epilogue &&
         plan.product_shared_bytes() * problem.product.blocks <= problem.device.shared_per_block;
}

/// What this device has of the tile that the call asks for; an empty one where it does not fit.
BilinearTile product_on_device(const GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  const int most_slots = 1 + plan.split.col_stages, columns = plan.product_columns();
  if (problem.device.capability != kOfWarpgroups || problem.product.by_warps)
    return problem.product.of_warps(most_slots, columns, problem.device.shared_per_block);
  return problem.product.shared_bytes(most_slots, columns) <= problem.device.shared_per_block ? problem.product
                                                                                              : BilinearTile{};
}

/// Nearest neighbours: whether the epilogue can wait until few pairs are left.
bool sums_decide(const GpuPairPlan& plan) {
  const ir::Split& split = plan.split;
  if (plan.problem.consumer != Consumer::nearest || split.states != 1 || split.reductions.size() != 1) return false;
  const bool nonnegative = split.nonnegative_slots({Op::sum})[0];
  return ir::rises_with_accumulator(split.epilogue[0], nonnegative);
}

/// where(sum == 0, 0, value)
bool is_zero_at_zero(const Expr& e) {
  const auto is_zero = [](const Expr& part) { return part->op == Op::constant && part->value == 0; };
  if (e->op != Op::where || !is_zero(e->args[1]) || e->args[0]->op != Op::equal) return false;
  const Expr &left = e->args[0]->args[0], &right = e->args[0]->args[1];
  return (left->op == Op::accumulator && is_zero(right)) || (right->op == Op::accumulator && is_zero(left));
}

/// Squared differences on tensor cores, of which values in products may lose something.
void add_allowance(GpuPairPlan& plan) {
  const GpuPairProblem& problem = plan.problem;
  if (plan.products.bilinear.kind != BilinearKind::square || !plan.products.bilinear || problem.type != Dtype::float32)
    return;
  if (problem.consumer != Consumer::product) return;
  ir::Split split = plan.split;
  // Points that are the same have no part in a field: where it mattered that theirs is not zero, its rows would not be
  // accurate, and are computed otherwise.
  if (problem.gradient.rank_field && is_zero_at_zero(split.epilogue[0]))
    split.epilogue[0] = Expr(split.epilogue[0]->args[2]);
  const Expr slope = relative_slope_of(split);
  if (slope.empty()) return;
  const ir::LowerOptions options = options_of(problem, split, ir::Processor::gpu);
  plan.loss.allowance = ir::lower({allowance_of(split)}, options);
  plan.loss.rate = ir::lower({slope * (plan.products.bilinear.factor * kLog2OfE)}, options);
}

/// The tile of a plan whose programs are there.
GpuTile choose_tile(const GpuPairPlan& plan, const EpilogueCosts& costs) {
  const GpuPairProblem& problem = plan.problem;
  const int per_pair = std::max(1, plan.states()) * words(problem.type);
  const bool regions = plan.products.bilinear && !plan.has_double_products() && problem.consumer == Consumer::store;
  GpuTile tile = regions ? pair_tiles(problem.device.capability).two_slots : base_tile(plan, per_pair, costs);
  // The accumulators fill half of the registers at most.
  const auto accumulators = [&] { return plan.by_rows() ? tile.thread_n : tile.thread_m * tile.thread_n; };
  while (accumulators() * per_pair > kAccumulatorWords && tile.thread_m * tile.thread_n > 1) halve_thread(tile);
  if (problem.type == Dtype::float64) tile.tile_k = 8;
  if (problem.sizes.exact_features > 0) tile.tile_k = problem.sizes.exact_features;
  // States of a fold, and the values next to the accumulators, take registers too.
  const bool heavy =
      problem.consumer == Consumer::fold || (problem.use.columns > 1 && plan.pipes.mixed_sixteenths == 0);
  const bool spare = problem.consumer == Consumer::product && operands_of_point(plan) <= kFewByRows;
  if (plan.by_rows()) tile.min_blocks = std::min(tile.min_blocks, spare ? 4 : 3);
  else if (problem.consumer != Consumer::store) tile.min_blocks = std::min(tile.min_blocks, heavy ? 2 : 4);
  const auto fits = [&] {
    GpuPairPlan tried = plan;
    tried.tile = tile;
    return tried.shared_bytes(1 << 20) <= problem.device.shared_per_block;
  };
  while (!fits() && tile.tile_k > 4 && problem.sizes.exact_features == 0) tile.tile_k /= 2;
  while (!fits() && tile.stages > 2) --tile.stages;
  while (!fits() && tile.thread_m * tile.thread_n > 1) halve_thread(tile);
  tile.unroll = sizes_are_few(problem) ? tile.tile_k : std::min(tile.unroll, tile.tile_k);
  tile.bulk = tile.bulk && can_be_bulk(plan, tile);
  return tile;
}

// The pipes of arithmetic are not looked up: a slot each.
void add_ptx(GpuCost& cost, std::string_view text) {
  for (std::string_view instruction : ir::ptx_instructions(text)) {
    const std::string_view stem = instruction.substr(0, instruction.find('.'));
    cost.issue += 1;
    for (std::string_view unit : {"ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"})
      if (stem == unit) cost.unit += 1;
  }
}

}  // namespace

bool can_be_bulk(const GpuPairPlan& plan, const GpuTile& tile) {
  return plan.problem.device.capability >= 90 && !plan.input.direct && tile.tile_m % 64 == 0 && tile.tile_n % 64 == 0;
}

std::string GpuTile::to_text() const {
  return fmt::format("{}x{}x{}, {}x{} a thread, {} stages{}, unrolled {}, {} blocks", tile_m, tile_n, tile_k, thread_m,
                     thread_n, stages, bulk ? " by the copy engine" : "", unroll, min_blocks);
}

std::string GpuSizes::to_text() const {
  return fmt::format("{}{}{}{}{}{}{}{}", static_cast<int>(pairs), static_cast<int>(features), narrow_m ? "m" : "",
                     narrow_n ? "n" : "", exact_features, whole_slices ? "w" : "", less_than_a_slice ? "s" : "",
                     very_many_chunks ? "v" : "");
}

GpuSizes sizes_of(std::int64_t m, std::int64_t n, std::int64_t k, int multiprocessors) {
  constexpr std::int64_t kNarrow = 32;
  GpuSizes sizes;
  sizes.narrow_m = m <= kNarrow;
  sizes.narrow_n = n <= kNarrow;
  using Features = GpuSizes::Features;
  sizes.features = k > kLongestChunk ? Features::many
                   : k > kLongestSum ? Features::hundreds
                   : k > 32          ? Features::several
                   : k > 8           ? Features::some
                                     : Features::few;
  constexpr std::int64_t kExact = 16;
  if (k > 0 && k <= kExact) sizes.exact_features = static_cast<int>(k);
  sizes.whole_slices = k > kDeepestSlice && k % kDeepestSlice == 0;
  sizes.less_than_a_slice = k > kExact && k < kDeepestSlice;
  sizes.very_many_chunks = k > kFeaturesOfTotal;
  const double tiles = static_cast<double>((m + 127) / 128) * static_cast<double>((n + 127) / 128);
  if (tiles < multiprocessors) sizes.pairs = GpuSizes::Pairs::few;
  if (tiles * 4 < multiprocessors) sizes.pairs = GpuSizes::Pairs::very_few;
  return sizes;
}

MixedWork mixed_work(std::int64_t m, std::int64_t n, std::int64_t k, const Costs& costs) {
  constexpr std::int64_t kMostPoints = std::int64_t{1} << 31;  // in the list of repairs
  constexpr std::int64_t kMostFeatures = 1 << 15;              // quantised by one block for 64 points
  const double much = costs.much_mixed_work;
  const double pairs = static_cast<double>(m) * static_cast<double>(n), points = static_cast<double>(m + n);
  const double work = pairs * static_cast<double>(k);
  if (m >= kMostPoints || n >= kMostPoints || k > kMostFeatures) return MixedWork::little;
  if (much > 0 && pairs < costs.mixed_pairs * points) return MixedWork::little;
  if (work >= much) return MixedWork::much;
  if (work >= much / costs.more_parts) return MixedWork::more;
  return work >= much / costs.some_parts ? MixedWork::some : MixedWork::little;
}

double GpuCost::slots() const { return std::max({issue, fma, 2 * alu, 8 * unit}); }

GpuCost blend(const GpuCost& cost, const GpuCost& other, double share) {
  const auto mean = [&](double a, double b) { return a * (1 - share) + b * share; };
  return {mean(cost.issue, other.issue), mean(cost.fma, other.fma), mean(cost.alu, other.alu),
          mean(cost.unit, other.unit)};
}

GpuCost count_gpu(const ir::Program& program) {
  using ir::Prim;
  GpuCost cost;
  std::set<std::vector<std::int32_t>> texts;
  const std::uint64_t sign = std::uint64_t(1) << (program.type == Dtype::float64 ? 63 : 31);
  const auto is_constant = [&](std::int32_t id, std::uint64_t bits) {
    const ir::Instr& instr = program.code[static_cast<std::size_t>(id)];
    return instr.op == Prim::constant && instr.bits == bits;
  };
  for (const ir::Instr& instr : program.code) {
    if (ir::is_leaf(instr.op)) continue;
    // |a| and -a are modifiers of the instruction that reads them.
    if (instr.op == Prim::bit_and && (is_constant(instr.a, sign - 1) || is_constant(instr.b, sign - 1))) continue;
    if (instr.op == Prim::bit_xor && (is_constant(instr.a, sign) || is_constant(instr.b, sign))) continue;
    switch (instr.op) {
      case Prim::add:
      case Prim::sub:
      case Prim::mul:
      case Prim::fma:
      case Prim::fnma: cost.issue += 1, cost.fma += 1; break;
      case Prim::exp2_unit:
      case Prim::log2_unit:
      case Prim::sqrt_unit: cost.issue += 1, cost.unit += 1; break;
      case Prim::power_poly: cost.issue += 8, cost.fma += 4, cost.alu += 3; break;
      case Prim::power_scale: break;  // read together
      case Prim::ptx:
        // Once for all of its outputs.
        if (texts.insert(ir::parts_of_ptx(instr)).second)
          add_ptx(cost, program.ptx[static_cast<std::size_t>(instr.index)]);
        break;
      case Prim::sqrt: cost.issue += 8, cost.fma += 6, cost.unit += 1; break;
      case Prim::div: cost.issue += 10, cost.fma += 8, cost.unit += 1; break;
      case Prim::large_sine: cost.issue += 2, cost.alu += 2; break;  // of ordinary angles
      default: cost.issue += 1, cost.alu += 1; break;
    }
  }
  return cost;
}

bool reads_rows(const GpuPairPlan& plan) {
  const bool folds = plan.problem.consumer != Consumer::store && !plan.has_double_products();
  return plan.products.bilinear && (plan.products.bilinear.kind == BilinearKind::square || folds);
}

bool leaves_pairs(const GpuPairPlan& plan) {
  return plan.products.bilinear.kind == BilinearKind::square || !plan.products.bilinear.uniforms.empty();
}

int GpuPairPlan::promoted_states() const {
  const bool one_chunk =
      input.bytes || problem.type == Dtype::float64 || problem.sizes.features > GpuSizes::Features::hundreds;
  return one_chunk ? 0 : static_cast<int>(std::count(programs.promoted.begin(), programs.promoted.end(), true));
}

bool GpuPairPlan::by_rows() const {
  const bool folds =
      problem.consumer == Consumer::fold || (problem.consumer == Consumer::product && problem.use.columns == 1);
  const int operands = operands_of_point(*this);
  return folds && operands > 0 && operands <= kMostByRows && products.planes.empty() && !programs.long_epilogue &&
         !input.bytes && pipes.alternative_eighths == 0 && !has_double_products();
}

bool GpuPairPlan::many_tiles() const {
  return problem.consumer == Consumer::store && problem.sizes.pairs == GpuSizes::Pairs::many &&
         problem.sizes.features >= GpuSizes::Features::some && !problem.sizes.narrow_n && !products.bilinear &&
         !by_ranges();
}

int GpuPairPlan::chunk(std::int64_t features) const {
  constexpr std::int64_t kSlices = 32;  // whole ones of every tile, whose sums then have the same bits
  const std::int64_t chunks = std::max<std::int64_t>(2, ceil_div(features, kLongestChunk));
  return static_cast<int>(features <= kLongestSum ? kLongestChunk : round_up(ceil_div(features, chunks), kSlices));
}

std::int64_t GpuPairPlan::product_shared_bytes() const {
  if (problem.product.of_values) {
    const int features = problem.sizes.exact_features, streams = static_cast<int>(sides.z_streams.size());
    if (problem.product.by_warps) return expanded_shared_bytes(problem.product, features);
    const int chunks = problem.tries.expands ? static_cast<int>(expanded_chunk_bytes(features)) / 4 : 0;
    return problem.product.shared_bytes(0, std::max(features * streams + programs.col_slots, chunks));
  }
  return problem.product.shared_bytes(programs.col_slots, product_columns());
}

std::int64_t GpuPairPlan::shared_bytes(const GpuTile& of, std::int64_t features) const {
  const std::int64_t element = words(problem.type) * 4;
  const std::int64_t streams_x = static_cast<std::int64_t>(sides.x_streams.size());
  const std::int64_t streams_z = static_cast<std::int64_t>(sides.z_streams.size());
  const std::int64_t states = std::max(1, this->states());
  const std::int64_t scratch_row = of.thread_n * states * of.threads();
  const bool promotes = features > chunk(features);
  const std::int64_t promoted = promotes ? promoted_states() * std::int64_t{of.tile_m} * of.tile_n : 0;
  std::int64_t elements = of.stages * of.tile_k * (streams_x * of.tile_m + streams_z * of.tile_n);
  // Stored tiles use the slices as scratch, folds have slices on their way.
  if (problem.consumer == Consumer::store && !many_tiles())
    elements = std::max(elements + promoted, scratch_row);
  else
    elements += promoted + (many_tiles() || programs.long_epilogue ? scratch_row : 0);
  // Folds over n exchange their states through the same memory at the end.
  const std::int64_t strips = of.tile_n / of.thread_n;
  if (problem.consumer == Consumer::product) elements = std::max(elements, strips * of.tile_m);
  std::int64_t bytes = elements * element;
  if (problem.consumer == Consumer::fold) bytes = std::max<std::int64_t>(bytes, std::int64_t{16} * of.threads());
  return bytes;
}

namespace {

std::string expanded_text(const GpuPairPlan& plan) {
  if (!plan.few.mma_rhs) return "a multiply-add a pair and feature";
  return "exponents by products of 16-bit pieces: " + plan.few.expanded->problem.product.to_text();
}

std::string products_text(const GpuPairPlan& plan) {
  if (plan.has_double_products())
    return fmt::format("tensor cores: {}, in float64; tile {}\n{}", plan.products.bilinear.to_text(),
                       plan.products.double_tile.to_text(),
                       plan.products.bilinear.kind == BilinearKind::square
                           ? "centred by medians; squares below an eighth of |x|^2 + |z|^2 are computed again as "
                             "differences\n"
                           : "");
  const BilinearTile& tile = plan.problem.product;
  std::string text = fmt::format("tensor cores: {}, {}; {}\n", plan.products.bilinear.to_text(),
                                 tile.single ? "ONE product of eleven binary digits a value: errors near 2^-11 |x| |z|"
                                             : "three products of 16-bit pieces, 22 binary digits a value",
                                 tile.to_text());
  text += fmt::format("sums go to float registers every {} features\n",
                      (tile.single ? 2 : 1) * (tile.by_warps ? 32 : 64));
  if (!tile.single) text += "errors: at most 1e-6 of a distance, or of |x| |z|\n";
  if (plan.products.bilinear.kind == BilinearKind::square)
    text += "centred by medians; squares below a third of |x|^2 + |z|^2 are computed again as differences\n";
  if (plan.problem.consumer != Consumer::store) text += "values stay in registers until they have been used\n";
  if (!plan.loss.allowance.outputs.empty())
    text += "where norms are small next to what values may lose, which the device finds out, no pair is tested\n";
  return text;
}

}  // namespace

std::string GpuPairPlan::to_text() const {
  const GpuCost cost = count_gpu(programs.update);
  std::string text = fmt::format("{}, tile {}\n", name_of(problem.type), tile.to_text());
  text += fmt::format("a pair and feature: {} slots to issue, {} FMA, {} ALU, {} special: floor {} slots\n", cost.issue,
                      cost.fma, cost.alu, cost.unit, cost.slots());
  for (std::size_t s = 0; s < programs.promoted.size(); ++s)
    text += fmt::format("acc{}: starts at {}{}\n", s, programs.identity[s],
                        programs.promoted[s] ? ", partial sums promoted" : "");
  if (products.bilinear) text += products_text(*this);
  for (std::size_t p = 0; p < products.planes.size(); ++p)
    text += fmt::format("acc{}: a plane of some rows, made first by a plan of its own: {}\n", split.states + p,
                        products_text(*products.planes[p]));
  if (problem.product.wide > 0)
    text += fmt::format("tensor cores: values times v, in three products of {}; {}\n",
                        takes_halves() ? "16-bit pieces, or of tf32 where their range does not do" : "tf32",
                        problem.product.to_text());
  if (keeps())
    text += fmt::format("values are stored in 16-bit pieces, a part at a time, where their range allows it: {}\n",
                        products.kept_products->problem.product.to_text());
  if (by_rows()) text += "few features: rows of pairs go from their operands to the fold one after the other\n";
  if (folding.sums_decide) text += "values rise with their sums: nearest pairs are found by sums\n";
  if (few.expanded)
    text += fmt::format("squares of differences are expanded, {}, where norms allow it\n", expanded_text(*this));
  if (by_ranges()) text += "blocks share the features of a tile, by ranges; the last one merges them in order\n";
  if (mask)
    text += fmt::format("mask: large calls{} are made in strips of rows, each with the columns that i, j and numbers "
                        "leave it{}\n", problem.gradient.field ? " with a linear factor" : "",
                        problem.consumer == Consumer::store ? "; matrices are filled where i, j and numbers do" : "");
  if (input.direct) text += "few points of few features: read where they lie, nothing is packed\n";
  if (pipes.differs) text += differences_text(*this);
  if (pipes.mixed_sixteenths > 0)
    text += fmt::format(
        "mixed pipes: values as integers of 23 bits on one scale, {} pairs in 16 by sad.u32, the others by two "
        "additions; {}\n",
        pipes.mixed_sixteenths,
        problem.consumer == Consumer::store
            ? "pairs whose bound exceeds 7e-7 are repaired, data of too wide a range take the values themselves"
            : "where some pair's bound exceeds 1.2e-6 of its value, all take the values themselves");
  return text;
}

namespace {

/// Planes are read as accumulators after the states.
void read_planes(ir::Split& split, std::size_t planes) {
  ir::ExprMap<Expr> accumulators;
  for (int p = 0; p < static_cast<int>(planes); ++p)
    accumulators[ir::leaf(Op::pair_value, p)] = ir::leaf(Op::accumulator, split.states + p);
  for (Expr& e : split.epilogue) e = ir::substitute(e, accumulators);
}

/// Values per point, of a plan whose programs are there.
void count_slots(GpuPairPlan& plan) {
  const ir::Split& split = plan.split;
  bool row = split.row_stages > 0, col = split.col_stages > 0;
  for (const ir::Program* p : {&plan.programs.update, &plan.programs.epilogue}) {
    row = row || reads_site(*p, {ir::Site::row});
    col = col || reads_site(*p, {ir::Site::col});
  }
  for (const Sides::Stream& s : plan.sides.x_streams) row = row || reads_site(s.program, {ir::Site::row});
  for (const Sides::Stream& s : plan.sides.z_streams) col = col || reads_site(s.program, {ir::Site::col});
  plan.programs.row_slots = row ? 1 + split.row_stages : 0;
  plan.programs.col_slots = col ? 1 + split.col_stages : 0;
}

/// Whether the epilogue is long by instructions, with constants and inputs, and by slots.
bool is_long_epilogue(const GpuPairPlan& plan, const EpilogueCosts& costs) {
  return !plan.folding.sums_decide &&
         static_cast<std::int64_t>(plan.programs.epilogue.code.size()) > costs.instructions &&
         count_gpu(plan.programs.epilogue).issue > costs.slots;
}

/// Adds the epilogue to a plan that knows whether its sums are products on tensor cores; values in registers want
/// epilogues that can be unrolled, else they are not.
void add_epilogue(GpuPairPlan& plan, const EpilogueCosts& costs) {
  const GpuPairProblem& problem = plan.problem;
  const bool single = problem.type == Dtype::float32;
  ir::LowerOptions options = options_of(problem, plan.split, ir::Processor::gpu);
  options.unit_roots = plan.products.bilinear && single;
  options.nonnegative_slots = plan.split.nonnegative_slots({Op::sum});
  plan.programs.epilogue = ir::lower(plan.split.epilogue, options);
  plan.folding.sums_decide = sums_decide(plan);
  plan.programs.long_epilogue = is_long_epilogue(plan, costs);
  // There is no way as good for longer ones of a gradient either.
  const bool is_long = problem.gradient.rank_field ? count_gpu(plan.programs.epilogue).issue > costs.gradient_slots
                                                   : plan.programs.long_epilogue;
  if (!plan.products.bilinear || !single || problem.consumer == Consumer::store || !is_long) return;
  plan.products.bilinear = {};
  options.unit_roots = false;
  plan.programs.epilogue = ir::lower(plan.split.epilogue, options);
  plan.programs.long_epilogue = is_long_epilogue(plan, costs);
}

/// The sizes for a tile that goes through other things than the call's features, or through none.
GpuSizes with_features(GpuSizes sizes, GpuSizes::Features features) {
  sizes.features = features;
  sizes.exact_features = 0;
  sizes.whole_slices = sizes.less_than_a_slice = false;
  return sizes;
}

/// The sum as a product of matrices, where the plan may have it so: its tile, of float64 none.
void add_product(GpuPairPlan& plan) {
  GpuPairProblem& problem = plan.problem;
  plan.products.bilinear = on_tensor_cores(plan);
  plan.products.deep_doubles = problem.device.capability >= kOfWarpgroups && !problem.product.by_warps;
  if (plan.has_double_products())
    problem.product = {};
  else if (plan.products.bilinear)
    problem.product = product_on_device(plan);
  if (!problem.product && !plan.has_double_products()) plan.products.bilinear = {};
  problem.product.areas = problem.product.areas && problem.consumer == Consumer::store && !problem.use.subtracts &&
                          reads_rows(plan) && problem.device.shared_per_block >= kRepairAreasBytes;
}

std::shared_ptr<GpuPairPlan> make_plan(const GpuPairProblem& problem, const SumPlanes& planes, const Costs& costs) {
  auto plan = std::make_shared<GpuPairPlan>();
  plan->problem = problem;
  plan->products.planes = planes.plans;
  std::vector<Expr> outputs = planes.plans.empty() ? problem.outputs : planes.outputs;
  const bool single = problem.type == Dtype::float32;
  auto guarded = planes.plans.empty() && !problem.gradient.rank_field
                     ? guarded_outputs(outputs, problem.gradient.marked > 0)
                     : GuardedOutputs{};
  if (single)
    for (std::vector<Expr>* list : {&outputs, &guarded.outputs})
      for (Expr& output : *list) output = with_powers_of_two(output);
  const ir::SplitOptions splitting{.uniform_divisors = divisors_of(problem), .hoist = true, .keep_ptx = single};
  plan->split = split_guarded(outputs, guarded, splitting, problem.type, plan->guard);
  // Terms of a field are smaller than the sum is.
  constexpr double kLeastOfFields = 0x1p-96;
  if (problem.gradient.marked > 0 && plan->guard)
    plan->guard.least = std::max(plan->guard.least, single ? kLeastOfFields : 0);
  const ir::Split& split = plan->split;
  if (!plan->products.planes.empty()) {
    read_planes(plan->split, plan->products.planes.size());
    if (split.states == 0) plan->problem.sizes = with_features(problem.sizes, GpuSizes::Features::few);
  }
  plan->programs.identity = numbers_of(split.identities());
  plan->programs.update.type = plan->programs.epilogue.type = problem.type;
  plan->input.bytes = problem.arrays.bytes && is_absolute_difference(split) && streams_are_points(split);
  if (plan->input.bytes) plan->problem.sizes = with_features(plan->problem.sizes, GpuSizes::Features::many);  // words
  if (split.states > 0) {
    plan->programs.update = ir::lower(split.updates(), options_of(problem, split, ir::Processor::gpu_terms));
    add_alternative(*plan, options_of(problem, split, ir::Processor::gpu_terms));
  }
  add_product(*plan);
  add_epilogue(*plan, costs.epilogue);
  plan->programs.uniforms = lower_uniforms(split.uniforms, split.params);
  for (std::size_t u = 0; u < split.uniforms.size(); ++u) {
    bool divides = false;
    ir::for_each(split.uniforms[u], [&](const Expr& e) { divides = divides || e->op == Op::rcp; });
    if (divides) plan->programs.reciprocals.push_back(static_cast<int>(u));
  }
  plan->programs.promoted.assign(static_cast<std::size_t>(split.states), false);
  for (const ir::Reduction& r : split.reductions)
    if (r.kind == Op::sum) plan->programs.promoted[static_cast<std::size_t>(r.first_slot)] = true;
  plan->sides = lower_sides(split);
  plan->mask = PairMask(problem.outputs, problem.type, split.params);
  plan->programs.accumulation_params = params_of_reductions(problem.outputs);
  count_slots(*plan);
  if (split.states > 0) add_first_update(*plan);
  plan->few.mma_rhs = is_wide(*plan);
  add_mixed_pipes(*plan);
  add_differences(*plan, costs.differences);
  add_allowance(*plan);
  plan->programs.range_merge = merge_of_ranges(*plan);
  if (!plan->products.bilinear && !plan->few.mma_rhs) plan->problem.product = {};
  const bool packs = plan->products.bilinear || plan->few.mma_rhs || problem.tries.expands || plan->asks_ranges() ||
                     problem.consumer == Consumer::nearest || problem.consumer == Consumer::field;
  plan->input.direct = !packs && reads_points_directly(*plan);
  plan->tile = choose_tile(*plan, costs.epilogue);
  if (plan->has_double_products()) plan->products.double_tile = double_tile(*plan);
  return plan;
}

/// Adds expanded squares to a Gauss kernel of few features. Weights scale its operands, parameters next to the squares
/// its rate.
void add_expanded(GpuPairPlan& plan, const Costs& costs) {
  const GpuPairProblem& problem = plan.problem;
  const bool serves =
      problem.type == Dtype::float32 && problem.consumer == Consumer::product && (plan.by_rows() || plan.few.mma_rhs);
  const Expr slope = serves ? relative_slope_of(plan.split) : Expr();
  if (slope.empty()) return;
  const Bilinear squares = bilinear_of(plan.split);
  if (squares.kind != BilinearKind::square) return;
  GpuPairProblem of_products = problem;
  of_products.outputs = {exp2(sum(ir::leaf(Op::x) * ir::leaf(Op::z)))};
  of_products.tries.mixed_work = MixedWork::little;
  of_products.plane_product = {};
  auto expanded = make_plan(of_products, {}, costs);
  if (expanded->few.mma_rhs != plan.few.mma_rhs || expanded->by_rows() != plan.by_rows()) return;
  expanded->tile = plan.tile;
  if (problem.sizes.exact_features <= kFewByRows)
    expanded->tile.min_blocks = std::max(static_cast<int>(costs.expanded.blocks), plan.tile.min_blocks);
  expanded->few.of_expanded = true;
  if (plan.few.mma_rhs)
    if (const auto tile = expanded_warp_tile(problem.sizes.exact_features, plan.problem.product.wide,
                                             problem.device.shared_per_block, costs.expanded))
      expanded->problem.product = tile;
  const Expr rate = slope * (squares.uniform_factor(plan.split.param_leaves()) * kLog2OfE);
  plan.loss.rate = ir::lower({ir::simplify(rate)}, options_of(problem, plan.split, ir::Processor::gpu));
  plan.few.expanded = expanded;
}

/// Adds the plans of a product whose values, functions of squares of differences, are stored and multiplied with all
/// columns.
void add_kept(GpuPairPlan& plan, const Costs& costs) {
  using ir::Site;
  const bool serves = plan.products.bilinear.kind == BilinearKind::square && plan.problem.product.wide > 0 &&
                      !plan.problem.gradient.rank_field && plan.programs.row_slots == 0 &&
                      plan.programs.col_slots == 0 &&
                      !reads_site(plan.programs.epilogue, {Site::row, Site::col, Site::index_i, Site::index_j});
  if (!serves) return;
  auto values = std::make_shared<GpuPairPlan>(plan);
  values->problem.consumer = Consumer::store;
  values->problem.product = kept_values_tile(plan.problem.product);
  if (values->product_shared_bytes() > plan.problem.device.shared_per_block) return;
  GpuPairProblem products;
  products.outputs = {ir::simplify(sum(points().x * points().z))};
  products.product = {.columns = 192, .own_scales = true};
  products.params.by_value = products.use.subtracts = true;
  products.device.capability = plan.problem.device.capability;
  products.device.shared_per_block = plan.problem.device.shared_per_block;
  auto sums = make_plan(products, {}, costs);
  if (!sums->products.bilinear || sums->problem.product.by_warps) return;
  plan.products.kept_values = std::move(values);
  plan.products.kept_products = std::move(sums);
}

/// The plan of the given outputs as they are.
std::shared_ptr<const GpuPairPlan> plan_outputs(const GpuPairProblem& problem, const Costs& costs) {
  auto plan = make_plan(problem, {}, costs);
  if (problem.tries.expands) add_expanded(*plan, costs);
  if (plan->problem.product.keeps) add_kept(*plan, costs);
  if (plan->products.bilinear || plan->few.mma_rhs || !problem.plane_product) return plan;
  const SumPlanes planes = sum_planes(problem, costs);
  if (planes.plans.empty()) return plan;
  GpuPairProblem rest = problem;
  rest.product = {};
  rest.tries.mixed_work = MixedWork::little;
  rest.arrays.bytes = false;
  return make_plan(rest, planes, costs);
}

}  // namespace

std::shared_ptr<const GpuPairPlan> plan_gpu_pairs(const GpuPairProblem& problem, const Costs& costs) {
  if (!problem.product && !problem.plane_product) return plan_outputs(problem, costs);
  GpuPairProblem separated = problem;
  for (Expr& output : separated.outputs) output = separate_sums(output);
  if (!std::ranges::equal(separated.outputs, problem.outputs, same)) {
    auto plan = plan_outputs(separated, costs);
    if (plan->products.bilinear || !plan->products.planes.empty()) return plan;
  }
  return plan_outputs(problem, costs);
}

std::shared_ptr<const GpuPairPlan> plan_gpu_pairs(const GpuPairProblem& problem) {
  return plan_gpu_pairs(problem, costs_of(problem.device.capability));
}

}  // namespace mercer::plan
