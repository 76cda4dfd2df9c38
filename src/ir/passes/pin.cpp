// pin_compared: what one pass compares with a value that another pass makes of the same terms must have the same bits
// in both. φ of max(t) is where(t == max(t), ...): the pass of the pairs takes the maximum of t, the field compares t
// with it, and a t that was rounded differently there would never win. Two passes round one expression differently
// where one of them
//
//   computes a part of it once per point, in float64; divides by a parameter by multiplying with its reciprocal;
//   takes a shorter form of a power for data of some magnitudes; has the faster functions of a GPU
//
// A pinned node rules all of that out: its argument is lowered in one way wherever it stands. Terms that have only one
// way, such as |x - z|, stay as they are.
#include <functional>

#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

bool compares(const Expr& e) {
  return e->op == Op::equal || e->op == Op::not_equal || e->op == Op::less || e->op == Op::less_equal ||
         e->op == Op::greater || e->op == Op::greater_equal;
}

/// Visits the distinct nodes of e, but for those within reductions.
void each_outside(const Expr& e, ExprMap<bool>& seen, const std::function<void(const Expr&)>& visit) {
  if (!seen.emplace(e, true).second) return;
  visit(e);
  if (is_reduction(e->op)) return;
  for (const Expr& arg : e->args) each_outside(arg, seen, visit);
}

class Pins {
 public:
  explicit Pins(const std::vector<Expr>& fields) {
    ExprMap<bool> seen;
    for (const Expr& field : fields)
      each_outside(field, seen, [this](const Expr& e) {
        if (is_reduction(e->op)) note_terms(e);
        else if (compares(e)) note_parts(e, compared_);
      });
  }

  /// `e`, an expression outside all reductions, or a term of an outer one.
  Expr operator()(const Expr& e, bool in_reduction = false) {
    ExprMap<Expr>& memo = memo_[in_reduction];
    if (auto found = memo.find(e); found != memo.end()) return found->second;
    Expr result = e;
    if (is_pinned(e)) {
      result = make(Op::pinned, {e});
    } else if (!is_leaf(e->op) && !(in_reduction && is_reduction(e->op))) {
      std::vector<Expr> args;
      for (const Expr& arg : e->args) args.push_back((*this)(arg, in_reduction || is_reduction(e->op)));
      result = with_args(e, std::move(args));
    }
    memo.emplace(e, result);
    return result;
  }

 private:
  bool is_pinned(const Expr& e) {
    return compared_.contains(e) && reduced_.contains(e) && !has_one_way(e);
  }

  /// Whether every pass computes it in one way: single roundings of values that none of them makes before.
  bool has_one_way(const Expr& e) {
    if (is_leaf(e->op) || is_reduction(e->op) || is_uniform(e)) return true;
    if (auto found = one_way_.find(e); found != one_way_.end()) return found->second;
    const bool keeps_bits = e->op == Op::neg || e->op == Op::abs;
    const bool rounds_once = e->op == Op::add || e->op == Op::sub || e->op == Op::mul || e->op == Op::min ||
                             e->op == Op::max;
    bool result = keeps_bits || (rounds_once && uses(e).x && uses(e).z);
    for (const Expr& arg : e->args) result = result && has_one_way(arg);
    one_way_.emplace(e, result);
    return result;
  }

  static void note_parts(const Expr& e, ExprMap<bool>& to) {
    for (const Expr& arg : e->args) each_outside(arg, to, [](const Expr&) {});
  }

  /// A sum or a product decides by what its terms compare, the others by their terms.
  void note_terms(const Expr& r) {
    const Expr& term = r->args[0];
    if (r->op == Op::max_over || r->op == Op::min_over || r->op == Op::reduce) {
      each_outside(term, reduced_, [](const Expr&) {});
      return;
    }
    ExprMap<bool> seen;
    each_outside(term, seen, [this](const Expr& e) {
      if (compares(e)) note_parts(e, reduced_);
    });
  }

  ExprMap<bool> compared_, reduced_;  // what stands in comparisons; what decides in reductions
  ExprMap<bool> one_way_;
  ExprMap<Expr> memo_[2];
};

}  // namespace

std::vector<Expr> pin_compared(const std::vector<Expr>& fields) {
  Pins pins(fields);
  std::vector<Expr> result;
  for (const Expr& field : fields) result.push_back(pins(field));
  return result;
}

}  // namespace mercer::ir
