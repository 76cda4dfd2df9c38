#include "plan/absolute_sums.h"

#include <algorithm>
#include <cmath>

#include "core/integers.h"

namespace mercer::plan {
namespace {

using ir::Op;
using ir::Prim;

/// c of c |x - z|; 0 for any other term.
double factor_of(const Expr& term) {
  if (term->op == Op::mul)
    for (std::size_t i : {0, 1})
      if (term->args[i]->op == Op::constant) {
        const double c = static_cast<float>(term->args[i]->value);
        return c > 0 && std::isnormal(static_cast<float>(c)) ? c * factor_of(term->args[1 - i]) : 0;
      }
  if (term->op != Op::abs || term->args[0]->op != Op::sub) return 0;
  const Expr &left = term->args[0]->args[0], &right = term->args[0]->args[1];
  return (left->op == Op::x && right->op == Op::z) || (left->op == Op::z && right->op == Op::x) ? 1 : 0;
}

/// A program of two leaves and one or two instructions, the last of which is its output.
ir::Program small_program(std::vector<ir::Input> inputs, std::vector<ir::Instr> code) {
  ir::Program program{.type = Dtype::float32, .inputs = std::move(inputs), .code = std::move(code), .outputs = {},
                      .tables = {}, .powers = {}};
  program.outputs = {static_cast<std::int32_t>(program.code.size()) - 1};
  return program;
}

ir::Instr input(std::int32_t index) { return {.op = Prim::input, .index = index}; }

}  // namespace

double factor_of_absolute_differences(const ir::Split& split) {
  if (split.states != 1 || split.reductions.size() != 1 || split.reductions[0].kind != Op::sum) return 0;
  if (split.x_streams.size() != 1 || split.z_streams.size() != 1) return 0;
  const Expr& update = split.reductions[0].update[0];
  if (update->op != Op::add) return 0;
  for (std::size_t i : {0, 1})
    if (update->args[i]->op == Op::accumulator) return factor_of(update->args[1 - i]);
  return 0;
}

IntegerSums plan_integer_sums(const ir::Split& split, const ir::Program& floats, int step_slot,
                              const TargetInfo& target) {
  using ir::Site;
  IntegerSums sums;
  if (floats.type != Dtype::float32) return sums;
  const double factor = factor_of_absolute_differences(split);
  if (factor == 0) return sums;
  sums.start = small_program({{Site::x}, {Site::z}}, {input(0), input(1), {.op = Prim::int_add, .a = 1, .b = 0}});
  sums.update = small_program({{Site::accumulator}, {Site::x}, {Site::z}},
                              {input(0), input(1), input(2), {.op = Prim::int_max, .a = 2, .b = 1},
                               {.op = Prim::int_add, .a = 0, .b = 3}});
  sums.promote = small_program({{Site::accumulator}, {Site::param, step_slot}},
                               {input(0), input(1), {.op = Prim::int_to_float, .a = 0},
                                {.op = Prim::mul, .a = 2, .b = 1}});
  if (count_pipes(sums.update, target).cycles() >= count_pipes(floats, target).cycles()) return {};
  sums.factor = factor;
  sums.step_slot = step_slot;
  sums.chunk_cycles = count_pipes(sums.start, target).cycles() + count_pipes(sums.promote, target).cycles();
  return sums;
}

std::int64_t integer_chunk(std::int64_t features, std::int64_t longest) {
  const std::int64_t chunks = std::max<std::int64_t>(1, ceil_div(features, longest));
  return std::max<std::int64_t>(1, ceil_div(features, chunks));
}

}  // namespace mercer::plan
