// The oracle: evaluates an expression on points in double (or double-double) by the definition, one pair at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/expr.h"

namespace mercer::ir {

/// One pair's inputs. `x`, `z` and `w` have K entries (w may be empty: all ones).
struct PairInputs {
  const double* x = nullptr;
  const double* z = nullptr;
  const double* w = nullptr;
  std::int64_t features = 0;
  double row = 0, col = 0;
  double i = 0, j = 0;
  const std::map<std::string, double>* params = nullptr;
  std::int64_t k = -1;  // the free feature of a field; -1: none
};

/// Value of the formula for one pair; sums run in double with compensation.
double evaluate(const Expr& e, const PairInputs& inputs);

/// The same in double-double (about 31 digits for + - * / sqrt and sums; other functions in long double).
long double evaluate_wide(const Expr& e, const PairInputs& inputs);

}  // namespace mercer::ir
