#include "plan/gpu/gradient_values.h"

#include <algorithm>

#include "ir/passes/passes.h"
#include "plan/forms/absolute_sums.h"
#include "plan/forms/bilinear.h"

namespace mercer::plan {
namespace {

bool has_value_as_factor(const Expr& amplitude) {
  if (amplitude->op == ir::Op::pair_value) return amplitude->slot == 0;
  if (amplitude->op != ir::Op::mul && amplitude->op != ir::Op::neg) return false;
  return std::any_of(amplitude->args.begin(), amplitude->args.end(), has_value_as_factor);
}

/// Whether a distance is zero where the points are the same and nowhere else.
bool is_distance_of_points(const Expr& sum) {
  const ir::Split split = ir::split({sum});
  const Bilinear squares = bilinear_of(split);
  const bool of_squares = squares.kind == BilinearKind::square && !squares.weighted() && squares.uniforms.empty();
  return (of_squares || factor_of_absolute_differences(split) > 0) && split.x_streams[0]->op == ir::Op::x &&
         split.z_streams[0]->op == ir::Op::z;
}

}  // namespace

Expr without_duplicates(const Expr& amplitude, const Expr& at_zero) {
  Expr distance;
  int reductions = 0;
  ir::for_each(amplitude, [&](const Expr& node) {
    if (node->op != ir::Op::sum) return;
    distance = node;
    ++reductions;
  });
  if (reductions != 1 || !is_distance_of_points(distance)) return amplitude;
  return ir::simplify(where(equal(distance, 0.0), at_zero, amplitude));
}

std::vector<Expr> values_of(const GpuFieldPlan& field) {
  std::vector<Expr> values = field.problem.field.pair_outputs;
  if (!field.problem.field.extra.empty()) return values;  // the field of w need not be zero where the points are equal
  const bool is_factor = values.size() == 1 && field.factors && has_value_as_factor(field.factors.amplitude);
  if (field.is_linear() && field.of_differences() && is_factor)
    values[0] = without_duplicates(values[0], 0.0);
  else if (field.has_units() && is_factor)
    values[0] = without_duplicates(values[0], values[0] * 0.0);
  return values;
}

ir::FieldSplit amplitude_field(const Expr& phi, Dtype type) {
  const bool keep_ptx = type == Dtype::float32;
  const ir::FieldSplit field = ir::split_amplitude_field(phi, false, {.keep_ptx = keep_ptx});
  if (factors_of(field.field)) return field;
  const ir::FieldSplit stored = ir::split_amplitude_field(phi, true, {.keep_ptx = keep_ptx});
  return factors_of(stored.field).linear == FieldFactors::Linear::none ? field : stored;
}

}  // namespace mercer::plan
