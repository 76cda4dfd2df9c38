// is_nonnegative: a value that is at least +0, or NaN; never -0. Decided bottom-up from the ops; `false` means unknown.
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
    case Op::features: case Op::abs: case Op::exp: case Op::exp2: case Op::acos: return true;
    // Odd or monotonic functions through 0, and rounding. sqrt(-0) is -0, so sqrt needs the condition too.
    case Op::sqrt: case Op::rsqrt: case Op::rcp: case Op::sign: case Op::asin: case Op::tanh: case Op::erf:
    case Op::expm1: case Op::log1p: case Op::floor: case Op::ceil: case Op::round: case Op::atan2:
    case Op::sum: case Op::prod: case Op::min_over: return holds(0);
    case Op::mul: return same(n.args[0], n.args[1]) || (holds(0) && holds(1));
    case Op::add: case Op::div: case Op::min: return holds(0) && holds(1);
    case Op::max: return holds(0) || holds(1);
    case Op::pow: return is_even(n.args[1]) || holds(0);
    case Op::where: return holds(1) && holds(2);
    case Op::pinned: return holds(0);
    case Op::ptx: return holds(n.args.size() - 1);
    case Op::fma: return holds(2) && (same(n.args[0], n.args[1]) || (holds(0) && holds(1)));
    default: return !is_leaf(n.op) && !is_reduction(n.op) && info(n.op).boolean;
  }
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
