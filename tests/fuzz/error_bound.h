// What any evaluation in a given precision may give: interval arithmetic over expressions, where each operation widens
// its result by the rounding error that is documented for it. The exact value and every correct computed one lie
// inside.
//
// A result is unknown where the formula is undefined or discontinuous within its error: next to the edge of a
// function's domain, on a division whose divisor may be zero, and where a value may leave the range of the type. NaN
// and infinities that the caller gives are exact and go their way: a result that must be NaN, whatever the rounding
// errors, is known to be NaN.
//
// On a GPU, exponentials, powers and roots of float32 come from its special-function unit. Its errors, relative unless
// said: ex2.approx 2^-22; lg2.approx 2^-22, or that absolutely where the logarithm is below 1; sqrt.approx 2^-23.
// Subnormal arguments and results become 0. Sums of products and of squared differences may come from tensor cores:
// within 2.5e-6 of the sum of magnitudes, and 1e-6 of the product of the factors' norms (docs/guide/precision.md); of
// float64 within 20 and 8 rounding units a feature (docs/kernels/double_products.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/expr/evaluate.h"
#include "ir/expr/expr.h"
#include "ir/expr/ops.h"

namespace mercer::fuzz {

struct Range {
  long double low = 0, high = 0;
  bool known = true;
  bool nan = false;  // surely

  static Range unknown() { return {0, 0, false}; }
  static Range not_a_number() { return {0, 0, true, true}; }
  bool contains(long double v) const { return nan ? std::isnan(v) : low <= v && v <= high; }
  bool is_infinite() const { return !nan && low == high && std::isinf(low); }
  bool is_special() const { return nan || is_infinite(); }
  bool is(long double v) const { return low == v && high == v; }
  long double magnitude() const { return std::max(std::fabs(low), std::fabs(high)); }
};

class ErrorBound {
 public:
  /// `single`: results of float32 arithmetic, else of float64. `on_gpu`: float32 has the special-function unit.
  ErrorBound(bool single, const ir::PairInputs& inputs, bool on_gpu = false)
      : on_gpu_(on_gpu),
        has_unit_(single && on_gpu),
        unit_(single ? 0x1p-24L : 0x1p-53L),
        tiny_(single ? 0x1p-125L : 0x1p-1021L),
        huge_(single ? 1e36L : 1e300L),
        in_(inputs) {}

  Range operator()(const Expr& e) { return (*this)(e, in_.k); }
  /// The range of a field at the feature k. Reductions are kept from feature to feature: `e` must outlive the object.
  Range operator()(const Expr& e, std::int64_t k) {
    Values seen;
    return value(e, {k, nullptr, nullptr, &seen});
  }

  /// The sum of terms in any order, each of which is known. `contract`: a relative error of the sum of the terms'
  /// magnitudes that is allowed whatever their number.
  Range sum_of(const std::vector<Range>& terms, long double contract = 0) const {
    Range total{0, 0};
    long double sizes = 0;
    for (const Range& t : terms) {
      if (!t.known) return Range::unknown();
      if (t.is_special()) return sum_with_special(terms);
      total = {total.low + t.low, total.high + t.high};
      sizes += t.magnitude();
    }
    if (sizes > huge_) return Range::unknown();
    const long double rounding = 2 * static_cast<long double>(terms.size() + 2) * unit_;
    const long double error = std::max(rounding, contract) * sizes + tiny_;
    return {total.low - error, total.high + error};
  }

  Range log_sum_exp(const std::vector<Range>& terms) const {
    for (const Range& t : terms)
      if (!t.known || t.is_infinite()) return Range::unknown();
    for (const Range& t : terms)
      if (t.nan) return t;
    const auto at = [&](bool high) {
      long double top = -std::numeric_limits<long double>::infinity(), sum = 0;
      for (const Range& t : terms) top = std::max(top, high ? t.high : t.low);
      for (const Range& t : terms) sum += std::exp((high ? t.high : t.low) - top);
      return top + std::log(sum);
    };
    long double largest = 1;
    for (const Range& t : terms) largest = std::max(largest, t.magnitude());
    // A step scales the sum by an exponential: 2 rounding units, 4 of the special-function unit, and a product.
    const long double step = has_unit_ ? 6 : 4;
    const long double error = unit_ * (4 * largest + step * static_cast<long double>(terms.size()) + 16);
    return {at(false) - error, at(true) + error};
  }

