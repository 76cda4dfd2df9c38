// lower: expressions over the leaves of Split become one program of primitives.
//
// Conditions stay masks until somebody uses them as numbers. Products are fused into an accumulator and nowhere else:
// acc + a * b -> fma(a, b, acc). The sign of a zero that min or max chooses among zeros of both signs is not specified.
#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "ir/expr/large_angle.h"
#include "ir/expr/ops.h"
#include "ir/lower/fit_power.h"
#include "ir/lower/lower_facts.h"
#include "ir/lower/lower_math.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;
constexpr double kMostUnitPower = 4;  // beyond it, errors of multiplications add up

class Lowering {
 public:
  Lowering(const LowerOptions& options, Builder& builder) : options_(options), builder_(builder), facts_(options) {}

  Program program(const std::vector<Expr>& outputs) {
    std::vector<Value> values;
    for (const Expr& output : outputs) values.push_back(value(output));
    return builder_.finish(values);
  }

 private:
  Value value(const Expr& e);
  Value mask(const Expr& e);
  Value make_value(const Expr& e);
  Value make_mask(const Expr& e);

  Value leaf_value(const Expr& e);
  Value function_value(const Expr& e);
  Value sum_value(const Expr& e);
  Value difference_value(const Expr& e);
  Value extremum_value(const Expr& e);
  Value sign_value(const Expr& e);
  Value power_value(const Expr& e);
  Value xlogy_value(const Expr& e);
  Value ptx_value(const Expr& e);
  Value pinned_value(const Expr& e);
  std::optional<Product> product(const Expr& e);
  std::optional<Product> power_product(const Expr& base, double exponent);
  std::optional<Product> table_product(const Expr& base, const Power& exponent);
  Value stream(const Expr& e);
  Value scaled_value(const Expr& e);

  Value arg(const Expr& e, std::size_t i) { return value(e->args[i]); }
  // The order in which C++ evaluates arguments is not defined, that of the program's instructions shall be.
  Value binary(Prim op, const Expr& e, std::size_t first = 0, std::size_t second = 1) {
    const Value a = arg(e, first), b = arg(e, second);
    return builder_.emit(op, a, b);
  }
  bool never_nan(const Expr& e) { return facts_.never_nan(e); }
  bool on_gpu() const { return options_.processor != Processor::cpu; }
  /// Whether the special-function unit serves: it computes in float32.
  bool has_unit() const { return on_gpu() && !builder_.wide(); }
  Value root(Value a) {
    const bool by_unit = options_.processor == Processor::gpu_terms || options_.unit_roots;
    return has_unit() && by_unit ? builder_.emit(Prim::sqrt_unit, a) : sqrt(a);
  }
  Value unit_power(const Expr& base, const Expr& exponent);
  bool is_moderate(const Expr& exponent) const {
    return !options_.moderate_exponent.empty() && same(exponent, options_.moderate_exponent);
  }
  int slot_of(const Expr& param) const;

  const LowerOptions& options_;
  Builder& builder_;
  Facts facts_;
  ExprMap<Value> values_, masks_;
};

Value Lowering::value(const Expr& e) {
  if (const auto found = values_.find(e); found != values_.end()) return found->second;
  const Value result = make_value(e);
  values_.emplace(e, result);
  return result;
}

Value Lowering::mask(const Expr& e) {
  if (const auto found = masks_.find(e); found != masks_.end()) return found->second;
  const Value result = make_mask(e);
  masks_.emplace(e, result);
  return result;
}

