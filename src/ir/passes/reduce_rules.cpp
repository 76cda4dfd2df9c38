#include "ir/passes/reduce_rules.h"

#include <limits>
#include <span>

#include "ir/passes/along.h"
#include "ir/passes/chain_products.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::span<const Expr> part(const Expr& r, std::size_t block) {
  const auto states = static_cast<std::size_t>(r->slot);
  return std::span(r->args).subspan(block * states, states);
}

bool reads(const Expr& e, const Expr& what) {
  bool found = false;
  for_each(e, [&](const Expr& n) { found = found || same(n, what); });
  return found;
}

/// The other argument of a binary operation, if one is `a` and the other does not read it; else empty.
Expr other_argument(const Expr& e, const Expr& a) {
  for (const std::size_t own : {std::size_t{0}, std::size_t{1}})
    if (same(e->args[own], a) && !reads(e->args[1 - own], a)) return e->args[1 - own];
  return {};
}

/// The terms of a sum into `a`, if e is one.
Expr added(const Expr& e, const Expr& a) {
  if (e->op == Op::add) return other_argument(e, a);
  if (e->op == Op::sub && same(e->args[0], a) && !reads(e->args[1], a)) return -e->args[1];
  if (e->op == Op::fma && same(e->args[2], a) && !reads(e->args[0], a) && !reads(e->args[1], a))
    return e->args[0] * e->args[1];
  return {};
}

/// start + sum, start * product.
Expr with_start(Expr (*join)(const Expr&, const Expr&), const Expr& start, double neutral, const Expr& reduction) {
  return start->op == Op::constant && start->value == neutral ? reduction : join(start, reduction);
}

Expr sum_from(const Expr& start, const Expr& term) {
  return with_start([](const Expr& p, const Expr& q) { return p + q; }, start, 0, sum(term));
}

/// (a^p + f)^(1/p). simplify() may have written powers as products and roots: it is asked how.
Expr norm(const Expr& e, const Expr& a, const Expr& start) {
  std::vector<Expr> exponents, sums;
  for (int halves = 1; halves <= 16; ++halves) exponents.push_back(0.5 * halves);
  for_each(e, [&](const Expr& n) {
    if (n->op == Op::pow && same(n->args[0], a) && !reads(n->args[1], a)) exponents.push_back(n->args[1]);
    if (n->op == Op::add) sums.push_back(n);
  });
  for (const Expr& p : exponents)
    for (const Expr& sum : sums) {
      const Expr power = simplify(pow(a, p)), f = added(sum, power);
      if (f.empty() || reads(f, a) || !same(simplify(pow(power + f, 1.0 / p)), e)) continue;
      return pow(sum_from(simplify(pow(start, p)), f), 1.0 / p);
    }
  return {};
}

/// log(exp(a) + exp(f)), or the same about the larger one.
Expr soft_maximum(const Expr& e, const Expr& a) {
  std::vector<Expr> terms;
  for_each(e, [&](const Expr& n) {
    if (n->op == Op::max)
      if (const Expr f = other_argument(n, a); !f.empty()) terms.push_back(f);
    if (n->op == Op::exp && !reads(n, a)) terms.push_back(n->args[0]);
  });
  for (const Expr& f : terms) {
    const Expr top = max(a, f), gap = exp(-abs(a - f));
    for (const Expr& form : {log(exp(a) + exp(f)), top + log1p(gap), top + log(1.0 + gap),
                             top + log(exp(a - top) + exp(f - top))})
      if (same(simplify(form), e)) return logsumexp(f);
  }
  return {};
}