  /// The product of two results, rounded.
  Range times(const Range& a, const Range& b) const {
    if (!a.known || !b.known) return Range::unknown();
    if (a.nan || b.nan) return Range::not_a_number();
    return a.is_infinite() || b.is_infinite() ? Range::unknown() : widened(product(a, b), 1);
  }

 private:
  using Op = ir::Op;
  using Values = std::unordered_map<const ir::Node*, Range>;
  struct Scope {
    std::int64_t k = -1;
    const std::vector<Range>* state = nullptr;
    const std::vector<Range>* incoming = nullptr;
    Values* seen = nullptr;
  };

  /// NaN where a term is, or where infinities of both signs meet.
  static Range sum_with_special(const std::vector<Range>& terms) {
    Range total{0, 0};
    for (const Range& t : terms) {
      if (!t.known) return Range::unknown();
      if (t.nan || (total.is_infinite() && t.is_infinite() && t.low != total.low)) total = Range::not_a_number();
      else if (!total.nan && t.is_infinite()) total = t;
    }
    return total;
  }

  /// A result with an error of `ulps` units in the last place.
  Range widened(Range r, long double ulps) const {
    if (!r.known || std::isnan(r.low) || std::isnan(r.high)) return Range::unknown();
    const long double error = 2 * ulps * unit_ * r.magnitude() + tiny_;
    if (r.magnitude() > huge_) return Range::unknown();
    return {r.low - error, r.high + error};
  }

  Range rounded(double v) const {
    if (std::isnan(v)) return Range::not_a_number();
    if (std::isinf(v)) return {v, v};
    if (std::fabs(v) > huge_) return Range::unknown();
    const bool exact = unit_ < 0x1p-50L || static_cast<double>(static_cast<float>(v)) == v;
    return exact ? Range{v, v} : widened({v, v}, 0.5L);
  }

  Range value(const Expr& e, const Scope& scope) {
    Values& seen = ir::is_reduction(e->op) ? reductions_ : *scope.seen;
    if (const auto it = seen.find(&*e); it != seen.end()) return it->second;
    const Range result = plain_value(e, scope);
    seen.emplace(&*e, result);
    return result;
  }

  Range plain_value(const Expr& e, const Scope& scope) {
    switch (e->op) {
      case Op::constant: return rounded(e->value);
      case Op::x: return rounded(in_.x[scope.k]);
      case Op::z: return rounded(in_.z[scope.k]);
      case Op::w: return rounded(in_.w[scope.k]);
      case Op::row: return rounded(in_.row);
      case Op::col: return rounded(in_.col);
      case Op::index_i: return rounded(in_.i);
      case Op::index_j: return rounded(in_.j);
      case Op::features: return rounded(static_cast<double>(in_.features));
      case Op::param: return rounded(in_.params->count(e->name) ? in_.params->at(e->name) : e->value);
      case Op::state: return (*scope.state)[e->slot];
      case Op::incoming: return (*scope.incoming)[e->slot];
      case Op::sum:
      case Op::prod:
      case Op::max_over:
      case Op::min_over:
      case Op::logsumexp: return reduction(e);
      case Op::reduce: return user_reduction(e);
      default: return scalar(e, scope);
    }
  }

  Range reduction(const Expr& e) {
    std::vector<Range> terms;
    for (std::int64_t k = 0; k < in_.features; ++k) {
      Values seen;
      terms.push_back(value(e->args[0], {k, nullptr, nullptr, &seen}));
      if (!terms.back().known) return Range::unknown();
    }
    if (e->op == Op::sum && on_gpu_) return sum_on_gpu(e, terms);
    if (e->op == Op::sum) return sum_of(terms);
    for (const Range& t : terms)
      if (t.nan) return t;
    if (e->op == Op::logsumexp) return log_sum_exp(terms);
    Range total = e->op == Op::prod ? Range{1, 1} : terms.empty() ? Range::unknown() : terms[0];
    for (const Range& t : terms) {
      if (t.is_infinite()) return Range::unknown();
      if (e->op == Op::max_over)
        total = {std::max(total.low, t.low), std::max(total.high, t.high)};
      else if (e->op == Op::min_over)
        total = {std::min(total.low, t.low), std::min(total.high, t.high)};
      else
        total = times(total, t);
    }
    return total;
  }

