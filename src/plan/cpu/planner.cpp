#include "plan/cpu/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/integers.h"
#include "ir/passes/passes.h"
#include "ir/passes/safe_field.h"
#include "plan/cpu/registers.h"
#include "plan/forms/field_factors.h"
#include "plan/promotion.h"

namespace mercer::plan {
namespace {

using ir::Op;

/// Partial sums of more terms than this lose the contract of 1e-6 (docs/design/promotion.md).
constexpr std::int64_t kShortestChunk = 64;
/// More outputs of a field than this are tiled like so many.
constexpr std::int64_t kMostOutputs = 64;
/// A fold's terms are long, and what several outputs share of them is little.
constexpr std::int64_t kMostFoldOutputs = 4;
constexpr int kInterpretedVectors = 16;

/// Sums of powers of differences that are no subnormal numbers where data are narrow.
std::vector<bool> normal_slots(const ir::Split& split) {
  constexpr double kBits = 126;  // of the smallest normal number
  std::vector<bool> slots(split.states, false);
  for (const ir::Reduction& r : split.reductions)
    if (r.kind == Op::sum)
      for (const Expr& arg : r.update[0]->args)
        if (arg->op == Op::pow && arg->args[1]->op == Op::constant)
          slots[r.first_slot] = ir::is_difference(arg->args[0]) && arg->args[1]->value * ir::kNarrowBits <= kBits;
  return slots;
}

ir::Program schedule(ir::Program program, const TargetInfo& target) {
  if (target.target == Target::interpreter) return program;
  return balance_pipes(orient_differences(std::move(program), target), target);
}

double cycles_of(const ir::Program& program, const TargetInfo& target) { return count_pipes(program, target).cycles(); }

/// The second where its floor is no higher.
ir::Program cheaper(ir::Program a, ir::Program b, const TargetInfo& target) {
  return std::move(cycles_of(b, target) <= cycles_of(a, target) ? b : a);
}

/// Fixed powers by short tables where the floor is lower: where a permutation of sixteen entries is several.
ir::Program lowered(const std::vector<Expr>& outputs, ir::LowerOptions options, const TargetInfo& target) {
  ir::Program program = schedule(ir::lower(outputs, options), target);
  if (target.registers > 16) return program;
  options.short_tables = true;
  return cheaper(std::move(program), schedule(ir::lower(outputs, options), target), target);
}

/// Whether there is a power between -1 and 1.
bool has_root(const std::vector<Expr>& outputs) {
  bool found = false;
  for (const Expr& output : outputs)
    ir::for_each(output, [&](const Expr& e) {
      found = found || (e->op == Op::pow && e->args[1]->op == Op::constant && std::fabs(e->args[1]->value) < 1);
    });
  return found;
}

/// Takes a program for finite data in place of one for all, where its floor is no higher. What it asks of them: narrow
/// magnitudes only where other data, which the program for all then serves, lose nothing. It asks for scaled ones
/// where that pays and `may_scale`.
ir::Magnitudes take_finite(ir::Program& program, const std::vector<Expr>& outputs, ir::LowerOptions options,
                           const TargetInfo& target, bool may_scale) {
  const double of_all = cycles_of(program, target);
  options.assume_finite = true;
  options.assume_coarse = has_root(outputs);
  program = cheaper(std::move(program), lowered(outputs, options, target), target);
  if (cycles_of(program, target) < of_all) return options.assume_coarse ? ir::kCoarse : ir::kModerate;
  options.assume_narrow = true;
  ir::Program narrow = lowered(outputs, options, target);
  ir::Magnitudes magnitudes = ir::kNarrow;
  if (may_scale) {
    options.scaled = true;
    ir::Program scaled = lowered(outputs, options, target);
    if (cycles_of(scaled, target) < cycles_of(narrow, target)) {
      narrow = std::move(scaled);
      magnitudes.scale = ir::kNarrowScale;
    }
  }
  if (cycles_of(narrow, target) >= of_all) return ir::kModerate;
  program = std::move(narrow);
  return magnitudes;
}

/// Maxima of non-negative values on the float unit: with 256-bit vectors it leaves the subtraction more room than the
/// integer one (0.85 instead of 0.91 cycles for the largest difference on Zen 4). A float maximum may lose a NaN, so
/// only programs of differences and sums of the points qualify: finite points make none. False: nothing changed.
bool to_float_maxima(ir::Program& program) {
  using ir::Prim;
  for (const ir::Input& input : program.inputs)
    if (input.site != ir::Site::x && input.site != ir::Site::z && input.site != ir::Site::accumulator) return false;
  for (const ir::Instr& instr : program.code) {
    auto constant = [&](std::int32_t o) { return program.code[o].op == Prim::constant; };  // it might be a NaN
    const bool sum = (instr.op == Prim::add || instr.op == Prim::sub) && !constant(instr.a) && !constant(instr.b);
    const bool leaf = instr.op == Prim::input || instr.op == Prim::constant;
    if (!sum && !leaf && instr.op != Prim::bit_and && instr.op != Prim::int_max) return false;
  }
  bool changed = false;
  for (ir::Instr& instr : program.code) {
    if (instr.op != Prim::int_max) continue;
    instr.op = Prim::max;
    instr.bits = 0;
    changed = true;
  }
  return changed;
}

PairVariant make_variant(const PairProblem& problem, bool fast) {
  const TargetInfo target = target_info(problem.target, *problem.cpu);
  PairVariant variant;
  const auto divisors = fast ? ir::UniformDivisors::reciprocal : ir::UniformDivisors::divide;
  variant.split = ir::split(problem.outputs, {.uniform_divisors = divisors, .hoist = true});
  const ir::Split& split = variant.split;
  variant.identity = numbers_of(split.identities());
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = split.param_leaves();
  if (!problem.empty_features) {
    options.nonnegative_slots = split.nonnegative_slots({Op::sum, Op::max_over});
    for (int s = 0; s < split.states; ++s)
      if (options.nonnegative_slots[s]) variant.identity[s] = 0.0;
  }
  variant.update.type = problem.type;  // also of a formula without reductions of pairs: it decides the lanes of a tile
  if (split.states > 0) {
    variant.update = lowered(split.updates(), options, target);
    if (fast) {
      variant.magnitudes = take_finite(variant.update, split.updates(), options, target, true);
      ir::Program maxima = ir::lower(split.updates(), options);
      if (target.registers <= 16 && variant.magnitudes.scale == 1 && to_float_maxima(maxima))
        variant.update = cheaper(std::move(variant.update), schedule(std::move(maxima), target), target);
    }
  }
  if (variant.magnitudes.least >= ir::kNarrow.least) options.normal_slots = normal_slots(split);
  variant.epilogue = lowered(split.epilogue, options, target);
  variant.uniforms = lower_uniforms(split.uniforms, split.params);
  for (std::size_t u = 0; u < split.uniforms.size(); ++u)
    if (split.uniforms[u]->op == Op::rcp) variant.reciprocals.push_back(static_cast<int>(u));
  return variant;
}

bool same_code(const ir::Program& a, const ir::Program& b) { return a.to_text() == b.to_text(); }

/// Takes a pair value that is a factor of φ, and no unit, out of it; -1 when there is none.
int take_scale(Expr& phi, const std::vector<int>& units) {
  if (phi->op == Op::neg) {
    Expr inner = phi->args[0];
    const int slot = take_scale(inner, units);
    if (slot >= 0) phi = -inner;
    return slot;
  }
  if (phi->op != Op::mul) return -1;
  for (int side = 0; side < 2; ++side) {
    const Expr factor = phi->args[side], rest = phi->args[1 - side];
    if (factor->op == Op::pair_value && std::find(units.begin(), units.end(), factor->slot) == units.end()) {
      phi = rest;
      return factor->slot;
    }
    Expr inner = factor;
    const int slot = take_scale(inner, units);
    if (slot < 0) continue;
    phi = inner * rest;
    return slot;
  }
  return -1;
}

std::vector<int> take_scales(Expr& phi, const std::vector<int>& units) {
  std::vector<int> slots;
  for (int slot = take_scale(phi, units); slot >= 0; slot = take_scale(phi, units)) slots.push_back(slot);
  return slots;
}

}  // namespace

std::int64_t PairPlan::chunk(std::int64_t features) const {
  const bool any = std::find(promoted.begin(), promoted.end(), true) != promoted.end();
  if (problem.type == Dtype::float64 || !any || features <= kShortestChunk) return std::max<std::int64_t>(features, 1);
  const std::int64_t chunks = std::max<std::int64_t>(2, ceil_div(features, kLongestChunk));
  return ceil_div(features, chunks);
}

bool PairPlan::sums_parts(std::int64_t features) const {
  return problem.type == Dtype::float32 && features > kFeaturesOfTotal && !promoted.empty() &&
         std::find(promoted.begin(), promoted.end(), false) == promoted.end();
}

std::int64_t PairPlan::part_features(std::int64_t features) const {
  constexpr std::int64_t kMostPanelBytes = std::int64_t{64} << 20;
  const auto streams = static_cast<std::int64_t>(std::max(sides.x_streams.size() * tile.rows,
                                                          sides.z_streams.size() * tile.cols()));
  const std::int64_t size = problem.type == Dtype::float64 ? 8 : 4;
  if (streams == 0 || features <= kMostPanelBytes / (streams * size)) return 0;
  if (sums_parts(features)) return kFeaturesOfTotal;
  const std::int64_t of_chunk = std::min(chunk(features), kFeaturesOfTotal);
  return kFeaturesOfTotal / of_chunk * of_chunk;
}

std::int64_t PairPlan::plane_width() const {
  return tile.cols() * std::max<std::int64_t>(1, problem.block_columns / tile.cols());
}

UpdateSource PairPlan::update_source(bool use_fast, bool fused) const {
  const PairVariant& variant = use_fast ? fast : general;
  UpdateSource source;
  source.target = problem.target;
  source.tile = tile;
  source.x_streams = static_cast<int>(sides.x_streams.size());
  source.z_streams = static_cast<int>(sides.z_streams.size());
  source.program = variant.update;
  source.promoted = promoted;
  if (!fused) return source;
  source.fused = true;
  source.epilogue = variant.epilogue;
  source.plane = tile.rows * plane_width();
  source.row_slots = row_slots;
  return source;
}

UpdateSource PairPlan::continued_source(bool use_fast) const {
  UpdateSource source = update_source(use_fast);
  source.continues = true;
  return source;
}

bool PairPlan::pays_maxima(std::int64_t m, std::int64_t n, std::int64_t features, double least_gain) const {
  if (maxima.factor == 0 || features == 0 || part_features(features) > 0) return false;
  // Costs in cycles a feature: a look at the data, of which a call must hold many, since data may turn out unfit;
  // packing for maxima, a pass over the points. Costs in cycles a vector of pairs: bounds, and what a tile takes in
  // addition to sums. All were measured on Zen 4.
  const TargetInfo target = target_info(problem.target, *problem.cpu);
  const double look = 600 * pace(target), pack = 1.2 * pace(target), guard = 2.5 * pace(target);
  constexpr double kLooks = 26;
  const double vectors = static_cast<double>(m) * static_cast<double>(n) / target.lanes(problem.type);
  const double k = static_cast<double>(features), points = static_cast<double>(m) + static_cast<double>(n);
  const double terms = count_pipes(best().update, target).cycles();
  const double saved = k * (terms - count_pipes(maxima.update, target).cycles()) - maxima.chunk_cycles - guard;
  return vectors * saved >= least_gain * k * (look + pack * points) &&
         vectors * terms >= least_gain * kLooks * look;
}

UpdateSource PairPlan::maxima_source(bool fused) const {
  UpdateSource source = update_source(has_fast, fused);
  source.program = maxima.update;
  source.start = maxima.start;
  source.promote = maxima.promote;
  source.guarded = true;
  return source;
}

bool PairPlan::can_fuse(bool use_fast) const {
  if (problem.target == Target::interpreter || promoted.empty()) return false;
  const ir::Program& epilogue = (use_fast ? fast : general).epilogue;
  return fused_group(epilogue, tile, static_cast<int>(promoted.size()), target_info(problem.target)) > 0;
}

EpilogueSource PairPlan::epilogue_source(bool use_fast) const {
  return {problem.target, tile, (use_fast ? fast : general).epilogue, tile.rows * plane_width()};
}

std::shared_ptr<const PairPlan> plan_pairs(const PairProblem& problem) {
  auto plan = std::make_shared<PairPlan>();
  plan->problem = problem;
  plan->general = make_variant(problem, false);
  plan->fast = make_variant(problem, true);
  const ir::Split& split = plan->general.split;
  plan->has_fast = !same_code(plan->general.update, plan->fast.update) ||
                   !same_code(plan->general.epilogue, plan->fast.epilogue);
  plan->maxima = plan_maxima_sums(split, plan->best().update,
                                     static_cast<int>(plan->best().split.param_leaves().size()),
                                     target_info(problem.target, *problem.cpu));
  if (!problem.empty_features && plan->maxima.factor == 0)
    plan->guard = guard_sums(plan->general.split, problem);
  plan->mask = PairMask(problem.outputs, problem.type, split.params);
  plan->sides = lower_sides(split);
  plan->accumulation_params = params_of_reductions(problem.outputs);
  plan->promoted.assign(split.states, false);
  for (const ir::Reduction& r : split.reductions)
    if (r.kind == Op::sum) plan->promoted[r.first_slot] = true;
  plan->tile = choose_tile(plan->best().update, static_cast<int>(plan->sides.z_streams.size()), problem.target);
  while (plan->tile.rows > 1 && plan->tile.rows / 2 >= problem.rows_hint) plan->tile.rows /= 2;
  if (!plan->has_fast) plan->fast = {};
  for (const ir::Program* p : {&plan->general.update, &plan->general.epilogue}) {
    if (reads_site(*p, {ir::Site::row, ir::Site::index_i})) plan->row_slots = kFirstStageSlot + split.row_stages;
    if (reads_site(*p, {ir::Site::col, ir::Site::index_j})) plan->col_slots = kFirstStageSlot + split.col_stages;
  }
  if (const int more = plan->guard.close_sums; more > 0) {
    for (SumGuard& sum : plan->guard.sums) {
      sum.close.row_slot += kFirstStageSlot + split.row_stages;
      sum.close.col_slot += kFirstStageSlot + split.col_stages;
    }
    plan->row_slots = more + kFirstStageSlot + split.row_stages;
    plan->col_slots = more + kFirstStageSlot + split.col_stages;
  }
  return plan;
}

std::string PairPlan::to_text() const {
  std::string text = fmt::format("target {}, {}, tile {} x {} ({} vectors of {})\n", target_info(problem.target).name,
                                 name_of(problem.type), tile.rows, tile.cols(), tile.vectors, tile.lanes);
  for (std::size_t s = 0; s < promoted.size(); ++s)
    text += fmt::format("acc{}: starts at {}{}\n", s, general.identity[s],
                        promoted[s] ? ", partial sums promoted" : "");
  if (!has_fast) text += "one variant for all data\n";
  else if (fast.magnitudes.least == 0) text += "two variants: general, and fast for finite data\n";
  else text += fmt::format("two variants: general, and fast for zeros and magnitudes from {:.2g} to {:.4g}\n",
                           fast.magnitudes.least, fast.magnitudes.most);
  for (const SumGuard& sum : guard.sums)
    text += fmt::format("acc{}: pairs {}{}{} computed again {}\n", sum.state,
                        sum.ranged ? "out of range" : "", sum.ranged && sum.close.power > 0 ? " or " : "",
                        sum.close.power > 0 ? "close together" : "",
                        problem.type == Dtype::float64 ? "with scaled sums" : "in float64");
  if (mask) text += "mask: tiles whose value follows from i, j, row, col and parameters alone are skipped or filled\n";
  if (maxima.factor != 0) text += "absolute differences: sums of maxima where the data of a large call allow\n";
  return text;
}

FieldSource FieldPlan::scaled_source() const {
  FieldSource of = source(false);
  of.program = scaled_program;
  return of;
}

FieldSource FieldPlan::source(bool fast) const {
  const int lanes = target_info(target).lanes(type);
  FieldSource source{target, vectors, lanes, outputs, rows, holds, n_capacity, pair_stride};
  source.pair_row = n_capacity;
  source.coef_row = scale_slots.empty() ? 0 : n_capacity * outputs;
  source.states = fold.states();
  source.program = fast ? fast_program : program;
  return source;
}

FieldSource FieldPlan::finish_source() const {
  FieldSource of_states = source(false);
  of_states.program = finish;
  return of_states;
}

namespace {

/// States of the first `outputs` of a tile, their slots one after the other, with their coefficients.
std::vector<Expr> of_outputs(const std::vector<Expr>& states, int outputs) {
  const int count = static_cast<int>(states.size());
  std::vector<Expr> all;
  for (int o = 0; o < outputs; ++o) {
    ir::ExprMap<Expr> own{{ir::leaf(Op::incoming), ir::leaf(Op::incoming, o)}};
    for (int s = 0; s < count; ++s) own[ir::leaf(Op::accumulator, s)] = ir::leaf(Op::accumulator, o * count + s);
    for (const Expr& state : states) all.push_back(ir::substitute(state, own));
  }
  return all;
}

/// States in registers, of as many outputs as there is room for next to what the terms take.
void plan_fold(FieldPlan& plan, const FieldProblem& problem, const ir::LowerOptions& options) {
  const TargetInfo target = target_info(problem.target, *problem.cpu);
  plan.fold = problem.field.fold;
  plan.identity = numbers_of(plan.fold.identity);
  const bool interpreted = problem.target == Target::interpreter;
  int outputs = static_cast<int>(std::clamp<std::int64_t>(problem.outputs, 1, interpreted ? 1 : kMostFoldOutputs));
  for (;; outputs /= 2) {
    plan.program = lowered(of_outputs(plan.fold.update, outputs), options, target);
    plan.vectors = interpreted ? kInterpretedVectors : fold_vectors(plan.program, problem.features, problem.target);
    if (plan.vectors > 0 || outputs == 1) break;
  }
  plan.outputs = outputs;
  plan.vectors = std::max(plan.vectors, 1);
  std::vector<Expr> finish;
  for (int s = 0; s < plan.fold.states(); ++s) finish.push_back(ir::leaf(Op::accumulator, s));
  if (same(plan.fold.finish, finish[0])) return;
  finish[0] = plan.fold.finish;
  plan.finish = lowered(of_outputs(finish, outputs), options, target);
}

}  // namespace

std::shared_ptr<const FieldPlan> plan_field(const FieldProblem& problem) {
  const TargetInfo target = target_info(problem.target, *problem.cpu);
  auto plan = std::make_shared<FieldPlan>();
  plan->type = problem.type;
  plan->target = problem.target;
  plan->n_capacity = problem.n_capacity;
  plan->pair_stride = problem.pair_stride;
  plan->params = problem.field.params;
  plan->uniforms = lower_uniforms(problem.field.uniforms, problem.field.params);
  ir::LowerOptions options;
  options.type = problem.type;
  options.params = problem.field.param_leaves();
  if (problem.field.fold) {
    plan_fold(*plan, problem, options);
    return plan;
  }
  plan->units = problem.field.units;
  Expr phi = plan->units.empty() ? problem.field.field : problem.field.scaled;
  if (const WeightedField weighted = weighted_field(phi); !weighted.rest.empty()) {
    phi = ir::simplify(weighted.rest);
    plan->weight = lower_uniforms({weighted.weight}, {});
  }
  plan->scale_slots = take_scales(phi, plan->units);
  if (!plan->units.empty()) {
    plan->scaled_program = lowered({ir::simplify(phi)}, options, target);
    phi = ir::simplify(ir::without_units(phi, plan->units));
  }
  plan->program = lowered({phi}, options, target);
  plan->fast_program = plan->program;
  plan->magnitudes = take_finite(plan->fast_program, {phi}, options, target, false);
  plan->has_fast = !same_code(plan->program, plan->fast_program);
  const ir::Program& shape_from = plan->has_fast ? plan->fast_program : plan->program;
  const int outputs = static_cast<int>(std::min(problem.outputs, kMostOutputs));
  const FieldShape shape = choose_field(shape_from, outputs, problem.features, target);
  plan->outputs = shape.outputs;
  plan->vectors = shape.vectors;
  plan->rows = shape.rows;
  plan->holds = shape.holds;
  while (plan->vectors > 1 && !masks_fit(plan->program, plan->vectors, target)) --plan->vectors;
  return plan;
}

Floor floor_of(const PairPlan& plan) {
  const TargetInfo target = target_info(plan.problem.target, *plan.problem.cpu);
  return {count_pipes(plan.best().update, target).cycles(), count_pipes(plan.best().epilogue, target).cycles(),
          target.lanes(plan.problem.type)};
}

Floor floor_of(const PairPlan& plan, std::int64_t m, std::int64_t n, std::int64_t features) {
  Floor floor = floor_of(plan);
  if (!plan.pays_maxima(m, n, features)) return floor;
  floor.update_cycles = count_pipes(plan.maxima.update, target_info(plan.problem.target, *plan.problem.cpu)).cycles();
  floor.epilogue_cycles += plan.maxima.chunk_cycles;
  return floor;
}

double Floor::elements_per_second(double hertz, std::int64_t features) const {
  const double k = static_cast<double>(std::max<std::int64_t>(features, 1));
  return hertz * lanes / (update_cycles + epilogue_cycles / k);
}

}  // namespace mercer::plan
