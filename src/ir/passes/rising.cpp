// rises_with_accumulator: a larger sum has a larger value. `false` means unknown.
#include <cmath>

#include "ir/passes/passes.h"

namespace mercer::ir {

bool rises_with_accumulator(const Expr& e, bool nonnegative) {
  const auto number = [](const Expr& part) { return part->op == Op::constant; };
  const auto positive = [&](const Expr& part) { return number(part) && part->value > 0 && std::isfinite(part->value); };
  switch (e->op) {
    case Op::accumulator: return true;
    case Op::sqrt: return nonnegative && rises_with_accumulator(e->args[0], nonnegative);
    case Op::pow: return nonnegative && positive(e->args[1]) && rises_with_accumulator(e->args[0], nonnegative);
    case Op::div: return positive(e->args[1]) && rises_with_accumulator(e->args[0], nonnegative);
    case Op::mul:
      return (positive(e->args[0]) && rises_with_accumulator(e->args[1], nonnegative)) ||
             (positive(e->args[1]) && rises_with_accumulator(e->args[0], nonnegative));
    default: return false;
  }
}

}  // namespace mercer::ir
