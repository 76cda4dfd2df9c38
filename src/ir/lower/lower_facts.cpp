#include "ir/lower/lower_facts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

}  // namespace

double Facts::bound(const Expr& e) {
  if (const auto found = bounds_.find(e); found != bounds_.end()) return found->second;
  double result = bound_of(e);
  if (!(result <= largest())) result = kUnknown;
  bounds_.emplace(e, result);
  return result;
}

bool is_difference(const Expr& e) {
  const auto stream = [&](std::size_t i) { return e->args[i]->op == Op::x || e->args[i]->op == Op::z; };
  if (e->op == Op::abs || e->op == Op::neg) return is_difference(e->args[0]);
  return (e->op == Op::sub || e->op == Op::add) && stream(0) && stream(1);
}

bool Facts::promised_normal(const Expr& e) const {
  if (e->op == Op::abs) return promised_normal(e->args[0]);
  const auto& slots = options_.normal_slots;
  return e->op == Op::accumulator && static_cast<std::size_t>(e->slot) < slots.size() && slots[e->slot];
}

// Streams of at least 2^-b, and such constants, are multiples of 2^-(b + 23) in float32, and so are their differences.
bool Facts::normal(const Expr& e) const {
  const auto both = [&](std::size_t a, std::size_t b) { return normal(e->args[a]) && normal(e->args[b]); };
  const auto coarse = [&](const Expr& part) {
    const bool number = part->op == Op::constant && std::fabs(part->value) >= kCoarse.least;
    return number || is_difference(part) || part->op == Op::x || part->op == Op::z;
  };
  if (promised_normal(e)) return true;
  if (!options_.assume_coarse && !options_.assume_narrow) return false;
  switch (e->op) {
    case Op::constant: return e->value == 0 || coarse(e);
    case Op::x:
    case Op::z: return true;
    case Op::neg:
    case Op::abs: return normal(e->args[0]);
    case Op::add:
    case Op::sub: return is_difference(e) || (coarse(e->args[0]) && coarse(e->args[1]));
    case Op::min:
    case Op::max: return both(0, 1);
    case Op::where: return both(1, 2);
    default: return false;
  }
}

double Facts::bound_of(const Expr& e) {
  const auto arg = [&](std::size_t i) { return bound(e->args[i]); };
  switch (e->op) {
    case Op::constant: return std::isnan(e->value) ? kUnknown : std::fabs(e->value);
    case Op::x:
    case Op::z: return options_.assume_finite || options_.assume_narrow ? kModerate.most : kUnknown;
    case Op::w:
    case Op::row:
    case Op::col:
    case Op::param:
    case Op::pair_value: return kUnknown;
    case Op::index_i:
    case Op::index_j:
    case Op::features: return 0x1p63;
    case Op::neg:
    case Op::abs: return arg(0);
    case Op::sqrt: return nonnegative(e->args[0]) && arg(0) < kUnknown ? std::sqrt(arg(0)) + 1 : kUnknown;
    case Op::floor:
    case Op::ceil:
    case Op::round: return arg(0) + 1;
    case Op::exp:
    case Op::exp2: return nonpositive(e->args[0]) && arg(0) < kUnknown ? 1 : kUnknown;
    case Op::add:
    case Op::sub: return arg(0) + arg(1);
    case Op::mul: return arg(0) * arg(1);  // 0 * Inf: unknown, as is any NaN
    case Op::min:
    case Op::max: return std::max(arg(0), arg(1));
    case Op::where: return std::max(arg(1), arg(2));
    case Op::fma: return arg(0) * arg(1) + arg(2);
    case Op::copysign: return arg(0);
    default: break;
  }
  const OpTraits& known = traits(e->op);
  if (known.boolean) return 1;
  const auto is_known = [&](const Expr& argument) { return bound(argument) < kUnknown; };
  return known.bound > 0 && std::all_of(e->args.begin(), e->args.end(), is_known) ? known.bound : kUnknown;
}

Range Facts::range(const Expr& e) {
  if (const auto found = ranges_.find(e); found != ranges_.end()) return found->second;
  const Range result = is_nonnegative(e) ? Range::nonnegative : range_of(e);
  ranges_.emplace(e, result);
  return result;
}

// Signs through the operations that is_nonnegative() does not see: accumulators with a promise, and negative values.
Range Facts::range_of(const Expr& e) {
  const auto arg = [&](std::size_t i) { return range(e->args[i]); };
  const auto flipped = [](Range r) {
    return r == Range::nonnegative ? Range::nonpositive : r == Range::nonpositive ? Range::nonnegative : Range::any;
  };
  const auto slot_promised = [&] {
    const auto slot = static_cast<std::size_t>(e->slot);
    return slot < options_.nonnegative_slots.size() && options_.nonnegative_slots[slot];
  };
  switch (e->op) {
    case Op::constant: return e->value < 0 ? Range::nonpositive : Range::any;
    case Op::accumulator: return slot_promised() ? Range::nonnegative : Range::any;
    case Op::neg: return arg(0) == Range::nonnegative ? Range::nonpositive : Range::any;
    case Op::sqrt:
    case Op::rsqrt:
    case Op::rcp: return arg(0) == Range::nonnegative ? Range::nonnegative : Range::any;
    case Op::pow: return arg(0) == Range::nonnegative ? Range::nonnegative : Range::any;
    case Op::add: return arg(0) == arg(1) ? arg(0) : Range::any;
    case Op::sub: return arg(0) == Range::nonpositive && arg(1) == Range::nonnegative ? arg(0) : Range::any;
    case Op::mul:
    case Op::div:
      if (arg(1) == Range::nonnegative) return arg(0);
      if (arg(0) == Range::nonnegative && arg(1) == Range::nonpositive) return flipped(arg(0));
      return Range::any;
    case Op::min:
    case Op::max: return arg(0) == arg(1) ? arg(0) : Range::any;
    case Op::where: return arg(1) == arg(2) ? arg(1) : Range::any;
    default: return Range::any;
  }
}

}  // namespace mercer::ir
