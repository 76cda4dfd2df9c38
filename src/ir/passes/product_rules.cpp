#include "ir/passes/product_rules.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string_view>

#include "core/error.h"
#include "ir/passes/chain_products.h"

namespace mercer::ir {
namespace {

constexpr std::string_view kAtZero = "at_zero";

Expr nonzero_product(const Expr& t) { return prod(where(equal(t, 0.0), 1.0, t)); }
Expr zero_count(const Expr& t) { return sum(equal(t, 0.0)); }

// ---- Products of numbers with e_1, e_2, ... A set of them is a mask. ------------------------------------------------

using Set = unsigned;

/// The sets within `all` that `visit` is called with, from the empty one on.
template <class Visit>
void each_subset(Set all, Visit visit) {
  for (Set s = 0;; s = (s - all) & all) {
    visit(s);
    if (s == all) return;
  }
}

struct State {
  Set set;
  int degree;  // in y
  auto operator<=>(const State&) const = default;
};

/// The states from which coefficient `wanted` of a product follows.
std::vector<State> states_for(State wanted) {
  std::vector<State> found;
  each_subset(wanted.set, [&](Set s) {
    for (int j = 0; j <= std::min(wanted.degree, std::popcount(s)); ++j)
      if (wanted.degree - j <= std::popcount(wanted.set & ~s)) found.push_back({s, j});
  });
  return found;
}

/// The coefficient `wanted` of the product of numbers whose coefficients are term(State).
template <class Term>
Expr coefficient_of_product(State wanted, Term term) {
  const std::vector<State> states = states_for(wanted);
  std::map<State, int> slots;
  for (const State& s : states) slots.emplace(s, static_cast<int>(slots.size()));
  Reduce d;
  d.associative = true;
  for (const State& s : states) {
    Expr total = 0.0;
    for (const auto& [part, slot] : slots) {
      const auto rest = slots.find({s.set & ~part.set, s.degree - part.degree});
      if ((part.set & ~s.set) == 0 && rest != slots.end()) total = plus(total, state(slot) * incoming(rest->second));
    }
    d.term.push_back(term(s));
    d.combine.push_back(total);
    d.identity.push_back(s.set == 0 ? 1.0 : 0.0);
  }
  d.merge = d.combine;
  d.finish = state(slots.at(wanted));
  return reduce(d);
}

Set full(const Terms& terms) { return static_cast<Set>(terms.size()) - 1; }

Expr reduce_of(const Terms& terms) {
  return coefficient_of_product({full(terms), 0}, [&](State s) { return terms[s.set]; });
}

/// The coefficients of the sets within `kept`, by the numbers that are left.
Terms within(const Terms& terms, Set kept) {
  Terms found;
  each_subset(kept, [&](Set s) { found.push_back(terms[s]); });
  return found;
}

/// sum over sets S within `all`, but the empty one, of terms[S] * of(all without S).
template <class Of>
Expr convolved(const Terms& terms, Set all, Of of) {
  Expr total = 0.0;
  each_subset(all, [&](Set s) {
    if (s != 0 && !is_zero(terms[s])) total = plus(total, times(terms[s], of(all & ~s)));
  });
  return total;
}

Expr difference(const Expr& a, const Expr& b) { return is_zero(b) ? a : is_zero(a) ? -b : a - b; }

/// product(T) / T_k, with t_k not 0.
Expr quotient(const Terms& terms, Set set) {
  const auto below = [&](Set s) { return quotient(terms, s); };
  return difference(product_of(within(terms, set)), convolved(terms, set, below)) / terms[0];
}

/// The product over the other features.
Expr others(const Terms& terms) {
  return where(equal(terms[0], 0.0), at_zero(terms), quotient(terms, full(terms)));
}

/// `value` of where(zero, value, 0) or where(zero, 0, value), as simplified; or none.
Expr where_it_is(const Expr& e, const Expr& zero, bool at_zeros) {
  if (e->op == Op::where && same(e->args[0], zero)) return e->args[at_zeros ? 1 : 2];
  const bool is_one = at_zeros ? same(e, zero) : e->op == Op::not_equal && same(make(Op::equal, e->args), zero);
  return is_zero(e) ? e : is_one ? Expr(1.0) : Expr();
}

/// at_zero as sums and products over the features.
class Written {
 public:
  explicit Written(const Terms& terms) : terms_(terms), is_zero_(equal(terms[0], 0.0)) {}

  Expr operator()() {
    Expr result = 0.0;
    for (int zeros = std::popcount(full(terms_)); zeros >= 0; --zeros)
      result = where(equal(zero_count(terms_[0]), zeros + 1.0), others_with(zeros, full(terms_)), result);
    return result;
  }

 private:
  /// Y_m.
  Expr others_with(int zeros, Set set) {
    if (zeros < 0) return 0.0;
    const auto fewer = [&](Set s) { return others_with(zeros - 1, s); };
    return difference(coefficient(zeros, set), zeros == 0 ? Expr(0.0) : convolved(terms_, set, fewer));
  }

