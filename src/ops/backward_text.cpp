// Backwards as text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/cuda_driver.h"
#include "ops/backward_plan.h"
#include "ops/dump.h"
#include "ops/explain_parts.h"
#include "ops/prepared.h"

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
                    text_of(plan_backward(request)));
  }
  return text;
}

const char* name_of(BackwardPass::Verb verb) {
  constexpr const char* kNames[] = {
      "point_form", "product_backward", "pairwise_backward", "linear_form", "linear_form_by_pass",
      "field",      "sums",             "product",           "direction",   "point_form_back"};
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
