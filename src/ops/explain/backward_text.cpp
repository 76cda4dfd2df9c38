// Backwards as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/devices/cuda_driver.h"
#include "core/error.h"
#include "ir/passes/split.h"
#include "mercer/formula.h"
#include "ops/call/prepared.h"
#include "ops/dump.h"
#include "ops/explain/explain_parts.h"
#include "ops/pairs/backward_plan.h"

namespace mercer::ops {
namespace {

using Names = std::vector<std::string>;

/// Leaves that results are added to, each once.
std::string leaves_text(const Names& yields) {
  Names leaves;
  for (const std::string& leaf : yields)
    if (!leaf.empty() && std::find(leaves.begin(), leaves.end(), leaf) == leaves.end()) leaves.push_back(leaf);
  return leaves.empty() ? "" : fmt::format(" -> {}", fmt::join(leaves, " "));
}

std::string line_of(const BackwardPass& pass) {
  using Verb = BackwardPass::Verb;
  std::string line = name_of(pass.verb);
  if (pass.verb == Verb::point_form) return line + ": goes on with " + pass.formula;
  if (pass.verb != Verb::point_form_back) line += fmt::format(", rows {}", name_of(pass.rows));
  if (!pass.by.empty()) line += fmt::format(", by {}", fmt::join(pass.by, " "));
  if (pass.product) line += ", with the product";
  if (pass.without_weight) line += ", without the factor of w";
  return line + leaves_text(pass.yields);
}

/// The derivative by a leaf of a formula is added up.
void add_sums(const Formula& formula, const Names& by, plan::SideSums& side_sums) {
  for (const std::string& name : by) {
    if (name == "w")
      side_sums.weights = true;
    else if (name == "row")
      side_sums.by.push_back(row_value());
    for (const Expr& leaf : formula.prepared().params)
      if (name == "p:" + leaf->name) side_sums.by.push_back(leaf);
  }
}

/// The call that a pass over the pairs makes, of a formula as its rows have it.
plan::Request request_of(const BackwardRequest& backward, const BackwardPass& pass, const Formula& formula,
                         Dtype points) {
  using Kind = plan::FieldWeights::Kind;
  using Verb = BackwardPass::Verb;
  const bool of_matrix = pass.verb == Verb::pairwise_backward || pass.verb == Verb::linear_form_by_pass;
  plan::Request request;
  request.verb = pass.verb == Verb::product ? plan::Verb::product : plan::Verb::gradient;
  request.m = backward.m, request.n = backward.n, request.k = backward.k;
  if (pass.rows == PassRows::z) std::swap(request.m, request.n);
  request.columns = of_matrix ? 1 : pass.rows == PassRows::both ? 2 * backward.columns : backward.columns;
  request.type = request.out = backward.type;
  request.points = points;
  request.by_value = true;
  request.gradient.weights = of_matrix ? Kind::matrix : Kind::factors;
  if (pass.verb == Verb::linear_form_by_pass) return request;  // what else it has is computed elsewhere
  add_sums(formula, pass.by, request.gradient.side_sums);
  request.gradient.side_sums.product = request.verb == plan::Verb::gradient && pass.product;
  request.gradient.side_sums.without_weight = pass.without_weight;
  return request;
}

/// What the ways of a pass say, or why it cannot run: a reduction without a derivative, say.
std::string ways_or_error(const Formula& of_rows, const plan::Request& request, const std::string& target) {
  try {
    return ways_on_gpu(of_rows, request, target);
  } catch (const Error& error) {
    return fmt::format("cannot run: {}\n", error.what());
  }
}

/// The passes on a GPU, and what the ways of those over the pairs say.
std::string with_ways(const BackwardRequest& request, const std::string& target, Dtype points) {
  using Verb = BackwardPass::Verb;
  std::string text;
  Expr f = request.formula;
  for (const BackwardPass& pass : plan_backward(request)) {
    text += line_of(pass) + "\n";
    if (pass.verb == Verb::point_form) f = parse(pass.formula), points = request.type;
    const bool is_linear = pass.verb == Verb::linear_form_by_pass;
    const bool asks_ways = is_linear || pass.verb == Verb::product_backward || pass.verb == Verb::pairwise_backward ||
                           pass.verb == Verb::product;
    if (!asks_ways) continue;
    const Expr own = is_linear ? sum(mercer::points().x * mercer::points().z) : f;
    const Formula of_rows(pass.rows == PassRows::z ? ir::swap_sides(own) : own);
    const Dtype stored = is_linear ? request.type : points;
    text += ways_or_error(of_rows, request_of(request, pass, of_rows, stored), target);
  }
  return text;
}

std::string on_cpu(const BackwardRequest& request) {
  return text_of(plan_backward(request)) + ways_of_both_sides(request);
}

/// The capability of a target that explain() knows.
int capability_of(const std::string& target) {
  if (!is_gpu_target(target)) return 0;
  int number = 0;
  const std::size_t digits = std::min(target.find_first_of("0123456789"), target.size());
  std::from_chars(target.data() + digits, target.data() + target.size(), number);
  return target.starts_with("sm_") ? number : cuda_device(number).capability();
}

}  // namespace

std::string text_of(const std::vector<BackwardPass>& passes) {
  std::string text;
  for (const BackwardPass& pass : passes) text += line_of(pass) + "\n";
  return text;
}

std::vector<BackwardPass> dumped(const BackwardRequest& request, std::vector<BackwardPass> passes) {
  if (DumpStages::from_environment().plan)
    print_dump(fmt::format("## backward of {}\n{}", request.formula.to_text(), text_of(passes)));
  return passes;
}

std::string explain_backward(const Formula& f, ExplainShape shape, Dtype dtype, const std::string& target) {
  const Formula::Prepared& prepared = f.prepared();
  BackwardRequest request;
  request.formula = prepared.written;
  request.m = shape.m, request.n = shape.n, request.k = shape.k;
  request.type = compute_type(dtype);
  request.capability = capability_of(target);
  request.has_w = prepared.uses.w, request.has_row = prepared.uses.row, request.has_col = prepared.uses.col;
  request.in_memory = true;
  request.wanted = {"x", "z"};
  for (const auto& [leaf, is_read] :
       {std::pair{"w", request.has_w}, {"row", request.has_row}, {"col", request.has_col}})
    if (is_read) request.wanted.push_back(leaf);
  for (const Expr& leaf : prepared.params) request.wanted.push_back("p:" + leaf->name);
  std::string text;
  for (const PairWeights weights : {PairWeights::matrix, PairWeights::factors}) {
    request.weights = weights;
    const bool of_product = weights == PairWeights::factors;
    if (of_product) request.wanted.push_back("v");
    text += section(fmt::format("backward of {}, by {}", of_product ? "kernel_product" : "pairwise",
                                fmt::join(request.wanted, " ")),
                    is_gpu_target(target) ? with_ways(request, target, dtype) + costs_on_gpu(target)
                                          : on_cpu(request));
  }
  return text;
}

const char* name_of(BackwardPass::Verb verb) {
  constexpr const char* kNames[] = {
      "point_form",          "product_backward", "pairwise_backward", "both_sides", "linear_form",
      "linear_form_by_pass", "field",            "sums",              "product",    "direction",
      "point_form_back"};
  return kNames[static_cast<int>(verb)];
}

const char* name_of(PassRows rows) {
  constexpr const char* kNames[] = {"x", "z", "both"};
  return kNames[static_cast<int>(rows)];
}

const char* name_of(FieldVerb verb) {
  constexpr const char* kNames[] = {"product_gradient", "product_backward", "pairwise_backward", "by_rows",
                                    "contraction"};
  return kNames[static_cast<int>(verb)];
}

}  // namespace mercer::ops
