// The nodes behind mercer::Expr: an immutable directed acyclic graph.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mercer/formula.h"

namespace mercer::ir {

/// Kinds of node. Scalar ops, from `neg` to `fma`, have one row each in the table of ops.cpp.
enum class Op : std::uint8_t {
  // Leaves.
  constant,      // value
  x, z, w,       // x[m,k], z[n,k], w[k]
  row, col,      // the caller's row[m], col[n]
  index_i, index_j,
  features,      // K
  param,         // name, value = default or NaN when none (has_default)
  state, incoming,  // slot: inside reduce only
  // Leaves that only split() makes.
  row_stage, col_stage,  // slot: a stage-0 value of x / of z
  accumulator,           // slot: the final state of a pair reduction (slots are numbered over all states)
  pair_value,            // slot: a value of the pair, made by an earlier pass (gradients)
  // Scalar ops, one argument.
  neg, abs, sign, sqrt, rsqrt, rcp, exp, exp2, expm1, log, log2, log1p, sin, cos, asin, acos, tanh, erf,
  floor, ceil, round, logical_not,
  // Two arguments.
  add, sub, mul, div, min, max, pow, xlogy, atan2, copysign,
  less, less_equal, greater, greater_equal, equal, not_equal, logical_and, logical_or,
  // Three.
  where, fma,
  // A user's PTX (ir/expr/ptx.h): name = text, slot = which of its outputs; args: the inputs and, last, the meaning.
  ptx,
  pinned,  // its argument, with the same bits in every pass (ir/passes/pin.cpp); only made by passes
  // Reductions over k: one argument.
  sum, prod, max_over, min_over, logsumexp,
  reduce,  // args: term[S], combine[S], identity[S], (merge[S] when has_merge), finish; slot = S
};

/// Which leaves a node reads, reductions included.
struct Uses {
  bool x = false, z = false, w = false, row = false, col = false, index_i = false, index_j = false, param = false;
  bool state = false;       // state or incoming
  bool accumulator = false; // accumulator or pair_value leaf
  bool ptx = false;         // a ptx, which is no leaf: it stays where it stands
  bool pinned = false;      // a pinned node, which stays too
  bool reduction = false;   // a reduction, of constants perhaps
};

struct Node {
  Op op = Op::constant;
  bool has_default = false;   // param
  bool has_merge = false;     // reduce
  bool associative = false;   // reduce
  std::int32_t slot = 0;
  std::uint32_t depth = 0;    // longest path to a leaf
  std::uint64_t hash = 0;     // structural
  Uses uses{};
  double value = 0;
  std::string name{};
  std::vector<Expr> args{};
};

/// Limits that keep every pass finite: a deeper expression is refused when it is built.
inline constexpr std::uint32_t kMaxDepth = 1000;

/// Makes a node (depth, hash and uses are filled in). Throws invalid_argument past kMaxDepth.
Expr make(Node node);
Expr make(Op op, std::vector<Expr> args);
Expr leaf(Op op, int slot = 0);
Expr constant(double value);

bool is_leaf(Op op);
bool is_reduction(Op op);
bool is_constant(const Expr& e, double value);  // bitwise: is_constant(e, 0.0) is false for -0.0

struct ExprHash {
  std::size_t operator()(const Expr& e) const { return e->hash; }
};
struct ExprEqual {
  bool operator()(const Expr& a, const Expr& b) const { return same(a, b); }
};
template <class T>
using ExprMap = std::unordered_map<Expr, T, ExprHash, ExprEqual>;

/// The node `e` with other arguments (returns `e` itself when nothing changes).
Expr with_args(const Expr& e, std::vector<Expr> args);

/// Rewrites bottom-up with a memo, so shared nodes are visited once and equal nodes become one (hash-consing).
/// `rule` receives a node whose arguments are already rewritten.
Expr rewrite(const Expr& root, const std::function<Expr(const Expr&)>& rule);

/// Visits every distinct node once, arguments before users.
void for_each(const Expr& root, const std::function<void(const Expr&)>& visit);
/// The reductions that an expression reads, outermost ones only, from left to right.
std::vector<Expr> reductions_of(const Expr& e);
/// make() the first time that `e` is asked for, then what it was.
template <class Value, class Make>
Value remembered(ExprMap<Value>& seen, const Expr& e, const Make& make) {
  if (auto it = seen.find(e); it != seen.end()) return it->second;
  const Value result = make();
  seen.emplace(e, result);
  return result;
}

/// Replaces leaves (or any nodes) by others.
Expr substitute(const Expr& root, const ExprMap<Expr>& replacements);

}  // namespace mercer::ir
