// The op table: everything the engine knows about a scalar op stands in one row of ops.cpp.
#pragma once

#include <string_view>
#include <vector>

#include "ir/expr/expr.h"

namespace mercer::ir {

struct OpInfo {
  Op op;
  const char* name;      // as printed and parsed: "sqrt", "+"
  int arity;
  double (*eval)(const double* args);  // IEEE double, NaN-propagating min / max, comparisons give 1 or 0
  /// Partial derivative of op(args) by each argument as expressions; nullptr where it is zero everywhere.
  /// 0 at kinks and singular points unless the classical value is finite.
  std::vector<Expr> (*derivative)(const std::vector<Expr>& args, const Expr& self);
  bool commutative;
  bool boolean;          // the result is 1 or 0: a comparison or a logical op
  long double (*eval_wide)(const long double* args);  // the same in extended precision
};

/// The row of a scalar op (of a ptx: its name alone); throws when `op` is a leaf or a reduction.
const OpInfo& info(Op op);
/// Every row, for tests and documentation.
const std::vector<OpInfo>& op_table();
/// Looks a function name up ("sqrt"); nullptr when there is none. Operators ("+") are the parser's business.
const OpInfo* find_op(std::string_view name);

}  // namespace mercer::ir
