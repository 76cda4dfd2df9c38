// The symbolic derivative of a formula against central differences of the oracle.
//
//   D(h) = (f(v + h) - f(v - h)) / 2h,   R(h) = (4 D(h/2) - D(h)) / 3 = f'(v) + O(h^4)
//
// in the oracle's extended precision. Where f is smooth, R of two steps agree and say how far they can be trusted.
// Where the slopes on both sides differ, v is a kink. There the derivative is 0 by the rules of the library if f is the
// same on both sides, as at coincident points; other kinks, jumps and edges of domains are left out.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "fuzz/call_case.h"
#include "fuzz/error_bound.h"
#include "ir/expr/evaluate.h"
#include "ir/expr/ops.h"

namespace mercer::fuzz {

struct DerivativeCounts {
  std::int64_t smooth = 0, kinks = 0, left_out = 0;
};

class DerivativeCheck {
 public:
  DerivativeCheck(const Item& item, std::int64_t i, std::int64_t j) : in_(item.pair(i, j)) {
    const auto count = static_cast<std::size_t>(item.k);
    x_.assign(in_.x, in_.x + count), z_.assign(in_.z, in_.z + count);
    w_.assign(count, 1);
    if (in_.w) w_.assign(in_.w, in_.w + count);
    params_ = *in_.params;
    in_.x = x_.data(), in_.z = z_.data(), in_.w = w_.data(), in_.params = &params_;
  }

  /// What is wrong with `derivative` of `f` by `variable`, at the feature k; empty when nothing is.
  std::string fault(const Expr& f, const Expr& derivative, const Expr& variable, std::int64_t k,
                    DerivativeCounts& counts) {
    in_.k = k;
    double& at = place(variable, k);
    const double v = at;
    const double step = std::ldexp(1.0, std::ilogb(std::max(1e-3, std::abs(v))) - 9);
    const bool near_zero = v != 0 && std::abs(v) < 1e-4;  // a kink there is no kink here
    if (!std::isfinite(v) || std::abs(v) > 1e6 || near_zero) return ++counts.left_out, "";
    const long double found = ir::evaluate_wide(derivative, in_);
    const Slopes wide = slopes(f, at, step), middle = slopes(f, at, step / 2), narrow = slopes(f, at, step / 4);
    const long double first = (4 * middle.central() - wide.central()) / 3;
    const long double second = (4 * narrow.central() - middle.central()) / 3;
    const long double size = std::max({std::fabs(second), std::fabs(narrow.left), std::fabs(narrow.right)});
    const long double noise = 0x1p-48L * wide.magnitude / step + 1e-12L, trust = std::fabs(first - second);
    ErrorBound bound(false, in_);
    if (!std::isfinite(size) || !std::isfinite(trust) || !bound(f, k).known) return ++counts.left_out, "";
    // Steps of a derivative are squares, and more, of steps of the formula; those of infinite points are 0 * infinity.
    if (size > 1e60L || (std::isnan(found) && has_infinite_input())) return ++counts.left_out, "";
    // Slopes of both sides come together as the step does, where f is smooth.
    const long double gap = std::fabs(narrow.right - narrow.left), wide_gap = std::fabs(wide.right - wide.left);
    const long double allowed = 1e-6L * size + 10 * trust + noise;
    if (gap <= 0.3L * wide_gap + noise && trust <= 1e-4L * size + noise) {
      ++counts.smooth;
      if (std::fabs(found - second) <= allowed || is_alone(derivative, at, step, second, allowed)) return "";
      if (has_steps(f)) return ++counts.left_out, "";  // many of them between the points look like a slope
      return fmt::format("the derivative by {} = {} at feature {} is {}, differences give {}; values up to {}",
                         name_of(variable), v, k, static_cast<double>(found), static_cast<double>(second),
                         static_cast<double>(wide.magnitude));
    }
    const bool even = std::fabs(narrow.right + narrow.left) <= noise && std::fabs(wide.right + wide.left) <= noise;
    if (!even || takes_branches(f)) return ++counts.left_out, "";
    ++counts.kinks;
    if (std::fabs(found) <= noise) return "";
    return fmt::format("the derivative by {} at feature {}, a kink with equal slopes, is {} in place of 0",
                       name_of(variable), k, static_cast<double>(found));
  }

  static std::string name_of(const Expr& variable) {
    switch (variable->op) {
      case ir::Op::x: return "x";
      case ir::Op::z: return "z";
      case ir::Op::w: return "w";
      case ir::Op::row: return "row";
      case ir::Op::col: return "col";
      default: return variable->name;
    }
  }

 private:
  struct Slopes {
    long double left, right, magnitude;
    long double central() const { return (left + right) / 2; }
  };

  double& place(const Expr& variable, std::int64_t k) {
    switch (variable->op) {
      case ir::Op::x: return x_[static_cast<std::size_t>(k)];
      case ir::Op::z: return z_[static_cast<std::size_t>(k)];
      case ir::Op::w: return w_[static_cast<std::size_t>(k)];
      case ir::Op::row: return in_.row;
      case ir::Op::col: return in_.col;
      default: return params_[variable->name];
    }
  }