  Range sum_on_gpu(const Expr& e, const std::vector<Range>& terms) {
    const long double units = unit_ * static_cast<long double>(terms.size());
    const long double of_sum = has_unit_ ? 2.5e-6L : 20 * units, of_norms = has_unit_ ? 1e-6L : 8 * units;
    return widened_by(sum_of(terms, of_sum), of_norms * norms(e->args[0]));
  }

  static Range widened_by(const Range& r, long double error) {
    return r.is_special() || !r.known ? r : Range{r.low - error, r.high + error};
  }

  /// The product of the norms, over the features, of the factors of a term.
  long double norms(const Expr& term) {
    if (term->op == Op::mul) return norms(term->args[0]) * norms(term->args[1]);
    long double squares = 0;
    for (std::int64_t k = 0; k < in_.features; ++k) {
      Values seen;
      const Range r = value(term, {k, nullptr, nullptr, &seen});
      if (r.known && !r.is_special()) squares += r.magnitude() * r.magnitude();
    }
    return std::sqrt(squares);
  }

  Range user_reduction(const Expr& e) {
    const auto states = static_cast<std::size_t>(e->slot);
    std::vector<Range> state;
    Values at_start, at_end;
    for (std::size_t s = 0; s < states; ++s)
      state.push_back(value(e->args[2 * states + s], {-1, nullptr, nullptr, &at_start}));
    for (std::int64_t k = 0; k < in_.features; ++k) {
      std::vector<Range> incoming, next;
      Values terms, combined;
      for (std::size_t s = 0; s < states; ++s) incoming.push_back(value(e->args[s], {k, nullptr, nullptr, &terms}));
      for (std::size_t s = 0; s < states; ++s)
        next.push_back(value(e->args[states + s], {k, &state, &incoming, &combined}));
      state = next;
    }
    return value(e->args.back(), {-1, &state, nullptr, &at_end});
  }

  static Range hull(const Range& a, const Range& b) {
    if (!a.known || !b.known || a.nan != b.nan) return Range::unknown();
    return {std::min(a.low, b.low), std::max(a.high, b.high), true, a.nan};
  }

  static Range product(const Range& a, const Range& b) {
    const long double all[] = {a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high};
    return {*std::min_element(all, all + 4), *std::max_element(all, all + 4)};
  }

  static Range corners(const Range& a, const Range& b, const std::function<long double(long double, long double)>& f) {
    const long double all[] = {f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)};
    for (long double v : all)
      if (!std::isfinite(v)) return Range::unknown();
    return {*std::min_element(all, all + 4), *std::max_element(all, all + 4)};
  }

  static Range truth(bool surely, bool possibly) { return surely ? Range{1, 1} : possibly ? Range{0, 1} : Range{0, 0}; }
  static bool surely_true(const Range& r) { return r.nan || r.low > 0 || r.high < 0; }

  Range scalar(const Expr& e, const Scope& scope) {
    std::vector<Range> a;
    if (e->op == Op::where) {
      const Range condition = value(e->args[0], scope);
      if (!condition.known) return Range::unknown();
      if (surely_true(condition)) return value(e->args[1], scope);
      if (condition.is(0)) return value(e->args[2], scope);
      return hull(value(e->args[1], scope), value(e->args[2], scope));
    }
    for (const Expr& arg : e->args) a.push_back(value(arg, scope));
    for (const Range& r : a)
      if (!r.known) return Range::unknown();
    const bool joins = e->op == Op::logical_and || e->op == Op::logical_or;  // 0 may lie between the ends of a range
    const bool any_special = std::any_of(a.begin(), a.end(), [](const Range& r) { return r.is_special(); });
    if (any_special && !joins) return special(e, a);
    return a.size() == 1   ? unary(e, a[0])
           : a.size() == 2 ? binary(e, a[0], a[1])
                           : widened(add(widened(product(a[0], a[1]), 1), a[2]), 1);
  }

