// simplify: constant folding, algebraic rules, canonical order. The value stays the same bit for bit, signed zeros and
// Inf included; a NaN stays a NaN (its payload is not kept). So there is no x*0 = 0, no x - x = 0, no reassociation.
//
// One exception, for constant exponents: x^n becomes a chain of multiplications for |n| <= 8, half-integers one with a
// square root. With u = 2^-53 the relative error of x^n is at most (n - 1) u; a square root adds 2u (itself and its
// product), a reciprocal u. (A negative power of |x| > sqrt(max) may lose a subnormal result to 0.)
//
// Reductions are not folded: K is not known.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/system/mutex.h"
#include "ir/expr/ops.h"
#include "ir/expr/order.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

using Args = const std::vector<Expr>&;

struct Context {
  bool expand_powers = true;
  ExprMap<bool> nonnegative{};
};

const Expr kNone;  // the rule does not apply

bool is(const Expr& e, Op op) { return e->op == op; }
bool is_number(const Expr& e) { return e->op == Op::constant; }
bool is_one(const Expr& e) { return is_constant(e, 1.0); }
bool is_zero(const Expr& e) { return is_number(e) && e->value == 0; }
bool is_negative(const Expr& e) { return is_number(e) && std::signbit(e->value); }
bool is_boolean(const Expr& e) { return !is_leaf(e->op) && !is_reduction(e->op) && info(e->op).boolean; }
const Expr& in(const Expr& e) { return e->args[0]; }
Expr number(double v) { return constant(v); }
Expr negated(const Expr& e) { return constant(-e->value); }
bool nonneg(const Expr& e, Context& c) { return is_nonnegative(e, c.nonnegative); }
bool ordered(const Expr& a, const Expr& b) { return compare(a, b) <= 0; }
bool is_rounded(const Expr& e) { return is(e, Op::floor) || is(e, Op::ceil) || is(e, Op::round); }

/// What x^1.5 was expanded to: kept as a power, its derivative is one term.
bool is_root_of(const Expr& u, const Expr& root, Context& c) {
  return is(root, Op::sqrt) && same(in(root), u) && nonneg(u, c);
}

/// c = ±2^k whose reciprocal is exact and normal, in float too.
bool is_power_of_two(const Expr& e) {
  if (!is_number(e) || !std::isnormal(e->value)) return false;
  int exponent = 0;
  return std::abs(std::frexp(e->value, &exponent)) == 0.5 && std::abs(exponent) <= 126;
}

Expr integer_power(const Expr& u, int n) {  // n >= 1, by squaring from the top bit: 3 = u * u^2
  if (n == 1) return u;
  const Expr half = integer_power(u, n / 2);
  const Expr even = half * half;
  return n % 2 ? u * even : even;
}

Expr short_power(const Expr& u, double p, Context& c);
Expr short_power_or_pow(const Expr& u, double p, Context& c) {
  const Expr power = short_power(u, p, c);
  return power.empty() ? pow(u, p) : power;
}

/// u^p without pow, or none. Half-integers need u >= 0: pow(-Inf, 0.5) is Inf.
Expr short_power(const Expr& u, double p, Context& c) {
  constexpr double kLongest = 8;
  if (p == 0) return number(1.0);
  if (p == 1) return u;
  if (is(u, Op::abs) && std::fmod(p, 2.0) == 0 && std::abs(p) <= kLongest) return short_power_or_pow(in(u), p, c);
  if (!c.expand_powers) return kNone;
  if (!(std::abs(p) <= kLongest) || p * 2 != std::floor(p * 2)) return kNone;
  const double whole = std::floor(std::abs(p));
  if (whole == std::abs(p)) {
    const Expr power = integer_power(u, static_cast<int>(whole));
    return p > 0 ? power : rcp(power);
  }
  if (!nonneg(u, c)) return kNone;
  if (p == -0.5) return rsqrt(u);
  const Expr power = whole == 0 ? sqrt(u) : integer_power(u, static_cast<int>(whole)) * sqrt(u);
  return p > 0 ? power : rcp(power);
}

/// (a - b)^2 and |a - b| do not depend on the order: -(a - b) and b - a differ in the sign of a zero only.
Expr ordered_difference(const Expr& d) {
  if (!is(d, Op::sub) || ordered(d->args[0], d->args[1])) return kNone;
  return d->args[1] - d->args[0];
}

