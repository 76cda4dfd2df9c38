// Fields of norms at the ends of the range: powers of a difference t times powers of S = sum of w |t|^p leave the range
// of numbers apart, where their product, a power of |t| / S^(1/p), does not.
//
//   A(S) φ(t) = A(S) r^-b φ(r t)        φ homogeneous of degree b in t,  r = 2^-floor(log2 S^(1/p))
//
// A has a negative power of S as a factor, (S^(1/p) r)^.. r^.. in its place. Other pairs have r = 1.
#pragma once

#include <vector>

#include "ir/expr/expr.h"
#include "mercer/tensor.h"

namespace mercer::ir {

/// The largest r.
inline double most_scale(Dtype type) { return type == Dtype::float64 ? 0x1p1022 : 0x1p126; }

struct ScaledFields {
  struct Value {
    Expr leaf;      // what stands in the fields
    Expr plain;     // its value of pairs within the range: 1 of an r
    Expr beyond;    // and of others
    bool is_unit = false;
  };
  std::vector<Expr> fields;
  std::vector<Value> values;
};

/// Simplified fields with A and r as leaves (pair_value, with slots from kFirstScaled on) wherever b > 1, or b > 0 and
/// A reads parameters, which may be as large: powers of t and S alone stay within the range for other b. Without values
/// where there are none.
ScaledFields scaled_fields(const std::vector<Expr>& fields, double most_scale);
inline constexpr int kFirstScaled = 1 << 20;

/// A formula of pairs that is such a field at one feature, which row and col give, with what scales in place.
Expr safe_powers(const Expr& formula);

/// The field without its units: (t r) is t. `units`: their slots.
Expr without_units(const Expr& field, const std::vector<int>& units);

}  // namespace mercer::ir
