// smooth_products: first derivatives of prod, and at_zero as it is written out, as values that have slopes.
#include <algorithm>

#include "core/error.h"
#include "ir/passes/chain_products.h"
#include "ir/passes/product_rules.h"

namespace mercer::ir {
namespace {

Expr difference(const Expr& a, const Expr& b) { return is_zero(b) ? a : is_zero(a) ? -b : a - b; }

/// What q is multiplied with in an expression: none if that is not linear in q, 0 where it does not read q.
class Factor {
 public:
  explicit Factor(Expr q) : q_(std::move(q)) {}

  Expr operator()(const Expr& e) {
    if (same(e, q_)) return 1.0;
    if (is_leaf(e->op)) return 0.0;
    return remembered(seen_, e, [&] { return of_arguments(e); });
  }

 private:
  Expr of_arguments(const Expr& e) {
    std::vector<Expr> f;
    for (const Expr& a : e->args) f.push_back((*this)(a));
    const auto is_free = [](const Expr& g) { return !g.empty() && is_zero(g); };
    if (std::all_of(f.begin(), f.end(), is_free)) return 0.0;
    if (std::any_of(f.begin(), f.end(), [](const Expr& g) { return g.empty(); })) return {};
    const auto& a = e->args;
    switch (e->op) {
      case Op::neg: return -f[0];
      case Op::add: return plus(f[0], f[1]);
      case Op::sub: return difference(f[0], f[1]);
      case Op::mul: return is_zero(f[1]) ? scaled(f[0], a[1]) : is_zero(f[0]) ? scaled(f[1], a[0]) : Expr();
      case Op::div: return is_zero(f[1]) ? f[0] / a[1] : Expr();
      case Op::where: return is_zero(f[0]) ? where(a[0], f[1], f[2]) : Expr();
      default: return {};
    }
  }

  static Expr scaled(const Expr& factor, const Expr& by) { return is_one(factor) ? by : factor * by; }

  Expr q_;
  ExprMap<Expr> seen_;
};

/// Whether an expression is a multiple of q.
class Multiple {
 public:
  explicit Multiple(Expr q) : q_(std::move(q)) {}

  bool operator()(const Expr& e) {
    if (same(e, q_)) return true;
    if (is_leaf(e->op)) return false;
    return remembered(seen_, e, [&] { return of_arguments(e); });
  }

 private:
  bool of_arguments(const Expr& e) {
    const auto& a = e->args;
    const auto vanishes = [this](const Expr& arg) { return is_zero(arg) || (*this)(arg); };
    switch (e->op) {
      case Op::neg:
      case Op::div: return (*this)(a[0]);
      case Op::mul: return (*this)(a[0]) || (*this)(a[1]);
      case Op::add:
      case Op::sub: return (*this)(a[0]) && (*this)(a[1]);
      case Op::where: return vanishes(a[1]) && vanishes(a[2]);
      default: return false;
    }
  }

