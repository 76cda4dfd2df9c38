#include "ir/chain_products.h"

#include "ir/bounded.h"
#include "ir/ops.h"

namespace mercer::ir {
namespace {

bool is_boolean(const Expr& e) { return !is_leaf(e->op) && !is_reduction(e->op) && info(e->op).boolean; }

/// NaN by choice, of which a multiple is no other.
bool is_nan(const Expr& e) { return e->op == Op::constant && e->value != e->value; }

bool is_product_or_sum_with_zero(const Expr& e) {
  return e->op == Op::neg || e->op == Op::add || e->op == Op::mul || e->op == Op::div;
}

/// Values that a comparison, or the condition of a where, can make 0.
class Choices {
 public:
  bool may_be_zero(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    const bool result = decide(e);
    seen_.emplace(e, result);
    return result;
  }

  /// A comparison or a where among the factors and summands of `e` by which it may be 0; or none.
  Expr part_of(const Expr& e) {
    if (is_zero(e) || !may_be_zero(e)) return {};
    if (!is_product_or_sum_with_zero(e)) return e;
    const Expr found = part_of(e->args[0]);
    return found.empty() && e->op != Op::div && e->args.size() > 1 ? part_of(e->args[1]) : found;
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

  ExprMap<bool> seen_;
};

/// Whether the condition of a where with 0 first says that the sum q of non-negative terms is 0: then each term has its
/// least value, where its derivative is 0.
bool says_no_distance(const Expr& choice, const Expr& q) {
  if (choice->op != Op::where || !is_zero(choice->args[1]) || choice->args[0]->op != Op::equal) return false;
  const auto& sides = choice->args[0]->args;
  const bool at_zero = (is_zero(sides[0]) && same(sides[1], q)) || (is_zero(sides[1]) && same(sides[0], q));
  return at_zero && q->op == Op::sum && is_nonnegative(q->args[0]);
}

/// Whether `factor` may be multiplied by the 0 of a choice. One of parameters alone excludes all values that they make
/// infinite, so what overflows besides is as the formula is.
bool is_harmless(const Expr& factor, const Expr& choice) {
  const Expr e = shorten(factor);
  return stays_finite(e) || (is_uniform(choice->op == Op::where ? choice->args[0] : choice) && has_no_poles(e));
}

/// a * b where no branch that a choice excludes in one of them reaches the result from the other.
class Selected {
 public:
  /// `q`: what b is the derivative of, or none.
  explicit Selected(Expr q = {}) : q_(std::move(q)) {}

  Expr operator()(const Expr& a, const Expr& b) {
    if (is_zero(a) || is_zero(b)) return 0.0;
    if (is_one(a) || is_nan(b)) return b;
    if (is_one(b) || is_nan(a)) return a;
    const Expr plain = a * b;
    if (auto it = seen_.find(plain); it != seen_.end()) return it->second;
    const Expr result = made(a, b, plain);
    seen_.emplace(plain, result);
    return result;
  }

 private:
  Expr made(const Expr& a, const Expr& b, const Expr& plain) {
    const Expr of_a = choices_.part_of(a);
    if (!of_a.empty() && !is_harmless(b, of_a) && (q_.empty() || !says_no_distance(of_a, q_)))
      return split(a, of_a, plain, [&](const Expr& branch) { return (*this)(branch, b); });
    const Expr of_b = q_.empty() ? choices_.part_of(b) : Expr();
    if (!of_b.empty() && !is_harmless(a, of_b))
      return split(b, of_b, plain, [&](const Expr& branch) { return (*this)(a, branch); });
    return plain;
  }

  /// Formulas of very many conditions keep what is left of the product, which is right where its factors are finite.
  template <class Product>
  Expr split(const Expr& e, const Expr& choice, const Expr& plain, Product product) {
    if (--splits_left_ < 0) return plain;
    const auto branch = [&](const Expr& value) { return product(choices_.with(e, choice, value)); };
    const bool compares = choice->op != Op::where;
    const Expr yes = branch(compares ? Expr(1.0) : choice->args[1]);
    const Expr no = branch(compares ? Expr(0.0) : choice->args[2]);
    return where(compares ? choice : choice->args[0], yes, no);
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

Expr times_field(const Expr& factor, const Expr& dq, const Expr& q) { return Selected(q)(factor, dq); }

}  // namespace mercer::ir
