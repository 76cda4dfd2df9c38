// A user's PTX in a formula.
//
//   ptx("sub.f32 {out}, {0}, {1}; abs.f32 {out}, {out};", a, b; abs(a - b))
//
// A node's arguments are the inputs and, last, the meaning: an expression over the leaves of the inputs that says what
// the text computes. Float32 programs of GPUs run the text, everything else (CPUs, float64, what is computed once per
// point, derivatives, the oracle) the meaning. Texts are in one form: single blanks, a semicolon at the end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/expr/expr.h"

namespace mercer::ir {

inline constexpr std::size_t kMostPtxInputs = 8;
inline constexpr std::size_t kMostPtxOutputs = 4;

/// What a text has a value as: a float32, the bits of one, or whether it is not 0. A written predicate is 1 or 0.
enum class PtxType : std::uint8_t { f32, u32, pred };

/// One output of a text as a node. Throws invalid_argument with the broken rule.
Expr ptx_node(std::string_view text, std::vector<Expr> inputs, const Expr& meaning, int output = 0);

/// A piece of a text: plain text, or a placeholder: {0} is an input; {out}, {out1} are outputs. {0:u32} and {out:pred}
/// name the value's type, in one of its places at least; it is f32 where none does.
struct PtxPart {
  enum Kind { plain, input, output } kind = plain;
  std::string_view text;  // of a placeholder with its braces
  int index = 0;
  std::string_view type{};  // as it is written, or empty
};
std::vector<PtxPart> ptx_parts(std::string_view text);

struct PtxTypes {
  std::vector<PtxType> inputs, outputs;
};
PtxTypes ptx_types(std::string_view text, std::size_t inputs);

/// Outputs that a text writes: 1 for {out}, else one more than the largest of {out0}, {out1}, ...
int ptx_output_count(std::string_view text);
/// Whether the one output is written {out}, in whatever type.
bool ptx_writes_one(std::string_view text);
/// The names of its instructions in order ("sub.f32"); declarations are none.
std::vector<std::string_view> ptx_instructions(std::string_view text);

/// Every ptx replaced by its meaning.
Expr without_ptx(const Expr& e);

}  // namespace mercer::ir
