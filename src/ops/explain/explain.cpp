// explain: what a call would do, stage by stage, as text. Needs no data and no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backend/cpu/pairs/tile_mask.h"
#include "codegen/x86/x86_emit.h"
#include "core/devices/lapack.h"
#include "core/error.h"
#include "mercer/explain.h"
#include "ops/call/prepared.h"
#include "ops/costs/cpu_costs.h"
#include "ops/explain/explain_parts.h"
#include "ops/pairs/cpu_ways.h"
#include "plan/cpu/planner.h"
#include "plan/cpu/ways.h"

namespace mercer {
namespace {

std::shared_ptr<const plan::PairPlan> plan_of(const Formula& f, ExplainShape shape, Dtype dtype,
                                              const ops::CpuTarget& on) {
  plan::PairProblem problem;
  problem.outputs = {ops::explained(f)};
  problem.type = compute_type(dtype);
  problem.target = on.target;
  problem.cpu = on.cpu;
  problem.empty_features = shape.k == 0;
  problem.rows_hint = std::min(shape.m, plan::kManyRows);
  return plan::plan_pairs(problem);
}

plan::Verb verb_of(const std::string& name) {
  std::string known;
  for (plan::Verb verb : plan::kVerbs) {
    if (verb == plan::Verb::gradient) continue;  // on CPUs it has one way
    if (name == plan::name_of(verb)) return verb;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", plan::name_of(verb));
  }
  fail(ErrorKind::invalid_argument, "explain: the verb must be one of {}. Received \"{}\".", known, name);
}

std::string with_pipes(const ir::Program& program, const plan::TargetInfo& target) {
  const plan::PipeCount count = plan::count_pipes(program, target);
  return fmt::format("{}{}: {:.2f} cycles a vector\n", program.to_text(), count.to_text(*target.uses), count.cycles());
}

std::string floor_text(const plan::PairPlan& plan, ExplainShape shape) {
  const plan::Floor floor = plan::floor_of(plan, shape.m, shape.n, shape.k);
  const double pairs = static_cast<double>(shape.m) * static_cast<double>(shape.n);
  const double elements = pairs * static_cast<double>(shape.k);
  const double cycles = (elements * floor.update_cycles + pairs * floor.epilogue_cycles) / floor.lanes;
  return fmt::format("{} x {} x {}: {:.4g} cycles on one core, {:.2f} elements a cycle\n", shape.m, shape.n, shape.k,
                     cycles, cycles > 0 ? elements / cycles : 0.0);
}

/// The part of the pairs that no mask knows, where a call that gives no parameters decides that.
std::optional<double> computed_part(const plan::PairPlan& plan, ExplainShape shape, std::int64_t least) {
  if (!plan.mask || !cpu::mask_pays(shape.m, shape.n, shape.k, plan::kLeastGain)) return 1;
  if (plan.mask.reads(ir::Op::row) || plan.mask.reads(ir::Op::col)) return std::nullopt;
  std::vector<double> params;
  for (const Expr& leaf : plan.general.split.params) {
    if (!leaf->has_default && plan.mask.reads(ir::Op::param)) return std::nullopt;
    params.push_back(leaf->value);
  }
  return plan.mask.computed_part(0, shape.m, 0, shape.n, params, shape.k, least);
}

std::string mask_text(const plan::PairPlan& plan, ExplainShape shape) {
  if (!plan.mask) return "";
  constexpr std::int64_t kLeast = 64;  // about the points of a tile
  const std::optional<double> part = computed_part(plan, shape, kLeast);
  if (!part) return "how many pairs are computed depends on the values that the mask reads\n";
  return fmt::format("about {:.3g} % of {} x {} pairs are computed\n", 100 * *part, shape.m, shape.n);
}

/// What each way said of a call on arrays whose rows are contiguous. Folds have the sides of the formula in turn.
/// AMX is that of this processor: families that are named have none.
std::string ways_text(const plan::PairPlan& plan, const Formula& f, ExplainShape shape, Dtype dtype,
                      const ops::CpuTarget& on, const GpuCall& call) {
  plan::cpu::Request request;
  request.verb = verb_of(call.verb);
  plan::cpu::set_sides(request, shape.m, shape.n);
  request.k = shape.k;
  request.columns = call.columns;
  request.type = compute_type(dtype);
  request.has_bytes = plan::cpu::is_of_bytes(dtype);
  request.symmetric = call.symmetric && f.symmetric() && shape.m == shape.n;
  request.has_blas = lapack() != nullptr;
  request.has_amx = !on.named && ops::may_use_amx(on.target);
  request.computed = computed_part(plan, shape, plan::PairMask::kLook).value_or(1);
  static constexpr plan::cpu::Costs kShipped;
  const plan::cpu::Costs& costs = on.named ? kShipped : ops::way_costs(on.target);
  const std::string source = on.named ? "" : fmt::format("costs of ways: {}\n", ops::source_of_way_costs(on.target));
  return plan::cpu::ways_text(request, plan::cpu::forms_of(plan), costs,
                              *Context::shared().state().forced_ways.load()) +
         source;
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
  std::string names;
  for (const auto& [name, value] : parameters(f.expression())) names += (names.empty() ? "" : ", ") + name;
  const std::string known =
      names.empty() ? "" : fmt::format("\nparameters: {}; an array of B numbers makes a batch of B results", names);
  return section("formula", f.expression().to_text() + known +
                                (f.symmetric() ? "\nsymmetric: z = x computes half of the pairs" : "") + "\n");
}

}  // namespace ops

namespace {

double rate_on(const Formula& f, ExplainShape shape, Dtype dtype, const ops::CpuTarget& on, double gigahertz) {
  const auto plan = plan_of(f, shape, dtype, on);
  return plan::floor_of(*plan, shape.m, shape.n, shape.k).elements_per_second(gigahertz, shape.k);
}

std::string explain_on(const Formula& f, ExplainShape shape, Dtype dtype, const ops::CpuTarget& on,
                       const GpuCall& call) {
  using ops::section;
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "explain: sizes must not be negative. Received {}x{}x{}.",
          shape.m, shape.n, shape.k);
  const auto plan = plan_of(f, shape, dtype, on);
  const plan::TargetInfo info = plan::target_info(on.target, *on.cpu);
  const plan::PairVariant& variant = plan->best();
  std::string text = ops::formula_section(f);
  text += section("ways", ways_text(*plan, f, shape, dtype, on, call));
  text += section("split", variant.split.to_text());
  text += section("plan", plan->to_text() + mask_text(*plan, shape) +
                                  fmt::format("features in chunks of {}\n", plan->chunk(shape.k)));
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
  if (on.target != Target::interpreter) {
    const std::size_t update = reduces ? codegen::emit_update(plan->update_source(plan->has_fast)).size() : 0;
    const std::size_t epilogue = codegen::emit_epilogue(plan->epilogue_source(plan->has_fast)).size();
    const std::string by_maxima =
        maxima ? fmt::format(", by maxima {} bytes", codegen::emit_update(plan->maxima_source()).size()) : "";
    text += section("code", fmt::format("update {} bytes{}, epilogue {} bytes\n", update, by_maxima, epilogue));
  }
  return text + section("floor", floor_text(*plan, shape));
}

/// Whose costs they are goes without saying where the caller named them.
std::string explain_here(const Formula& f, ExplainShape shape, Dtype dtype, Target target, const GpuCall& call) {
  const std::string text = explain_on(f, shape, dtype, {target, ops::cpu_in_use().row}, call);
  if (target == Target::interpreter) return text;
  return fmt::format("{}costs: {}\n\n", text.substr(0, text.size() - 1), cpu_costs().text);
}

}  // namespace

double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, Target target, double gigahertz) {
  return rate_on(f, shape, dtype, {target, ops::cpu_in_use().row}, gigahertz);
}

double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target, double gigahertz) {
  return rate_on(f, shape, dtype, ops::cpu_target(target), gigahertz);
}

std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, Target target) {
  return explain_here(f, shape, dtype, target, {});
}

std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target,
                    const GpuCall& call) {
  if (ops::is_gpu_target(target)) return ops::explain_gpu(f, shape, dtype, target, call);
  const ops::CpuTarget on = ops::cpu_target(target);
  return on.named ? explain_on(f, shape, dtype, on, call) : explain_here(f, shape, dtype, on.target, call);
}

}  // namespace mercer
