#include "plan/forms/pair_mask.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::plan {
namespace {

using ir::Op;
using Step = PairMask::Step;

constexpr std::size_t kMostSteps = 32;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_boolean(Op op) { return op == Op::logical_not || (op >= Op::less && op <= Op::logical_or); }
bool is_comparison(Op op) { return op >= Op::less && op <= Op::not_equal; }
bool is_rounding(Op op) { return op == Op::floor || op == Op::ceil || op == Op::round; }
/// Operations whose value is exact where no digits are lost: known arguments may give a known value.
bool is_exact_op(Op op) {
  return op == Op::neg || op == Op::abs || op == Op::sign || op == Op::add || op == Op::sub || op == Op::mul ||
         op == Op::min || op == Op::max || is_rounding(op);
}
bool is_arithmetic(Op op) { return is_exact_op(op) || op == Op::div || op == Op::rcp || op == Op::fma; }

/// What a step can be on a rectangle of more than one pair, whatever the call.
struct Traits {
  bool is_opaque = false;      // made of points, or by an operation that has no interval
  bool varies = false;         // reads an index, row or col
  bool has_steps = false;      // may have one value over an interval of these
  bool can_be_known = false, can_be_true = false, can_be_false = false;
};

Traits leaf_traits(const Step& step) {
  Traits t;
  switch (step.op) {
    case Op::constant:
      t.can_be_known = true;
      t.can_be_true = step.number != 0;
      t.can_be_false = step.number == 0;
      break;
    case Op::param:
    case Op::features: t.can_be_known = t.can_be_true = t.can_be_false = true; break;
    case Op::index_i:
    case Op::index_j: t.varies = t.can_be_true = true; break;
    case Op::row:
    case Op::col: t.varies = t.has_steps = t.can_be_true = t.can_be_false = true; break;
    default: t.is_opaque = true; break;
  }
  return t;
}

Traits comparison_traits(Op op, const Traits& a, const Traits& b) {
  Traits t;
  t.varies = a.varies || b.varies;
  t.has_steps = true;
  if (a.is_opaque || b.is_opaque) return t;
  const bool can_be_equal = !t.varies || a.has_steps || b.has_steps;  // i == j holds for no rectangle
  t.can_be_true = op != Op::equal || can_be_equal;
  t.can_be_false = op != Op::not_equal || can_be_equal;
  t.can_be_known = t.can_be_true || t.can_be_false;
  return t;
}

Traits traits_of(const Step& step, const std::vector<Traits>& seen) {
  if (ir::is_leaf(step.op) || ir::is_reduction(step.op)) return leaf_traits(step);
  const auto arg = [&](int i) -> const Traits& { return seen[static_cast<std::size_t>(step.args[i])]; };
  const int arity = ir::info(step.op).arity;
  if (is_comparison(step.op)) return comparison_traits(step.op, arg(0), arg(1));
  Traits t;
  bool all_known = true;
  for (int i = 0; i < arity; ++i) {
    t.varies = t.varies || arg(i).varies;
    t.has_steps = t.has_steps || arg(i).has_steps;
    t.is_opaque = t.is_opaque || arg(i).is_opaque;
    all_known = all_known && arg(i).can_be_known;
  }
  switch (step.op) {
    case Op::logical_not:
      t.can_be_true = arg(0).can_be_false;
      t.can_be_false = arg(0).can_be_true;
      break;
    case Op::logical_and:
      t.can_be_true = arg(0).can_be_true && arg(1).can_be_true;
      t.can_be_false = arg(0).can_be_false || arg(1).can_be_false;
      break;
    case Op::logical_or:
      t.can_be_true = arg(0).can_be_true || arg(1).can_be_true;
      t.can_be_false = arg(0).can_be_false && arg(1).can_be_false;
      break;
    case Op::where: {
      const Traits &c = arg(0), &a = arg(1), &b = arg(2);
      const auto either = [&](bool Traits::*of) { return (c.can_be_true && a.*of) || (c.can_be_false && b.*of); };
      t.is_opaque = false;
      t.has_steps = true;
      const bool may_agree = a.can_be_known && b.can_be_known && (a.varies || b.varies);
      t.can_be_known = either(&Traits::can_be_known) || may_agree;
      t.can_be_true = either(&Traits::can_be_true);
      t.can_be_false = either(&Traits::can_be_false);
      return t;
    }
    default:
      t.is_opaque = t.is_opaque || !is_arithmetic(step.op);
      t.has_steps = t.has_steps || is_rounding(step.op) || step.op == Op::sign || step.op == Op::min ||
                    step.op == Op::max;
      t.can_be_known = is_exact_op(step.op) && (all_known || (!t.is_opaque && is_rounding(step.op)));
      t.can_be_true = !t.is_opaque || t.can_be_known;
      t.can_be_false = t.can_be_true && t.has_steps;
      return t;
  }
  t.is_opaque = false;  // an and, or, not
  t.has_steps = true;
  t.can_be_known = t.can_be_true || t.can_be_false;
  return t;
}

/// The steps of an expression, arguments before what reads them.
class Steps {
 public:
  explicit Steps(const std::vector<Expr>& params) : params_(params) {}