Value Lowering::leaf_value(const Expr& e) {
  switch (e->op) {
    case Op::constant: return builder_.number(e->value);
    case Op::x:
    case Op::z: return options_.scaled ? stream(e) * (1 / kNarrowScale) : stream(e);
    case Op::w: return builder_.input(Site::w, 0);
    case Op::row: return builder_.input(Site::row, 0);
    case Op::col: return builder_.input(Site::col, 0);
    case Op::row_stage: return builder_.input(Site::row, 1 + e->slot);
    case Op::col_stage: return builder_.input(Site::col, 1 + e->slot);
    case Op::index_i: return builder_.input(Site::index_i, 0);
    case Op::index_j: return builder_.input(Site::index_j, 0);
    case Op::features: return builder_.input(Site::features, 0);
    case Op::accumulator: return builder_.input(Site::accumulator, e->slot);
    case Op::pair_value: return builder_.input(Site::pair_value, e->slot);
    case Op::incoming: return builder_.input(Site::incoming, e->slot);
    case Op::param: return builder_.input(Site::param, slot_of(e));
    default: fail(ErrorKind::compile, "lower: '{}' is not a leaf of a split expression.", e.to_text());
  }
}

int Lowering::slot_of(const Expr& param) const {
  for (std::size_t slot = 0; slot < options_.params.size(); ++slot)
    if (same(options_.params[slot], param)) return static_cast<int>(slot);
  fail(ErrorKind::compile, "lower: every parameter needs a slot. Received '{}'.", param->name);
}

Value Lowering::stream(const Expr& e) { return builder_.input(e->op == Op::x ? Site::x : Site::z, e->slot); }

/// A difference (is_difference) of the streams as they are given.
Value Lowering::scaled_value(const Expr& e) {
  if (e->op == Op::abs) return magnitude(scaled_value(e->args[0]));
  if (e->op == Op::neg) return negated(scaled_value(e->args[0]));
  const Value a = stream(e->args[0]), b = stream(e->args[1]);
  return e->op == Op::add ? a + b : a - b;
}

Value Lowering::make_value(const Expr& e) {
  if (is_leaf(e->op)) return leaf_value(e);
  if (is_reduction(e->op))
    fail(ErrorKind::compile, "lower: reductions are split off before. Received '{}'.", e.to_text());
  if (info(e->op).boolean) return select(mask(e), 1.0, 0.0);
  switch (e->op) {
    case Op::neg: return negated(arg(e, 0));
    case Op::abs: return magnitude(arg(e, 0));
    case Op::sign: return sign_value(e);
    case Op::sqrt: return root(arg(e, 0));
    case Op::rsqrt: return 1.0 / sqrt(arg(e, 0));
    case Op::rcp: return 1.0 / arg(e, 0);
    case Op::floor: return builder_.emit(Prim::floor, arg(e, 0));
    case Op::ceil: return builder_.emit(Prim::ceil, arg(e, 0));
    case Op::round: return builder_.emit(Prim::round, arg(e, 0));
    case Op::add: return sum_value(e);
    case Op::sub: return difference_value(e);
    case Op::mul: return binary(Prim::mul, e);
    case Op::div: return binary(Prim::div, e);
    case Op::fma: {
      const Value a = arg(e, 0), b = arg(e, 1), c = arg(e, 2);
      return fma(a, b, c);
    }
    case Op::min:
    case Op::max: return extremum_value(e);
    case Op::copysign: {
      const Value size = magnitude(arg(e, 0)), sign = sign_of(arg(e, 1));
      return bit_or(size, sign);
    }
    case Op::where: {
      const Value condition = mask(e->args[0]), yes = arg(e, 1), no = arg(e, 2);
      return select(condition, yes, no);
    }
    case Op::pow: return power_value(e);
    case Op::xlogy: return xlogy_value(e);
    case Op::ptx: return ptx_value(e);
    case Op::pinned: return pinned_value(e);
    default: return function_value(e);
  }
}

