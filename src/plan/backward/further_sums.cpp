#include "plan/backward/further_sums.h"

#include "ir/passes/passes.h"
#include "plan/forms/field_factors.h"

namespace mercer::plan {

std::string FurtherSums::names() const {
  std::string names;
  for (const Expr& leaf : by) names += "by " + leaf.to_text() + ' ';
  return names + (product ? "product " : "") + (weights ? "w " : "") + (without_weight ? "without weight" : "");
}

ir::FieldSplit field_of(const Expr& formula, const Expr& derivative, const FurtherSums& further, double most_scale) {
  const Expr by_weights = further.weights ? ir::simplify(differentiate(formula, weights())) : Expr();
  ir::FieldSplit field = ir::split_field(derivative, by_weights, {.most_scale = most_scale});
  if (!further.without_weight) return field;
  for (Expr* const phi : {&field.field, &field.scaled}) {
    if (phi->empty()) continue;
    const WeightedField weighted = weighted_field(*phi);
    if (!weighted.rest.empty()) *phi = ir::simplify(weighted.rest);
  }
  return field;
}

void add_outputs(std::vector<Expr>& outputs, const Expr& formula, const FurtherSums& further) {
  for (const Expr& leaf : further.by) outputs.push_back(differentiate(formula, leaf));
  if (further.product) outputs.push_back(formula);
}

}  // namespace mercer::plan
