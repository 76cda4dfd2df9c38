// The passes of mercer.parameter_gradient, for arrays whose library does not follow the verbs: no gradient by w is made
// of those by the points, and as many passes as the names want.
#include <algorithm>
#include <iterator>
#include <utility>

#include "ir/passes/passes.h"
#include "ops/call/prepared.h"
#include "ops/pairs/backward_plan.h"
#include "plan/backward/backward_costs.h"
#include "plan/gpu/sums/bilinear_tile.h"

namespace mercer::ops {
namespace {

using Names = std::vector<std::string>;
using Verb = BackwardPass::Verb;

class ParameterPlanner {
 public:
  explicit ParameterPlanner(const BackwardRequest& request) : request_(request) {}

  std::vector<BackwardPass> plan() {
    const Formula formula(request_.formula), swapped(ir::swap_sides(request_.formula));
    const bool has_same_sides =
        request_.same_points && request_.same_row && request_.same_offsets && formula.symmetric();
    // The weights of both sides at once give row the mean of its derivative and col's: here each is a result.
    const bool both = wants("x") && has_same_sides && request_.weights == PairWeights::factors && !wants("row");
    const bool of_z = wants("z") || (wants("x") && request_.same_points && !both);
    // What has no side goes with the rows x, unless those with z are the one pass.
    const bool goes_with_x = wants("x") || wants("row") || !(of_z || wants("col"));
    add_side(formula, both ? PassRows::both : PassRows::x, goes_with_x ? numbers() : Names(), wants("row"),
             wants("x") ? "x" : "", wants("w") && goes_with_x);
    if (of_z || wants("col"))
      add_side(swapped, PassRows::z, goes_with_x ? Names() : numbers(), wants("col"),
               of_z ? (request_.same_points ? "x" : "z") : "", wants("w") && !goes_with_x);
    return std::move(passes_);
  }

 private:
  bool wants(const std::string& leaf) const {
    return std::find(request_.wanted.begin(), request_.wanted.end(), leaf) != request_.wanted.end();
  }
  Names numbers() const {
    Names names;
    std::copy_if(request_.wanted.begin(), request_.wanted.end(), std::back_inserter(names),
                 [](const std::string& leaf) { return leaf.starts_with("p:"); });
    return names;
  }
  /// Sums alone: a pass has a field all the same.
  bool go_alone(std::size_t names) const {
    const plan::BackwardCosts& costs = plan::backward_costs(request_.capability);
    if (request_.weights == PairWeights::factors) return names <= costs.names_alone_of_factors;
    return names <= costs.names_alone_of_matrix && request_.k > plan::kFewFeatures;
  }
  static std::string leaf_of(const std::string& by, PassRows rows) {
    return by == "row" && rows == PassRows::z ? "col" : by;
  }

  /// `field`: the leaf that the field of the rows is for; empty where it is not wanted.
  void add_side(const Formula& formula, PassRows rows, Names names, bool by_row, const std::string& field, bool by_w) {
    if (by_row) names.push_back("row");
    const bool is_empty = request_.m == 0 || request_.n == 0 || request_.k == 0;
    const bool has_fields = !field.empty() || by_w;
    Names alone;
    if (is_empty || (!has_fields && go_alone(names.size()))) alone = std::exchange(names, {});
    if (!is_empty && (has_fields || !names.empty())) add_passes(formula, rows, names, field, by_w, alone);
    for (const std::string& name : alone)
      passes_.push_back({.verb = Verb::sums, .rows = rows, .by = {name}, .yields = {leaf_of(name, rows)}});
  }

  /// One for each so many names; those that it cannot have are appended to `alone`.
  void add_passes(const Formula& formula, PassRows rows, const Names& names, std::string field, bool by_w,
                  Names& alone) {
    const SummedLeaves leaves = summed_leaves(formula, request_.arrays);
    for (std::size_t first = 0; first == 0 || first < names.size(); first += kMostSums) {
      const auto begin = names.begin() + static_cast<std::ptrdiff_t>(first);
      Names some(begin, begin + static_cast<std::ptrdiff_t>(std::min(kMostSums, names.size() - first)));
      const PassParts parts = parts_of(leaves, some, by_w);
      if (!parts.sums) alone.insert(alone.end(), some.begin(), some.end()), some.clear();
      const bool has_w = std::exchange(by_w, false) && parts.weights;
      if (!parts.sums && field.empty() && !has_w) continue;
      if (has_w) some.insert(some.begin(), "w");
      BackwardPass pass{.verb = verb(), .rows = rows, .by = some, .yields = {std::exchange(field, "")}};
      for (const std::string& by : some) pass.yields.push_back(leaf_of(by, rows));
      passes_.push_back(std::move(pass));
    }
  }
  Verb verb() const {
    return request_.weights == PairWeights::factors ? Verb::product_backward : Verb::pairwise_backward;
  }

  const BackwardRequest& request_;
  std::vector<BackwardPass> passes_;
};

}  // namespace

std::vector<BackwardPass> plan_parameter_gradient(const BackwardRequest& request) {
  return ParameterPlanner(request).plan();
}

}  // namespace mercer::ops
