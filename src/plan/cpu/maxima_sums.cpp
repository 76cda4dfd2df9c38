#include "plan/cpu/maxima_sums.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/integers.h"
#include "plan/forms/absolute_sums.h"

namespace mercer::plan {
namespace {

using ir::Prim;

/// A program of leaves and one or two instructions, the last of which is its output.
ir::Program small_program(Dtype type, std::vector<ir::Input> inputs, std::vector<ir::Instr> code) {
  ir::Program program{.type = type, .inputs = std::move(inputs), .code = std::move(code), .outputs = {}, .tables = {},
                      .powers = {}};
  program.outputs = {static_cast<std::int32_t>(program.code.size()) - 1};
  return program;
}

ir::Instr input(std::int32_t index) { return {.op = Prim::input, .index = index}; }

}  // namespace

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
