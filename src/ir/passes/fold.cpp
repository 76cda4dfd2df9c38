#include "ir/passes/fold.h"

#include <span>

#include "core/error.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"

namespace mercer::ir {
namespace {

constexpr const char* kAmplitude = "amplitude";
constexpr const char* kCoef = "coef";
constexpr int kAmplitudeSlot = 1, kCoefSlot = 2;

bool is_named(const Expr& e, const char* name) { return e->op == Op::param && e->name == name; }

/// Reductions of one term, or the terms of a reduce.
std::span<const Expr> terms_of(const Expr& fold) {
  return std::span(fold->args).first(fold->op == Op::reduce ? static_cast<std::size_t>(fold->slot) : 1);
}

/// Parts of a reduce that no point n belongs to.
void refuse_points(const Expr& part, const char* name) {
  for_each(part, [&](const Expr& e) {
    const bool of_points = e->op == Op::row || e->op == Op::col || e->op == Op::index_i || e->op == Op::index_j ||
                           is_named(e, kAmplitude) || is_named(e, kCoef);
    require(!of_points || (e->op == Op::row && name[0] == 'f'),
            "gradient_field: {} reads the states and parameters{}; what varies over the points is read by the term and "
            "the combine. Received {}.", name, name[0] == 'f' ? " and row" : "", e.to_text());
  });
}

struct Factors {
  Expr rest;
  int amplitudes = 0, coefs = 0;
};

/// A product of the arrays and the rest, however it is bracketed.
Factors factors_of(const Expr& e) {
  if (is_named(e, kAmplitude)) return {{}, 1, 0};
  if (is_named(e, kCoef)) return {{}, 0, 1};
  if (e->op == Op::neg) {
    Factors inner = factors_of(e->args[0]);
    inner.rest = inner.rest.empty() ? Expr(-1.0) : -inner.rest;
    return inner;
  }
  if (e->op != Op::mul && e->op != Op::div) return {e, 0, 0};
  const Factors a = factors_of(e->args[0]);
  const Factors b = e->op == Op::mul ? factors_of(e->args[1]) : Factors{e->args[1], 0, 0};
  const Expr left = a.rest.empty() ? Expr(1.0) : a.rest;
  const int amplitudes = a.amplitudes + b.amplitudes, coefs = a.coefs + b.coefs;
  if (e->op == Op::div) return {left / b.rest, amplitudes, coefs};
  if (a.rest.empty() || b.rest.empty()) return {a.rest.empty() ? b.rest : a.rest, amplitudes, coefs};
  return {a.rest * b.rest, amplitudes, coefs};
}

/// The term of a sum, which may be written as reduce(t, a + t, 0).
Expr summed_term(const Expr& fold) {
  if (fold->op == Op::sum) return fold->args[0];
  if (fold->op != Op::reduce || fold->slot != 1) return {};
  const Expr &combine = fold->args[1], &identity = fold->args[2], &finish = fold->args.back();
  const bool starts_at_zero = identity->op == Op::constant && identity->value == 0;
  const bool adds = same(combine, state() + incoming()) || same(combine, incoming() + state());
  return starts_at_zero && adds && same(finish, state()) ? fold->args[0] : Expr();
}

bool reads_arrays(const Expr& e) {
  bool found = false;
  for_each(e, [&](const Expr& n) { found = found || is_named(n, kAmplitude) || is_named(n, kCoef); });
  return found;
}

}  // namespace

Expr amplitude_leaf() { return leaf(Op::x, kAmplitudeSlot); }
Expr coef_leaf() { return leaf(Op::x, kCoefSlot); }

Expr with_fold_leaves(const Expr& fold) {
  ExprMap<Expr> leaves;
  for_each(fold, [&](const Expr& e) {
    if (is_named(e, kAmplitude)) leaves[e] = amplitude_leaf();
    if (is_named(e, kCoef)) leaves[e] = coef_leaf();
  });
  return substitute(fold, leaves);
}

Expr with_fold_names(const Expr& fold) {
  return substitute(fold, {{amplitude_leaf(), param(kAmplitude)}, {coef_leaf(), param(kCoef)}});
}

void verify_fold(const Expr& fold) {
  require(is_reduction(fold->op),
          "gradient_field: what combines the points is an expression whose outermost operation is a reduction. "
          "Received {}.", fold.to_text());
  verify(fold, Form::fold);
  for (const Expr& term : terms_of(fold))
    for_each(term, [&](const Expr& e) {
      require(!is_reduction(e->op) || !reads_arrays(e),
              "gradient_field: a reduction inside the term is a value of the pair and reads neither amplitude nor "
              "coef. Received {}.", e.to_text());
    });
  if (fold->op != Op::reduce) return;
  const std::span<const Expr> parts(fold->args);
  const std::size_t states = static_cast<std::size_t>(fold->slot);
  for (const Expr& identity : parts.subspan(2 * states, states)) refuse_points(identity, "identity");
  if (fold->has_merge)
    for (const Expr& merge : parts.subspan(3 * states, states)) refuse_points(merge, "merge");
  refuse_points(parts.back(), "finish");
}

Expr field_of_fold(const Expr& fold) {
  const Expr term = summed_term(fold);
  if (term.empty()) return {};
  const Factors factors = factors_of(term);
  if (factors.amplitudes != 1 || factors.coefs != 1) return {};
  const Expr phi = factors.rest.empty() ? Expr(1.0) : factors.rest;
  return reads_arrays(phi) ? Expr() : phi;
}

bool fold_reads_pairs(const Expr& fold) {
  bool found = uses(fold).index_i || uses(fold).index_j;
  for (const Expr& term : terms_of(fold)) found = found || reads_pairs(term);
  return found;
}

}  // namespace mercer::ir
