// The table of scalar ops: name, arity, value, derivative, traits. One row is all that the engine knows about an op.
//
// Values are IEEE. Beyond libm: min and max are IEEE 754-2019 minimum and maximum (NaN propagates, -0 < +0, so both
// commute); comparisons give 1 or 0, and a NaN compares unequal to everything; in logical ops whatever is not zero, NaN
// included, is true; xlogy(0, y) = 0 for every y that is a number.
//
// Derivatives are 0 where the classical one does not exist or is infinite. They are written as where(singular, 0, d):
// the chain rule moves its other factor inside the where, so that no Inf * 0 can arise.
#include "ir/expr/ops.h"

#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/error.h"
#include "core/system/mutex.h"

namespace mercer::ir {
namespace {

using Partials = std::vector<Expr>;
using Derivative = Partials (*)(const Partials& a, const Expr& self);

template <class F, class T>
T call(const T* a) {
  if constexpr (std::is_invocable_v<F, T>) return F{}(a[0]);
  else if constexpr (std::is_invocable_v<F, T, T>) return F{}(a[0], a[1]);
  else return F{}(a[0], a[1], a[2]);
}

// `F` is a stateless generic function of one to three numbers; it serves double and long double.
template <class F>
OpInfo row(Op op, const char* name, F, Derivative derivative, const OpTraits& traits) {
  OpInfo made{traits};
  made.op = op;
  made.name = name;
  made.arity = std::is_invocable_v<F, double> ? 1 : std::is_invocable_v<F, double, double> ? 2 : 3;
  made.eval = call<F, double>;
  made.derivative = derivative;
  made.eval_wide = call<F, long double>;
  return made;
}

template <class T>
T minimum(T a, T b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

template <class T>
T xlogy_value(T a, T b) {
  return std::isnan(b) ? b : a == 0 ? T(0) : a * std::log(b);
}

Expr guarded(const Expr& singular, const Expr& derivative) { return where(singular, 0.0, derivative); }

// The derivative of min(a, b) by a. It is NaN where either is NaN: then self is.
Expr share(const Expr& wins, const Expr& a, const Expr& b, const Expr& self) {
  return where(wins, 1.0, where(equal(a, b), 0.5, where(not_equal(self, self), std::nan(""), 0.0)));
}

Partials pow_partials(const Partials& a, const Expr& self) {
  const Expr &u = a[0], &p = a[1];
  const Expr slope = p * pow(u, p - 1.0);
  const bool finite_at_zero = p->op == Op::constant && p->value > 1.0;
  return {finite_at_zero ? slope : where(equal(u, 0.0), equal(p, 1.0), slope),
          guarded(equal(u, 0.0), self * log(u))};
}

Partials div_partials(const Partials& a, const Expr& self) {
  if (a[1]->op == Op::features) return {rcp(a[1]), -(self / a[1])};  // there is a feature where a derivative is asked
  return {guarded(equal(a[1], 0.0), rcp(a[1])), guarded(equal(a[1], 0.0), -(self / a[1]))};
}

// Both arguments are divided by the larger one, so that no square overflows or vanishes.
Partials atan2_partials(const Partials& a, const Expr&) {
  const Expr size = max(abs(a[0]), abs(a[1])), y = a[0] / size, x = a[1] / size;
  const Expr below = size * (y * y + x * x);
  const Expr infinite = equal(size, std::numeric_limits<double>::infinity());
  const Expr singular = make(Op::logical_or, {equal(size, 0.0), infinite});
  return {guarded(singular, x / below), guarded(singular, -y / below)};
}

// 1 - tanh^2 a = 4 e / (1 + e)^2 with e = exp(-2 |a|), where 1 - tanh^2 would cancel. |a| is written without a kink,
// since higher derivatives at 0 are those of either side.
Partials tanh_partials(const Partials& a, const Expr&) {
  const Expr e = exp(where(a[0] < 0.0, 2.0 * a[0], -2.0 * a[0]));
  return {4.0 * e / square(1.0 + e)};
}

constexpr double kLn2 = std::numbers::ln2;
constexpr double kTwoOverSqrtPi = 2.0 * std::numbers::inv_sqrtpi;

// Higher derivatives have powers of a as factors: 0 times infinity where a is infinite, as a sum that overflows is.
Partials erf_partials(const Partials& a, const Expr&) {
  const Expr infinite = equal(abs(a[0]), std::numeric_limits<double>::infinity());
  return {guarded(infinite, kTwoOverSqrtPi * exp(-(a[0] * a[0])))};
}

#define F1(expression) [](auto a) { return decltype(a)(expression); }
#define F2(expression) [](auto a, decltype(a) b) { return decltype(a)(expression); }
#define F3(expression) [](auto a, decltype(a) b, decltype(a) c) { return decltype(a)(expression); }
#define D(...) \
  []([[maybe_unused]] const Partials& a, [[maybe_unused]] const Expr& self) -> Partials { return {__VA_ARGS__}; }

// clang-format off
constexpr Sign kAtLeast0 = Sign::nonnegative, kAsArgument = Sign::as_argument, kAsArguments = Sign::as_arguments;
constexpr Parity kEven = Parity::even, kOdd = Parity::odd;
constexpr double kMostAngle = 3.2;  // above pi, rounded

std::vector<OpInfo> make_table() {
  return {
  row(Op::neg,     "-",      F1(-a),                 D(Expr(-1.0)), {.torch = "neg", .pole_free = true}),
  row(Op::abs,     "abs",    F1(std::fabs(a)),       D(sign(a[0])),
      {.doc = "|a|; the builtin abs(a) does the same.", .numpy = "absolute fabs", .torch = "abs",
       .sign = kAtLeast0, .parity = kEven, .pole_free = true}),
  row(Op::sign,    "sign",   F1(a > 0 ? 1 : a < 0 ? -1 : a == 0 ? 0 : a), nullptr,
      {.doc = "-1, 0 or 1.", .numpy = "sign", .sign = kAsArgument, .parity = kOdd, .bound = 1, .pole_free = true}),
  row(Op::sqrt,    "sqrt",   F1(std::sqrt(a)),       D(guarded(equal(a[0], 0.0), 0.5 * rsqrt(a[0]))),
      {.doc = "The square root; NaN below zero.", .numpy = "sqrt", .torch = "sqrt", .sign = kAsArgument}),
  row(Op::rsqrt,   "rsqrt",  F1(1 / std::sqrt(a)),   D(guarded(equal(a[0], 0.0), -0.5 * self / a[0])),
      {.doc = "1 / sqrt(a).", .torch = "rsqrt", .sign = kAsArgument}),
  row(Op::rcp,     "rcp",    F1(1 / a),              D(guarded(equal(a[0], 0.0), -(self * self))),
      {.doc = "1 / a.", .numpy = "reciprocal", .torch = "reciprocal", .sign = kAsArgument}),
  row(Op::exp,     "exp",    F1(std::exp(a)),        D(self),
      {.doc = "e**a.", .numpy = "exp", .torch = "exp", .sign = kAtLeast0, .pole_free = true}),
  row(Op::exp2,    "exp2",   F1(std::exp2(a)),       D(kLn2 * self),
      {.doc = "2**a.", .numpy = "exp2", .torch = "exp2", .sign = kAtLeast0, .pole_free = true}),
  row(Op::expm1,   "expm1",  F1(std::expm1(a)),      D(exp(a[0])),
      {.doc = "e**a - 1, accurate near 0.", .numpy = "expm1", .torch = "expm1", .sign = kAsArgument,
       .pole_free = true}),
  row(Op::log,     "log",    F1(std::log(a)),        D(guarded(equal(a[0], 0.0), rcp(a[0]))),
      {.doc = "The natural logarithm.", .numpy = "log", .torch = "log"}),
  row(Op::log2,    "log2",   F1(std::log2(a)),       D(guarded(equal(a[0], 0.0), (1 / kLn2) / a[0])),
      {.doc = "The logarithm to base 2.", .numpy = "log2", .torch = "log2"}),
  row(Op::log1p,   "log1p",  F1(std::log1p(a)),      D(guarded(equal(a[0], -1.0), rcp(1.0 + a[0]))),
      {.doc = "log(1 + a), accurate near 0.", .numpy = "log1p", .torch = "log1p", .sign = kAsArgument}),
  row(Op::sin,     "sin",    F1(std::sin(a)),        D(cos(a[0])),
      {.doc = "The sine; a in radians.", .numpy = "sin", .torch = "sin", .parity = kOdd, .bound = 1,
       .pole_free = true}),
  row(Op::cos,     "cos",    F1(std::cos(a)),        D(-sin(a[0])),
      {.doc = "The cosine; a in radians.", .numpy = "cos", .torch = "cos", .parity = kEven, .bound = 1,
       .pole_free = true}),
  // (1 - a)(1 + a) keeps its digits near |a| = 1, where 1 - a^2 cancels.
  row(Op::asin,    "asin",   F1(std::asin(a)),
      D(guarded(equal(abs(a[0]), 1.0), rsqrt((1.0 - a[0]) * (1.0 + a[0])))),
      {.doc = "The arc sine, in radians.", .numpy = "arcsin", .torch = "asin", .sign = kAsArgument, .parity = kOdd}),
  row(Op::acos,    "acos",   F1(std::acos(a)),
      D(guarded(equal(abs(a[0]), 1.0), -rsqrt((1.0 - a[0]) * (1.0 + a[0])))),
      {.doc = "The arc cosine, in radians.", .numpy = "arccos", .torch = "acos", .sign = kAtLeast0}),
  row(Op::tanh,    "tanh",   F1(std::tanh(a)),       tanh_partials,
      {.doc = "The hyperbolic tangent.", .numpy = "tanh", .torch = "tanh", .sign = kAsArgument, .parity = kOdd,
       .bound = 1, .pole_free = true}),
  row(Op::erf,     "erf",    F1(std::erf(a)),        erf_partials,
      {.doc = "The error function.", .torch = "erf", .sign = kAsArgument, .parity = kOdd, .bound = 1,
       .pole_free = true}),
  row(Op::floor,   "floor",  F1(std::floor(a)),      nullptr,
      {.doc = "The largest whole number not above a.", .numpy = "floor", .torch = "floor", .sign = kAsArgument,
       .pole_free = true}),
  row(Op::ceil,    "ceil",   F1(std::ceil(a)),       nullptr,
      {.doc = "The smallest whole number not below a.", .numpy = "ceil", .torch = "ceil", .sign = kAsArgument,
       .pole_free = true}),
  row(Op::round,   "round",  F1(std::nearbyint(a)),  nullptr,
      {.doc = "The nearest whole number, ties to even.", .numpy = "rint", .torch = "round", .sign = kAsArgument,
       .parity = kOdd, .pole_free = true}),
  row(Op::logical_not, "!",  F1(a == 0),             nullptr, {.boolean = true}),

  row(Op::add,     "+",      F2(a + b),              D(Expr(1.0), Expr(1.0)),
      {.torch = "add", .commutative = true, .sign = kAsArguments, .pole_free = true}),
  row(Op::sub,     "-",      F2(a - b),              D(Expr(1.0), Expr(-1.0)), {.torch = "sub", .pole_free = true}),
  row(Op::mul,     "*",      F2(a * b),              D(a[1], a[0]),
      {.torch = "mul", .commutative = true, .sign = kAsArguments, .pole_free = true}),
  row(Op::div,     "/",      F2(a / b),              div_partials, {.torch = "div", .sign = kAsArguments}),
  row(Op::min,     "min",    F2(minimum(a, b)),
      D(share(a[0] < a[1], a[0], a[1], self), share(a[1] < a[0], a[0], a[1], self)),
      {.doc = "The smaller of two; NaN wins.", .numpy = "minimum", .torch = "minimum", .commutative = true,
       .sign = kAsArguments, .pole_free = true}),
  row(Op::max,     "max",    F2(-minimum(-a, -b)),
      D(share(a[0] > a[1], a[0], a[1], self), share(a[1] > a[0], a[0], a[1], self)),
      {.doc = "The larger of two; NaN wins.", .numpy = "maximum", .torch = "maximum", .commutative = true,
       .pole_free = true}),
  row(Op::pow,     "pow",    F2(std::pow(a, b)),     pow_partials,
      {.doc = "a**b.", .numpy = "power float_power", .torch = "pow"}),
  row(Op::xlogy,   "xlogy",  F2(xlogy_value(a, b)),
      D(guarded(equal(a[1], 0.0), log(a[1])), guarded(equal(a[1], 0.0), a[0] / a[1])),
      {.doc = "a * log(b), and 0 where a is 0.", .torch = "xlogy"}),
  row(Op::atan2,   "atan2",  F2(std::atan2(a, b)),   atan2_partials,
      {.doc = "The angle of the point (b, a), in radians.", .numpy = "arctan2", .torch = "atan2", .sign = kAsArgument,
       .bound = kMostAngle}),
  row(Op::copysign, "copysign", F2(std::copysign(a, b)), D(sign(a[0]) * copysign(1.0, a[1]), Expr(0.0)),
      {.doc = "|a| with the sign of b.", .numpy = "copysign", .torch = "copysign", .parity = kEven, .pole_free = true}),
  row(Op::less,          "<",  F2(a < b),            nullptr, {.boolean = true}),
  row(Op::less_equal,    "<=", F2(a <= b),           nullptr, {.boolean = true}),
  row(Op::greater,       ">",  F2(a > b),            nullptr, {.boolean = true}),
  row(Op::greater_equal, ">=", F2(a >= b),           nullptr, {.boolean = true}),
  row(Op::equal,         "==", F2(a == b),           nullptr, {.commutative = true, .boolean = true}),
  row(Op::not_equal,     "!=", F2(a != b),           nullptr, {.commutative = true, .boolean = true}),
  row(Op::logical_and,   "&", F2(a != 0 && b != 0),  nullptr, {.commutative = true, .boolean = true}),
  row(Op::logical_or,    "|", F2(a != 0 || b != 0),  nullptr, {.commutative = true, .boolean = true}),

  row(Op::where,   "where",  F3(a != 0 ? b : c),     D(Expr(0.0), where(a[0], 1.0, 0.0), where(a[0], 0.0, 1.0)), {}),
  row(Op::fma,     "fma",    F3(std::fma(a, b, c)),  D(a[1], a[0], Expr(1.0)), {.pole_free = true}),
  };
}
// clang-format on

}  // namespace

const std::vector<OpInfo>& op_table() {
  static constinit Lazy<std::vector<OpInfo>> table;
  return table.get(make_table);
}

const OpInfo& info(Op op) {
  // No rows of the table: a ptx takes any number of arguments and has its value from its meaning, and what only passes
  // make is written by nobody.
  static constinit Lazy<OpInfo> ptx, pinned;
  if (op == Op::ptx) {
    return ptx.get([] {
      OpInfo made;
      made.op = Op::ptx;
      made.name = "ptx";
      return made;
    });
  }
  if (op == Op::pinned)
    return pinned.get([] { return row(Op::pinned, "pinned", F1(a), nullptr, {.sign = kAsArgument}); });
  const auto index = static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::neg);  // the table is in enum order
  require(op >= Op::neg && index < op_table().size(), "ops: only scalar ops have a row. Received op number {}.",
          static_cast<int>(op));
  return op_table()[index];
}

const OpTraits& traits(Op op) {
  static constexpr OpTraits unknown;
  return is_leaf(op) || is_reduction(op) ? unknown : info(op);
}

const OpInfo* find_op(std::string_view name) {
  for (const OpInfo& row : op_table()) {
    if (row.name == name && name[0] >= 'a' && name[0] <= 'z') return &row;
  }
  return nullptr;
}

#undef F1
#undef F2
#undef F3
#undef D

}  // namespace mercer::ir
