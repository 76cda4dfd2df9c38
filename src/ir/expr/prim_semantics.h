// What each primitive computes, on one scalar given as its bit pattern: the definition that the reference executor, the
// constant folding of lower() and the portable interpreter share. Masks are all ones or zero.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "ir/expr/large_angle.h"
#include "ir/expr/program.h"

namespace mercer::ir {

template <class T>
using Pattern = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <class T>
Pattern<T> pattern_of(T value) {
  return std::bit_cast<Pattern<T>>(value);
}

/// The result of `op` for patterns a, b, c and Instr::bits. Not for input, constant and table16.
template <class T>
Pattern<T> apply_prim(Prim op, Pattern<T> a, Pattern<T> b, Pattern<T> c, std::uint64_t bits) {
  using U = Pattern<T>;
  using S = std::make_signed_t<U>;
  const T x = std::bit_cast<T>(a), y = std::bit_cast<T>(b), z = std::bit_cast<T>(c);
  const auto mask = [](bool on) { return on ? ~U(0) : U(0); };
  switch (op) {
    case Prim::add: return pattern_of<T>(x + y);
    case Prim::sub: return pattern_of<T>(x - y);
    case Prim::mul: return pattern_of<T>(x * y);
    case Prim::div: return pattern_of<T>(x / y);
    case Prim::fma: return pattern_of<T>(std::fma(x, y, z));
    case Prim::fnma: return pattern_of<T>(std::fma(-x, y, z));
    case Prim::min: return x < y ? a : b;
    case Prim::max: return x > y ? a : b;
    case Prim::abs_max: return std::fabs(x) > std::fabs(y) ? pattern_of<T>(std::fabs(x)) : pattern_of<T>(std::fabs(y));
    case Prim::sqrt: return pattern_of<T>(std::sqrt(x));
    case Prim::max_nan: return x > y || !(x == x) ? a : b;
    case Prim::min_nan: return x < y || !(x == x) ? a : b;
    case Prim::exp2_unit: return pattern_of<T>(std::exp2(x));
    case Prim::log2_unit: return pattern_of<T>(std::log2(x));
    case Prim::sqrt_unit: return pattern_of<T>(std::sqrt(x));
    case Prim::floor: return pattern_of<T>(std::floor(x));
    case Prim::ceil: return pattern_of<T>(std::ceil(x));
    case Prim::round: return pattern_of<T>(std::nearbyint(x));
    case Prim::large_sine: return is_large_angle(x) ? pattern_of<T>(sine_of_large_angle(x, bits != 0)) : b;
    case Prim::bit_and: return a & b;
    case Prim::bit_or: return a | b;
    case Prim::bit_xor: return a ^ b;
    case Prim::bit_andnot: return ~a & b;
    case Prim::shift_left: return a << bits;
    case Prim::shift_right: return a >> bits;
    case Prim::int_add: return a + b;
    case Prim::int_sub: return a - b;
    case Prim::int_max: return (bits ? a > b : static_cast<S>(a) > static_cast<S>(b)) ? a : b;
    case Prim::int_to_float: return pattern_of<T>(static_cast<T>(static_cast<S>(a)));
    case Prim::less: return mask(x < y);
    case Prim::less_equal: return mask(x <= y);
    case Prim::equal: return mask(x == y);
    case Prim::not_equal: return mask(!(x == y));
    case Prim::unordered: return mask(!(x == x) || !(y == y));
    case Prim::mask_and: return a & b;
    case Prim::mask_or: return a | b;
    case Prim::mask_xor: return a ^ b;
    case Prim::mask_not: return ~a;
    case Prim::select: return a ? b : c;
    case Prim::input:
    case Prim::constant:
    case Prim::power_poly:
    case Prim::power_scale:
    case Prim::ptx:
    case Prim::table16: break;
  }
  return 0;
}

}  // namespace mercer::ir
