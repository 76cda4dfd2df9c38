// explain: what a call would do, stage by stage, as text. Needs no data and no GPU.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "codegen/x86_emit.h"
#include "core/error.h"
#include "mercer/pairwise.h"
#include "ops/prepared.h"
#include "plan/planner.h"

namespace mercer {
namespace {

std::shared_ptr<const plan::PairPlan> plan_of(const Formula& f, ExplainShape shape, Dtype dtype, Target target) {
  // Exponents are numbers in a plan: those with a default take it.
  std::vector<double> exponents;
  for (const Expr& leaf : f.prepared().exponents)
    if (leaf->has_default) exponents.push_back(leaf->value);
  const bool bound = exponents.size() == f.prepared().exponents.size() && !exponents.empty();
  plan::PairProblem problem;
  problem.outputs = {bound ? f.prepared().bound(exponents)->expression : f.expression()};
  problem.type = compute_type(dtype);
  problem.target = target;
  problem.empty_features = shape.k == 0;
  problem.rows_hint = shape.m < 8 ? shape.m : 8;
  return plan::plan_pairs(problem);
}

std::string pipes(const ir::Program& program, const plan::TargetInfo& target) {
  const plan::PipeCount count = plan::count_pipes(program, target);
  return fmt::format("multiply {:.1f}, add {:.1f}, either {:.1f}, shuffle {:.1f}: {:.2f} cycles a vector", count.fma,
                     count.add, count.either, count.shuffle, count.cycles());
}

std::string section(const char* title, const std::string& text) { return fmt::format("## {}\n{}\n", title, text); }

}  // namespace

double measure_clock() {
  // A dependent integer addition takes one cycle on every x86-64 core of this century.
  constexpr std::int64_t kAdditions = 40'000'000;
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    std::uint64_t value = 1;
    for (std::int64_t i = 0; i < kAdditions / 8; ++i)
      asm volatile("add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0"
                   : "+r"(value));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(kAdditions) / seconds.count() * 1e-9);
  }
  return best;
}

double floor_rate(const Formula& f, ExplainShape shape, Dtype dtype, Target target, double gigahertz) {
  return plan::floor_of(*plan_of(f, shape, dtype, target)).elements_per_second(gigahertz, shape.k);
}

std::string explain(const Formula& f, ExplainShape shape, Dtype dtype, Target target) {
  require(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "explain: sizes must not be negative. Received {}x{}x{}.", shape.m,
          shape.n, shape.k);
  const auto plan = plan_of(f, shape, dtype, target);
  const plan::TargetInfo& info = plan::target_info(target);
  const plan::PairVariant& variant = plan->has_fast ? plan->fast : plan->general;
  const plan::Floor floor = plan::floor_of(*plan);
  const double elements = static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  const double pairs = static_cast<double>(shape.m) * static_cast<double>(shape.n);
  const double cycles = (elements * floor.update_cycles + pairs * floor.epilogue_cycles) / floor.lanes;
  std::string text;
  text += section("formula", f.expression().to_text() + (f.symmetric() ? "\nsymmetric: z = x computes half of the pairs" : "") + "\n");
  text += section("split", variant.split.to_text());
  text += section("plan", plan->to_text() + fmt::format("features in chunks of {}\n", plan->chunk(shape.k)));
  if (!plan->promoted.empty()) text += section("update, per (m, n, k)", variant.update.to_text() + pipes(variant.update, info) + "\n");
  text += section("epilogue, per (m, n)", variant.epilogue.to_text() + pipes(variant.epilogue, info) + "\n");
  if (target != Target::interpreter) {
    const auto update_bytes = plan->promoted.empty() ? 0 : codegen::emit_update(plan->update_source(plan->has_fast)).size();
    text += section("code", fmt::format("update {} bytes, epilogue {} bytes\n", update_bytes,
                                        codegen::emit_epilogue(plan->epilogue_source(plan->has_fast)).size()));
  }
  text += section("floor", fmt::format("{} x {} x {}: {:.4g} cycles on one core, {:.2f} elements a cycle\n", shape.m, shape.n,
                                       shape.k, cycles, cycles > 0 ? elements / cycles : 0.0));
  return text;
}

}  // namespace mercer