/// `e` where t = ±0, so that sign(t) and |t| are +0. Reductions are left alone: the t in them is another feature's.
Expr at_zero(const Expr& e, const Expr& t, ExprMap<Expr>& memo) {
  if (is_leaf(e->op) || is_reduction(e->op)) return e;
  if ((is(e, Op::sign) || is(e, Op::abs)) && same(in(e), t)) return 0.0;
  if (auto it = memo.find(e); it != memo.end()) return it->second;
  std::vector<Expr> args;
  for (const Expr& a : e->args) args.push_back(at_zero(a, t, memo));
  return memo.emplace(e, with_args(e, std::move(args))).first->second;
}

Expr where_with_zero(Args a) {
  ExprMap<Expr> memo;
  const Expr known = at_zero(a[1], a[0]->args[1], memo);
  return same(known, a[1]) ? kNone : where(a[0], known, a[2]);
}

/// where(c, p, q) op where(c, r, s) with numbers p and r, or q and s: one where will do.
bool join_foldable(Args a) {
  if (!is(a[0], Op::where) || !is(a[1], Op::where) || !same(in(a[0]), in(a[1]))) return false;
  const auto numbers = [&](int i) { return is_number(a[0]->args[i]) && is_number(a[1]->args[i]); };
  return numbers(1) || numbers(2);
}

Expr joined_where(Op op, Args a) {
  const auto &p = a[0]->args, &q = a[1]->args;
  return where(p[0], make(op, {p[1], q[1]}), make(op, {p[2], q[2]}));
}

struct Rule {
  Op op;
  Expr (*apply)(Args a, Context& c);
};

#define RULE(op, condition, result) \
  Rule{Op::op, []([[maybe_unused]] Args a, [[maybe_unused]] Context& c) { return (condition) ? Expr(result) : kNone; }}

