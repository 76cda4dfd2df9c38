#include "ir/passes/chain_products.h"

#include <algorithm>

#include "ir/expr/ops.h"
#include "ir/passes/bounded.h"

namespace mercer::ir {
namespace {

bool is_boolean(const Expr& e) { return !is_leaf(e->op) && !is_reduction(e->op) && info(e->op).boolean; }

/// NaN by choice, of which a multiple is no other.
bool is_nan(const Expr& e) { return e->op == Op::constant && e->value != e->value; }

bool is_product_or_sum_with_zero(const Expr& e) {
  return e->op == Op::neg || e->op == Op::add || e->op == Op::mul || e->op == Op::div;
}

// ---- Conditions. Their rules are few, since no simplification comes before they are looked at. ----------------------

Expr either(const Expr& a, const Expr& b) {
  if (is_zero(a) || is_one(b)) return b;
  return is_zero(b) || is_one(a) || same(a, b) ? a : make(Op::logical_or, {a, b});
}

Expr both(const Expr& a, const Expr& b) {
  if (is_one(a) || is_zero(b)) return b;
  return is_one(b) || is_zero(a) || same(a, b) ? a : make(Op::logical_and, {a, b});
}

Expr negated(const Expr& a) { return a->op == Op::constant ? Expr(is_zero(a) ? 1.0 : 0.0) : logical_not(a); }

Expr chosen(const Expr& condition, const Expr& yes, const Expr& no) {
  if (same(yes, no)) return yes;
  if (condition->op == Op::constant) return is_zero(condition) ? no : yes;
  if (!is_boolean(condition)) return where(condition, yes, no);
  if (is_one(yes)) return either(condition, no);
  if (is_zero(yes)) return both(logical_not(condition), no);
  return is_zero(no) ? both(condition, yes) : where(condition, yes, no);
}

/// A condition where another one is known to be 1 or 0.
class Known {
 public:
  Known(Expr condition, double truth) : condition_(std::move(condition)), truth_(truth) {}

  Expr operator()(const Expr& e) {
    if (same(e, condition_)) return truth_;
    return remembered(seen_, e, [&] { return of_arguments(e); });
  }

 private:
  Expr of_arguments(const Expr& e) {
    const auto& a = e->args;
    switch (e->op) {
      case Op::logical_or: return either((*this)(a[0]), (*this)(a[1]));
      case Op::logical_and: return both((*this)(a[0]), (*this)(a[1]));
      case Op::logical_not: return negated((*this)(a[0]));
      case Op::where: return chosen((*this)(a[0]), (*this)(a[1]), (*this)(a[2]));
      default: return e;
    }
  }

  Expr condition_;
  double truth_;
  ExprMap<Expr> seen_;
};

/// 1 where no branch that `e` takes reads q, else 0.
class Unread {
 public:
  explicit Unread(Expr q) : q_(std::move(q)) {}

  Expr operator()(const Expr& e) {
    if (same(e, q_)) return 0.0;
    if (is_leaf(e->op) || is_reduction(e->op) || info(e->op).derivative == nullptr) return 1.0;
    return remembered(seen_, e, [&] { return of_arguments(e); });
  }

 private:
  Expr of_arguments(const Expr& e) {
    if (e->op == Op::where) return chosen(e->args[0], (*this)(e->args[1]), (*this)(e->args[2]));
    Expr result = 1.0;
    for (const Expr& a : e->args) result = both(result, (*this)(a));
    return result;
  }

  Expr q_;
  ExprMap<Expr> seen_;
};

/// Values that a comparison, or the condition of a where, can make 0.
class Choices {
 public:
  bool may_be_zero(const Expr& e) {
    return remembered(seen_, e, [&] { return decide(e); });
  }

  /// A comparison or a where among the factors and summands of `e` by which it may be 0; or none.
  Expr part_of(const Expr& e) {
    if (is_zero(e) || !may_be_zero(e)) return {};
    if (!is_product_or_sum_with_zero(e)) return e;
    const Expr found = part_of(e->args[0]);
    return found.empty() && e->op != Op::div && e->args.size() > 1 ? part_of(e->args[1]) : found;
  }

