#include "ir/passes/safe_field.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "ir/passes/passes.h"
#include "ir/passes/safe_norm.h"

namespace mercer::ir {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

bool is_number(const Expr& e) { return e->op == Op::constant; }
bool is_zero(const Expr& e) { return is_number(e) && e->value == 0; }

/// Outside reductions.
bool contains(const Expr& e, const Expr& part, ExprMap<bool>& known) {
  if (same(e, part)) return true;
  if (is_leaf(e->op) || is_reduction(e->op)) return false;
  if (const auto found = known.find(e); found != known.end()) return found->second;
  const bool any =
      std::any_of(e->args.begin(), e->args.end(), [&](const Expr& arg) { return contains(arg, part, known); });
  return known.emplace(e, any).first->second;
}

/// The degree in which a value is homogeneous in t, where t is positive or negative, or kUnknown.
class Degree {
 public:
  explicit Degree(Expr t) : t_(std::move(t)) {}

  double operator()(const Expr& e) {
    if (same(e, t_)) return 1;
    if (!contains(e, t_, contains_)) return 0;
    if (const auto found = known_.find(e); found != known_.end()) return found->second;
    return known_.emplace(e, of(e)).first->second;
  }

 private:
  double of(const Expr& e) {
    const auto arg = [&](std::size_t i) { return (*this)(e->args[i]); };
    switch (e->op) {
      case Op::neg:
      case Op::abs: return arg(0);
      case Op::sign: return 0 * arg(0);
      case Op::rcp: return -arg(0);
      case Op::sqrt: return arg(0) / 2;
      case Op::rsqrt: return -arg(0) / 2;
      case Op::mul: return arg(0) + arg(1);
      case Op::div: return arg(0) - arg(1);
      case Op::add:
      case Op::sub: return arg(0) == arg(1) ? arg(0) : kUnknown;
      case Op::pow: return is_number(e->args[1]) ? arg(0) * e->args[1]->value : kUnknown;
      case Op::equal:
      case Op::not_equal: return is_zero(e->args[0]) ? 0 * arg(1) : kUnknown;
      case Op::where: return of_where(e);
      default: return kUnknown;
    }
  }
  double of_where(const Expr& e) {
    if ((*this)(e->args[0]) != 0) return kUnknown;
    if (is_zero(e->args[1])) return (*this)(e->args[2]);
    if (is_zero(e->args[2])) return (*this)(e->args[1]);
    const double a = (*this)(e->args[1]), b = (*this)(e->args[2]);
    return a == b ? a : kUnknown;
  }

  Expr t_;
  ExprMap<bool> contains_;
  ExprMap<double> known_;
};

/// A value of the pair times a power of r, taken into a negative power of S.
class Absorber {
 public:
  /// `scale` r of `norm` S^(1/p).
  Absorber(SumOfPowers sum, Expr norm, Expr scale)
      : sum_(std::move(sum)), norm_(std::move(norm)), scale_(std::move(scale)) {}

  /// e r^c, or nothing where no factor of e is a negative power of S.
  std::optional<Expr> operator()(const Expr& e, double c) {
    const Expr result = absorbed(e, c, true);
    return result.empty() ? std::nullopt : std::optional(result);
  }

 private:
  Expr times(const Expr& e, double c) const { return c == 0 || is_zero(e) ? e : e * pow(scale_, c); }

  /// Empty where it cannot. `above`: e is no divisor.
  Expr absorbed(const Expr& e, double c, bool above) {
    if (--steps_ < 0 || is_leaf(e->op)) return {};
    const auto& args = e->args;
    switch (e->op) {
      case Op::sqrt: return power(args[0], 0.5, c, above);
      case Op::rsqrt: return power(args[0], -0.5, c, above);
      case Op::pow: return is_number(args[1]) ? power(args[0], args[1]->value, c, above) : Expr();
      case Op::sum: return power(e, 1, c, above);
      case Op::neg: return unary(e, absorbed(args[0], c, above));
      case Op::rcp: return unary(e, absorbed(args[0], -c, !above));
      case Op::div: {
        if (const Expr first = absorbed(args[0], c, above); !first.empty()) return first / args[1];
        const Expr second = absorbed(args[1], -c, !above);
        return second.empty() ? second : args[0] / second;
      }
      case Op::mul:
        for (const std::size_t i : {0, 1})
          if (const Expr one = absorbed(args[i], c, above); !one.empty()) return one * args[1 - i];
        return {};
      case Op::add:
      case Op::sub: return each(e, 0, c, above);
      case Op::where: return each(e, 1, c, above);
      default: return {};
    }
  }
  static Expr unary(const Expr& e, const Expr& arg) { return arg.empty() ? arg : with_args(e, {arg}); }