// clang-format off
// One line a rule, tried in order. Arguments are simplified, and commutative ones sorted: a constant stands first.
const std::vector<Rule>& rules() {
  static constinit Lazy<std::vector<Rule>> table;
  return table.get([] { return std::vector<Rule>{
  RULE(neg, is(a[0], Op::neg),                                   in(a[0])),
  RULE(neg, is(a[0], Op::mul) && is_number(in(a[0])),            negated(in(a[0])) * a[0]->args[1]),
  RULE(neg, is(a[0], Op::div) && is_number(in(a[0])),            negated(in(a[0])) / a[0]->args[1]),
  RULE(neg, is(a[0], Op::div) && is_number(a[0]->args[1]),       in(a[0]) / negated(a[0]->args[1])),

  RULE(add, is_constant(a[0], -0.0),                             a[1]),
  RULE(add, is_constant(a[0], 0.0) && nonneg(a[1], c),   a[1]),
  RULE(add, is_negative(a[0]),                                   a[1] - negated(a[0])),
  RULE(add, same(a[0], a[1]),                                    2.0 * a[0]),
  RULE(add, is(a[1], Op::neg),                                   a[0] - in(a[1])),
  RULE(add, is(a[0], Op::neg),                                   a[1] - in(a[0])),

  RULE(add, join_foldable(a),                                    joined_where(Op::add, a)),

  RULE(sub, is_constant(a[1], 0.0),                              a[0]),
  RULE(sub, is_constant(a[0], -0.0),                             -a[1]),
  RULE(sub, is_negative(a[1]),                                   a[0] + negated(a[1])),
  RULE(sub, is(a[1], Op::neg),                                   a[0] + in(a[1])),
  RULE(sub, join_foldable(a),                                    joined_where(Op::sub, a)),

  RULE(mul, is_one(a[0]),                                        a[1]),
  RULE(mul, is_constant(a[0], 0.0) && is_boolean(a[1]),          a[0]),
  RULE(mul, is_constant(a[0], -1.0),                             -a[1]),
  RULE(mul, is_number(a[0]) && is(a[1], Op::neg),                negated(a[0]) * in(a[1])),
  RULE(mul, is(a[0], Op::neg) && is(a[1], Op::neg),              in(a[0]) * in(a[1])),
  RULE(mul, is(a[0], Op::neg),                                   -(in(a[0]) * a[1])),
  RULE(mul, is(a[1], Op::neg),                                   -(a[0] * in(a[1]))),
  RULE(mul, is(a[0], Op::abs) && same(a[0], a[1]),               in(a[0]) * in(a[0])),
  RULE(mul, same(a[0], a[1]) && !ordered_difference(a[0]).empty(), square(ordered_difference(a[0]))),
  RULE(mul, !c.expand_powers && is_root_of(a[0], a[1], c),       pow(a[0], 1.5)),
  RULE(mul, !c.expand_powers && is_root_of(a[1], a[0], c),       pow(a[1], 1.5)),
  RULE(mul, join_foldable(a),                                    joined_where(Op::mul, a)),

  RULE(div, is_one(a[1]),                                        a[0]),
  RULE(div, is_one(a[0]),                                        rcp(a[1])),
  RULE(div, is_constant(a[1], -1.0),                             -a[0]),
  RULE(div, is_constant(a[0], -1.0),                             -rcp(a[1])),
  RULE(div, is_power_of_two(a[1]),                               number(1 / a[1]->value) * a[0]),
  RULE(div, is(a[0], Op::neg) && is(a[1], Op::neg),              in(a[0]) / in(a[1])),
  RULE(div, is(a[0], Op::neg),                                   -(in(a[0]) / a[1])),
  RULE(div, is(a[1], Op::neg),                                   -(a[0] / in(a[1]))),

  RULE(rcp, is(a[0], Op::sqrt),                                  rsqrt(in(a[0]))),
  RULE(rcp, is(a[0], Op::neg),                                   -rcp(in(a[0]))),

  RULE(abs, is(a[0], Op::neg),                                   abs(in(a[0]))),
  RULE(abs, nonneg(a[0], c),                             a[0]),
  RULE(abs, !ordered_difference(a[0]).empty(),                   abs(ordered_difference(a[0]))),

  RULE(sign, is(a[0], Op::sign),                                 a[0]),
  RULE(floor, is_rounded(a[0]),                                  a[0]),
  RULE(ceil, is_rounded(a[0]),                                   a[0]),
  RULE(round, is_rounded(a[0]),                                  a[0]),

  RULE(pow, is_number(a[1]),                                     short_power(a[0], a[1]->value, c)),
  RULE(xlogy, is_one(a[0]),                                      log(a[1])),
  RULE(copysign, is(a[0], Op::neg) || is(a[0], Op::abs),         copysign(in(a[0]), a[1])),

  RULE(min, same(a[0], a[1]),                                    a[0]),
  RULE(max, same(a[0], a[1]),                                    a[0]),
  RULE(max, is_constant(a[0], 0.0) && nonneg(a[1], c),   a[1]),
  RULE(max, is_constant(a[0], -0.0) && nonneg(a[1], c),  a[1]),

  RULE(greater, true,                                            a[1] < a[0]),
  RULE(greater_equal, true,                                      a[1] <= a[0]),
  RULE(less, same(a[0], a[1]),                                   number(0.0)),
  RULE(less, is_zero(a[1]) && nonneg(a[0], c),           number(0.0)),
  RULE(equal, is_constant(a[0], -0.0),                           equal(0.0, a[1])),
  RULE(equal, is_zero(a[0]) && (is(a[1], Op::abs) || is(a[1], Op::neg)), equal(0.0, in(a[1]))),
  RULE(not_equal, is_constant(a[0], -0.0),                       not_equal(0.0, a[1])),
  RULE(not_equal, is_zero(a[0]) && (is(a[1], Op::abs) || is(a[1], Op::neg)), not_equal(0.0, in(a[1]))),

  RULE(logical_not, is(a[0], Op::equal),                         make(Op::not_equal, a[0]->args)),
  RULE(logical_not, is(a[0], Op::not_equal),                     make(Op::equal, a[0]->args)),
  RULE(logical_not, is(a[0], Op::logical_not) && is_boolean(in(a[0])), in(a[0])),
  RULE(logical_and, is_zero(a[0]),                               number(0.0)),
  RULE(logical_and, is_number(a[0]) && is_boolean(a[1]),         a[1]),
  RULE(logical_and, same(a[0], a[1]) && is_boolean(a[0]),        a[0]),
  RULE(logical_or, is_number(a[0]) && !is_zero(a[0]),            number(1.0)),
  RULE(logical_or, is_zero(a[0]) && is_boolean(a[1]),            a[1]),
  RULE(logical_or, same(a[0], a[1]) && is_boolean(a[0]),         a[0]),

  RULE(where, is_number(a[0]),                                   is_zero(a[0]) ? a[2] : a[1]),
  RULE(where, same(a[1], a[2]),                                  a[1]),
  RULE(where, is(a[0], Op::logical_not),                         where(in(a[0]), a[2], a[1])),
  RULE(where, is(a[0], Op::not_equal),                           where(make(Op::equal, a[0]->args), a[2], a[1])),
  RULE(where, is_boolean(a[0]) && is_one(a[1]) && is_constant(a[2], 0.0), a[0]),
  RULE(where, is_boolean(a[0]) && is_constant(a[1], 0.0) && is_one(a[2]), !is(a[0], Op::equal) ? logical_not(a[0])
                                                                            : make(Op::not_equal, a[0]->args)),
  RULE(where, is(a[0], Op::equal) && is_zero(in(a[0])),          where_with_zero(a)),
  RULE(where, is(a[1], Op::where) && same(in(a[1]), a[0]),       where(a[0], a[1]->args[1], a[2])),
  RULE(where, is(a[2], Op::where) && same(in(a[2]), a[0]),       where(a[0], a[1], a[2]->args[2])),

  RULE(fma, is_one(a[0]),                                        a[1] + a[2]),
  RULE(fma, is_constant(a[0], -1.0),                             a[2] - a[1]),
  RULE(fma, is_constant(a[2], -0.0),                             a[0] * a[1]),
  }; });
}
// clang-format on
#undef RULE

