// The op table: everything the engine knows about a scalar op stands in one row of ops.cpp.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/expr/expr.h"

namespace mercer::ir {

/// What is known of the sign of a value.
enum class Sign : std::uint8_t {
  unknown,
  nonnegative,    // at least +0, or NaN; never -0
  as_argument,    // nonnegative where the first argument is
  as_arguments,   // where both are
};

enum class Parity : std::uint8_t { none, even, odd };

/// What passes, bindings and pages read of an op apart from its value. Where nothing is said, passes assume nothing.
struct OpTraits {
  const char* doc = "";         // a sentence for Python's help; empty where only an operator has the op
  const char* numpy = "";       // names of NumPy's ufuncs that mean the same, with a blank between them
  const char* torch = "";       // torch's function of the same value, where it has one
  bool commutative = false;
  bool boolean = false;         // the result is 1 or 0: a comparison or a logical op
  Sign sign = Sign::unknown;
  Parity parity = Parity::none; // in its first argument, up to the sign of a zero
  double bound = 0;             // the largest |value| of finite arguments; 0: there is none, or it depends on them
  bool pole_free = false;       // finite arguments never give an infinity or a NaN but by overflow
};

struct OpInfo : OpTraits {
  Op op = Op::constant;
  const char* name = "";  // as printed and parsed: "sqrt", "+"
  int arity = 0;
  double (*eval)(const double* args) = nullptr;  // IEEE double, NaN-propagating min / max, comparisons give 1 or 0
  /// Partial derivative of op(args) by each argument as expressions; nullptr where it is zero everywhere.
  /// 0 at kinks and singular points unless the classical value is finite.
  std::vector<Expr> (*derivative)(const std::vector<Expr>& args, const Expr& self) = nullptr;
  long double (*eval_wide)(const long double* args) = nullptr;  // the same in extended precision
};

/// The row of a scalar op (of a ptx: its name alone); throws when `op` is a leaf or a reduction.
const OpInfo& info(Op op);
/// The traits of any node's op; of leaves and reductions nothing is known.
const OpTraits& traits(Op op);
/// Every row, for bindings, tests and documentation.
const std::vector<OpInfo>& op_table();
/// Looks a function name up ("sqrt"); nullptr when there is none. Operators ("+") are the parser's business.
const OpInfo* find_op(std::string_view name);

}  // namespace mercer::ir
