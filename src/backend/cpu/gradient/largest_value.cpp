#include "backend/cpu/gradient/largest_value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace mercer::cpu {
namespace {

double value_of(const ir::Program& program, std::uint64_t bits) {
  if (program.type == Dtype::float64) return std::bit_cast<double>(bits);
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
}

}  // namespace

double largest_value(const ir::Program& program, double feature) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  std::vector<double> most;
  for (const ir::Instr& instr : program.code) {
    const auto of = [&](std::int32_t operand) { return most[static_cast<std::size_t>(operand)]; };
    double own = kUnknown;
    switch (instr.op) {
      case ir::Prim::input: {
        const ir::Site site = program.inputs[static_cast<std::size_t>(instr.index)].site;
        if (site == ir::Site::x || site == ir::Site::z) own = feature;
        break;
      }
      case ir::Prim::constant: own = std::abs(value_of(program, instr.bits)); break;
      case ir::Prim::add:
      case ir::Prim::sub: own = of(instr.a) + of(instr.b); break;
      case ir::Prim::mul: own = of(instr.a) * of(instr.b); break;
      case ir::Prim::fma:
      case ir::Prim::fnma: own = of(instr.a) * of(instr.b) + of(instr.c); break;
      case ir::Prim::min:
      case ir::Prim::max:
      case ir::Prim::abs_max: own = std::max(of(instr.a), of(instr.b)); break;
      // Bits that are cleared make no number larger. 0 is a sign at most.
      case ir::Prim::bit_and: own = std::min(of(instr.a), of(instr.b)); break;
      case ir::Prim::bit_andnot: own = of(instr.b); break;
      case ir::Prim::bit_or:
      case ir::Prim::bit_xor:
        if (of(instr.a) == 0 || of(instr.b) == 0) own = std::max(of(instr.a), of(instr.b));
        break;
      case ir::Prim::select: own = std::max(of(instr.b), of(instr.c)); break;
      default: break;
    }
    most.push_back(std::isnan(own) ? kUnknown : own);
  }
  double largest = 0;
  for (const std::int32_t output : program.outputs)
    largest = std::max(largest, most[static_cast<std::size_t>(output)]);
  return largest;
}

}  // namespace mercer::cpu