  Expr q_;
  ExprMap<bool> seen_;
};

/// `value` of where(number == count, value, otherwise).
struct Counted {
  Expr count, value, otherwise;
  explicit operator bool() const { return !count.empty(); }
};

Counted counted(const Expr& e, double number) {
  if (e->op != Op::where || e->args[0]->op != Op::equal) return {};
  const auto& sides = e->args[0]->args;
  for (const std::size_t s : {0, 1}) {
    const Expr& count = sides[1 - s];
    if (is_constant(sides[s], number) && count->op == Op::sum && count->args[0]->op == Op::equal)
      return {count, e->args[1], e->args[2]};
  }
  return {};
}

/// The product of the terms that are not 0, as `count` counts those, in `e`; or none.
Expr nonzero_product_in(const Expr& e, const Expr& count) {
  Expr found;
  for_each(e, [&](const Expr& n) {
    if (n->op != Op::prod || n->args[0]->op != Op::where) return;
    const auto& a = n->args[0]->args;
    if (is_one(a[1]) && same(a[0], count->args[0])) found = n;
  });
  return found;
}

const Expr& term_of(const Expr& nonzero_product) { return nonzero_product->args[0]->args[2]; }

/// Whether it is a product with 1 / t.
bool divides(const Expr& e, const Expr& t) {
  if (e->op == Op::rcp) return same(e->args[0], t);
  if (e->op == Op::div) return same(e->args[1], t) || divides(e->args[0], t);
  if (e->op == Op::neg) return divides(e->args[0], t);
  return e->op == Op::mul && (divides(e->args[0], t) || divides(e->args[1], t));
}

/// e * t, for e = d / t.
Expr times_term(const Expr& e, const Expr& t) {
  if (e->op == Op::rcp && same(e->args[0], t)) return 1.0;
  if (e->op == Op::div && same(e->args[1], t)) return e->args[0];
  if (e->op == Op::neg) return -times_term(e->args[0], t);
  if (e->op == Op::mul) {
    const std::size_t divided = divides(e->args[1], t) ? 1 : 0;
    return e->args[1 - divided] * times_term(e->args[divided], t);
  }
  if (e->op == Op::where) return where(e->args[0], times_term(e->args[1], t), times_term(e->args[2], t));
  return is_zero(e) ? e : e * t;
}

/// The sums in `e` over the features whose terms are 0, or over the others.
std::vector<Expr> sums_in(const Expr& e, const Expr& zero, bool at_zeros) {
  std::vector<Expr> found;
  for_each(e, [&](const Expr& n) {
    if (n->op != Op::sum) return;
    const Expr& u = n->args[0];
    const bool chosen = u->op == Op::where && same(u->args[0], zero) && is_zero(u->args[at_zeros ? 2 : 1]);
    const bool counts = at_zeros && (same(u, zero) || is_zero(u));
    if (chosen || counts) found.push_back(n);
  });
  return found;
}

/// The only one of `sums`, but for those that `other` reads too unless all are such; or none.
Expr only_of(const std::vector<Expr>& sums, const Expr& other) {
  std::vector<Expr> left;
  for (const Expr& s : sums) {
    bool found = false;
    for_each(other, [&](const Expr& n) { found = found || same(n, s); });
    if (!found) left.push_back(s);
  }
  if (left.empty()) left = sums;
  return left.size() == 1 ? left[0] : Expr();
}

class Smooth {
 public:
  Expr operator()(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    Expr result = of_counts(e);
    if (result.empty()) result = of_arguments(e);
    seen_.emplace(e, result);
    return result;
  }

 private:
  Expr of_counts(const Expr& e) {
    if (e->op != Op::where || e->args[0]->op != Op::equal) return {};
    if (const Counted none = counted(e, 0.0)) {
      const Expr p = multiple_of_product(none);
      if (!p.empty() && is_zero(none.otherwise)) return (*this)(substitute(none.value, {{p, prod(term_of(p))}}));
      const Counted one = counted(none.otherwise, 1.0);
      return !p.empty() && one && is_zero(one.otherwise) ? of_mean(none, one, p) : Expr();
    }
    if (const Terms terms = terms_in(e); !terms.empty()) return (*this)(at_zero(terms));
    const Expr& yes = e->args[1];
    const Expr only = only_zero_in(yes, e->args[0]);
    return only.empty() ? only : (*this)(with_args(e, {e->args[0], at_the_only_zero(yes, only), e->args[2]}));
  }

  /// The terms T of at_zero(T) as it is written out; or none.
  static Terms terms_in(const Expr& e) {
    const Counted first = counted(e, 1.0);
    if (!first || is_zero(first.otherwise)) return {};
    int numbers = 0;
    Expr rest = first.otherwise;
    for (; !is_zero(rest) && numbers <= kMostNumbers; ++numbers) {
      const Counted next = counted(rest, numbers + 2.0);
      if (!next || !same(next.count, first.count)) return {};
      rest = next.otherwise;
    }
    const Expr& zero = first.count->args[0];
    const Expr none = part_in(first.value, zero, numbers, 0);
    const Expr one = part_in(counted(first.otherwise, 2.0).value, zero, numbers, 1);
    return none.empty() || one.empty() ? Terms() : terms_written(none, one);
  }

  static Expr part_in(const Expr& e, const Expr& zero, int numbers, int degree) {
    Expr found;
    for_each(e, [&](const Expr& n) {
      if (is_part_written(n, zero, numbers, degree)) found = n;
    });
    return found;
  }

  /// The product of all that is not 0, if the value is a multiple of it; or none.
  static Expr multiple_of_product(const Counted& at) {
    const Expr p = nonzero_product_in(at.value, at.count);
    return !p.empty() && Multiple(p)(at.value) ? p : Expr();
  }

  /// Where a term is the only 0, as `is_zero_term` says of the feature, outside of reductions; or none.
  static Expr only_zero_in(const Expr& e, const Expr& is_zero_term) {
    if (is_leaf(e->op) || is_reduction(e->op)) return {};
    const Counted one = counted(e, 1.0);
    if (one && is_zero(one.otherwise) && same(one.count->args[0], is_zero_term) && !multiple_of_product(one).empty())
      return e;
    for (const Expr& a : e->args)
      if (const Expr found = only_zero_in(a, is_zero_term); !found.empty()) return found;
    return {};
  }

