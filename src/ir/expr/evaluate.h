// The oracle: evaluates an expression on points in double (or double-double) by the definition, one pair at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/expr/expr.h"
#include "ir/expr/wide.h"

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

/// An expression made ready for many pairs. Not thread-safe: each thread copies its own.
class Oracle {
 public:
  explicit Oracle(const Expr& e);
  /// Sums run in double with compensation.
  double operator()(const PairInputs& inputs);
  /// About 31 digits for + - * / sqrt, fma and sums; other functions in long double.
  long double wide(const PairInputs& inputs);

 private:
  struct Plan;
  std::shared_ptr<const Plan> plan_;
  std::vector<double> values_;
  std::vector<Wide> wide_values_;
};

/// Value of the formula for one pair; sums run in double with compensation.
double evaluate(const Expr& e, const PairInputs& inputs);

/// As `evaluate`, in double-double (about 31 digits for + - * / sqrt and sums; other functions in long double).
long double evaluate_wide(const Expr& e, const PairInputs& inputs);

}  // namespace mercer::ir