  int add(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    const int made = e->op == Op::pinned ? add(e->args[0]) : append(step_of(e));
    seen_.emplace(e, made);
    return made;
  }
  std::vector<Step> take() { return std::move(steps_); }
  const Traits& traits(int step) const { return traits_[static_cast<std::size_t>(step)]; }

 private:
  Step step_of(const Expr& e) {
    Step step;
    step.op = e->op;
    step.number = e->value;
    if (e->op == Op::ptx || ir::is_reduction(e->op)) return points();
    if (e->op == Op::param) {
      const auto at = std::find_if(params_.begin(), params_.end(), [&](const Expr& p) { return same(p, e); });
      if (at == params_.end()) return points();
      step.param = static_cast<int>(at - params_.begin());
    }
    bool is_opaque = leaf_traits(step).is_opaque;
    if (!ir::is_leaf(e->op)) {
      is_opaque = e->op != Op::where && !is_boolean(e->op);
      for (std::size_t i = 0; i < e->args.size(); ++i) {
        step.args[i] = add(e->args[i]);
        is_opaque = is_opaque && traits(step.args[i]).is_opaque;
      }
    }
    return is_opaque ? points() : step;
  }
  static Step points() {
    Step step;
    step.op = Op::x;
    return step;
  }
  int append(const Step& step) {
    if (step.op == Op::x && points_ >= 0) return points_;
    traits_.push_back(traits_of(step, traits_));
    steps_.push_back(step);
    const int made = static_cast<int>(steps_.size()) - 1;
    if (step.op == Op::x) points_ = made;
    return made;
  }

  const std::vector<Expr>& params_;
  std::vector<Step> steps_;
  std::vector<Traits> traits_;
  ir::ExprMap<int> seen_;
  int points_ = -1;  // the step of everything that points decide
};

/// A step's value on a rectangle.
struct Value : Interval {
  bool is_whole = false;  // whole numbers that the computing type counts
  bool is_known = false;  // it is `number` for all pairs, a number of the computing type
  bool narrows = false;   // a smaller rectangle may say more
  double number = 0;

  bool is_point() const { return is_known && least == most; }
  bool is_bounded() const { return !has_nan && least > -kInfinity && most < kInfinity; }
  bool is_opaque() const { return !is_known && !narrows && !is_bounded(); }
  bool is_true() const { return least > 0 || most < 0; }  // NaN is, too
  bool is_false() const { return least == 0 && most == 0 && !has_nan; }
};

Value anything(bool narrows = false) {
  Value v;
  v.least = -kInfinity;
  v.most = kInfinity;
  v.has_nan = true;
  v.narrows = narrows;
  return v;
}

/// The operations, with what the computing type loses.
class Arithmetic {
 public:
  explicit Arithmetic(Dtype type)
      : is_float_(type != Dtype::float64), whole_(is_float_ ? 0x1p24 : 0x1p53), margin_(is_float_ ? 0x1p-20 : 0x1p-49),
        tiny_(is_float_ ? 0x1p-120 : 0x1p-1000) {}