  Slopes slopes(const Expr& f, double& at, double step) {
    const double v = at;
    const auto value = [&](double moved) {
      at = moved;
      return ir::evaluate_wide(f, in_);
    };
    const long double low = value(v - step), high = value(v + step), middle = value(v);
    return {(middle - low) / step, (high - middle) / step,
            std::max({std::fabs(low), std::fabs(high), std::fabs(middle)})};
  }

  /// Whether the derivative is another one at this point alone: a tie of a maximum in a first derivative, say, of which
  /// the second one is shared evenly.
  bool is_alone(const Expr& derivative, double& at, double step, long double expected, long double allowed) {
    const double v = at;
    bool both = true;
    for (const double side : {-1.0, 1.0}) {
      at = v + side * step / 1024;
      both &= std::fabs(ir::evaluate_wide(derivative, in_) - expected) <= allowed + 1e-2L * (1 + std::fabs(expected));
    }
    at = v;
    return both && takes_branches(derivative);
  }

  /// Operations whose kinks may be one-sided by definition.
  static bool takes_branches(const Expr& f) {
    bool found = false;
    ir::for_each(f, [&](const Expr& e) {
      using Op = ir::Op;
      found |= e->op == Op::where || e->op == Op::floor || e->op == Op::ceil || e->op == Op::round ||
               e->op == Op::copysign || e->op == Op::sign || e->op == Op::logical_not || e->op == Op::reduce ||
               e->op == Op::min || e->op == Op::max ||  // ties share, a kink on one side too
               (e->op >= Op::less && e->op <= Op::logical_or);
    });
    return found;
  }

  bool has_infinite_input() const {
    const auto is_infinite = [](double v) { return std::isinf(v); };
    const auto any = [&](const std::vector<double>& v) { return std::any_of(v.begin(), v.end(), is_infinite); };
    return any(x_) || any(z_) || any(w_) || is_infinite(in_.row) || is_infinite(in_.col);
  }

  static bool has_steps(const Expr& f) {
    bool found = false;
    ir::for_each(f, [&](const Expr& e) {
      found |= e->op == ir::Op::floor || e->op == ir::Op::ceil || e->op == ir::Op::round;
    });
    return found;
  }

  ir::PairInputs in_;
  std::vector<double> x_, z_, w_;
  std::map<std::string, double> params_;
};

/// Variables that a formula reads.
inline std::vector<Expr> variables_of(const Expr& f) {
  const ir::Uses& uses = ir::uses(f);
  std::vector<Expr> all;
  if (uses.x) all.push_back(points().x);
  if (uses.z) all.push_back(points().z);
  if (uses.w) all.push_back(weights());
  if (uses.row) all.push_back(row_value());
  if (uses.col) all.push_back(col_value());
  for (const auto& [name, usual] : parameters(f)) all.push_back(param(name));
  return all;
}

inline bool is_of_features(const Expr& v) {
  return v->op == ir::Op::x || v->op == ir::Op::z || v->op == ir::Op::w;
}

/// Derivatives of a formula by all that it reads, and second ones: by a number after another number, a feature after a
/// number, and twice by the same feature, which gives the diagonal.
inline std::string derivative_fault(const Case& c, DerivativeCounts& counts) {
  const Operands all(c);
  const Item item(c, all, Shape(all.batch.size(), 0));
  const auto checked = [&](const Expr& f, const Expr& derivative, const Expr& variable, std::int64_t fixed) {
    for (std::int64_t pair = 0; pair < std::min<std::int64_t>(3, item.m * item.n); ++pair) {
      const Range value = ErrorBound(false, item.pair(pair % item.m, pair % item.n))(c.formula);
      if (!value.known || value.is_special()) continue;
      DerivativeCheck check(item, pair % item.m, pair % item.n);
      const auto features = static_cast<std::uint64_t>(item.k);
      const auto k = static_cast<std::int64_t>(Hash(c.values, pair, 21).below(features));
      std::string found = check.fault(f, derivative, variable, is_of_features(variable) ? k : fixed, counts);
      if (!found.empty()) return found;
    }
    return std::string();
  };
  try {
    for (const Expr& v : variables_of(c.formula)) {
      const Expr first = differentiate(c.formula, v);
      if (std::string found = checked(c.formula, first, v, 0); !found.empty()) return found;
      for (const Expr& u : variables_of(first)) {
        const bool is_field = is_of_features(v);
        if (is_field && !same(u, v)) continue;  // features first, numbers then: the other order says the same
        const Expr second = differentiate(first, u);
        if (std::string found = checked(first, second, u, 0); !found.empty()) return "second: " + found;
      }
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unsupported) return "";
    throw;
  }
  return "";
}

}  // namespace mercer::fuzz
