#include "plan/forms/absolute_sums.h"

#include <algorithm>
#include <cmath>

#include "ir/passes/passes.h"

namespace mercer::plan {
namespace {

using ir::Op;

/// c of c |x - z| as `type` holds it; 0 for any other term.
double factor_of(const Expr& term, Dtype type) {
  if (term->op == Op::mul)
    for (std::size_t i : {0, 1})
      if (term->args[i]->op == Op::constant) {
        const double value = term->args[i]->value;
        const double c = type == Dtype::float64 ? value : static_cast<double>(static_cast<float>(value));
        return c > 0 && std::isnormal(static_cast<float>(c)) ? c * factor_of(term->args[1 - i], type) : 0;
      }
  if (term->op != Op::abs || term->args[0]->op != Op::sub) return 0;
  const Expr &left = term->args[0]->args[0], &right = term->args[0]->args[1];
  return (left->op == Op::x && right->op == Op::z) || (left->op == Op::z && right->op == Op::x) ? 1 : 0;
}

/// a of e = a s + b, s the only accumulator; empty where e is none, or b is not free of points.
Expr slope_of(const Expr& e) {
  if (e->op == Op::accumulator) return Expr(1.0);
  switch (e->op) {
    case Op::neg: {
      const Expr slope = slope_of(e->args[0]);
      return slope.empty() ? slope : -slope;
    }
    case Op::div: {
      const Expr slope = ir::is_uniform(e->args[1]) ? slope_of(e->args[0]) : Expr();
      return slope.empty() ? slope : slope / e->args[1];
    }
    case Op::mul:
    case Op::add:
    case Op::sub:
      for (std::size_t i : {0, 1})
        if (ir::is_uniform(e->args[1 - i])) {
          const Expr slope = slope_of(e->args[i]);
          if (slope.empty()) return slope;
          return e->op == Op::mul ? slope * e->args[1 - i] : e->op == Op::sub && i == 1 ? -slope : slope;
        }
      return {};
    default: return {};
  }
}

/// f' / f of f = c exp(a s + b).
Expr relative_slope_of(const Expr& f) {
  constexpr double kLogOf2 = 0.6931471805599453;
  switch (f->op) {
    case Op::exp: return slope_of(f->args[0]);
    case Op::exp2: {
      const Expr slope = slope_of(f->args[0]);
      return slope.empty() ? slope : slope * kLogOf2;
    }
    case Op::neg: return relative_slope_of(f->args[0]);
    case Op::div: return ir::is_uniform(f->args[1]) ? relative_slope_of(f->args[0]) : Expr();
    case Op::mul:
      for (std::size_t i : {0, 1})
        if (ir::is_uniform(f->args[1 - i])) return relative_slope_of(f->args[i]);
      return {};
    default: return {};
  }
}

}  // namespace

double factor_of_absolute_differences(const ir::Split& split, Dtype type) {
  if (split.states != 1 || split.reductions.size() != 1 || split.reductions[0].kind != Op::sum) return 0;
  if (split.x_streams.size() != 1 || split.z_streams.size() != 1) return 0;
  const Expr& update = split.reductions[0].update[0];
  if (update->op != Op::add) return 0;
  for (std::size_t i : {0, 1})
    if (update->args[i]->op == Op::accumulator) return factor_of(update->args[1 - i], type);
  return 0;
}

Expr relative_slope_of(const ir::Split& split) {
  if (split.states != 1 || split.epilogue.empty()) return {};
  const Expr slope = relative_slope_of(split.epilogue[0]);
  const auto is_other = [&](const Expr& output) {
    const Expr own = relative_slope_of(output);
    return own.empty() || !same(own, slope);
  };
  return slope.empty() || std::ranges::any_of(split.epilogue, is_other) ? Expr() : slope;
}

Expr allowance_of(const ir::Split& split) {
  const Expr slope = relative_slope_of(split);
  return slope.empty() ? slope : 1.0 / abs(slope);
}

}  // namespace mercer::plan