/// The rules of each op, in order.
const std::vector<std::vector<const Rule*>>& rules_by_op() {
  static constinit Lazy<std::vector<std::vector<const Rule*>>> index;
  return index.get([] {
    std::vector<std::vector<const Rule*>> by_op(static_cast<std::size_t>(Op::reduce) + 1);
    for (const Rule& r : rules()) by_op[static_cast<std::size_t>(r.op)].push_back(&r);
    return by_op;
  });
}

Expr fold(const Expr& e) {
  double values[3] = {};
  for (std::size_t i = 0; i < e->args.size(); ++i) values[i] = e->args[i]->value;
  return constant(info(e->op).eval(values));
}

class Simplifier {
 public:
  explicit Simplifier(bool expand_powers) { context_.expand_powers = expand_powers; }

  /// Every node of a result has passed through here, so equal nodes of a result are one node.
  Expr operator()(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    std::vector<Expr> args;
    args.reserve(e->args.size());
    for (const Expr& a : e->args) args.push_back((*this)(a));
    const Expr node = with_args(e, std::move(args));
    const bool fixed = is_leaf(e->op) || is_reduction(e->op) || e->op == Op::ptx;
    const Expr next = fixed ? kNone : step(node);
    const Expr result = next.empty() ? intern(node) : (*this)(next);
    seen_.emplace(e, result);
    return result;
  }

 private:
  Expr intern(const Expr& node) { return seen_.emplace(node, node).first->second; }

  Expr step(const Expr& e) {
    Args a = e->args;
    if (std::all_of(a.begin(), a.end(), is_number)) return fold(e);
    const bool swaps = info(e->op).commutative || e->op == Op::fma;
    if (swaps && !ordered(a[0], a[1])) {
      std::vector<Expr> sorted = a;
      std::swap(sorted[0], sorted[1]);
      return make(e->op, std::move(sorted));
    }
    for (const Rule* rule : rules_by_op()[static_cast<std::size_t>(e->op)]) {
      if (Expr result = rule->apply(a, context_); !result.empty()) return result;
    }
    return kNone;
  }

  ExprMap<Expr> seen_;
  Context context_;
};

}  // namespace

Expr simplify(const Expr& e) { return Simplifier(true)(e); }
Expr simplify_keeping_powers(const Expr& e) { return Simplifier(false)(e); }

}  // namespace mercer::ir
