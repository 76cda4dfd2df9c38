#include "plan/forms/linear_form.h"

#include <cmath>
#include <vector>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"
#include "plan/forms/weight_factors.h"

namespace mercer::plan {
namespace {

using ir::Op;

struct Product {
  double scale = 1;
  std::vector<Expr> factors;
};

void collect(const Expr& e, Product& product) {
  if (e->op == Op::constant) {
    product.scale *= e->value;
  } else if (e->op == Op::neg) {
    product.scale = -product.scale;
    collect(e->args[0], product);
  } else if (e->op == Op::mul) {
    for (const Expr& factor : e->args) collect(factor, product);
  } else if (e->op == Op::div && e->args[1]->op == Op::constant) {
    product.scale /= e->args[1]->value;
    collect(e->args[0], product);
  } else {
    product.factors.push_back(e);
  }
}

/// f as sign times what is left without constants that are added.
Expr without_constants(Expr f, double& sign, double& offset) {
  for (;;) {
    if (f->op == Op::neg) {
      sign = -sign;
      f = f->args[0];
      continue;
    }
    const bool adds = f->op == Op::add, subtracts = f->op == Op::sub;
    if (!adds && !subtracts) return f;
    const int constant = f->args[1]->op == Op::constant ? 1 : 0;
    if (f->args[constant]->op != Op::constant) return f;
    const double value = f->args[constant]->value;
    offset += sign * (subtracts && constant == 1 ? -value : value);
    if (subtracts && constant == 0) sign = -sign;
    f = f->args[1 - constant];
  }
}

bool take(bool& found) {
  const bool is_first = !found;
  found = true;
  return is_first;
}

/// The term of the sum: x, z and at most one factor of w.
bool read_term(const Expr& term, LinearForm& form) {
  Product product;
  collect(term, product);
  form.scale *= product.scale;
  bool has_x = false, has_z = false, has_weight = false;
  for (const Expr& factor : product.factors) {
    if (factor->op == Op::x && take(has_x)) continue;
    if (factor->op == Op::z && take(has_z)) continue;
    if (!WeightFactors::is_weight(factor) || !take(has_weight)) return false;
    form.weight = ir::simplify(ir::substitute(factor, {{ir::leaf(Op::w), row_value()}}));
    form.slope = ir::simplify(differentiate(form.weight, row_value()));
  }
  return has_x && has_z;
}

}  // namespace

LinearForm linear_form(const Expr& given) {
  LinearForm form;
  double sign = 1;
  const Expr f = without_constants(ir::simplify(given), sign, form.offset);
  Product product;
  collect(f, product);
  form.scale = sign * product.scale;
  bool has_sum = false;
  for (const Expr& factor : product.factors) {
    if (factor->op == Op::row && take(form.of_row)) continue;
    if (factor->op == Op::col && take(form.of_col)) continue;
    if (factor->op != Op::sum || !take(has_sum) || !read_term(factor->args[0], form)) return {};
  }
  return has_sum && std::isfinite(form.scale) && std::isfinite(form.offset) ? form : LinearForm{};
}

}  // namespace mercer::plan