Value Lowering::function_value(const Expr& e) {
  const Value x = arg(e, 0);
  const Range range = facts_.range(e->args[0]);
  const bool moderate = facts_.bound(e->args[0]) <= (builder_.wide() ? kLargeAngle<double> : kLargeAngle<float>);
  switch (e->op) {
    case Op::exp: return has_unit() ? builder_.emit(Prim::exp2_unit, x * kLog2OfE) : lower_exp(x, range);
    case Op::exp2: return has_unit() ? builder_.emit(Prim::exp2_unit, x) : lower_exp2(x, range);
    case Op::expm1: return lower_expm1(x, range);
    case Op::log: return lower_log(x, range);
    case Op::log2: return lower_log2(x, range);
    case Op::log1p: return lower_log1p(x, range);
    case Op::tanh: return lower_tanh(x);
    case Op::sin: return lower_sin(x, moderate);
    case Op::cos: return lower_cos(x, moderate);
    case Op::asin: return lower_asin(x);
    case Op::acos: return lower_acos(x);
    case Op::erf: return lower_erf(x);
    case Op::atan2: return lower_atan2(x, arg(e, 1));
    default: fail(ErrorKind::compile, "lower: no lowering of '{}'.", info(e->op).name);
  }
}

Value Lowering::make_mask(const Expr& e) {
  const auto logical = [&](Prim op) {
    const Value a = mask(e->args[0]), b = mask(e->args[1]);
    return builder_.emit(op, a, b);
  };
  switch (e->op) {
    case Op::less: return binary(Prim::less, e);
    case Op::less_equal: return binary(Prim::less_equal, e);
    case Op::greater: return binary(Prim::less, e, 1, 0);
    case Op::greater_equal: return binary(Prim::less_equal, e, 1, 0);
    case Op::equal: return binary(Prim::equal, e);
    case Op::not_equal: return binary(Prim::not_equal, e);
    case Op::logical_and: return logical(Prim::mask_and);
    case Op::logical_or: return logical(Prim::mask_or);
    case Op::logical_not: return mask_not(mask(e->args[0]));
    default: return not_equal(value(e), builder_.number(0));
  }
}

// acc + a b and acc - a b in either order of the arguments.
Value Lowering::sum_value(const Expr& e) {
  for (std::size_t i : {0, 1}) {
    if (e->args[i]->op != Op::accumulator) continue;
    const Expr& term = e->args[1 - i];
    const Value sum = arg(e, i);
    if (const auto factors = product(term)) return fma(factors->first, factors->second, sum);
    if (term->op != Op::neg) continue;
    if (const auto factors = product(term->args[0])) return fnma(factors->first, factors->second, sum);
  }
  return binary(Prim::add, e);
}

Value Lowering::difference_value(const Expr& e) {
  if (e->args[0]->op == Op::accumulator)
    if (const auto factors = product(e->args[1])) return fnma(factors->first, factors->second, arg(e, 0));
  return binary(Prim::sub, e);
}

std::optional<Product> Lowering::product(const Expr& e) {
  // sqrt(a) and a sqrt(a), as simplify() writes a^0.5 and a^1.5.
  const auto takes_tables = [&](const Expr& base) { return options_.table_powers || facts_.narrow(base); };
  if (e->op == Op::sqrt && facts_.narrow(e->args[0]))
    if (const auto factors = power_product(e->args[0], 0.5)) return factors;
  if (e->op == Op::mul)
    for (std::size_t i : {0, 1})
      if (e->args[i]->op == Op::sqrt && same(e->args[i]->args[0], e->args[1 - i]) && takes_tables(e->args[1 - i]))
        if (const auto factors = power_product(e->args[1 - i], 1.5)) return factors;
  if (e->op == Op::mul) {
    const Value a = arg(e, 0), b = arg(e, 1);
    return Product(a, b);
  }
  if (e->op == Op::pow && e->args[1]->op == Op::constant) return power_product(e->args[0], e->args[1]->value);
  if (e->op == Op::pow && is_moderate(e->args[1])) return table_product(e->args[0], {0, slot_of(e->args[1])});
  return std::nullopt;
}