  /// Every argument from `first` on.
  Expr each(const Expr& e, std::size_t first, double c, bool above) {
    std::vector<Expr> args = e->args;
    bool any = false;
    for (std::size_t i = first; i < args.size(); ++i) {
      const Expr one = absorbed(args[i], c, above);
      any = any || !one.empty();
      args[i] = one.empty() ? times(args[i], c) : one;
    }
    return any ? with_args(e, std::move(args)) : Expr();
  }

  /// (k S)^q r^c = k^q (N r)^(p q) r^(c - p q)
  Expr power(const Expr& of, double q, double c, bool above) const {
    if ((above ? q : -q) >= 0) return {};
    const SumOfPowers found = sum_of_powers(of);
    if (!found || !same(found.sum, sum_.sum)) return {};
    const double degree = rounded_exponent(sum_.power * q), rest = c - degree;
    const Expr value = pow(norm_ * scale_, degree);
    const Expr own = same(of, found.sum) ? value : pow(substitute(of, {{found.sum, Expr(1.0)}}), q) * value;
    return times(own, std::abs(rest) <= 1e-13 * std::abs(degree) ? 0 : rest);
  }

  SumOfPowers sum_;
  Expr norm_, scale_;
  int steps_ = 256;
};

/// Rewrites products of values of the pair and values at the free feature.
class FieldScaler {
 public:
  /// `of_sides`: the free feature is row and col.
  FieldScaler(double most, bool of_sides) : most_(most), of_sides_(of_sides) {}

  Expr operator()(const Expr& e) {
    if (!is_free(e) || is_leaf(e->op)) return e;
    if (const auto found = memo_.find(e); found != memo_.end()) return found->second;
    Expr result = e;
    const auto descend = [&](std::size_t first) {
      std::vector<Expr> args = e->args;
      for (std::size_t i = first; i < args.size(); ++i) args[i] = (*this)(args[i]);
      return with_args(e, std::move(args));
    };
    if (e->op == Op::mul || e->op == Op::div) result = product(e);
    if (!same(result, e)) return memo_.emplace(e, result).first->second;
    switch (e->op) {
      case Op::neg:
      case Op::add:
      case Op::sub:
      case Op::mul: result = descend(0); break;
      case Op::where: result = descend(1); break;
      case Op::div: result = with_args(e, {(*this)(e->args[0]), e->args[1]}); break;
      default: break;
    }
    return memo_.emplace(e, result).first->second;
  }

  const std::vector<ScaledFields::Value>& values() const { return values_; }

 private:
  bool is_free(const Expr& e) {
    if (e->op == Op::x || e->op == Op::z || e->op == Op::w) return true;
    if (e->op == Op::row || e->op == Op::col) return of_sides_;
    if (is_leaf(e->op) || is_reduction(e->op)) return false;
    if (const auto found = free_.find(e); found != free_.end()) return found->second;
    const bool any = std::any_of(e->args.begin(), e->args.end(), [this](const Expr& arg) { return is_free(arg); });
    return free_.emplace(e, any).first->second;
  }

