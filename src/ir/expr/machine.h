// Reductions in their general form: states that follow one term after the other.
#pragma once

#include <vector>

#include "ir/expr/expr.h"

namespace mercer::ir {

/// States start at `identity` and follow `update`, over accumulator leaves of slots from 0 on.
struct Machine {
  std::vector<Expr> identity, update;
  std::vector<Expr> merge;  // over accumulator and incoming leaves; empty where the order must be kept
  Expr finish;              // over accumulator leaves
};

/// `node` is a reduction whose arguments hold no other reduction any more.
Machine machine_of(const Node& node);

}  // namespace mercer::ir