  /// Whether its choices can make all summands of `e` 0.
  bool may_vanish(const Expr& e) {
    if (auto it = vanishes_.find(e); it != vanishes_.end()) return it->second;
    const auto& a = e->args;
    const auto any = [&] { return std::any_of(a.begin(), a.end(), [&](const Expr& arg) { return may_vanish(arg); }); };
    const bool adds = e->op == Op::add || e->op == Op::sub;
    const bool result = adds ? may_vanish(a[0]) && may_vanish(a[1]) : may_be_zero(e) || (!is_leaf(e->op) && any());
    vanishes_.emplace(e, result);
    return result;
  }

  /// `e` where `choice`, a part of it as above, has that value.
  Expr with(const Expr& e, const Expr& choice, const Expr& value) {
    ExprMap<Expr> seen{{choice, value}};
    return replaced(e, seen);
  }

 private:
  bool decide(const Expr& e) {
    const auto& a = e->args;
    switch (e->op) {
      case Op::where: return may_be_zero(a[1]) || may_be_zero(a[2]);
      case Op::mul: return may_be_zero(a[0]) || may_be_zero(a[1]);
      case Op::add: return (is_zero(a[0]) && may_be_zero(a[1])) || (is_zero(a[1]) && may_be_zero(a[0]));
      case Op::neg:
      case Op::div: return may_be_zero(a[0]);
      default: return is_zero(e) || is_boolean(e);
    }
  }

  Expr replaced(const Expr& e, ExprMap<Expr>& seen) {
    if (auto it = seen.find(e); it != seen.end()) return it->second;
    const Expr result = is_product_or_sum_with_zero(e) && may_be_zero(e) ? rebuilt(e, seen) : e;
    seen.emplace(e, result);
    return result;
  }

  Expr rebuilt(const Expr& e, ExprMap<Expr>& seen) {
    const Expr a = replaced(e->args[0], seen);
    if (is_nan(a) || (is_zero(a) && e->op != Op::add)) return a;
    if (e->op == Op::neg) return -a;
    if (e->op == Op::div) return a / e->args[1];
    const Expr b = replaced(e->args[1], seen);
    if (is_nan(b)) return b;
    if (e->op == Op::mul) return is_zero(a) || is_zero(b) ? Expr(0.0) : is_one(a) ? b : is_one(b) ? a : a * b;
    return plus(a, b);
  }

  ExprMap<bool> seen_, vanishes_;
};

/// Whether a condition says that the sum q of non-negative terms is 0: then each term has its least value, where its
/// derivative is 0.
bool says_no_distance(const Expr& condition, const Expr& q) {
  if (q.empty() || condition->op != Op::equal) return false;
  const auto& sides = condition->args;
  const bool at_zero = (is_zero(sides[0]) && same(sides[1], q)) || (is_zero(sides[1]) && same(sides[0], q));
  return at_zero && q->op == Op::sum && is_nonnegative(q->args[0]);
}

/// A parameter at a pole, as h == 0.
bool is_pole_of_parameters(const Expr& e) {
  if (e->op == Op::logical_or) return is_pole_of_parameters(e->args[0]) && is_pole_of_parameters(e->args[1]);
  return e->op == Op::equal && is_uniform(e);
}

/// Whether `factor` may be multiplied by the 0 of a condition. One that excludes all values that parameters make
/// infinite has no other 0, so what else overflows is as the formula is.
bool is_harmless(const Expr& factor, const Expr& condition) {
  const Expr e = shorten(factor);
  return stays_finite(e) || (is_pole_of_parameters(condition) && has_no_poles(e));
}

/// a * b where no branch that a choice excludes in one of them reaches the result from the other.
class Selected {
 public:
  /// `q`: what b is the derivative of, or none.
  explicit Selected(Expr q = {}) : q_(std::move(q)) {}

