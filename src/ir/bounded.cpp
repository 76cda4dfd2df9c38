#include "ir/bounded.h"

#include <algorithm>
#include <cmath>

#include "ir/ops.h"
#include "ir/passes.h"

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
      case Op::sign: case Op::sin: case Op::cos: case Op::tanh: case Op::erf: case Op::atan2: return bounded(e);
      case Op::exp: case Op::exp2: return at_most_zero(e->args[0]) ? bounded(e) : Size::unknown;
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
    return !is_reduction(e->op) && info(e->op).boolean ? Size::small : Size::unknown;
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

}  // namespace

bool stays_finite(const Expr& e) { return Sizes()(e) != Size::unknown; }

}  // namespace mercer::ir
