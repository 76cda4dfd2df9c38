// differentiate: forward through scalar ops by the rows of the op table, and through reductions by the rules below.
//
//   total(e)          = along(e, v) + sum over reductions q that e reads of along(e, q) * total(q)
//   total(R(t))       = weight_R(t) * along(t, v)                       v a feature: at the free feature, outside R
//                     | mean_R(along(t, v))                             v a parameter, row or col
//                     + sum over reductions q that t reads of mean_R(along(t, q)) * total(q)
//
// along(e, target) is the partial derivative by one node, everything else held. mean_R(d) is sum_k weight_R(t_k) d_k,
// closed again: a one-sided q keeps its own derivative outside R, so a free feature is never caught by an enclosing
// reduction. weight_R(t) = dR/dt_k:
//
//   sum        1
//   logsumexp  exp(t - R)
//   prod       P/t without zeros; with one zero, P at the zero; else 0      P: product of the non-zeros
//   max        1/(number of ties) where t == R, else 0;  min(t) = -max(-t)
//
// mean_R of max and logsumexp is a reduction with a state of three (below), since R cannot be known before its pass
// ends. Such machines have derivatives of their own, by recognition, so that second derivatives exist.
//
// Derivatives of prod that are differentiated again go by ir/passes/product_rules.h.
//
// Products are made by ir/passes/chain_products.h: a branch that is not taken reaches none.
//
// A user's reduce goes by ir/passes/reduce_rules.h: as an expression of these, or with the derivatives of its states
// next to them.
//
// In a direction d the variable v is the feature v + t d at all k, and along(v) = d instead of 1: as for a parameter.
#include <algorithm>
#include <limits>

#include "core/error.h"
#include "ir/expr/ptx.h"
#include "ir/passes/along.h"
#include "ir/passes/arrange.h"
#include "ir/passes/chain_products.h"
#include "ir/passes/passes.h"
#include "ir/passes/product_rules.h"
#include "ir/passes/reduce_rules.h"

namespace mercer {
namespace ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// ---- Machines: reductions of (t, 1, d) whose merge is their combine. ------------------------------------------------

Expr machine(const std::vector<Expr>& term, const std::vector<Expr>& combine, const Expr& finish) {
  std::vector<Expr> identity(term.size(), 0.0);
  identity[0] = -kInf;
  return reduce({.term = term, .combine = combine, .identity = identity, .merge = combine, .finish = finish,
                 .associative = true});
}

/// (max, number of ties, sum of d over the ties); or without d.
std::vector<Expr> tie_combine(bool with_d) {
  const Expr m = state(0), t = incoming(0);
  const auto kept = [&](int s) { return where(m > t, state(s), where(t > m, incoming(s), state(s) + incoming(s))); };
  if (with_d) return {max(m, t), kept(1), kept(2)};
  return {max(m, t), kept(1)};
}

/// (max, sum of exp(t - max), sum of d exp(t - max)). Equal infinities count as a difference of 0.
std::vector<Expr> softmax_combine() {
  const Expr m = state(0), t = incoming(0), top = max(m, t);
  const Expr old_scale = where(equal(m, top), 1.0, exp(m - top));
  const Expr new_scale = where(equal(t, top), 1.0, exp(t - top));
  return {top, state(1) * old_scale + incoming(1) * new_scale, state(2) * old_scale + incoming(2) * new_scale};
}

/// `value`, or NaN where a term was NaN (the maximum then is).
Expr unless_nan(const Expr& value) { return where(equal(state(0), state(0)), value, state(0)); }

// The divisors are at least 1 once there is a feature.
Expr tie_count(const Expr& t) { return machine({t, 1.0}, tie_combine(false), unless_nan(state(1))); }
Expr tie_mean(const Expr& t, const Expr& d) {
  return machine({t, 1.0, d}, tie_combine(true), unless_nan(state(2) / max(state(1), 1.0)));
}
Expr soft_mean(const Expr& t, const Expr& d) {
  return machine({t, 1.0, d}, softmax_combine(), unless_nan(state(2) / max(state(1), 1.0)));
}

enum class Machine { none, tie_count, tie_mean, soft_mean };

/// Which of ours a reduce is, as built or simplified.
Machine recognise(const Expr& e) {
  const auto matches = [&](const Expr& built) { return same(e, built) || same(simplify(e), simplify(built)); };
  const Expr& t = e->args[0];
  if (e->slot == 2 && matches(tie_count(t))) return Machine::tie_count;
  if (e->slot != 3) return Machine::none;
  const Expr& d = e->args[2];
  if (matches(tie_mean(t, d))) return Machine::tie_mean;
  return matches(soft_mean(t, d)) ? Machine::soft_mean : Machine::none;
}

// ---- Reductions: weight_R and mean_R. -------------------------------------------------------------------------------

/// d/ties where t is the maximum, else 0. NaN where the maximum is: the count is then.
Expr tie_share(const Expr& t, const Expr& maximum, const Expr& d) {
  return where(equal(t, maximum), d, 0.0) / tie_count(t);
}

/// dR/dt d at the free feature.
Expr share(const Expr& r, const Expr& d) {
  if (is_zero(d)) return d;
  const Expr& t = r->args[0];
  switch (r->op) {
    case Op::sum: return d;
    case Op::logsumexp: return times(exp(t - r), d);
    case Op::prod: return times(prod_weight(t), d);
    case Op::max_over: return tie_share(t, r, d);
    default: return tie_share(-t, -r, d);
  }
}

/// sum_k dR/dt_k d_k.
Expr mean(const Expr& r, const Expr& d) {
  if (is_zero(d)) return d;
  const Expr& t = r->args[0];
  switch (r->op) {
    case Op::sum: return sum(d);
    case Op::logsumexp: return soft_mean(t, d);
    case Op::prod: return prod_mean(t, d);
    case Op::max_over: return tie_mean(t, d);
    default: return tie_mean(-t, d);
  }
}

// ---- The derivative. ------------------------------------------------------------------------------------------------

/// The reductions that a term reads: values of the pair.
std::vector<Expr> held_in(const Expr& term) {
  std::vector<Expr> found = reductions_of(term);
  if (std::any_of(found.begin(), found.end(), is_at_zero))
    fail(ErrorKind::unsupported,
         "differentiate: the derivative of a prod by a feature has no known derivative inside a reduction over the "
         "features, but for a sum. Received it in {}.", term.to_text());
  return found;
}

bool is_feature(Op op) { return op == Op::x || op == Op::z || op == Op::w; }

class Differentiator {
 public:
  explicit Differentiator(const Expr& variable)
      : variable_(variable), is_feature_(is_feature(variable->op)), along_variable_(variable) {}
  /// A direction moves every feature at once, so the rule of parameters holds.
  Differentiator(const Expr& variable, const Expr& direction)
      : variable_(variable), is_feature_(false), along_variable_(variable, direction) {}

