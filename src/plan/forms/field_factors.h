// Factors of a gradient field: what is of the pair, of a feature and of the weights w.
#pragma once

#include <string>

#include "mercer/formula.h"
#include "mercer/tensor.h"

namespace mercer::plan {

/// φ = scale [weight] amplitude of the pair, factor of the feature (kernels/cuda/gradient/field_products.cuh).
struct FieldFactors {
  enum class Kind : std::uint8_t { none, sign, values };
  Kind kind = Kind::none;
  enum class Linear : std::uint8_t { none, difference, point };
  Linear linear = Linear::none;  // the factor is x - z, or z
  double power = 0;  // up to kLargestHalvesPower: the factor is |x - z| to this, with the sign of x - z
  double least = 0;  // of that |x - z|; 0: none
  bool signs_zeros = false;  // sign: the factor is copysign(1, x - z) in place of sign(x - z)
  Expr amplitude, factor;  // over pair values and parameters; over x, z, w and parameters
  double scale = 1;
  Expr weight;  // of w alone; empty: none
  bool weighted() const { return !weight.empty(); }
  explicit operator bool() const { return kind != Kind::none; }
  std::string to_text() const;
};
/// Powers of floats beyond it have values that are too small next to large ones for 16 bits
/// (kernels/cuda/gradient/row_units.cuh).
inline constexpr double kLargestHalvesPower = 0.5;
/// Bits of the mantissa that their table has.
inline constexpr int kFieldPowerBits = 3;
/// `none` where φ has no such form. `type`: of the values.
FieldFactors factors_of(const Expr& field, Dtype type = Dtype::float32);

/// φ = weight rest, the weight of w alone; empty ones where the rest reads w, or there is no weight.
struct WeightedField {
  Expr weight, rest;
};
WeightedField weighted_field(const Expr& field);

}  // namespace mercer::plan
