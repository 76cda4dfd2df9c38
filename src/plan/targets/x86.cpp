// Costs of the x86 targets, measured on Zen 4 (one 512-bit or two 256-bit instructions of each class a cycle). Processors
// with two full 512-bit units run faster than these floors say; the ratios between the classes hold.
#include "plan/target.h"

namespace mercer::plan {
namespace {

using ir::Prim;

/// Cycles of div and sqrt for one vector of the wider instruction set.
struct SlowOps {
  double div, sqrt;
};

PrimCost cost(Prim prim, double unit, SlowOps slow, bool wide, bool is_double) {
  switch (prim) {
    case Prim::input:
    case Prim::constant: return {Pipe::none, 0};
    case Prim::mul:
    case Prim::fma:
    case Prim::fnma: return {Pipe::fma, unit};
    case Prim::add:
    case Prim::sub:
    case Prim::min:
    case Prim::max: return {Pipe::add, unit};
    case Prim::abs_max: return wide ? PrimCost{Pipe::add, unit} : PrimCost{Pipe::either, 3 * unit};
    case Prim::less:
    case Prim::less_equal:
    case Prim::equal:
    case Prim::not_equal:
    case Prim::unordered: return {Pipe::add, unit};
    case Prim::div: return {Pipe::fma, slow.div};
    case Prim::sqrt: return {Pipe::fma, slow.sqrt};
    case Prim::floor:
    case Prim::ceil:
    case Prim::round:
    case Prim::shift_left:
    case Prim::shift_right: return {Pipe::shuffle, unit};
    case Prim::table16: return {Pipe::shuffle, (wide ? 1 : is_double ? 8 : 4) * unit};
    case Prim::mask_and:
    case Prim::mask_or:
    case Prim::mask_xor:
    case Prim::mask_not: return wide ? PrimCost{Pipe::mask, 1} : PrimCost{Pipe::either, unit};
    default: return {Pipe::either, unit};
  }
}

PrimCost avx512_cost(Prim prim, Dtype type) {
  const bool is_double = type == Dtype::float64;
  return cost(prim, 1.0, is_double ? SlowOps{10, 18} : SlowOps{6, 10}, true, is_double);
}

PrimCost avx2_cost(Prim prim, Dtype type) {
  const bool is_double = type == Dtype::float64;
  return cost(prim, 0.5, is_double ? SlowOps{5, 9} : SlowOps{3, 5}, false, is_double);
}

// Every primitive of the interpreter is a pass over blocks in the first-level cache: loads and a store, no pipe to balance.
PrimCost interpreter_cost(Prim prim, Dtype) {
  const bool free = prim == Prim::input || prim == Prim::constant;
  return {free ? Pipe::none : Pipe::either, free ? 0.0 : 1.3};
}

}  // namespace

extern const TargetInfo kAvx512, kAvx2, kInterpreter;
const TargetInfo kAvx512{Target::x86_avx512, "x86_avx512", 64, 32, 7, true, avx512_cost};
const TargetInfo kAvx2{Target::x86_avx2, "x86_avx2", 32, 16, 0, false, avx2_cost};
const TargetInfo kInterpreter{Target::interpreter, "interpreter", 64, 32, 0, false, interpreter_cost};

}  // namespace mercer::plan