/// What a state becomes that starts at `start` and follows e, over its own leaf `a` and terms; empty: none of these.
Expr known_reduction(const Expr& e, const Expr& a, const Expr& start) {
  if (same(e, a)) return start;
  if (const Expr f = added(e, a); !f.empty()) return sum_from(start, f);
  const Expr other = e->args.size() == 2 ? other_argument(e, a) : Expr();
  const auto joined = [&](auto join, double neutral, const Expr& reduction) {
    return with_start(join, start, neutral, reduction);
  };
  if (e->op == Op::mul && !other.empty())
    return joined([](const Expr& p, const Expr& q) { return p * q; }, 1, prod(other));
  if (e->op == Op::max && !other.empty())
    return joined([](const Expr& p, const Expr& q) { return max(p, q); }, -kInf, max(other));
  if (e->op == Op::min && !other.empty())
    return joined([](const Expr& p, const Expr& q) { return min(p, q); }, kInf, min(other));
  if (e->op == Op::div && same(e->args[0], a) && !reads(e->args[1], a))
    return joined([](const Expr& p, const Expr& q) { return p * q; }, 1, prod(rcp(e->args[1])));
  if (const Expr root = norm(e, a, start); !root.empty()) return root;
  return is_constant(start, -kInf) ? soft_maximum(e, a) : Expr();
}

}  // namespace

Expr separated(const Expr& r) {
  const Expr& finish = r->args.back();
  ExprMap<Expr> terms, finals;
  for (int s = 0; s < r->slot; ++s) terms[leaf(Op::incoming, s)] = part(r, 0)[static_cast<std::size_t>(s)];
  for (int s = 0; s < r->slot; ++s) {
    const Expr own = leaf(Op::state, s);
    if (!reads(finish, own)) continue;
    const Expr update = simplify(substitute(part(r, 1)[static_cast<std::size_t>(s)], terms));
    for (int other = 0; other < r->slot; ++other)
      if (other != s && reads(update, leaf(Op::state, other))) return {};
    const Expr known = known_reduction(update, own, simplify(part(r, 2)[static_cast<std::size_t>(s)]));
    if (known.empty()) return {};
    finals[own] = known;
  }
  return substitute(finish, finals);
}

Expr moved(const Expr& r, const Derivative& along) {
  const int states = r->slot;
  // `e`: a part over states and, but for finish, a second one of them; `b` stands S slots after each.
  const auto of_part = [&](const Expr& e, bool has_incoming) {
    Expr result = along(e);
    for (int s = 0; s < states; ++s) {
      result = plus(result, Along(leaf(Op::state, s), leaf(Op::state, states + s))(e));
      if (has_incoming) result = plus(result, Along(leaf(Op::incoming, s), leaf(Op::incoming, states + s))(e));
    }
    return shorten(result);
  };
  Reduce d{.associative = r->associative};
  const auto copy = [&](std::vector<Expr>& to, std::size_t block) {
    to.assign(part(r, block).begin(), part(r, block).end());
  };
  copy(d.term, 0);
  copy(d.combine, 1);
  copy(d.identity, 2);
  if (r->has_merge) copy(d.merge, 3);
  bool moves = false;
  for (const Expr& t : part(r, 0)) d.term.push_back(shorten(along(t)));
  for (const Expr& c : part(r, 1)) d.combine.push_back(of_part(c, true));
  if (r->has_merge)
    for (const Expr& m : part(r, 3)) d.merge.push_back(of_part(m, true));
  d.identity.resize(static_cast<std::size_t>(2 * states), 0.0);
  for (int s = 0; s < states; ++s) {
    const auto slot = static_cast<std::size_t>(states + s);
    moves = moves || !is_zero(d.term[slot]) || !is_zero(shorten(along(part(r, 1)[static_cast<std::size_t>(s)])));
  }
  d.finish = of_part(r->args.back(), false);
  if (!moves) {  // the finish alone
    d.finish = shorten(along(r->args.back()));
    for (auto* list : {&d.term, &d.combine, &d.identity, &d.merge})
      if (!list->empty()) list->resize(static_cast<std::size_t>(states));
  }
  return is_zero(d.finish) ? Expr(0.0) : reduce(d);
}

}  // namespace mercer::ir
