// explain: what a call would do, stage by stage, as text. Needs no data and no GPU.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/x86_emit.h"
#include "core/error.h"
#include "mercer/explain.h"
#include "ops/explain_parts.h"
#include "ops/prepared.h"
#include "plan/planner.h"

namespace mercer {
namespace {

std::shared_ptr<const plan::PairPlan> plan_of(const Formula& f, ExplainShape shape, Dtype dtype, Target target) {
  plan::PairProblem problem;
  problem.outputs = {ops::explained(f)};
  problem.type = compute_type(dtype);
  problem.target = target;
  problem.empty_features = shape.k == 0;
  problem.rows_hint = std::min(shape.m, plan::kManyRows);
  return plan::plan_pairs(problem);
}

std::string with_pipes(const ir::Program& program, const plan::TargetInfo& target) {
  const plan::PipeCount count = plan::count_pipes(program, target);
  const std::string divide = count.divide > 0 ? fmt::format(", divide {:.1f}", count.divide) : "";
  return fmt::format("{}multiply {:.1f}, add {:.1f}, either {:.1f}, shuffle {:.1f}{}: {:.2f} cycles a vector\n",
                     program.to_text(), count.fma, count.add, count.either, count.shuffle, divide, count.cycles());
}

std::string floor_text(const plan::PairPlan& plan, ExplainShape shape) {
  const plan::Floor floor = plan::floor_of(plan, shape.m, shape.n, shape.k);
  const double pairs = static_cast<double>(shape.m) * static_cast<double>(shape.n);
  const double elements = pairs * static_cast<double>(shape.k);
  const double cycles = (elements * floor.update_cycles + pairs * floor.epilogue_cycles) / floor.lanes;
  return fmt::format("{} x {} x {}: {:.4g} cycles on one core, {:.2f} elements a cycle\n", shape.m, shape.n, shape.k,
                     cycles, cycles > 0 ? elements / cycles : 0.0);
}

}  // namespace

namespace ops {

std::string section(std::string_view title, std::string_view text) { return fmt::format("## {}\n{}\n", title, text); }

Expr explained(const Formula& f) {
  std::vector<double> exponents;
  for (const Expr& leaf : f.prepared().exponents)
    if (leaf->has_default) exponents.push_back(leaf->value);
  const bool bound = exponents.size() == f.prepared().exponents.size() && !exponents.empty();
  return bound ? f.prepared().bound(exponents)->expression : f.expression();
}

std::string formula_section(const Formula& f) {
  return section("formula", f.expression().to_text() +
                                (f.symmetric() ? "\nsymmetric: z = x computes half of the pairs" : "") + "\n");
}

}  // namespace ops

double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, Target target, double gigahertz) {
  const auto plan = plan_of(f, shape, dtype, target);
  return plan::floor_of(*plan, shape.m, shape.n, shape.k).elements_per_second(gigahertz, shape.k);
}

std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, Target target) {
  using ops::section;
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "explain: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  const auto plan = plan_of(f, shape, dtype, target);
  const plan::TargetInfo& info = plan::target_info(target);
  const plan::PairVariant& variant = plan->best();
  std::string text = ops::formula_section(f);
  text += section("split", variant.split.to_text());
  text += section("plan", plan->to_text() + fmt::format("features in chunks of {}\n", plan->chunk(shape.k)));
  const bool reduces = !plan->promoted.empty();
  if (reduces) text += section("update, per (m, n, k)", with_pipes(variant.update, info));
  const bool maxima = plan->pays_maxima(shape.m, shape.n, shape.k);
  if (maxima) {
    text += section("update by maxima, per (m, n, k)", with_pipes(plan->maxima.update, info));
    std::string chunks;
    for (std::int64_t longest : plan::maxima_chunks(dtype))
      chunks += fmt::format("{}{}", chunks.empty() ? "" : ", or where the data want it of ",
                            plan::maxima_chunk(shape.k, longest));
    text += section("promotion of maxima, per (m, n) and chunk",
                    fmt::format("{}in chunks of {}\n", with_pipes(plan->maxima.promote, info), chunks));
  }
  text += section("epilogue, per (m, n)", with_pipes(variant.epilogue, info));
  if (target != Target::interpreter) {
    const std::size_t update = reduces ? codegen::emit_update(plan->update_source(plan->has_fast)).size() : 0;
    const std::size_t epilogue = codegen::emit_epilogue(plan->epilogue_source(plan->has_fast)).size();
    const std::string by_maxima =
        maxima ? fmt::format(", by maxima {} bytes", codegen::emit_update(plan->maxima_source()).size()) : "";
    text += section("code", fmt::format("update {} bytes{}, epilogue {} bytes\n", update, by_maxima, epilogue));
  }
  return text + section("floor", floor_text(*plan, shape));
}

std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target,
                    const GpuCall& call) {
  if (ops::is_gpu_target(target)) return ops::explain_gpu(f, shape, dtype, target, call);
  require(call.verb == "pairwise", "explain: on CPUs the verb must be pairwise. Received \"{}\".", call.verb);
  return explain(f, shape, dtype, target_from_text(target));
}

}  // namespace mercer
