// split: an expression becomes stage 0, reductions with their streams, and an epilogue (engine.md, "Meaning").
//
//   row_stage[q][m] = stage-0 reduction q of x alone           once per point
//   xs[s][m,k]      = one-sided part s of a term, of x alone   once per (m,k), while packing
//   acc[r]          = update_r(acc, xs, zs, w, row, col, θ)    once per (m,n,k)
//   out             = epilogue(acc, row, col, i, j, θ)         once per pair
#pragma once

#include "ir/expr.h"

namespace mercer::ir {

/// One reduction of one side; later ones may read earlier ones of the same side as row_stage / col_stage leaves.
struct StageValue {
  bool of_x = true;
  std::vector<Expr> identity, update;  // over accumulator(0..S-1) leaves (local slots), x or z, w, params
  Expr finish;                         // over accumulator leaves
};

/// One reduction of pairs. Its states occupy accumulator slots first_slot … first_slot + identity.size() - 1.
struct Reduction {
  Op kind;                  // sum, prod, max_over, min_over, reduce (logsumexp is expanded to reduce)
  int first_slot = 0;
  std::vector<Expr> identity;  // free of x, z, w; parameters allowed
  std::vector<Expr> update;    // new state: over accumulator(slot), x_stream/z_stream, w, row_stage, col_stage, row, col, params
  std::vector<Expr> merge;     // over accumulator(slot) and incoming(s); empty when the order of k must be kept
};

struct Split {
  std::vector<StageValue> stages;    // in order of evaluation; slots count per side
  int row_stages = 0, col_stages = 0;
  std::vector<Expr> x_streams;       // expressions of x (w, row, row_stage, params); stream s is read as leaf x, slot s
  std::vector<Expr> z_streams;
  std::vector<Reduction> reductions;
  int states = 0;                    // accumulator slots in all
  std::vector<Expr> epilogue;        // one expression per output of the pair (one, but for gradients)
  std::string to_text() const;
};

/// Splits verified, simplified expressions that share one pass over the features. Inside the result, leaf x (z) with
/// slot s means stream s: `hoist` moves the largest one-sided subexpressions of the terms into streams.
Split split(const std::vector<Expr>& outputs, bool hoist = true);

/// A field (the derivative by a feature) in two passes: first the pair values, then φ per (m, n, k).
struct FieldSplit {
  Split pairs;      // epilogue[p] is pair value p
  Expr field;       // over x, z, w, row_stage, col_stage, row, col, params and pair_value(p) leaves
};
FieldSplit split_field(const Expr& field);

}  // namespace mercer::ir
