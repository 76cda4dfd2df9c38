#include "ir/passes/point_form.h"

#include <algorithm>
#include <vector>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"
#include "ir/passes/split.h"

namespace mercer::ir {
namespace {

bool has_feature(const Expr& e, ExprMap<bool>& known) {
  if (e->op == Op::x || e->op == Op::z) return true;
  if (is_leaf(e->op) || is_reduction(e->op)) return false;
  if (const auto found = known.find(e); found != known.end()) return found->second;
  const bool any =
      std::any_of(e->args.begin(), e->args.end(), [&](const Expr& arg) { return has_feature(arg, known); });
  known.emplace(e, any);
  return any;
}

/// Whether `e` is of the points of one side, of weights, parameters and numbers.
bool reads_one_side(const Expr& e, bool of_x) {
  const Uses& u = uses(e);
  const bool own = of_x ? u.x && !u.z : u.z && !u.x;
  return own && !(u.row || u.col || u.index_i || u.index_j || u.state || u.accumulator || u.ptx);
}

/// Weights, or parameters too, outside of reductions: of one feature.
bool reads_outside(const Expr& e, bool params) {
  if (e->op == Op::w || (params && e->op == Op::param)) return true;
  const Uses& u = uses(e);
  if (is_leaf(e->op) || is_reduction(e->op) || !(u.w || u.param)) return false;
  return std::any_of(e->args.begin(), e->args.end(), [&](const Expr& arg) { return reads_outside(arg, params); });
}

/// As `reads_one_side`, with features of the points alone: what multiplies them for all points stays with the pairs.
bool is_own(const Expr& e, bool of_x, ExprMap<bool>& features) {
  return reads_one_side(e, of_x) && !reads_outside(e, has_feature(e, features));
}

/// Its root, or of what may be negative that of the magnitude with the sign: the root of a product of two is their
/// product, wherever it is a number.
Expr signed_root(const Expr& e, ExprMap<bool>& nonnegative) {
  return is_nonnegative(e, nonnegative) ? sqrt(e) : copysign(sqrt(abs(e)), e);
}

/// 0 for a point that has none, as derivatives have it: gradients of other points shall not read its infinity.
Expr reciprocal(const Expr& e) { return where(equal(e, 0.0), 0.0, rcp(e)); }

/// Roots of products and divisors of a pair as factors of one side each: what is divided by sqrt(sum(x*x) sum(z*z)) is
/// multiplied with a value of x and one of z, and pairs have neither root nor division.
Expr with_own_factors(const Expr& f) {
  ExprMap<bool> features, nonnegative;
  const auto is_one_sided = [&](const Expr& e) { return is_own(e, true, features) || is_own(e, false, features); };
  const auto is_value = [&](const Expr& e) { return is_one_sided(e) && !has_feature(e, features); };
  const auto of_two_sides = [&](const Expr& e) {
    return e->op == Op::mul && is_value(e->args[0]) && is_value(e->args[1]) && !is_value(e);
  };
  return rewrite(f, [&](const Expr& e) {
    if (e->op == Op::sqrt && of_two_sides(e->args[0])) {
      const auto& args = e->args[0]->args;
      return signed_root(args[0], nonnegative) * signed_root(args[1], nonnegative);
    }
    if (e->op != Op::div || is_one_sided(e)) return e;
    const Expr& divisor = e->args[1];
    if (is_value(divisor)) return e->args[0] * reciprocal(divisor);
    if (of_two_sides(divisor)) return e->args[0] * reciprocal(divisor->args[0]) * reciprocal(divisor->args[1]);
    return e;
  });
}

/// One side of the formula.
class Reader {
 public:
  Reader(const Expr& f, bool of_x) : of_x_(of_x) {
    read(f);
    stands_ = points_.size() <= 1 && (points_.empty() || read_points(points_[0]));
    if (stands_ && !values_.empty()) stands_ = !reads_own_value(f) && find_value();
  }

  bool stands() const { return stands_; }

  void replace(ExprMap<Expr>& by) const {
    if (!points_.empty()) by[points_[0]] = leaf(of_x_ ? Op::x : Op::z);
    for (const Expr& value : values_) by[value] = substitute(value, {{value_, value_leaf()}});
  }

