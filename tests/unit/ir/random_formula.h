// Random expressions over the leaves of a field, for tests that compare a pass with the oracle.
#pragma once

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "ir/expr/ops.h"

namespace mercer::ir {

class RandomFormula {
 public:
  explicit RandomFormula(unsigned seed) : random_(seed) {}

  Expr operator()(int depth) {
    if (depth == 0 || chance(6)) return leaf_of();
    if (chance(12)) return reduction(depth);
    const auto& table = op_table();
    const OpInfo& row = table[random_() % table.size()];
    // The sign of a computed NaN is nobody's business, and copysign would show it.
    if (row.op == Op::copysign) return copysign((*this)(depth - 1), leaf_of());
    if (row.op == Op::pow) return pow((*this)(depth - 1), exponent());
    std::vector<Expr> args;
    for (int i = 0; i < row.arity; ++i) args.push_back(chance(4) && i > 0 ? args[0] : (*this)(depth - 1));
    return make(row.op, args);
  }

  bool chance(int in) { return random_() % in == 0; }

  /// Numbers of every kind: ordinary, halves, zeros of both signs, infinities, NaN.
  double number() {
    static const double special[] = {0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.25, 3.0,
                                     std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                                     std::numeric_limits<double>::quiet_NaN(), 1e300, 1e-310};
    if (chance(2)) return special[random_() % std::size(special)];
    return std::uniform_real_distribution<double>(-3, 3)(random_);
  }

 private:
  Expr leaf_of() {
    switch (random_() % 6) {
      case 0: return points().x;
      case 1: return points().z;
      case 2: return weights();
      case 3: return row_value();
      case 4: return param("p");
      default: return number();
    }
  }

  /// None with a short form: those round differently.
  Expr exponent() {
    static const double constants[] = {0.0, 1.0, 1.3, -0.7, std::numeric_limits<double>::infinity()};
    return chance(2) ? Expr(constants[random_() % std::size(constants)]) : param("p");
  }

  Expr reduction(int depth) {
    static const Op kinds[] = {Op::sum, Op::prod, Op::max_over, Op::min_over, Op::logsumexp};
    return make(kinds[random_() % std::size(kinds)], {(*this)(depth - 1)});
  }

  std::mt19937 random_;
};

}  // namespace mercer::ir