  /// `unread`: where b must be kept out, if a may be 0 there.
  Expr operator()(const Expr& a, const Expr& b, const Expr& unread = 0.0) {
    if (is_zero(a) || is_zero(b)) return 0.0;
    if (is_one(a) || is_nan(b)) return b;
    if (is_one(b) || is_nan(a)) return a;
    const Expr plain = a * b, key = is_zero(unread) ? plain : where(unread, 0.0, plain);
    if (auto it = seen_.find(key); it != seen_.end()) return it->second;
    const Expr result = made(a, b, plain, unread);
    seen_.emplace(key, result);
    return result;
  }

 private:
  Expr made(const Expr& a, const Expr& b, const Expr& plain, const Expr& unread) {
    const Expr of_a = choices_.part_of(a);
    if (!of_a.empty() && excludes(of_a, b, q_) && --splits_left_ >= 0) {
      const auto product = [&](const Expr& branch, const Expr& known) { return (*this)(branch, b, known); };
      return split(a, of_a, unread, product);
    }
    const Expr of_b = q_.empty() ? choices_.part_of(b) : Expr();
    if (!of_b.empty() && excludes(of_b, a, {}) && --splits_left_ >= 0) {
      const auto product = [&](const Expr& branch, const Expr& known) { return (*this)(a, branch, known); };
      return split(b, of_b, unread, product);
    }
    const Expr outside = choices_.may_vanish(a) ? what_excludes(unread, b) : Expr(0.0);
    return is_zero(outside) ? plain : where(outside, 0.0, plain);
  }

  /// Whether a choice must keep the other factor out of a product, which is the derivative of q if one is given.
  static bool excludes(const Expr& choice, const Expr& other, const Expr& q) {
    const bool selects = choice->op == Op::where;
    const Expr& condition = selects ? choice->args[0] : choice;
    if (selects && is_zero(choice->args[1]) && says_no_distance(condition, q)) return false;
    return !is_harmless(other, condition);
  }

  /// What of a condition must keep b out.
  Expr what_excludes(const Expr& condition, const Expr& b) const {
    if (is_zero(condition)) return condition;
    if (condition->op == Op::logical_or)
      return either(what_excludes(condition->args[0], b), what_excludes(condition->args[1], b));
    return says_no_distance(condition, q_) || is_harmless(b, condition) ? Expr(0.0) : condition;
  }

  template <class Product>
  Expr split(const Expr& e, const Expr& choice, const Expr& unread, Product product) {
    const bool compares = choice->op != Op::where;
    const Expr& condition = compares ? choice : choice->args[0];
    const auto branch = [&](const Expr& value, double truth) {
      return product(choices_.with(e, choice, value), Known(condition, truth)(unread));
    };
    const Expr yes = branch(compares ? Expr(1.0) : choice->args[1], 1.0);
    const Expr no = branch(compares ? Expr(0.0) : choice->args[2], 0.0);
    return where(condition, yes, no);
  }

  Expr q_;
  Choices choices_;
  ExprMap<Expr> seen_;
  int splits_left_ = 4096;
};

}  // namespace

Expr plus(const Expr& a, const Expr& b) { return is_zero(a) ? b : is_zero(b) ? a : a + b; }

Expr times(const Expr& partial, const Expr& d) {
  if (is_zero(partial) || is_zero(d)) return 0.0;
  if (is_nan(partial)) return partial;
  if (is_one(partial)) return d;
  if (is_constant(partial, -1.0)) return -d;
  if (partial->op == Op::where) {
    const auto& a = partial->args;
    return where(a[0], times(a[1], d), times(a[2], d));
  }
  return Selected()(partial, d);
}

Expr unread(const Expr& e, const Expr& q) { return Unread(q)(e); }

Expr unread_by_all(const Expr& t, const Expr& q) {
  const Expr condition = unread(t, q);
  return condition->op == Op::constant ? condition : min(condition);
}

Expr times_total(const Expr& factor, const Expr& dq, const Expr& unread) {
  return is_zero(unread) ? times(factor, dq) : Selected()(factor, dq, unread);
}

Expr times_field(const Expr& factor, const Expr& dq, const Expr& q, const Expr& unread) {
  return Selected(q)(factor, dq, unread);
}

}  // namespace mercer::ir
