// Programs: straight-line SSA over vectors, the only thing that emitters and interpreters see.
//
// A program runs once per vector of pairs (or of elements). Values are floats of the program's type, their bit
// patterns, or masks. lower() turns expressions into programs; transcendental functions become primitives there, so a
// new emitter needs the primitives below and nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/expr/expr.h"
#include "mercer/tensor.h"

namespace mercer::ir {

enum class Prim : std::uint8_t {
  input,     // inputs[index]
  constant,  // bits
  // Float arithmetic, IEEE, round to nearest.
  add, sub, mul, div,
  fma,       // a * b + c
  fnma,      // c - a * b
  min, max,  // as x86: a < b ? a : b (a > b ? a : b): the second argument when either is NaN or both are zero
  abs_max,   // max(|a|, |b|) for arguments that are not NaN
  sqrt,
  // Operations of GPUs alone.
  max_nan, min_nan,                   // NaN when either is NaN
  exp2_unit, log2_unit, sqrt_unit,    // of the special-function unit: float32, about 2^-22 relative (log2: or absolute)
  floor, ceil, round,  // to integral; round: ties to even
  large_sine,          // b, but where |a| > kLargeAngle the sine of a (`bits` = 1: its cosine)
  // Bits of the same width as the float.
  bit_and, bit_or, bit_xor,
  bit_andnot,              // ~a & b
  shift_left, shift_right, // by `bits`; logical
  int_add, int_sub,
  int_max,                 // signed (`bits` = 1: unsigned); float32 programs only
  int_to_float,            // of a signed integer, rounded to nearest; float32 programs only
  table16,                 // tables[index] at the low four bits of a's pattern
  // Operations of GPUs alone, float32: |a|^powers[index] = power_poly * power_scale, by a table and a polynomial.
  power_poly, power_scale,
  ptx,                     // of GPUs alone, float32: output `bits` of ptx[index] for a, b, c, d
  // Masks.
  less, less_equal, equal, not_equal,  // ordered, but not_equal is true for NaN
  unordered,
  mask_and, mask_or, mask_xor, mask_not,
  select,                  // a ? b : c, a is a mask
};

/// What an input is: how the skeleton fetches it.
enum class Site : std::uint8_t {
  x,          // stream s of x: one value per row (broadcast along a tile's vector)
  z,          // stream s of z: a vector along the tile
  w,          // the weight of feature k: uniform
  row,        // row value s (slot 0: the caller's row; 1 + q: row_stage q): one per row
  col,        // col value s: a vector along the tile
  param,      // parameter s: uniform
  accumulator,
  pair_value,
  index_i,    // one per row, as a float
  index_j,    // a vector, as floats
  features,   // K, uniform
  incoming,   // second state of a merge
};

struct Input {
  Site site;
  int slot = 0;
  bool operator==(const Input&) const = default;
};

struct Instr {
  Prim op;
  std::int32_t a = -1, b = -1, c = -1;  // earlier instructions
  std::int32_t index = 0;               // input, table16, ptx
  std::uint64_t bits = 0;               // constant (pattern of the program's type), shifts, ptx
  std::array<std::int32_t, 5> more{-1, -1, -1, -1, -1};  // of a ptx, from the fourth operand on
};

/// The exponent of a table: a number, or the parameter of a slot.
struct Power {
  double number = 0;
  int param = -1;
  bool operator==(const Power&) const = default;
};

struct Program {
  Dtype type = Dtype::float32;             // float32 or float64
  std::vector<Input> inputs;
  std::vector<Instr> code;                 // in order; operands are indices into it
  std::vector<std::int32_t> outputs;       // instruction indices
  std::vector<std::array<double, 16>> tables;
  std::vector<Power> powers;
  std::vector<std::string> ptx{};
  std::string to_text() const;
};

inline constexpr bool makes_mask(Prim p) { return p >= Prim::less && p <= Prim::mask_not; }
/// Inputs and constants: operands of the instructions that read them, no work of their own.
inline constexpr bool is_leaf(Prim p) { return p == Prim::input || p == Prim::constant; }
/// Primitives that only GPU code has.
inline constexpr bool is_of_gpus(Prim p) {
  return (p >= Prim::max_nan && p <= Prim::sqrt_unit) || p == Prim::power_poly || p == Prim::power_scale ||
         p == Prim::ptx;
}
int operand_count(Prim p);           // of a ptx the most
int operand_count(const Instr& instr);
const char* name_of(Prim p);
std::string name_of(const Input& input);  // "x0"
/// Operand 0, 1, 2, ... of an instruction: a, b, c, then what more it has.
inline std::int32_t& operand_of(Instr& instr, int operand) {
  return operand == 0   ? instr.a
         : operand == 1 ? instr.b
         : operand == 2 ? instr.c
                        : instr.more[static_cast<std::size_t>(operand) - 3];
}
inline std::int32_t operand_of(const Instr& instr, int operand) {
  return operand_of(const_cast<Instr&>(instr), operand);
}
/// The text of a ptx and its operands: what all of its outputs have in common.
std::vector<std::int32_t> parts_of_ptx(const Instr& instr);

/// All three that a primitive of CPUs may have; -1 for those that it does not have.
inline std::array<std::int32_t, 3> operands(const Instr& instr) { return {instr.a, instr.b, instr.c}; }

/// Structural check: operands earlier, kinds right (masks where masks are due), inputs and tables in range.
void verify(const Program& program);

/// What a program runs on.
enum class Processor : std::uint8_t {
  cpu,
  gpu,        // maxima that keep NaN; exp2 on the special-function unit
  gpu_terms,  // and all powers and roots: for sums over many features, at the accuracy of the unit
};

/// What packing promises of the inputs x and z: zeros, and values of these magnitudes.
struct Magnitudes {
  double least = 0, most = 0;
  double scale = 1;  // a power of two that it multiplies them by
};
inline constexpr Magnitudes kModerate{0, 1e18};
/// Differences of such, and differences of these and constants of no less, are no subnormal numbers.
inline constexpr Magnitudes kCoarse{0x1p-74, 1e18};
/// Differences and sums of two such float32 are 0 or at least 2^-47 (float64: 2^-76), and below 2^9: six bits (seven)
/// tell the exponent from those of the others, and from 0.
inline constexpr Magnitudes kNarrow{0x1p-24, 0x1.fffffep7};
inline constexpr double kNarrowBits = 47;
/// Times this, differences are below 2: their exponents begin with a zero.
inline constexpr double kNarrowScale = 0x1p-8;

struct LowerOptions {
  Dtype type = Dtype::float32;
  Processor processor = Processor::cpu;
  /// Square roots on GPUs go by the special-function unit, within 2^-23.
  bool unit_roots = false;
  /// Fixed powers in terms on GPUs go by table and polynomial, not by the special-function unit. All have one exponent.
  bool table_powers = false;
  /// A parameter of terms on GPUs that is above 0 and at most kLargestTablePower: its powers are taken as fixed ones.
  Expr moderate_exponent{};
  /// The inputs x, z are kModerate (checked while packing): min/max of absolute values and powers may then use forms
  /// that would lose a NaN.
  bool assume_finite = false;
  /// They are kCoarse: powers between 0 and 1 may take forms that do not serve subnormal numbers.
  bool assume_coarse = false;
  /// They are kNarrow: fixed powers of x - z take shorter forms.
  bool assume_narrow = false;
  /// And given times kNarrowScale, which those powers allow for; what else reads them takes it back.
  bool scaled = false;
  /// Fixed powers by three tables that repeat after eight entries instead of two of sixteen.
  bool short_tables = false;
  /// Accumulator slots that are known to be >= 0 or NaN (for max: the caller replaced the identity -Inf by 0, which
  /// needs K > 0); may be shorter than there are slots.
  std::vector<bool> nonnegative_slots;
  /// Accumulator slots that are known to be 0, or at least the smallest normal number, or NaN; may be shorter.
  std::vector<bool> normal_slots;
  std::vector<Expr> params;  // the param leaf of each slot (two leaves of one name may differ in their default)
};

/// Lowers expressions over the leaves of Split (x and z slots are streams) to one program, one output each, in order.
/// Equal subexpressions are computed once. acc + a * b becomes fma(a, b, acc) where acc is an accumulator leaf; there
/// is no other contraction (it could make an exact zero inexact).
Program lower(const std::vector<Expr>& outputs, const LowerOptions& options);

/// Runs a program on scalars, the reference for emitters: one value per input; returns one value per output. T is float
/// or double.
template <class T>
std::vector<T> run(const Program& program, const std::vector<T>& inputs);

}  // namespace mercer::ir
