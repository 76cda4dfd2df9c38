#include "plan/forms/absolute_sums.h"

#include <algorithm>
#include <cmath>

#include "core/integers.h"
#include "ir/passes/passes.h"

namespace mercer::plan {
namespace {

using ir::Op;
using ir::Prim;

/// c of c |x - z| as `type` holds it; 0 for any other term.
double factor_of(const Expr& term, Dtype type) {
  if (term->op == Op::mul)
    for (std::size_t i : {0, 1})
      if (term->args[i]->op == Op::constant) {
        const double value = term->args[i]->value;
        const double c = type == Dtype::float64 ? value : static_cast<double>(static_cast<float>(value));
        return c > 0 && std::isnormal(static_cast<float>(c)) ? c * factor_of(term->args[1 - i], type) : 0;
      }
  if (term->op != Op::abs || term->args[0]->op != Op::sub) return 0;
  const Expr &left = term->args[0]->args[0], &right = term->args[0]->args[1];
  return (left->op == Op::x && right->op == Op::z) || (left->op == Op::z && right->op == Op::x) ? 1 : 0;
}

/// a of e = a s + b, s the only accumulator; empty where e is none, or b is not free of points.
Expr slope_of(const Expr& e) {
  if (e->op == Op::accumulator) return Expr(1.0);
  switch (e->op) {
    case Op::neg: {
      const Expr slope = slope_of(e->args[0]);
      return slope.empty() ? slope : -slope;
    }
    case Op::div: {
      const Expr slope = ir::is_uniform(e->args[1]) ? slope_of(e->args[0]) : Expr();
      return slope.empty() ? slope : slope / e->args[1];
    }
    case Op::mul:
    case Op::add:
    case Op::sub:
      for (std::size_t i : {0, 1})
        if (ir::is_uniform(e->args[1 - i])) {
          const Expr slope = slope_of(e->args[i]);
          if (slope.empty()) return slope;
          return e->op == Op::mul ? slope * e->args[1 - i] : e->op == Op::sub && i == 1 ? -slope : slope;
        }
      return {};
    default: return {};
  }
}

/// f' / f of f = c exp(a s + b).
Expr relative_slope_of(const Expr& f) {
  constexpr double kLogOf2 = 0.6931471805599453;
  switch (f->op) {
    case Op::exp: return slope_of(f->args[0]);
    case Op::exp2: {
      const Expr slope = slope_of(f->args[0]);
      return slope.empty() ? slope : slope * kLogOf2;
    }
    case Op::neg: return relative_slope_of(f->args[0]);
    case Op::div: return ir::is_uniform(f->args[1]) ? relative_slope_of(f->args[0]) : Expr();
    case Op::mul:
      for (std::size_t i : {0, 1})
        if (ir::is_uniform(f->args[1 - i])) return relative_slope_of(f->args[i]);
      return {};
    default: return {};
  }
}

/// A program of leaves and one or two instructions, the last of which is its output.
ir::Program small_program(Dtype type, std::vector<ir::Input> inputs, std::vector<ir::Instr> code) {
  ir::Program program{.type = type, .inputs = std::move(inputs), .code = std::move(code), .outputs = {}, .tables = {},
                      .powers = {}};
  program.outputs = {static_cast<std::int32_t>(program.code.size()) - 1};
  return program;
}

ir::Instr input(std::int32_t index) { return {.op = Prim::input, .index = index}; }

}  // namespace

double factor_of_absolute_differences(const ir::Split& split, Dtype type) {
  if (split.states != 1 || split.reductions.size() != 1 || split.reductions[0].kind != Op::sum) return 0;
  if (split.x_streams.size() != 1 || split.z_streams.size() != 1) return 0;
  const Expr& update = split.reductions[0].update[0];
  if (update->op != Op::add) return 0;
  for (std::size_t i : {0, 1})
    if (update->args[i]->op == Op::accumulator) return factor_of(update->args[1 - i], type);
  return 0;
}

Expr relative_slope_of(const ir::Split& split) {
  if (split.states != 1 || split.epilogue.empty()) return {};
  const Expr slope = relative_slope_of(split.epilogue[0]);
  const auto is_other = [&](const Expr& output) {
    const Expr own = relative_slope_of(output);
    return own.empty() || !same(own, slope);
  };
  return slope.empty() || std::ranges::any_of(split.epilogue, is_other) ? Expr() : slope;
}

Expr allowance_of(const ir::Split& split) {
  const Expr slope = relative_slope_of(split);
  return slope.empty() ? slope : 1.0 / abs(slope);
}

MaximaSums plan_maxima_sums(const ir::Split& split, const ir::Program& terms, int scale_slot,
                            const TargetInfo& target) {
  using ir::Site;
  MaximaSums sums;
  const double factor = factor_of_absolute_differences(split, terms.type);
  // The interpreter runs two primitives and three in as many passes.
  if (factor == 0 || target.target == Target::interpreter) return sums;
  const Dtype type = terms.type;
  const bool integers = type == Dtype::float32;
  const Prim add = integers ? Prim::int_add : Prim::add, max = integers ? Prim::int_max : Prim::max;
  sums.start = small_program(type, {{Site::x}, {Site::z}}, {input(0), input(1), {.op = add, .a = 1, .b = 0}});
  sums.update = small_program(type, {{Site::accumulator}, {Site::x}, {Site::z}},
                              {input(0), input(1), input(2), {.op = max, .a = 2, .b = 1}, {.op = add, .a = 0, .b = 3}});
  if (!integers) sums.update = balance_pipes(std::move(sums.update), target);
  std::vector<ir::Instr> promotion = {input(0), input(1)};
  if (integers) promotion.push_back({.op = Prim::int_to_float, .a = 0});
  promotion.push_back({.op = Prim::mul, .a = integers ? 2 : 0, .b = 1});
  sums.promote = small_program(type, {{Site::accumulator}, {Site::param, scale_slot}}, std::move(promotion));
  if (count_pipes(sums.update, target).cycles() >= count_pipes(terms, target).cycles()) return {};
  sums.factor = factor;
  sums.scale_slot = scale_slot;
  sums.chunk_cycles = count_pipes(sums.start, target).cycles() + count_pipes(sums.promote, target).cycles();
  return sums;
}

std::span<const std::int64_t> maxima_chunks(Dtype type) {
  static constexpr std::int64_t kOfIntegers[] = {512, 128}, kOfFloats[] = {128};
  return type == Dtype::float64 ? std::span<const std::int64_t>(kOfFloats) : kOfIntegers;
}

std::int64_t maxima_chunk(std::int64_t features, std::int64_t longest) {
  const std::int64_t chunks = std::max<std::int64_t>(1, ceil_div(features, longest));
  return std::max<std::int64_t>(1, ceil_div(features, chunks));
}

}  // namespace mercer::plan