// The primitives give their second argument when either is NaN, so one of them suffices where the first is a number.
Value Lowering::extremum_value(const Expr& e) {
  const bool is_max = e->op == Op::max;
  const Prim op = is_max ? Prim::max : Prim::min;
  const Expr *first = &e->args[0], *second = &e->args[1];
  if (second->node()->op == Op::accumulator) std::swap(first, second);
  const Value a = value(*first), b = value(*second);
  if (on_gpu()) return builder_.emit(is_max ? Prim::max_nan : Prim::min_nan, a, b);
  const bool safe = options_.assume_finite && (*first)->op == Op::accumulator && never_nan(*second);
  if (is_max && (*second)->op == Op::abs && facts_.range(*first) == Range::nonnegative && safe)
    return builder_.emit(Prim::abs_max, a, arg(*second, 0));
  if (safe || never_nan(*first)) return builder_.emit(op, a, b);
  if (never_nan(*second)) return builder_.emit(op, b, a);
  // As integers, patterns of non-negative numbers are ordered, NaN above all and -Inf (the identity of max) below. NaN
  // may carry a sign, as that of Inf - Inf does on x86: unsigned integers have it above all too, and where the identity
  // is needed the sign is cleared.
  const bool max_of_patterns = is_max && !builder_.wide() && facts_.range(*second) == Range::nonnegative &&
                               ((*first)->op == Op::accumulator || facts_.range(*first) == Range::nonnegative);
  if (max_of_patterns && facts_.range(*first) == Range::nonnegative) return builder_.emit(Prim::int_max, a, b, {}, 1);
  if (max_of_patterns) return builder_.emit(Prim::int_max, a, magnitude(b));
  const Value larger_or_smaller = builder_.emit(op, a, b);
  return select(is_nan(a), a, larger_or_smaller);
}

Value Lowering::sign_value(const Expr& e) {
  const Value x = arg(e, 0);
  const Value unit = bit_or(sign_of(x), builder_.pattern_of_number(1.0));
  if (never_nan(e->args[0])) return select(not_equal(x, builder_.number(0)), unit, 0.0);
  return select(less(0.0, magnitude(x)), unit, x);
}

Value Lowering::xlogy_value(const Expr& e) {
  const Value x = arg(e, 0), y = arg(e, 1), log_y = lower_log(y, facts_.range(e->args[1]));
  const Value at_zero = never_nan(e->args[1]) ? builder_.number(0) : select(is_nan(y), y, 0.0);
  return select(equal(x, 0.0), at_zero, x * log_y);
}

Value Lowering::ptx_value(const Expr& e) {
  if (!has_unit()) return value(e->args.back());
  std::vector<Value> inputs;
  for (std::size_t i = 0; i + 1 < e->args.size(); ++i) inputs.push_back(arg(e, i));
  return builder_.ptx(e->name, inputs, e->slot);
}

/// The value by what holds in every pass.
Value Lowering::pinned_value(const Expr& e) {
  LowerOptions options;
  options.type = options_.type;
  options.processor = on_gpu() ? Processor::gpu : Processor::cpu;
  options.scaled = options_.scaled;
  options.params = options_.params;
  return Lowering(options, builder_).value(e->args[0]);
}

Value Lowering::power_value(const Expr& e) {
  const Expr& exponent = e->args[1];
  const Range range = facts_.range(e->args[0]);
  PowFacts facts{range, never_nan(e->args[0])};
  if (exponent->op == Op::constant && !builder_.wide() && std::isfinite(exponent->value))
    facts.exponent_rest = exponent->value - static_cast<double>(static_cast<float>(exponent->value));
  const auto general = [&] {
    const Value base_value = arg(e, 0), exponent_value = arg(e, 1);
    return lower_pow(base_value, exponent_value, facts);
  };
  const bool unit = has_unit() && options_.processor == Processor::gpu_terms && range == Range::nonnegative;
  if (is_moderate(exponent))
    if (const auto factors = table_product(e->args[0], {0, slot_of(exponent)})) return factors->first * factors->second;
  if (exponent->op != Op::constant) return unit ? unit_power(e->args[0], exponent) : general();
  const double p = exponent->value;
  if (p == 0) return builder_.number(1);
  if (p == 1) return arg(e, 0);
  if (p == -1) return 1.0 / arg(e, 0);
  if (p == 0.5 && range == Range::nonnegative) return root(arg(e, 0));
  if (p == -0.5 && range == Range::nonnegative) return 1.0 / root(arg(e, 0));
  if (const auto factors = power_product(e->args[0], p)) return factors->first * factors->second;
  if (const auto factors = power_product(e->args[0], -p)) return 1.0 / (factors->first * factors->second);
  if (unit) return unit_power(e->args[0], exponent);
  const double whole_part = std::floor(p), rest = p - whole_part;
  const bool unit_root = p > 0 && p < kMostUnitPower && rest > 0 && rest <= kLargestUnitRoot;
  if (!has_unit() || range != Range::nonnegative || !unit_root) return general();
  const int whole = static_cast<int>(whole_part);
  const Value power = lower_unit_root(arg(e, 0), rest);
  return whole > 0 ? power * integer_power(arg(e, 0), whole) : power;
}