  double rounded(double number) const { return is_float_ ? static_cast<double>(static_cast<float>(number)) : number; }

  /// A number that a call or the formula gives. The computing type may have another one, and what is made of
  /// parameters alone may read either.
  Value given(double number) const {
    Value v = anything();
    v.is_known = true;
    v.number = rounded(number);
    if (std::isnan(number)) return v;
    v.least = std::min(number, v.number);
    v.most = std::max(number, v.number);
    v.has_nan = false;
    v.is_whole = is_whole(v.least) && v.least == v.most;
    return v;
  }
  Value read(const Interval& interval, bool whole) const {
    if (interval.least == interval.most && !interval.has_nan) return given(interval.least);
    Value v;
    static_cast<Interval&>(v) = interval;
    v.is_whole = whole;
    v.narrows = true;
    return v;
  }
  static Value boolean(bool value) {
    Value v;
    v.least = v.most = v.number = value ? 1 : 0;
    v.is_whole = v.is_known = true;
    return v;
  }
  static Value open(bool narrows) {
    Value v;
    v.most = 1;
    v.is_whole = true;
    v.narrows = narrows;
    return v;
  }

  Value apply(Op op, const Value& a, const Value& b, const Value& c, bool is_square) const {
    if (op == Op::fma) return apply(Op::add, apply(Op::mul, a, b, b, false), c, c, false);
    if (op == Op::rcp) return apply(Op::div, given(1), a, a, false);
    if (is_comparison(op)) return compare(op, a, b);
    switch (op) {
      case Op::logical_not: return a.is_true() ? boolean(false) : a.is_false() ? boolean(true) : open(a.narrows);
      case Op::logical_and:
        if (a.is_false() || b.is_false()) return boolean(false);
        return a.is_true() && b.is_true() ? boolean(true) : open(a.narrows || b.narrows);
      case Op::logical_or:
        if (a.is_true() || b.is_true()) return boolean(true);
        return a.is_false() && b.is_false() ? boolean(false) : open(a.narrows || b.narrows);
      case Op::where: return a.is_true() ? b : a.is_false() ? c : hull(a, b, c);
      default: break;
    }
    if (!is_arithmetic(op)) return anything();
    const bool is_unary = ir::info(op).arity == 1;
    const Value& other = is_unary ? a : b;
    if (a.is_opaque() || other.is_opaque()) return anything();
    if (const Value known = known_value(op, a, other); known.is_known) return known;
    const bool narrows = a.narrows || other.narrows;
    if (!a.is_bounded() || !other.is_bounded()) return anything(narrows);
    Value v = is_unary ? unary(op, a) : binary(op, a, b, is_square);
    v.narrows = v.least < v.most && narrows;
    if (is_rounding(op) && v.least == v.most) {
      v.is_known = v.least != 0;  // a zero may have either sign
      v.number = v.least;
    }
    return v;
  }

 private:
  bool is_whole(double number) const { return std::abs(number) <= whole_ && number == std::floor(number); }

  static Value hull(const Value& c, const Value& a, const Value& b) {
    if (a.is_known && b.is_known && std::bit_cast<std::uint64_t>(a.number) == std::bit_cast<std::uint64_t>(b.number))
      return a;
    Value v;
    v.least = std::min(a.least, b.least);
    v.most = std::max(a.most, b.most);
    v.has_nan = a.has_nan || b.has_nan;
    v.is_whole = a.is_whole && b.is_whole;
    v.narrows = c.narrows || a.narrows || b.narrows;
    return v;
  }

