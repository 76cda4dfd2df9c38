// The interpreter as a target. Every primitive is a pass over blocks in the first-level cache: loads and a store take
// the time, and there are no pipes to balance.
#include "plan/target.h"

namespace mercer::plan {
namespace {

PrimCost interpreter_cost(ir::Prim prim, Dtype) {
  return ir::is_leaf(prim) ? PrimCost{Pipe::none, 0} : PrimCost{Pipe::either, 1.3};
}

}  // namespace

extern const TargetInfo kInterpreter;
const TargetInfo kInterpreter{
    Target::interpreter, "interpreter", 64, 32, 0, false, interpreter_cost, [] { return true; }};

}  // namespace mercer::plan
