#include "ir/passes/safe_norm.h"

#include <cmath>

#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

bool reads_points(const Expr& e) { return uses(e).x || uses(e).z; }
bool is_number(const Expr& e) { return e->op == Op::constant; }
bool is_even(double p) { return std::fmod(p, 2.0) == 0; }
bool is_square(const Expr& e) { return e->op == Op::mul && same(e->args[0], e->args[1]); }

/// Factors of a term, gathered. Shared parts are read once a use, so that the steps are limited.
class TermReader {
 public:
  explicit TermReader(int& steps) : steps_(steps) {}

  bool read(const Expr& e) {
    if (--steps_ < 0) return false;
    if (!reads_points(e)) return weigh(e);
    const auto& args = e->args;
    switch (e->op) {
      case Op::neg: return weigh(-1.0) && read(args[0]);
      case Op::mul: return is_square(e) ? raise(e, 1) : read(args[0]) && read(args[1]);
      case Op::div: return !reads_points(args[1]) && weigh(rcp(args[1])) && read(args[0]);
      default: return raise(e, 1);
    }
  }

  PowerTerm term() const {
    if (base_.empty() || odd_) return {};
    return {weight_.empty() ? Expr(1.0) : simplify(weight_), base_, power_};
  }

 private:
  bool weigh(const Expr& factor) {
    weight_ = weight_.empty() ? factor : weight_ * factor;
    return true;
  }

  /// A factor e^power, with roots, powers and signs taken off e.
  bool raise(Expr e, double power) {
    bool magnitude = is_nonnegative(e);
    for (bool found = true; found;) {
      const Expr inner = e->args.empty() ? Expr() : e->args[0];
      found = true;
      if (e->op == Op::abs) {
        magnitude = true;
      } else if (is_square(e)) {
        magnitude = true;
        power *= 2;
      } else if (e->op == Op::sqrt && is_nonnegative(inner)) {
        magnitude = true;
        power /= 2;
      } else if (e->op == Op::pow && is_number(e->args[1]) && (is_even(e->args[1]->value) || is_nonnegative(inner))) {
        magnitude = true;
        power *= e->args[1]->value;
      } else if (TermReader product(steps_); e->op == Op::mul && product.read(e) && product.weight_.empty()) {
        magnitude = magnitude || !product.odd_;
        power *= product.power_;
        e = product.base_;
        break;
      } else {
        found = false;
      }
      if (found) e = inner;
    }
    if (!base_.empty() && !same(base_, e)) return false;
    base_ = e;
    power_ += power;
    if (!magnitude && !is_nonnegative(e)) odd_ = !odd_;
    return true;
  }

  int& steps_;
  Expr weight_, base_;
  double power_ = 0;
  bool odd_ = false;  // has the sign of its base
};

Expr scaled_power(const Expr& part, const Expr& largest, double p) {
  return pow(where(equal(part, largest), 1.0, part / largest), p);
}

/// L s^(1/p) of sum(w |t|^p). A weight of 0 takes its feature out of the maximum, unless it is infinite.
Expr norm_of(const PowerTerm& term) {
  const Expr t = abs(term.base), &w = term.weight;
  const Expr largest = max(state(0), incoming(0));
  const Expr before = state(1) * scaled_power(state(0), largest, term.power);
  const auto with = [&](const Expr& sum) { return before + sum * scaled_power(incoming(0), largest, term.power); };
  Reduce r;
  r.term = {is_number(w) ? t : where(equal(w, 0.0), 0.0 * t, t), w};
  r.combine = r.merge = {largest, with(incoming(1))};
  r.identity = {0.0, 0.0};
  r.finish = where(equal(state(0), 0.0), 0.0, state(0) * pow(state(1), 1 / term.power));
  r.associative = true;
  return simplify(reduce(r));
}

bool contains(const Expr& e, const Expr& part) {
  bool found = false;
  for_each(e, [&](const Expr& n) { found |= same(n, part); });
  return found;
}