  static Value compare(Op op, const Value& a, const Value& b) {
    if (op == Op::greater) return compare(Op::less, b, a);
    if (op == Op::greater_equal) return compare(Op::less_equal, b, a);
    const bool has_nan = a.has_nan || b.has_nan, is_apart = a.most < b.least || b.most < a.least;
    const bool is_one = !has_nan && a.least == a.most && b.least == b.most && a.least == b.least;
    switch (op) {
      case Op::less:
        if (a.most < b.least && !has_nan) return boolean(true);
        if (a.least >= b.most) return boolean(false);
        break;
      case Op::less_equal:
        if (a.most <= b.least && !has_nan) return boolean(true);
        if (a.least > b.most) return boolean(false);
        break;
      default:
        if (is_one || is_apart) return boolean(is_one == (op == Op::equal));
        break;
    }
    return open(!a.is_opaque() && !b.is_opaque() && (a.narrows || b.narrows));
  }

  /// The value of an operation on two numbers that are known, where the computing type loses nothing.
  Value known_value(Op op, const Value& a, const Value& b) const {
    if (!is_exact_op(op) || !a.is_point() || !b.is_point()) return {};
    const double args[] = {a.number, b.number}, result = ir::info(op).eval(args);
    const bool adds = op == Op::add || op == Op::sub || op == Op::mul;
    const bool has_infinity = std::isinf(a.number) || std::isinf(b.number), has_zero = a.number == 0 || b.number == 0;
    const bool keeps_digits = is_float_ ? rounded(result) == result : has_zero || is_whole(result);
    const bool is_exact = !adds || keeps_digits || has_infinity;
    return std::isnan(result) || !is_exact ? Value{} : given(result);
  }

  Value unary(Op op, const Value& a) const {
    Value v = a;
    v.is_known = false;
    switch (op) {
      case Op::neg: v.least = -a.most, v.most = -a.least; return v;
      case Op::abs:
        if (a.least >= 0) return v;
        v.least = a.most <= 0 ? -a.most : 0;
        v.most = std::max(-a.least, a.most);
        return v;
      default: break;
    }
    v.least = ir::info(op).eval(&a.least);
    v.most = ir::info(op).eval(&a.most);
    v.is_whole = is_whole(v.least) && is_whole(v.most);
    return v;
  }

  Value binary(Op op, const Value& a, const Value& b, bool is_square) const {
    Value v;
    v.is_whole = a.is_whole && b.is_whole;
    bool is_exact = false;
    switch (op) {
      case Op::min:
      case Op::max: {
        const double least[] = {a.least, b.least}, most[] = {a.most, b.most};
        v.least = ir::info(op).eval(least);
        v.most = ir::info(op).eval(most);
        return v;
      }
      case Op::add: v.least = a.least + b.least, v.most = a.most + b.most; break;
      case Op::sub: v.least = a.least - b.most, v.most = a.most - b.least; break;
      case Op::mul:
        set_products(v, a, b.least, b.most);
        if (is_square && a.least < 0 && a.most > 0) v.least = 0;
        is_exact = is_power_of_two(a) || is_power_of_two(b);
        break;
      case Op::div:
        if (b.least <= 0 && b.most >= 0) return anything();
        v.is_whole = false;
        set_products(v, a, 1 / b.most, 1 / b.least);
        break;
      default: return anything();
    }
    v.is_whole = v.is_whole && std::max(std::abs(v.least), std::abs(v.most)) <= whole_;
    if (!v.is_whole && !is_exact) widen(v);
    const bool overflows = is_float_ && std::max(std::abs(v.least), std::abs(v.most)) > kLargestFloat;
    return overflows ? anything() : v;  // float32 may have an infinity there
  }

  static void set_products(Value& v, const Value& a, double least, double most) {
    const std::array products{a.least * least, a.least * most, a.most * least, a.most * most};
    v.least = std::ranges::min(products);
    v.most = std::ranges::max(products);
  }
  static bool is_power_of_two(const Value& v) {
    int exponent = 0;
    return v.is_point() && std::isnormal(v.number) && std::abs(std::frexp(v.number, &exponent)) == 0.5 &&
           std::abs(exponent) < 64;
  }
  void widen(Value& v) const {
    if (v.least != 0) v.least -= std::abs(v.least) * margin_ + tiny_;
    if (v.most != 0) v.most += std::abs(v.most) * margin_ + tiny_;
  }