  PointForm::Side side() const {
    const auto over_x = [&](const Expr& e) { return e.empty() || of_x_ ? e : swap_sides(e); };
    return {over_x(shift_), over_x(scale_), over_x(value_)};
  }

 private:
  bool is_own(const Expr& e) { return ir::is_own(e, of_x_, features_); }
  bool is_value(const Expr& e) { return e->op == Op::constant || (is_own(e) && !has_feature(e)); }

  bool has_feature(const Expr& e) { return ir::has_feature(e, features_); }

  static void add(std::vector<Expr>& to, const Expr& e) {
    if (std::none_of(to.begin(), to.end(), [&](const Expr& other) { return same(other, e); })) to.push_back(e);
  }

  /// Finds the largest parts that are this side's own.
  void read(const Expr& e) {
    if (is_own(e)) return add(has_feature(e) ? points_ : values_, e);
    if (is_leaf(e->op) || !seen_.emplace(e, true).second) return;
    for (const Expr& arg : e->args) read(arg);
  }

  void multiply(const Expr& factor) { scale_ = scale_.empty() ? factor : scale_ * factor; }

  /// As (x - shift) * scale.
  bool read_points(const Expr& e) {
    if (is_leaf(e->op)) return true;
    const auto& args = e->args;
    const auto inner_is_plain = [&](const Expr& arg) { return is_leaf(arg->op) && has_feature(arg); };
    switch (e->op) {
      case Op::neg:
        if (!read_points(args[0])) return false;
        multiply(-1.0);
        return true;
      case Op::sub:
      case Op::add: {
        const bool first = inner_is_plain(args[0]);
        const Expr &point = args[first ? 0 : 1], &own = args[first ? 1 : 0];
        if (!inner_is_plain(point) || !is_value(own)) return false;
        shift_ = e->op == Op::add ? -own : own;
        if (e->op == Op::sub && !first) multiply(-1.0);
        return true;
      }
      case Op::mul: {
        const bool first = is_value(args[0]);
        const Expr &point = args[first ? 1 : 0], &own = args[first ? 0 : 1];
        if (!is_value(own) || !read_points(point)) return false;
        multiply(own);
        return true;
      }
      case Op::div:
        if (!is_value(args[1]) || !read_points(args[0])) return false;
        multiply(reciprocal(args[1]));
        return true;
      default:
        return false;
    }
  }

  bool reads_own_value(const Expr& f) const { return of_x_ ? uses(f).row : uses(f).col; }
  Expr value_leaf() const { return leaf(of_x_ ? Op::row : Op::col); }

  /// The largest value of which all others are functions.
  bool find_value() {
    std::vector<Expr> tried = {values_[0]};
    for (std::size_t i = 0; i < tried.size(); ++i) {
      const Expr value = tried[i];
      const bool serves = std::all_of(values_.begin(), values_.end(), [&](const Expr& other) {
        return !reads_points(substitute(other, {{value, value_leaf()}}));
      });
      if (serves) {
        value_ = value;
        return true;
      }
      if (is_reduction(value->op)) continue;
      for (const Expr& arg : value->args)
        if (is_own(arg)) add(tried, arg);
    }
    return false;
  }
  bool reads_points(const Expr& e) const { return of_x_ ? uses(e).x : uses(e).z; }

  const bool of_x_;
  bool stands_ = false;
  std::vector<Expr> points_, values_;
  Expr shift_, scale_, value_;
  ExprMap<bool> features_, seen_;
};

}  // namespace

PointForm point_form(const Expr& given) {
  const Expr f = with_own_factors(given);
  const Reader x(f, true), z(f, false);
  if (!x.stands() || !z.stands()) return {};
  PointForm form{{}, x.side(), z.side()};
  if (form.x.is_plain() && form.z.is_plain()) return {};
  for (const PointForm::Side& side : {form.x, form.z})
    for (const Expr& e : {side.shift, side.scale})
      if (!e.empty() && !uses(e).x) return {};  // numbers alone are no reason
  ExprMap<Expr> by;
  x.replace(by);
  z.replace(by);
  form.formula = simplify(substitute(f, by));
  return form;
}

}  // namespace mercer::ir
