// The partial derivative of an expression by one node, everything else held.
#pragma once

#include "ir/expr/expr.h"

namespace mercer::ir {

/// Whether `e` is the node `target`; parameters by name, for defaults may differ.
bool matches(const Expr& e, const Expr& target);

/// Partial derivatives by one node, times `step`; reductions and all other leaves are held.
class Along {
 public:
  explicit Along(Expr target, Expr step = 1.0) : target_(std::move(target)), step_(std::move(step)) {}
  Expr operator()(const Expr& e);

 private:
  Expr chain(const Expr& e);

  Expr target_, step_;
  ExprMap<Expr> seen_;
};

}  // namespace mercer::ir
