// The notation that the printer and the parser share: operators with their binding strength, and words with a meaning.
#pragma once

#include <string_view>

#include "ir/expr/expr.h"

namespace mercer::ir {

/// Binding strength, from loosest to tightest. Infix operators associate to the left; comparisons do not associate;
/// `^` associates to the right and its right side may carry a prefix: -x^2 is -(x^2), x^-2 needs no parentheses.
namespace strength {
inline constexpr int kOr = 1;
inline constexpr int kAnd = 2;
inline constexpr int kCompare = 3;
inline constexpr int kSum = 4;
inline constexpr int kProduct = 5;
inline constexpr int kPrefix = 6;
inline constexpr int kPower = 7;
inline constexpr int kPrimary = 8;
}  // namespace strength

struct InfixRow {
  Op op;
  std::string_view text;
  int strength;
  std::string_view printed;  // with its spaces
};

inline constexpr InfixRow kInfix[] = {
    {Op::logical_or, "||", strength::kOr, " || "},
    {Op::logical_and, "&&", strength::kAnd, " && "},
    {Op::less, "<", strength::kCompare, " < "},
    {Op::less_equal, "<=", strength::kCompare, " <= "},
    {Op::greater, ">", strength::kCompare, " > "},
    {Op::greater_equal, ">=", strength::kCompare, " >= "},
    {Op::equal, "==", strength::kCompare, " == "},
    {Op::not_equal, "!=", strength::kCompare, " != "},
    {Op::add, "+", strength::kSum, " + "},
    {Op::sub, "-", strength::kSum, " - "},
    {Op::mul, "*", strength::kProduct, "*"},
    {Op::div, "/", strength::kProduct, "/"},
    {Op::pow, "^", strength::kPower, "^"},
};

inline constexpr const InfixRow* find_infix(Op op) {
  for (const InfixRow& row : kInfix)
    if (row.op == op) return &row;
  return nullptr;
}

inline constexpr const InfixRow* find_infix(std::string_view text) {
  for (const InfixRow& row : kInfix)
    if (row.text == text) return &row;
  return nullptr;
}

struct WordRow {
  Op op;
  std::string_view text;
  std::string_view index = {};  // the one index it may be written with: x[k]
};

inline constexpr WordRow kLeafWords[] = {
    {Op::x, "x", "k"},         {Op::z, "z", "k"},     {Op::w, "w", "k"},     {Op::row, "row", "m"},
    {Op::col, "col", "n"},     {Op::index_i, "i"},    {Op::index_j, "j"},    {Op::features, "K"},
};

inline constexpr WordRow kReductionWords[] = {
    {Op::sum, "sum"},      {Op::prod, "prod"},           {Op::max_over, "max"},
    {Op::min_over, "min"}, {Op::logsumexp, "logsumexp"},
};

/// Leaves with a slot that no user writes: stage-0 values, accumulators, and state outside its reduce. They read
/// `$row0`; verify() refuses them in a formula.
inline constexpr WordRow kSlotWords[] = {
    {Op::row_stage, "row"}, {Op::col_stage, "col"}, {Op::accumulator, "acc"},
    {Op::pair_value, "pair"}, {Op::state, "a"},     {Op::incoming, "t"},
};

template <std::size_t N>
constexpr const WordRow* find_word(const WordRow (&table)[N], Op op) {
  for (const WordRow& row : table)
    if (row.op == op) return &row;
  return nullptr;
}

template <std::size_t N>
constexpr const WordRow* find_word(const WordRow (&table)[N], std::string_view text) {
  for (const WordRow& row : table)
    if (row.text == text) return &row;
  return nullptr;
}

/// Deepest nesting of parentheses, calls and prefixes in a text. The printer stays far below it by naming parts.
inline constexpr int kMaxNesting = 256;
/// Longest text that is read.
inline constexpr std::size_t kMaxText = std::size_t{1} << 20;

/// True for a word with a meaning of its own, which can name neither a binding nor a bare parameter.
bool is_reserved(std::string_view word);
/// True for `a`, `t`, `a0`, `t12`: state and incoming values inside reduce.
bool is_state_name(std::string_view word);
/// True for a letter or underscore followed by letters, digits and underscores (ASCII).
bool is_name(std::string_view word);

}  // namespace mercer::ir
