#include "plan/forms/field_factors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ir/passes/passes.h"
#include "plan/forms/weight_factors.h"

namespace mercer::plan {
namespace {

struct Factors {
  std::vector<Expr> others;
  WeightFactors weights;
  double scale = 1;
};

bool is_zero(const Expr& e) { return e->op == ir::Op::constant && e->value == 0; }

/// Factors of a product, however it is bracketed; a sign counts as -1. A derivative is 0 where a divisor of w is 0: the
/// weight is then.
void collect_factors(const Expr& e, Factors& factors) {
  if (e->op == ir::Op::constant) {
    factors.scale *= e->value;
  } else if (e->op == ir::Op::neg) {
    factors.scale = -factors.scale;
    collect_factors(e->args[0], factors);
  } else if (e->op == ir::Op::mul) {
    for (const Expr& part : e->args) collect_factors(part, factors);
  } else if (WeightFactors::is_weight(e)) {
    factors.weights.add(e, false);
  } else if (e->op == ir::Op::div && WeightFactors::is_weight(e->args[1])) {
    collect_factors(e->args[0], factors);
    factors.weights.add(e->args[1], true);
  } else if (e->op == ir::Op::where && is_zero(e->args[1]) && WeightFactors::is_weight(e->args[0])) {
    Factors inner;
    collect_factors(e->args[2], inner);
    if (inner.weights.empty() || !inner.weights.stand()) return factors.others.push_back(e);
    factors.scale *= inner.scale;
    factors.weights.add(where(e->args[0], 0.0, inner.weights.product()), false);
    factors.others.insert(factors.others.end(), inner.others.begin(), inner.others.end());
  } else {
    factors.others.push_back(e);
  }
}

Expr product_of(const std::vector<Expr>& factors) {
  if (factors.empty()) return 1.0;
  Expr product = factors[0];
  for (std::size_t i = 1; i < factors.size(); ++i) product = product * factors[i];
  return product;
}

struct Reads {
  bool feature = false, pair = false, point = false;  // x, z or w; pair values; row or col
};
Reads reads_of(const Expr& e) {
  Reads reads;
  ir::for_each(e, [&](const Expr& node) {
    reads.feature |= node->op == ir::Op::x || node->op == ir::Op::z || node->op == ir::Op::w;
    reads.pair |= node->op == ir::Op::pair_value;
    reads.point |= node->op == ir::Op::row || node->op == ir::Op::col;
  });
  return reads;
}

/// 1 for x - z, -1 for z - x, else 0.
int direction_of(const Expr& e) {
  if (e->op != ir::Op::sub) return 0;
  const ir::Op left = e->args[0]->op, right = e->args[1]->op;
  return left == ir::Op::x && right == ir::Op::z ? 1 : left == ir::Op::z && right == ir::Op::x ? -1 : 0;
}

bool is_signed_one(const Expr& e) {
  return e->op == ir::Op::copysign && e->args[0]->op == ir::Op::constant && e->args[0]->value == 1 &&
         direction_of(e->args[1]) == 1;
}

/// 1 for sign(x - z) and copysign(1, x - z), -1 for sign(z - x), else 0.
int sign_of_difference(const Expr& e) {
  if (is_signed_one(e)) return 1;
  return e->op == ir::Op::sign ? direction_of(e->args[0]) : 0;
}

FieldFactors::Linear linear_in(const Expr& factor) {
  if (factor->op == ir::Op::z) return FieldFactors::Linear::point;
  const bool difference =
      factor->op == ir::Op::sub && factor->args[0]->op == ir::Op::x && factor->args[1]->op == ir::Op::z;
  return difference ? FieldFactors::Linear::difference : FieldFactors::Linear::none;
}

/// z - x is x - z with the other sign.
void turn_difference(std::vector<Expr>& factors, double& scale) {
  if (factors.size() != 1 || factors[0]->op != ir::Op::sub) return;
  const Expr left = factors[0]->args[0], right = factors[0]->args[1];
  if (left->op != ir::Op::z || right->op != ir::Op::x) return;
  factors[0] = right - left;
  scale = -scale;
}

/// The constant q > 0 of |d|^q, which may be a root; else 0.
double power_of_magnitude(const Expr& e) {
  if (e->op == ir::Op::sqrt && e->args[0]->op == ir::Op::abs) return 0.5;
  if (e->op != ir::Op::pow || e->args[0]->op != ir::Op::abs || e->args[1]->op != ir::Op::constant) return 0;
  return std::max(e->args[1]->value, 0.0);
}

/// a - b and b - a are the same, as simplify() writes what stands in a magnitude.
bool same_magnitude(const Expr& a, const Expr& b) {
  if (same(a, b)) return true;
  return a->op == ir::Op::sub && b->op == ir::Op::sub && same(a->args[0], b->args[1]) && same(a->args[1], b->args[0]);
}

/// sign(d) |d|^q of a constant q > 0 is |d|^q with the sign of d: the same values, in fewer instructions.
void join_signs(std::vector<Expr>& factors) {
  for (Expr& sign : factors) {
    if (sign->op != ir::Op::sign) continue;
    for (Expr& power : factors) {
      if (!(power_of_magnitude(power) > 0) || !same_magnitude(power->args[0]->args[0], sign->args[0])) continue;
      power = copysign(power, sign->args[0]);
      std::swap(sign, factors.back());
      factors.pop_back();
      return;
    }
  }
}

/// The constant c > 0 of max(|d|, c); else 0.
double least_of_magnitude(const Expr& e) {
  if (e->op != ir::Op::max) return 0;
  const bool last = e->args[1]->op == ir::Op::constant;
  if (e->args[last ? 0 : 1]->op != ir::Op::abs || e->args[last ? 1 : 0]->op != ir::Op::constant) return 0;
  return std::max(e->args[last ? 1 : 0]->value, 0.0);
}

/// The power of FieldFactors and what bounds its base; what has the sign of z - x is turned, but for a bounded one,
/// which has the sign of zero too.
void find_power(FieldFactors& found) {
  const Expr factor = found.factor;
  if (factor->op != ir::Op::copysign || factor->args[0]->args.empty()) return;
  const Expr difference = factor->args[1];
  const int direction = direction_of(difference);
  Expr size = factor->args[0], base = size->args[0];
  const double least = least_of_magnitude(base);
  if (least > 0) {
    base = base->args[base->args[0]->op == ir::Op::abs ? 0 : 1];
    size = size->op == ir::Op::sqrt ? sqrt(base) : size->op == ir::Op::pow ? pow(base, size->args[1]) : size;
  }
  const double power = power_of_magnitude(size);
  if (!(power > 0) || power > kLargestHalvesPower || direction == 0 || (least > 0 && direction < 0)) return;
  if (!same_magnitude(base->args[0], difference)) return;
  if (direction < 0) {
    found.scale = -found.scale;
    found.factor = copysign(factor->args[0], difference->args[1] - difference->args[0]);
  }
  found.power = power;
  found.least = least;
}

}  // namespace

std::string FieldFactors::to_text() const {
  switch (kind) {
    case Kind::none: return "none";
    case Kind::sign:
    case Kind::values: break;
  }
  const std::string own = weighted() ? fmt::format("* ({}) ", weight.to_text()) : "";
  return fmt::format("{:g} {}* ({}) * amplitude ({})", scale, own, factor.to_text(), amplitude.to_text());
}

FieldFactors factors_of(const Expr& field, Dtype type) {
  FieldFactors result;
  Factors factors;
  collect_factors(field, factors);
  const bool is_narrow = type == Dtype::float32;
  result.scale = is_narrow ? static_cast<float>(factors.scale) : factors.scale;
  const bool is_normal = is_narrow ? std::isnormal(static_cast<float>(result.scale)) : std::isnormal(result.scale);
  if (!is_normal || !factors.weights.stand()) return {};
  if (!factors.weights.empty()) result.weight = factors.weights.product();
  std::vector<Expr> amplitudes, features;
  int signs = 0, others = 0, direction = 1;
  for (const Expr& e : factors.others) {
    const Reads reads = reads_of(e);
    if (reads.point || (reads.feature && reads.pair)) return {};
    (reads.feature ? features : amplitudes).push_back(e);
    if (!reads.feature) continue;
    const int sign = sign_of_difference(e);
    sign != 0 ? ++signs : ++others;
    if (sign != 0) direction *= sign;
  }
  if (signs + others == 0) return {};
  result.kind = signs == 1 && others == 0 ? FieldFactors::Kind::sign : FieldFactors::Kind::values;
  if (result.kind == FieldFactors::Kind::sign && direction < 0) {
    result.scale = -result.scale;
    features[0] = sign(features[0]->args[0]->args[1] - features[0]->args[0]->args[0]);
  }
  result.amplitude = product_of(amplitudes);
  join_signs(features);
  turn_difference(features, result.scale);
  result.factor = product_of(features);
  result.linear = linear_in(result.factor);
  result.signs_zeros = result.kind == FieldFactors::Kind::sign && is_signed_one(result.factor);
  find_power(result);
  return result;
}

WeightedField weighted_field(const Expr& field) {
  Factors factors;
  collect_factors(field, factors);
  if (factors.weights.empty() || !factors.weights.stand()) return {};
  const Expr others = product_of(factors.others);
  if (ir::uses(others).w) return {};
  return {factors.weights.product(), factors.scale * others};
}

}  // namespace mercer::plan