  static Expr at_the_only_zero(const Expr& e, const Expr& only) {
    const Counted one = counted(only, 1.0);
    const Expr p = multiple_of_product(one);
    return substitute(e, {{only, substitute(one.value, {{p, at_zero({term_of(p)})}})}});
  }

  /// f P sum(d / t) without zeros, f P sum(d at the zero) with one.
  Expr of_mean(const Counted& none, const Counted& one, const Expr& p) {
    const Expr &zero = none.count->args[0], &t = term_of(p);
    const Expr regular = only_of(sums_in(none.value, zero, false), one.value);
    const Expr at_the_zero = only_of(sums_in(one.value, zero, true), none.value);
    if (!same(one.count, none.count) || regular.empty() || at_the_zero.empty()) return {};
    const Expr factor = Factor(p)(one.value), second = factor.empty() ? factor : Factor(at_the_zero)(factor);
    if (second.empty() || is_zero(second) || !Multiple(at_the_zero)(one.value)) return {};
    const Expr& u = at_the_zero->args[0];
    const Expr d = u->op == Op::where ? u->args[1] : is_zero(u) ? u : Expr(1.0);
    const Expr elsewhere = times_term(regular->args[0]->args[2], t);
    const Expr mean = product_of({t, same(d, elsewhere) ? d : where(zero, d, elsewhere)});
    return (*this)(is_one(second) ? mean : times(second, mean));
  }

  Expr of_arguments(const Expr& e) {
    std::vector<Expr> args;
    for (const Expr& a : e->args) args.push_back((*this)(a));
    Expr result = with_args(e, std::move(args));
    while (result->op == Op::sum) {
      const Expr inner = linear_in(result->args[0]);
      if (inner.empty()) break;
      result = gathered(result->args[0], inner);
    }
    return result;
  }

  /// An at_zero that `e` is linear in; or none.
  static Expr linear_in(const Expr& e) {
    Expr found;
    for_each(e, [&](const Expr& n) {
      if (is_at_zero(n) && !Factor(n)(e).empty()) found = n;
    });
    return found;
  }

  /// sum(c * at_zero(T) + rest) = product(T + e c) + sum(rest), where c is 0 but at zeros.
  static Expr gathered(const Expr& term, const Expr& inner) {
    const Expr rest = shorten(without(term, inner));
    return plus(weighted_sum(inner, Factor(inner)(term)), is_zero(rest) ? rest : sum(rest));
  }

  /// `e`, linear in q, without its multiples.
  static Expr without(const Expr& e, const Expr& q) {
    if (Multiple(q)(e)) return 0.0;
    const auto& a = e->args;
    switch (e->op) {
      case Op::where: return where(a[0], without(a[1], q), without(a[2], q));
      case Op::add: return plus(without(a[0], q), without(a[1], q));
      default: return substitute(e, {{q, 0.0}});
    }
  }

  ExprMap<Expr> seen_;
};

bool has_first_derivatives(const Expr& e) {
  bool found = false;
  for_each(e, [&](const Expr& n) {
    found = found || (n->op == Op::prod && n->args[0]->op == Op::where && is_one(n->args[0]->args[1]) &&
                      n->args[0]->args[0]->op == Op::equal);
  });
  return found;
}

/// Whether it is G_m, or the product of what is not 0, of terms that `is_zero_term` says to be 0.
bool has_no_zeros(const Expr& r, const Expr& is_zero_term) {
  if (r->op != Op::prod && r->op != Op::reduce) return false;
  const Expr& t = r->args[0];
  return t->op == Op::where && is_one(t->args[1]) && same(t->args[0], is_zero_term);
}

/// Refuses what still is 0 by a number of zeros.
void require_smooth(const Expr& e) {
  for_each(e, [](const Expr& n) {
    if (n->op != Op::where || n->args[0]->op != Op::equal) return;
    for (const Expr& count : n->args[0]->args) {
      if (count->op != Op::sum || count->args[0]->op != Op::equal) continue;
      for_each(n, [&](const Expr& r) {
        if (has_no_zeros(r, count->args[0]))
          fail(ErrorKind::unsupported,
               "differentiate: a part that counts the zeros of a prod has no known derivative, unless it is as "
               "differentiate() writes it. Received {}.", n.to_text());
      });
    }
  });
}

}  // namespace

Expr smooth_products(const Expr& e) {
  if (!has_first_derivatives(e)) return e;
  const Expr result = Smooth()(e);
  require_smooth(result);
  return result;
}

}  // namespace mercer::ir