// base^p = 2^(p log2 base), base >= 0. The error grows with |p log2 base|. An unknown exponent may be 0, unless it is
// moderate, and 0 * log2 0 (or of Inf) must not become NaN: the logarithm then stops at a large number.
Value Lowering::unit_power(const Expr& base, const Expr& exponent) {
  constexpr double kLargestLog = 0x1p120;
  Value log2 = builder_.emit(Prim::log2_unit, value(base));
  if (exponent->op != Op::constant && !is_moderate(exponent)) {
    log2 = builder_.emit(Prim::max_nan, log2, builder_.number(-kLargestLog));
    log2 = builder_.emit(Prim::min_nan, log2, builder_.number(kLargestLog));
  }
  return builder_.emit(Prim::exp2_unit, value(exponent) * log2);
}

/// The power by a table of the special powers of GPUs, where these are asked for: the program has one table at most.
std::optional<Product> Lowering::table_product(const Expr& base, const Power& exponent) {
  Value poly, scale;
  if (!options_.table_powers || !has_unit() || facts_.range(base) != Range::nonnegative) return std::nullopt;
  if (!builder_.power(value(base), exponent, poly, scale)) return std::nullopt;
  return Product(poly, scale);
}

// base^p as a product of two values, where one is cheaper than the general power and as accurate.
std::optional<Product> Lowering::power_product(const Expr& base, double p) {
  constexpr double kMostMultiplications = 8;  // 3.5 ulp
  const bool nonnegative = facts_.range(base) == Range::nonnegative;
  if (p >= 2 && p <= kMostMultiplications && p == std::floor(p)) {
    const int n = static_cast<int>(p);
    const Value b = value(base);
    const Value half = integer_power(b, n / 2);
    return n % 2 == 0 ? Product(half, half) : Product(integer_power(b, n - 1), b);
  }
  if (p > 0 && p <= kLargestTablePower)
    if (const auto factors = table_product(base, {p})) return factors;
  const bool narrow = facts_.narrow(base);
  if (nonnegative && !narrow && p > 1 && p < 4 && p + 0.5 == std::floor(p + 0.5)) {
    const Value whole = integer_power(value(base), static_cast<int>(p));
    return Product(whole, root(value(base)));
  }
  // For a sum that is promised to be normal, the general power is as fast where tables have sixteen entries.
  const bool serves = fixed_power_takes_all(p) || (facts_.promised_normal(base) ? options_.short_tables
                                                                               : facts_.normal(base));
  const bool by_tables =
      !on_gpu() && nonnegative && p > 0 && (narrow || p != 0.5) && p <= kLargestFixedPower && serves;
  if (!by_tables) return std::nullopt;
  if (narrow && options_.scaled) return fixed_power(scaled_value(base), p, options_.short_tables, PowerBase::scaled);
  return fixed_power(value(base), p, options_.short_tables, narrow ? PowerBase::narrow : PowerBase::any);
}

}  // namespace

Program lower(const std::vector<Expr>& outputs, const LowerOptions& options) {
  if (options.type != Dtype::float32 && options.type != Dtype::float64)
    fail(ErrorKind::compile, "lower: programs are float32 or float64. Received {}.", name_of(options.type));
  Builder builder(options.type);
  Program program = Lowering(options, builder).program(outputs);
  verify(program);
  return program;
}

}  // namespace mercer::ir