  /// The range where an argument is NaN or infinite for sure: that of the table, if the ends of the other ranges agree
  /// on NaN, on an infinity or on a number that needs no rounding. A power has its extremes between them.
  Range special(const Expr& e, const std::vector<Range>& a) const {
    const auto end = [](const Range& r, bool high) {
      return r.nan ? std::numeric_limits<long double>::quiet_NaN() : high ? r.high : r.low;
    };
    const bool exact = std::all_of(a.begin(), a.end(), [](const Range& r) { return r.nan || r.low == r.high; });
    if (e->op == Op::pow && !exact) return Range::unknown();
    Range result = Range::unknown();
    for (unsigned ends = 0; ends < 1u << a.size(); ++ends) {
      long double at[3];
      for (std::size_t i = 0; i < a.size(); ++i) at[i] = end(a[i], ends >> i & 1);
      const long double v = ir::info(e->op).eval_wide(at);
      const Range found = std::isnan(v) ? Range::not_a_number() : Range{v, v};
      if (ends == 0) result = found;
      if (found.nan != result.nan || found.low != result.low) return Range::unknown();
    }
    const bool plain = result.is_special() || result.is(0) || result.is(1) || result.is(-1);
    return plain ? result : widened(result, 4);
  }

  static Range add(const Range& a, const Range& b) {
    if (!a.known || !b.known) return Range::unknown();
    return {a.low + b.low, a.high + b.high};
  }

  /// What the special-function unit sees of an argument that is not negative: 0 in place of a subnormal number.
  Range flushed(const Range& a) const { return has_unit_ && a.low < tiny_ ? Range{0, a.high} : a; }

  /// Units of e^x: the unit computes 2^(x log2 e); constant and product round, which is |x| 2^-23 of the result.
  long double exponential_ulps(const Range& a) const { return has_unit_ ? 3 + a.magnitude() : 3; }

  /// Increasing (or decreasing) functions by their table row.
  Range monotone(const Expr& e, const Range& a, long double ulps, bool increasing = true) const {
    const auto& f = ir::info(e->op);
    const long double low = f.eval_wide(&a.low), high = f.eval_wide(&a.high);
    return widened(increasing ? Range{low, high} : Range{high, low}, ulps);
  }

  Range unary(const Expr& e, const Range& a) const {
    const bool crosses = a.low <= 0 && a.high >= 0;
    switch (e->op) {
      case Op::neg: return {-a.high, -a.low};
      case Op::abs: return {crosses ? 0 : std::min(std::fabs(a.low), std::fabs(a.high)), a.magnitude()};
      case Op::sign: return monotone(e, a, 0);
      case Op::floor:
      case Op::ceil:
      case Op::round: return monotone(e, a, 0);
      case Op::logical_not: return truth(a.is(0), crosses);
      case Op::sqrt:
        return a.low < 0 ? (a.low >= -4 * tiny_ ? monotone(e, {0, a.high}, 1) : Range::unknown())
                         : monotone(e, flushed(a), 1);
      case Op::rsqrt: return a.low <= 4 * tiny_ ? Range::unknown() : monotone(e, a, 2, false);
      case Op::rcp:
        return crosses || std::min(std::fabs(a.low), std::fabs(a.high)) < 4 * tiny_ ? Range::unknown()
                                                                                    : monotone(e, a, 2, false);
      case Op::exp: return a.high > 1e4L ? Range::unknown() : monotone(e, a, exponential_ulps(a));
      case Op::exp2:
      case Op::expm1: return a.high > 1e4L ? Range::unknown() : monotone(e, a, 3);
      case Op::log:
      case Op::log2: return a.low <= 4 * tiny_ ? Range::unknown() : monotone(e, a, 3);
      case Op::log1p: return a.low <= -1 ? Range::unknown() : monotone(e, a, 3);
      case Op::tanh:
      case Op::erf: return monotone(e, a, 4);
      case Op::asin: return a.low < -1 || a.high > 1 ? Range::unknown() : monotone(e, a, 3);
      case Op::acos: return a.low < -1 || a.high > 1 ? Range::unknown() : monotone(e, a, 3, false);
      case Op::sin:
      case Op::cos: return wave(e, a);
      default: return Range::unknown();
    }
  }

  Range wave(const Expr& e, const Range& a) const {
    if (a.magnitude() > 1e5L) return Range::unknown();
    const auto& f = ir::info(e->op);
    const long double middle = (a.low + a.high) / 2, value = f.eval_wide(&middle), reach = (a.high - a.low) / 2;
    return widened({std::max(-1.0L, value - reach), std::min(1.0L, value + reach)}, 3);
  }

