#include "plan/forms/rank_field.h"

#include "ir/passes/passes.h"
#include "plan/forms/field_factors.h"

namespace mercer::plan {

RankField rank_field_of(const ir::FieldSplit& field) {
  const FieldFactors factors = factors_of(field.field);
  if (!factors || factors.linear == FieldFactors::Linear::none) return {};
  ir::ExprMap<Expr> values;
  for (int u = 0; u < static_cast<int>(field.uniforms.size()); ++u)
    values[ir::uniform_leaf(u)] = field.uniforms[static_cast<std::size_t>(u)];
  for (int p = 0; p < static_cast<int>(field.pair_outputs.size()); ++p)
    values[ir::leaf(ir::Op::pair_value, p)] = field.pair_outputs[static_cast<std::size_t>(p)];
  RankField result;
  result.amplitude = ir::simplify(ir::substitute(factors.amplitude, values));
  result.of_differences = factors.linear == FieldFactors::Linear::difference;
  result.weight = factors.weight;
  if (factors.weighted()) result.weight_text = factors.weight.to_text();
  result.scale = factors.scale;
  return result;
}

}  // namespace mercer::plan
