// is_nonnegative: a value that is at least +0, or NaN; never -0. Decided bottom-up from the table of ops, and here
// where two arguments say more than each of them; `false` means unknown.
//
// NOTE: max over no features is -Inf: a maximum of non-negative terms is not known to be non-negative.
#include <cmath>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

bool is_even(const Expr& e) { return e->op == Op::constant && std::fmod(e->value, 2.0) == 0; }

bool decide(const Node& n, ExprMap<bool>& memo) {
  const auto holds = [&](std::size_t i) { return is_nonnegative(n.args[i], memo); };
  switch (n.op) {
    case Op::constant: return !std::signbit(n.value);
    case Op::features: return true;
    case Op::sum: case Op::prod: case Op::min_over: return holds(0);
    case Op::mul: return same(n.args[0], n.args[1]) || (holds(0) && holds(1));
    case Op::max: return holds(0) || holds(1);
    case Op::pow: return is_even(n.args[1]) || holds(0);
    case Op::where: return holds(1) && holds(2);
    case Op::ptx: return holds(n.args.size() - 1);
    case Op::fma: return holds(2) && (same(n.args[0], n.args[1]) || (holds(0) && holds(1)));
    default: break;
  }
  const OpTraits& known = traits(n.op);
  switch (known.sign) {
    case Sign::nonnegative: return true;
    case Sign::as_argument: return holds(0);
    case Sign::as_arguments: return holds(0) && holds(1);
    case Sign::unknown: break;
  }
  return known.boolean;
}

}  // namespace

bool is_nonnegative(const Expr& e, ExprMap<bool>& memo) {
  if (auto it = memo.find(e); it != memo.end()) return it->second;
  const bool result = decide(*e, memo);
  memo.emplace(e, result);
  return result;
}

bool is_nonnegative(const Expr& e) {
  ExprMap<bool> memo;
  return is_nonnegative(e, memo);
}

}  // namespace mercer::ir