  static constexpr double kLargestFloat = std::numeric_limits<float>::max();
  bool is_float_;
  double whole_, margin_, tiny_;
};

}  // namespace

PairMask::PairMask(const std::vector<Expr>& outputs, Dtype type, const std::vector<Expr>& params) : type_(type) {
  const auto reads_rectangle = [](const Expr& e) {
    const ir::Uses uses = ir::uses(e);
    return uses.index_i || uses.index_j || uses.row || uses.col;
  };
  if (!std::ranges::any_of(outputs, reads_rectangle)) return;
  Steps steps(params);
  std::vector<int> results;
  for (const Expr& output : outputs) {
    results.push_back(steps.add(output));
    if (!steps.traits(results.back()).can_be_known) return;
  }
  const bool varies = std::ranges::any_of(results, [&](int step) { return steps.traits(step).varies; });
  std::vector<Step> made = steps.take();
  if (!varies || made.size() > kMostSteps) return;
  steps_ = std::move(made);
  outputs_ = std::move(results);
}

bool PairMask::reads(ir::Op leaf) const {
  return std::ranges::any_of(steps_, [&](const Step& step) { return step.op == leaf; });
}

MaskAnswer PairMask::of(const Rectangle& pairs, std::span<const double> params, std::int64_t features,
                        double* values) const {
  const Arithmetic arithmetic(type_);
  std::array<Value, kMostSteps> seen;
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    switch (step.op) {
      case Op::constant: seen[s] = arithmetic.given(step.number); break;
      case Op::param: seen[s] = arithmetic.given(params[static_cast<std::size_t>(step.param)]); break;
      case Op::features: seen[s] = arithmetic.given(static_cast<double>(features)); break;
      case Op::index_i: seen[s] = arithmetic.read(pairs.i, true); break;
      case Op::index_j: seen[s] = arithmetic.read(pairs.j, true); break;
      case Op::row: seen[s] = arithmetic.read(pairs.row, false); break;
      case Op::col: seen[s] = arithmetic.read(pairs.col, false); break;
      case Op::x: seen[s] = anything(); break;
      default: {
        const auto arg = [&](int i) -> const Value& { return seen[static_cast<std::size_t>(step.args[i])]; };
        seen[s] = arithmetic.apply(step.op, arg(0), arg(1), arg(2), step.args[0] == step.args[1]);
      }
    }
  }
  MaskAnswer answer = MaskAnswer::known;
  for (std::size_t o = 0; o < outputs_.size(); ++o) {
    const Value& v = seen[static_cast<std::size_t>(outputs_[o])];
    if (!v.is_known && !v.narrows) return MaskAnswer::computed;
    if (!v.is_known) answer = MaskAnswer::open;
    values[o] = v.number;
  }
  return answer;
}

double PairMask::computed_part(std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n,
                               std::span<const double> params, std::int64_t features, std::int64_t least) const {
  if (steps_.empty() || m == 0 || n == 0 || reads(Op::row) || reads(Op::col)) return 1;
  const auto indices = [](std::int64_t first, std::int64_t count) {
    return Interval{static_cast<double>(first), static_cast<double>(first + count - 1)};
  };
  std::vector<double> values(outputs_.size());
  const MaskAnswer answer = of({indices(i, m), indices(j, n), {}, {}}, params, features, values.data());
  if (answer != MaskAnswer::open) return answer == MaskAnswer::known ? 0 : 1;
  if (m <= least && n <= least) return 0.5;
  const bool by_rows = m >= n;
  const std::int64_t count = by_rows ? m : n, half = count / 2;
  const auto part = [&](std::int64_t first, std::int64_t points) {
    const double own = by_rows ? computed_part(i + first, points, j, n, params, features, least)
                               : computed_part(i, m, j + first, points, params, features, least);
    return own * static_cast<double>(points) / static_cast<double>(count);
  };
  return part(0, half) + part(half, count - half);
}

}  // namespace mercer::plan