  /// Factors of the pair and of the feature, with those below a line.
  struct Product {
    Expr pair, feature;
  };
  void gather(const Expr& e, bool above, Product& to, int& steps) {
    const bool is_product = e->op == Op::mul || e->op == Op::div || e->op == Op::neg;
    if (is_product && --steps > 0 && is_free(e)) {
      if (e->op == Op::neg) gather(-1.0, above, to, steps);
      gather(e->args[0], above, to, steps);
      if (e->op != Op::neg) gather(e->args[1], (e->op == Op::mul) == above, to, steps);
      return;
    }
    Expr& part = is_free(e) ? to.feature : to.pair;
    if (part.empty()) part = above ? e : rcp(e);
    else part = above ? part * e : part / e;
  }

  Expr product(const Expr& e) {
    int steps = 64;
    Product of;
    gather(e, true, of, steps);
    if (of.pair.empty() || of.feature.empty()) return e;
    for (const SumOfPowers& sum : sums_in(of.pair)) {
      const Expr t = of_sides_ ? substitute(sum.base, {{leaf(Op::x), leaf(Op::row)}, {leaf(Op::z), leaf(Op::col)}})
                               : sum.base;
      const Expr feature = t->op == Op::sub ? substitute(of.feature, {{t->args[1] - t->args[0], -t}}) : of.feature;
      const double degree = Degree(t)(feature);
      if (!(degree > (uses(of.pair).param ? 0 : 1))) continue;
      const Expr norm = pow(sum.sum, 1 / sum.power), scale = scale_of(norm);
      const auto amplitude = Absorber(sum, norm, scale)(of.pair, -degree);
      if (!amplitude) continue;
      const Expr r = value({{}, 1.0, scale, true}), a = value({{}, of.pair, *amplitude});
      return a * substitute(feature, {{t, t * r}});
    }
    return e;
  }

  /// 2^-floor(log2(norm)), at most most_.
  Expr scale_of(const Expr& norm) const {
    constexpr double kLeast = -1022;
    return exp2(min(std::log2(most_), max(kLeast, -floor(log2(norm)))));
  }

  static std::vector<SumOfPowers> sums_in(const Expr& e) {
    std::vector<SumOfPowers> sums;
    for (const Expr& r : reductions_of(e)) {
      if (r->op != Op::sum) continue;
      if (const SumOfPowers found = sum_of_powers(r)) sums.push_back(found);
    }
    return sums;
  }

  Expr value(ScaledFields::Value of) {
    of.plain = simplify(of.plain);
    of.beyond = simplify(of.beyond);
    for (const ScaledFields::Value& known : values_)
      if (known.is_unit == of.is_unit && same(known.beyond, of.beyond) && same(known.plain, of.plain))
        return known.leaf;
    of.leaf = leaf(Op::pair_value, kFirstScaled + static_cast<int>(values_.size()));
    values_.push_back(of);
    return of.leaf;
  }

  double most_;
  bool of_sides_;
  std::vector<ScaledFields::Value> values_;
  ExprMap<bool> free_;
  ExprMap<Expr> memo_;
};

}  // namespace

ScaledFields scaled_fields(const std::vector<Expr>& fields, double most_scale) {
  FieldScaler scaler(most_scale, false);
  ScaledFields result;
  for (const Expr& field : fields) result.fields.push_back(scaler(field));
  result.values = scaler.values();
  return result;
}

Expr safe_powers(const Expr& formula) {
  if (!uses(formula).row && !uses(formula).col) return formula;
  FieldScaler scaler(most_scale(Dtype::float64), true);
  const Expr scaled = scaler(formula);
  if (scaler.values().empty()) return formula;
  ExprMap<Expr> values;
  for (const ScaledFields::Value& value : scaler.values()) values[value.leaf] = value.beyond;
  return simplify(substitute(scaled, values));
}

Expr without_units(const Expr& field, const std::vector<int>& units) {
  const auto is_unit = [&](const Expr& e) {
    return e->op == Op::pair_value && std::find(units.begin(), units.end(), e->slot) != units.end();
  };
  return rewrite(field, [&](const Expr& e) {
    if (e->op != Op::mul) return e;
    return is_unit(e->args[0]) ? e->args[1] : is_unit(e->args[1]) ? e->args[0] : e;
  });
}

}  // namespace mercer::ir
