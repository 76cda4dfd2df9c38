#include "ir/passes/log_power.h"

#include <cmath>
#include <vector>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

bool is_number(const Expr& e) { return e->op == Op::constant; }

Expr product(const Expr& a, const Expr& b) {
  return is_number(a) && is_number(b) ? constant(a->value * b->value) : a * b;
}

Expr quotient(const Expr& a, const Expr& b) {
  return is_number(a) && is_number(b) ? constant(a->value / b->value) : a / b;
}

/// The factor of log(t) in e, and t.
LogPower factor_of(Op log, const Expr& e, ExprMap<bool>& nonnegative) {
  if (e->op == log) return is_nonnegative(e->args[0], nonnegative) ? LogPower{e->args[0], 1.0} : LogPower{};
  if (e->op != Op::mul && e->op != Op::div && e->op != Op::neg) return {};
  LogPower found = factor_of(log, e->args[0], nonnegative);
  if (!found.base.empty()) {
    if (e->op == Op::neg) return {found.base, product(-1.0, found.exponent)};
    return {found.base, e->op == Op::div ? quotient(found.exponent, e->args[1]) : product(found.exponent, e->args[1])};
  }
  if (e->op != Op::mul) return {};
  found = factor_of(log, e->args[1], nonnegative);
  return found.base.empty() ? LogPower{} : LogPower{found.base, product(e->args[0], found.exponent)};
}

class Rewriter {
 public:
  Expr operator()(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    std::vector<Expr> args;
    for (const Expr& a : e->args) args.push_back((*this)(a));
    const Expr node = args.empty() ? e : with_args(e, std::move(args));
    const LogPower found = read_log_power(node, nonnegative_);
    const bool serves = !found.base.empty() && is_number(found.exponent) && std::isfinite(found.exponent->value) &&
                        found.exponent->value != 0;
    return seen_.emplace(e, serves ? pow(found.base, found.exponent) : node).first->second;
  }

 private:
  ExprMap<Expr> seen_;
  ExprMap<bool> nonnegative_;
};

}  // namespace

LogPower read_log_power(const Expr& e, ExprMap<bool>& nonnegative) {
  if (e->op == Op::exp2) return factor_of(Op::log2, e->args[0], nonnegative);
  if (e->op == Op::exp) return factor_of(Op::log, e->args[0], nonnegative);
  return {};
}

Expr with_log_powers(const Expr& e) {
  const Expr result = Rewriter()(e);
  return same(result, e) ? e : simplify(result);
}

}  // namespace mercer::ir
