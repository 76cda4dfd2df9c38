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

#include "ir/expr.h"

namespace mercer::ir {

inline constexpr std::size_t kMostPtxInputs = 4;
inline constexpr std::size_t kMostPtxOutputs = 4;

/// One output of a text as a node. Throws invalid_argument with the broken rule.
Expr ptx_node(std::string_view text, std::vector<Expr> inputs, const Expr& meaning, int output = 0);

/// A piece of a text: plain text, or a placeholder: {0} is an input; {out}, {out1} are outputs.
struct PtxPart {
  enum Kind { plain, input, output } kind = plain;
  std::string_view text;  // of a placeholder with its braces
  int index = 0;
};
std::vector<PtxPart> ptx_parts(std::string_view text);

/// Outputs that a text writes: 1 for {out}, else one more than the largest of {out0}, {out1}, ...
int ptx_output_count(std::string_view text);
/// Whether the one output is written {out}.
bool ptx_writes_one(std::string_view text);
/// The names of its instructions in order ("sub.f32"); declarations are none.
std::vector<std::string_view> ptx_instructions(std::string_view text);

/// Every ptx replaced by its meaning.
Expr without_ptx(const Expr& e);

}  // namespace mercer::ir
