#include "ir/passes/bounded.h"

#include <algorithm>
#include <cmath>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

enum class Size { small, finite, unknown };  // small: a product with it is as finite as its other factor

class Sizes {
 public:
  Size operator()(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    const Size size = decide(e);
    seen_.emplace(e, size);
    return size;
  }

 private:
  Size largest(const Expr& e, std::size_t from = 0) {
    Size size = Size::small;
    for (std::size_t i = from; i < e->args.size(); ++i) size = std::max(size, (*this)(e->args[i]));
    return size;
  }
  Size bounded(const Expr& e) { return largest(e) == Size::unknown ? Size::unknown : Size::small; }
  bool at_most_zero(const Expr& e) { return e->op == Op::neg && is_nonnegative(e->args[0]); }

  Size product(const Expr& e) {
    const Size a = (*this)(e->args[0]), b = (*this)(e->args[1]);
    return a == Size::finite && b == Size::finite ? Size::unknown : std::max(a, b);
  }

  Size decide(const Expr& e) {
    switch (e->op) {
      case Op::constant: return std::isfinite(e->value) ? Size::small : Size::unknown;
      case Op::w: case Op::param: case Op::features: case Op::index_i: case Op::index_j: return Size::small;
      case Op::exp: case Op::exp2:
        return at_most_zero(e->args[0]) || is_of_weights(e) ? bounded(e) : Size::unknown;
      case Op::sqrt: return is_nonnegative(e->args[0]) ? (*this)(e->args[0]) : Size::unknown;
      case Op::pow: return is_root(e) ? (*this)(e->args[0]) : Size::unknown;
      case Op::neg: case Op::abs: case Op::floor: case Op::ceil: case Op::round: case Op::copysign:
      case Op::add: case Op::sub: case Op::min: case Op::max: return largest(e);
      case Op::where: return largest(e, 1);
      case Op::mul: return product(e);
      case Op::div: return is_divisor(e->args[1]) ? (*this)(e->args[0]) : Size::unknown;
      case Op::sum: case Op::max_over: case Op::min_over:
        return (*this)(e->args[0]) == Size::unknown ? Size::unknown : Size::finite;
      default: break;
    }
    if (is_leaf(e->op)) return Size::finite;
    const OpTraits& known = traits(e->op);
    return known.boolean ? Size::small : known.bound > 0 ? bounded(e) : Size::unknown;
  }

  static bool is_of_weights(const Expr& e) {
    const Uses& u = uses(e);
    return !(u.x || u.z || u.row || u.col || u.state || u.accumulator || u.ptx);
  }

  static bool is_divisor(const Expr& e) {
    return e->op == Op::features || (e->op == Op::constant && std::fabs(e->value) >= 1e-6);
  }

  static bool is_root(const Expr& e) {
    const Expr& p = e->args[1];
    return p->op == Op::constant && p->value > 0 && p->value <= 1 && is_nonnegative(e->args[0]);
  }

  ExprMap<Size> seen_;
};

/// Whether an expression has no pole where those that are known not to be 0 are not.
class Poles {
 public:
  bool absent(const Expr& e) {
    switch (e->op) {
      case Op::where: return absent_in_where(e);
      case Op::div: return absent(e->args[0]) && is_not_zero(e->args[1]);
      case Op::rcp: return is_not_zero(e->args[0]);
      case Op::rsqrt: return is_not_zero(e->args[0]) && is_nonnegative(e->args[0]);
      case Op::sqrt: return is_nonnegative(e->args[0]) && absent(e->args[0]);
      case Op::pow: return absent_in_power(e);
      case Op::sum: case Op::max_over: case Op::min_over: case Op::prod: return absent_in_arguments(e);
      default: break;
    }
    const OpTraits& known = traits(e->op);
    return is_leaf(e->op) || ((known.boolean || known.pole_free) && absent_in_arguments(e));
  }

 private:
  bool absent_in_arguments(const Expr& e) {
    return std::all_of(e->args.begin(), e->args.end(), [this](const Expr& arg) { return absent(arg); });
  }

  static bool is_constant_zero(const Expr& e) { return e->op == Op::constant && e->value == 0; }

  bool absent_in_where(const Expr& e) {
    const Expr& choice = e->args[0];
    const bool asks =
        choice->op == Op::equal && (is_constant_zero(choice->args[0]) || is_constant_zero(choice->args[1]));
    if (!asks) return absent_in_arguments(e);
    not_zero_.push_back(choice->args[is_constant_zero(choice->args[0]) ? 1 : 0]);
    const bool result = absent(e->args[2]);
    not_zero_.pop_back();
    return result && absent(e->args[1]);
  }

  bool absent_in_power(const Expr& e) {
    const Expr &base = e->args[0], &power = e->args[1];
    if (power->op != Op::constant || !absent(base)) return false;
    const bool is_whole = power->value == std::floor(power->value);
    return (is_whole || is_nonnegative(base)) && (power->value >= 0 || is_not_zero(base));
  }

  bool is_not_zero(const Expr& e) {
    if (e->op == Op::constant) return e->value != 0 && e->value == e->value;
    if (e->op == Op::features) return true;
    const auto is_known = [&](const Expr& known) { return same(known, e); };
    if (std::any_of(not_zero_.begin(), not_zero_.end(), is_known)) return absent(e);
    if (e->op == Op::mul) return is_not_zero(e->args[0]) && is_not_zero(e->args[1]);
    if (e->op == Op::pow) return e->args[1]->op == Op::constant && is_not_zero(e->args[0]) && absent(e);
    const bool keeps = e->op == Op::neg || e->op == Op::abs || e->op == Op::sqrt;
    return keeps && is_not_zero(e->args[0]) && (e->op != Op::sqrt || is_nonnegative(e->args[0]));
  }

  std::vector<Expr> not_zero_;
};

}  // namespace

bool stays_finite(const Expr& e) { return Sizes()(e) != Size::unknown; }

bool has_no_poles(const Expr& e) { return Poles().absent(e); }

}  // namespace mercer::ir