  bool is_field() const { return is_feature_; }

  Expr total(const Expr& e) {
    Expr result = along_variable_(e);
    for (const Expr& q : reductions_of(e))
      result = plus(result, by(q, [&] { return shorten(Along(q)(e)); }, [&] { return unread(e, q); }));
    return result;
  }

 private:
  /// The part of a derivative that comes from the reduction q, which is not read where `unread` is 1.
  template <class Factor, class Unread>
  Expr by(const Expr& q, Factor factor, Unread unread) {
    const Expr dq = of_reduction(q);
    if (is_zero(dq)) return dq;
    const Expr f = factor();
    if (is_zero(f) || is_one(f)) return is_zero(f) ? f : dq;
    // A value of the pair stays a factor where it may: A * φ can be read off the field.
    return is_feature_ ? times_field(f, dq, q, unread()) : times_total(f, dq, unread());
  }

  Expr of_reduction(const Expr& r) {
    if (auto it = seen_.find(r); it != seen_.end()) return it->second;
    const Expr result = !depends(r) ? Expr(0.0) : r->op == Op::reduce ? of_machine(r) : of_terms(r);
    seen_.emplace(r, result);
    return result;
  }

  bool depends(const Expr& r) {
    bool found = false;
    for_each(r, [&](const Expr& e) { found |= matches(e, variable_); });
    return found;
  }

  Expr of_terms(const Expr& r) {
    const Expr& t = r->args[0];
    const Expr direct = along_variable_(t);
    Expr result = is_feature_ ? share(r, direct) : mean(r, direct);
    for (const Expr& q : r->op == Op::sum ? reductions_of(t) : held_in(t)) {
      if (is_at_zero(q)) {  // of each feature its own
        result = plus(result, of_product(weighted_sum(q, shorten(Along(q)(t))), true));
        continue;
      }
      const auto factor = [&] { return shorten(mean(r, shorten(Along(q)(t)))); };
      result = plus(result, by(q, factor, [&] { return unread_by_all(t, q); }));
    }
    return result;
  }

  Expr of_machine(const Expr& r) {
    if (is_product(r)) return of_product(r);
    switch (recognise(r)) {
      case Machine::tie_count: return 0.0;  // locally constant
      case Machine::tie_mean: return of_tie_mean(r);
      case Machine::soft_mean: return of_soft_mean(r);
      default:
        return of_custom(r);
    }
  }

  Expr of_custom(const Expr& r) {
    if (const Expr known = separated(r); !known.empty()) return total(shorten(known));
    const auto along = [&](Along& partial) { return moved(r, [&](const Expr& e) { return partial(e); }); };
    if (is_feature_) refuse_feature(r);
    Expr result = is_feature_ ? Expr(0.0) : along(along_variable_);
    std::vector<Expr> inner;
    for (const Expr& part : r->args)
      for (const Expr& q : held_in(part))
        if (std::none_of(inner.begin(), inner.end(), [&](const Expr& known) { return same(known, q); }))
          inner.push_back(q);
    // Conditions of states decide within the reduction alone, so q counts as read by all branches there.
    for (const Expr& q : inner) {
      const auto factor = [&] {
        Along partial(q);
        return shorten(along(partial));
      };
      result = plus(result, by(q, factor, [] { return Expr(0.0); }));
    }
    return result;
  }

