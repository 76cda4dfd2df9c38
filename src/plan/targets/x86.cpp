// The x86 targets, a row each; they share one table of costs, measured on Zen 4 (one 512-bit or two 256-bit
// instructions of each class a cycle) by running each instruction alone, with multiplications, additions and shifts.
// Processors with two full 512-bit units run faster than these floors say; the ratios between the classes hold.
#include "core/cpu_features.h"
#include "plan/target.h"

namespace mercer::plan {
namespace {

using ir::Prim;

/// Cycles of div and sqrt for one vector.
struct SlowOps {
  double div, sqrt;
};

/// `unit`: cycles of an ordinary vector instruction; `wide`: AVX-512.
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
    case Prim::unordered: return {wide ? Pipe::fma : Pipe::add, unit};  // into a mask register: on the other pipes
    case Prim::select: return {wide ? Pipe::either : Pipe::fma, unit};
    case Prim::div: return {Pipe::divide, slow.div};
    case Prim::sqrt: return {Pipe::divide, slow.sqrt};
    case Prim::floor:
    case Prim::ceil:
    case Prim::round:
    case Prim::int_to_float:
    case Prim::shift_left:
    case Prim::shift_right: return {Pipe::add, unit};
    case Prim::large_sine: return {Pipe::either, 2 * unit};  // a magnitude and a comparison
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

}  // namespace

extern const TargetInfo kAvx512, kAvx2;
const TargetInfo kAvx512{
    Target::x86_avx512, "x86_avx512", 64, 32, 7, true, avx512_cost, [] { return cpu_features().avx512; }};
const TargetInfo kAvx2{
    Target::x86_avx2, "x86_avx2", 32, 16, 0, false, avx2_cost, [] { return cpu_features().avx2; }};

}  // namespace mercer::plan