  /// G_m.
  Expr coefficient(int degree, Set set) const {
    if (degree > std::popcount(set)) return 0.0;
    if (set == 0) return nonzero_product(terms_[0]);
    const Terms kept = within(terms_, set);
    return coefficient_of_product({full(kept), degree}, [&](State s) -> Expr {
      if (s.set == 0) return where(is_zero_, 1.0, kept[0]);
      if (s.degree > 1 || is_zero(kept[s.set])) return 0.0;
      return s.degree == 1 ? where(is_zero_, kept[s.set], 0.0) : where(is_zero_, 0.0, kept[s.set]);
    });
  }

  Terms terms_;
  Expr is_zero_;
};

/// T of the derivative: T + e d, or with d in place of all that a number already there multiplies, if only that moves.
Terms moved(const Terms& terms, const Terms& d) {
  for (Set number = 1; number < terms.size(); number *= 2) {
    Terms result = terms;
    bool only = true;
    for (Set s = 0; s < terms.size(); ++s) {
      if ((s & number) != 0) result[s] = d[s];
      else only = only && is_zero(d[s]);
    }
    if (only) return result;
  }
  return extended(terms, d);
}

}  // namespace

Terms extended(Terms terms, const Terms& d) {
  if (terms.size() >> kMostNumbers != 0)
    fail(ErrorKind::unsupported,
         "differentiate: a derivative of order {} of a prod has no known derivative.", kMostNumbers);
  terms.insert(terms.end(), d.begin(), d.end());
  return terms;
}

Expr product_of(const Terms& terms) { return terms.size() == 1 ? prod(terms[0]) : reduce_of(terms); }

Expr at_zero(const Terms& terms) {
  Node node = *reduce_of(terms);
  node.name = kAtZero;
  return make(std::move(node));
}

Expr prod_weight(const Expr& t) {
  const Expr product = nonzero_product(t), zeros = zero_count(t);
  return where(equal(t, 0.0), where(equal(zeros, 1.0), product, 0.0), where(equal(zeros, 0.0), product / t, 0.0));
}

Expr prod_mean(const Expr& t, const Expr& d) {
  const Expr product = nonzero_product(t), zeros = zero_count(t);
  const Expr regular = product * sum(where(equal(t, 0.0), 0.0, d / t));
  const Expr at_the_zero = product * sum(where(equal(t, 0.0), d, 0.0));
  return where(equal(zeros, 0.0), regular, where(equal(zeros, 1.0), at_the_zero, 0.0));
}

bool is_at_zero(const Expr& reduction) { return reduction->op == Op::reduce && reduction->name == kAtZero; }

Terms product_terms(const Expr& reduction) {
  return {reduction->args.begin(), reduction->args.begin() + reduction->slot};
}

bool is_product(const Expr& reduction) {
  if (is_at_zero(reduction)) return true;
  const auto states = static_cast<unsigned>(reduction->slot);
  if (reduction->op != Op::reduce || states < 2 || !std::has_single_bit(states)) return false;
  const Expr built = reduce_of(product_terms(reduction));
  return same(reduction, built) || same(simplify(reduction), simplify(built));
}

Expr weighted_sum(const Expr& at_zero, const Expr& c) {
  Terms d(product_terms(at_zero).size(), 0.0);
  d[0] = c;
  return product_of(extended(product_terms(at_zero), d));
}

Expr product_along(const Expr& reduction, const Terms& d) {
  if (std::all_of(d.begin(), d.end(), is_zero)) return 0.0;
  const Terms terms = moved(product_terms(reduction), d);
  return is_at_zero(reduction) ? at_zero(terms) : product_of(terms);
}

Expr product_share(const Expr& reduction, const Terms& d) {
  const Terms terms = product_terms(reduction);
  const Set all = full(terms);
  Expr total = 0.0;
  each_subset(all, [&](Set s) {
    if (!is_zero(d[s])) total = plus(total, times(others(within(terms, all & ~s)), d[s]));
  });
  return total;
}

Terms terms_written(const Expr& without_zeros, const Expr& with_one) {
  const Set all = static_cast<Set>(without_zeros->slot) - 1;
  const Expr& zero = without_zeros->args[0]->args[0];
  Terms terms = product_terms(without_zeros);
  const std::vector<State> states = states_for({all, 1});
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto [set, degree] = states[i];
    if (degree == 0) continue;
    const Expr at_zeros = where_it_is(with_one->args[i], zero, true);
    const Expr elsewhere = where_it_is(terms[set], zero, false);
    if (at_zeros.empty() || elsewhere.empty()) return {};
    terms[set] = same(at_zeros, elsewhere) ? at_zeros : where(zero, at_zeros, elsewhere);
  }
  terms[0] = terms[0]->args[2];
  return terms;
}

bool is_part_written(const Expr& e, const Expr& zero, int numbers, int degree) {
  if (e->op != Op::reduce || e->args[0]->op != Op::where || !is_one(e->args[0]->args[1])) return false;
  const auto states = static_cast<int>(states_for({(1u << numbers) - 1, degree}).size());
  return e->slot == states && same(e->args[0]->args[0], zero);
}

Expr written_products(const Expr& e) {
  return rewrite(e, [](const Expr& n) { return is_at_zero(n) ? Written(product_terms(n))() : n; });
}

}  // namespace mercer::ir
