#include "ir/passes/along.h"

#include <algorithm>
#include <limits>

#include "ir/expr/ops.h"
#include "ir/passes/chain_products.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Whether an exponential in it may overflow.
bool has_exponential(const Expr& e) {
  bool found = false;
  for_each(e, [&](const Expr& n) { found |= n->op == Op::exp || n->op == Op::exp2 || n->op == Op::expm1; });
  return found;
}

/// The part of the derivative of self = a / below that the divisor gives, with exponentials in the latter: those of
/// -self (d / below) cancel, where (self / below) d would be 0 times infinity. An infinite divisor gives 0.
Expr by_divisor(const Expr& self, const Expr& below, const Expr& d) {
  const Expr infinite = equal(abs(below), kInf);
  const Expr singular = make(Op::logical_or, {equal(below, 0.0), infinite});
  return where(singular, 0.0, -times(self, times(rcp(below), d)));
}

}  // namespace

bool matches(const Expr& e, const Expr& target) {
  return target->op == Op::param ? e->op == Op::param && e->name == target->name : same(e, target);
}

Expr Along::operator()(const Expr& e) {
  if (auto it = seen_.find(e); it != seen_.end()) return it->second;
  const Expr result = matches(e, target_) ? step_ : is_leaf(e->op) || is_reduction(e->op) ? Expr(0.0) : chain(e);
  seen_.emplace(e, result);
  return result;
}

Expr Along::chain(const Expr& e) {
  std::vector<Expr> d;
  for (const Expr& a : e->args) d.push_back((*this)(a));
  const OpInfo& row = info(e->op);
  if (row.derivative == nullptr || std::all_of(d.begin(), d.end(), is_zero)) return 0.0;
  // where has a rule of its own: a branch not taken must not reach the result, whatever its derivative is.
  if (e->op == Op::where) return where(e->args[0], d[1], d[2]);
  const std::vector<Expr> partials = row.derivative(e->args, e);
  Expr total = 0.0;
  const bool divides = e->op == Op::div || e->op == Op::rcp;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const bool is_divisor = divides && i + 1 == d.size() && has_exponential(d[i]);
    total = plus(total, is_divisor ? by_divisor(e, e->args[i], d[i]) : times(partials[i], d[i]));
  }
  return total;
}

}  // namespace mercer::ir