  Range binary(const Expr& e, const Range& a, const Range& b) const {
    const auto at = [&](long double p, long double q) {
      const long double args[] = {p, q};
      return ir::info(e->op).eval_wide(args);
    };
    switch (e->op) {
      case Op::add: return widened(add(a, b), 1);
      case Op::sub: return widened({a.low - b.high, a.high - b.low}, 1);
      case Op::mul: return widened(product(a, b), 1);
      case Op::div:
        if (b.low <= 4 * tiny_ && b.high >= -4 * tiny_) return Range::unknown();
        return widened(corners(a, b, at), 2);
      case Op::min: return {std::min(a.low, b.low), std::min(a.high, b.high)};
      case Op::max: return {std::max(a.low, b.low), std::max(a.high, b.high)};
      case Op::pow: return power(a, b, at);
      case Op::xlogy:
        if (a.is(0)) return {0, 0};
        return b.low <= 4 * tiny_ ? Range::unknown() : widened(corners(a, b, at), 4);
      case Op::atan2:
        if (a.low <= 4 * tiny_ && a.high >= -4 * tiny_ && b.low <= 4 * tiny_) return Range::unknown();
        return widened(corners(a, b, at), 4);
      case Op::copysign: {
        const Range size{a.low <= 0 && a.high >= 0 ? 0 : std::min(std::fabs(a.low), std::fabs(a.high)), a.magnitude()};
        return b.low > 0 ? size : b.high < 0 ? Range{-size.high, -size.low} : Range{-size.high, size.high};
      }
      case Op::less: return truth(a.high < b.low, a.low < b.high);
      case Op::less_equal: return truth(a.high <= b.low, a.low <= b.high);
      case Op::greater: return truth(a.low > b.high, a.high > b.low);
      case Op::greater_equal: return truth(a.low >= b.high, a.high >= b.low);
      case Op::equal: return truth(same_point(a, b), a.low <= b.high && b.low <= a.high);
      case Op::not_equal: return truth(a.high < b.low || b.high < a.low, !same_point(a, b));
      case Op::logical_and: return truth(surely_true(a) && surely_true(b), !a.is(0) && !b.is(0));
      case Op::logical_or: return truth(surely_true(a) || surely_true(b), !a.is(0) || !b.is(0));
      default: return Range::unknown();
    }
  }

  static bool same_point(const Range& a, const Range& b) { return a.low == a.high && b.is(a.low); }

  /// Units of a^b, a > 0: on the special-function unit 2^(b log2 a) errs by ln 2 times the error of its exponent. A
  /// result below the smallest number is 0 however large that is.
  long double power_ulps(const Range& a, const Range& b) const {
    constexpr long double kUlps = 6, kLn2 = 0.6931471805599453L;
    if (!has_unit_) return kUlps;
    const long double least = std::max(a.low, tiny_);
    const long double size = std::max(std::fabs(std::log2(least)), std::fabs(std::log2(std::max(a.high, tiny_))));
    // The units are 2^-23: 2 for the logarithm, 1 for the roundings of exponent and product.
    return kUlps + kLn2 * b.magnitude() * (2 * std::max(1.0L, size) + size);
  }

  template <class F>
  Range power(const Range& a, const Range& b, const F& at) const {
    const long double ulps = power_ulps(a, b);
    if (b.is(0)) return {1, 1};
    if (a.low > 4 * tiny_) return widened(corners(a, b, at), ulps);
    const bool fixed = b.low == b.high;
    if (fixed && b.low > 0 && a.low >= 0)
      return widened({at(flushed(a).low, b.low), at(a.high, b.low)}, ulps);
    if (!fixed || b.low < 0 || b.low != std::floor(b.low)) return Range::unknown();
    const bool even = std::fmod(b.low, 2) == 0;
    if (!even) return widened({at(a.low, b.low), at(a.high, b.low)}, ulps);
    const long double least = a.low <= 0 && a.high >= 0 ? 0 : std::min(std::fabs(a.low), std::fabs(a.high));
    return widened({at(least, b.low), at(a.magnitude(), b.low)}, ulps);
  }

  bool on_gpu_, has_unit_;
  long double unit_, tiny_, huge_;
  ir::PairInputs in_;
  Values reductions_;
};

}  // namespace mercer::fuzz