/// One value a pair.
bool is_of_pairs(const Expr& sum) {
  const Uses& u = uses(sum);
  return (u.x || u.row || u.index_i) && (u.z || u.col || u.index_j);
}

SumOfPowers unless_read(const Expr& e, const SumOfPowers& found) {
  return found && !contains(e, found.sum) ? found : SumOfPowers{};
}

class Rewriter {
 public:
  Expr operator()(const Expr& e) {
    return rewrite(e, [this](const Expr& node) {
      switch (node->op) {
        case Op::sqrt: return power(node, 0.5);
        case Op::rsqrt: return power(node, -0.5);
        case Op::pow: return is_number(node->args[1]) ? power(node, node->args[1]->value) : node;
        case Op::log:
        case Op::log2: return logarithm(node);
        case Op::equal:
        case Op::not_equal:
        case Op::less: return comparison(node);
        default: return node;
      }
    });
  }

 private:
  struct Scaled {
    Expr sum, norm;
    double power = 0;
    explicit operator bool() const { return !sum.empty(); }
  };
  Scaled scaled_sum(const Expr& e) const {
    const SumOfPowers found = sum_of_powers(e);
    return found ? Scaled{found.sum, norm_of(read_power_term(found.sum->args[0])), found.power} : Scaled{};
  }

  static Expr at(const Expr& e, const Scaled& s, double value) { return substitute(e, {{s.sum, Expr(value)}}); }

  /// e, a function of c S, of one of c and one of S; as it stands where S is 0.
  template <class Join>
  static Expr joined(const Expr& e, const Scaled& s, const Expr& of_norm, Join join) {
    if (same(e->args[0], s.sum)) return of_norm;
    return where(equal(s.norm, 0.0), at(e, s, 0.0), join(at(e, s, 1.0), of_norm));
  }

  /// (c S)^q = c^q N^(p q)
  Expr power(const Expr& e, double q) const {
    if (!(std::abs(q) < 1)) return e;
    const Scaled s = scaled_sum(e->args[0]);
    if (!s) return e;
    return joined(e, s, pow(s.norm, rounded_exponent(s.power * q)), [](const Expr& a, const Expr& b) { return a * b; });
  }

  /// log(c S) = log(c) + p log(N)
  Expr logarithm(const Expr& e) const {
    const Scaled s = scaled_sum(e->args[0]);
    if (!s) return e;
    return joined(e, s, s.power * make(e->op, {s.norm}), [](const Expr& a, const Expr& b) { return a + b; });
  }

  /// S with 0.
  Expr comparison(const Expr& e) const {
    const Expr &zero = e->args[0], &sum = e->args[1];
    if (!is_number(zero) || zero->value != 0 || sum->op != Op::sum) return e;
    const Scaled s = scaled_sum(sum);
    return s ? make(e->op, {zero, s.norm}) : e;
  }
};

}  // namespace

double rounded_exponent(double p) {
  const double half = std::round(2 * p) / 2;
  return std::abs(p - half) <= 0x1p-51 * std::abs(half) ? half : p;
}

SumOfPowers sum_of_powers(const Expr& e) {
  switch (e->op) {
    case Op::neg: return sum_of_powers(e->args[0]);
    case Op::div: return unless_read(e->args[1], sum_of_powers(e->args[0]));
    case Op::mul:
      for (const std::size_t i : {0, 1})
        if (SumOfPowers found = unless_read(e->args[1 - i], sum_of_powers(e->args[i]))) return found;
      return {};
    case Op::sum: {
      const PowerTerm term = is_of_pairs(e) ? read_power_term(e->args[0]) : PowerTerm{};
      return term && term.power > 1 ? SumOfPowers{e, term.base, term.power} : SumOfPowers{};
    }
    default: return {};
  }
}

PowerTerm read_power_term(const Expr& term) {
  int steps = 256;
  TermReader reader(steps);
  return reader.read(term) ? reader.term() : PowerTerm{};
}

Expr safe_norms(const Expr& e) {
  const Expr result = Rewriter()(e);
  return same(result, e) ? e : simplify(result);
}

}  // namespace mercer::ir
