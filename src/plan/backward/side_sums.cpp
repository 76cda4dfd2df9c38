#include "plan/backward/side_sums.h"

#include "ir/passes/passes.h"
#include "plan/forms/field_factors.h"

namespace mercer::plan {

std::string SideSums::names() const {
  std::string names;
  for (const Expr& leaf : by) names += "by " + leaf.to_text() + ' ';
  return names + (product ? "product " : "") + (weights ? "w " : "") + (without_weight ? "without weight" : "");
}

ir::FieldSplit field_of(const Expr& formula, const Expr& derivative, const SideSums& side_sums, double most_scale) {
  const Expr by_weights = side_sums.weights ? ir::simplify(differentiate(formula, weights())) : Expr();
  ir::FieldSplit field = ir::split_field(derivative, by_weights, {.most_scale = most_scale});
  if (!side_sums.without_weight) return field;
  for (Expr* const phi : {&field.field, &field.scaled}) {
    if (phi->empty()) continue;
    const WeightedField weighted = weighted_field(*phi);
    if (!weighted.rest.empty()) *phi = ir::simplify(weighted.rest);
  }
  return field;
}

void add_outputs(std::vector<Expr>& outputs, const Expr& formula, const SideSums& side_sums) {
  for (const Expr& leaf : side_sums.by) outputs.push_back(differentiate(formula, leaf));
  if (side_sums.product) outputs.push_back(formula);
}

}  // namespace mercer::plan