  /// Refuses what reads the feature itself, not only reductions of one side inside the terms.
  void refuse_feature(const Expr& r) {
    for (std::size_t p = 0; p < r->args.size(); ++p)
      if (!is_zero(shorten(along_variable_(r->args[p]))))
        fail(ErrorKind::unsupported,
             "differentiate: by x, z or w this reduce has no known derivative. By these the states must each follow "
             "themselves alone, by a sum, a product, max, min, a norm (a^p + t)^(1/p) or logsumexp of their terms, so "
             "that the weight of a term follows from the result; by parameters, row and col any reduce has one. "
             "Received {}.", r.to_text());
  }

  /// The ties are locally constant: the mean of the derivatives of d.
  Expr of_tie_mean(const Expr& r) {
    const Expr &t = r->args[0], &d = r->args[2];
    const Expr direct = along_variable_(d);
    Expr result = 0.0;
    if (!is_zero(direct)) {
      result = is_feature_ ? tie_share(t, max(t), direct) : tie_mean(t, direct);
    }
    for (const Expr& q : held_in(d)) {
      const auto factor = [&] { return simplify(tie_mean(t, shorten(Along(q)(d)))); };
      result = plus(result, by(q, factor, [&] { return unread_by_all(d, q); }));
    }
    return result;
  }

  /// S = sum_k p_k d_k with p = softmax(t):  dS = sum_k p_k (dd_k + (d_k - S) dt_k).
  Expr of_soft_mean(const Expr& r) {
    const Expr &t = r->args[0], &d = r->args[2];
    const auto mean_of = [&](const Expr& dt, const Expr& dd) {
      const Expr inner = plus(dd, times(d, dt));
      const Expr first = is_zero(inner) ? inner : soft_mean(t, inner);
      return is_zero(dt) ? first : first - r * soft_mean(t, dt);
    };
    const Expr dt = along_variable_(t), dd = along_variable_(d);
    Expr result = 0.0;
    if (is_feature_) result = times(exp(t - logsumexp(t)), plus(dd, times(d - r, dt)));
    else if (!is_zero(dt) || !is_zero(dd)) result = mean_of(dt, dd);
    const Expr both = plus(t, d);
    for (const Expr& q : held_in(both)) {
      const auto factor = [&] { return shorten(mean_of(shorten(Along(q)(t)), shorten(Along(q)(d)))); };
      result = plus(result, by(q, factor, [&] { return unread_by_all(both, q); }));
    }
    return result;
  }

  /// product(T) and at_zero(T) of ir/passes/product_rules.h; or what of a weighted sum is not due to the weight.
  Expr of_product(const Expr& r, bool holds_weight = false) {
    const std::vector<Expr> terms = product_terms(r);
    const std::size_t moving = holds_weight ? terms.size() / 2 : terms.size();
    const auto along = [&](Along& partial) {
      std::vector<Expr> d(terms.size(), 0.0);
      for (std::size_t i = 0; i < moving; ++i) d[i] = shorten(partial(terms[i]));
      return d;
    };
    const std::vector<Expr> direct = along(along_variable_);
    Expr result = 0.0, all = 0.0;
    if (!is_feature_) result = product_along(r, direct);
    else if (!is_at_zero(r)) result = product_share(r, direct);
    for (std::size_t i = 0; i < moving; ++i) all = plus(all, terms[i]);
    for (const Expr& q : held_in(all)) {
      const auto factor = [&] {
        Along partial(q);
        return shorten(product_along(r, along(partial)));
      };
      result = plus(result, by(q, factor, [&] { return unread_by_all(all, q); }));
    }
    return result;
  }

  Expr variable_;
  bool is_feature_;
  Along along_variable_;
  ExprMap<Expr> seen_;
};

/// Higher derivatives of prod need what first ones leave out.
Expr prepared(const Expr& e) { return shorten(smooth_products(shorten(without_ptx(e)))); }

bool is_variable(Op op) {
  return op == Op::x || op == Op::z || op == Op::w || op == Op::row || op == Op::col || op == Op::param;
}

}  // namespace
}  // namespace ir

Expr differentiate(const Expr& expression, const Expr& variable) {
  ir::verify(expression, ir::Form::field);
  return ir::differentiate_made(expression, variable);
}

Expr ir::differentiate_made(const Expr& expression, const Expr& variable) {
  require(!variable.empty() && is_variable(variable->op),
          "differentiate: the variable is x, z, w, row, col or a parameter. Received another expression.");
  Differentiator derivative(variable);
  const Expr result = shorten(written_products(derivative.total(prepared(expression))));
  return simplify(derivative.is_field() ? arrange_field(result) : result);
}

Expr ir::differentiate_along(const Expr& expression, const Expr& variable, const Expr& direction) {
  Differentiator derivative(variable, direction);
  return simplify(shorten(written_products(derivative.total(prepared(expression)))));
}

}  // namespace mercer
