// split: expressions become uniforms, stage 0, streams, reductions and an epilogue (engine.md, "Meaning").
//
//   uniform[u]      = expression of parameters alone            once per batch item
//   row_stage[q][m] = reduction q over k of x alone             once per point (col_stage[q][n] of z alone)
//   xs[s][m,k]      = one-sided part s of a term, of x alone    once per (m, k), while packing (zs of z alone)
//   acc             = update(acc, xs, zs, w, row, col, uniform) once per (m, n, k)
//   out             = epilogue(acc, row, col, i, j, uniform)    once per pair
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "ir/expr/expr.h"

namespace mercer::ir {

/// A reduction of one side. Later ones may read earlier ones of the same side as row_stage / col_stage leaves.
struct StageValue {
  bool of_x = true;
  std::vector<Expr> identity, update;  // over accumulator(0 … S-1), x or z, w, row or col, stages, parameters
  Expr finish;                         // over accumulator leaves
};

/// One reduction of pairs. Its states occupy accumulator slots first_slot … first_slot + identity.size() - 1.
struct Reduction {
  Op kind = Op::sum;           // sum, prod, max_over, min_over or reduce (logsumexp is expanded to reduce)
  int first_slot = 0;
  std::vector<Expr> identity;  // free of x, z, w
  std::vector<Expr> update;    // the new states
  std::vector<Expr> merge;     // over accumulators, and incoming leaves from 0 on; empty: k in order
  Expr finish;                 // over accumulator leaves
};

struct Split {
  std::vector<Expr> params;          // parameter leaves in order of first use: slots 0 … params.size() - 1
  std::vector<Expr> uniforms;        // expressions of parameters; uniform u is read as the leaf uniform_leaf(u)
  std::vector<StageValue> stages;    // in order of evaluation
  int row_stages = 0, col_stages = 0;
  std::vector<Expr> x_streams;       // stream s is read as the leaf x with slot s
  std::vector<Expr> z_streams;
  std::vector<Reduction> reductions;
  int states = 0;                    // accumulator slots in all
  std::vector<Expr> epilogue;        // one expression per output of the pair (one, but for gradients)

  /// Parameter slots for LowerOptions::params: the parameters, then the uniforms.
  std::vector<Expr> param_leaves() const;
  /// The new states of all reductions in order of their slots.
  std::vector<Expr> updates() const;
  std::vector<Expr> identities() const;
  /// States of reductions of these kinds, sums or maxima, whose terms are never negative: nor are they, or NaN. (A
  /// maximum must start at +0 then, not at -Inf.)
  std::vector<bool> nonnegative_slots(std::initializer_list<Op> kinds) const;
  std::string to_text() const;
};

/// The leaf under which uniform `u` is read.
Expr uniform_leaf(int u);

/// What becomes of a / u with u of parameters alone.
enum class UniformDivisors : std::uint8_t {
  divide,
  reciprocal,  // a * (1/u): the caller makes sure that 1/u is a normal number
  scaled,      // (a q) * (1/(u q)): a power of two q, 1 where 1/u is a normal float32, makes it one; the same bits then
};

struct SplitOptions {
  UniformDivisors uniform_divisors = UniformDivisors::divide;
  /// The largest one-sided subexpressions of the terms become streams; otherwise x and z are the only streams.
  bool hoist = true;
  /// ptx nodes stay, with what is not one-sided around them, so that a GPU runs their text; otherwise their meanings
  /// take their places. In what is computed once per point they always do.
  bool keep_ptx = false;
};

/// Splits verified, simplified expressions that share one pass over the features.
Split split(const std::vector<Expr>& outputs, const SplitOptions& options = {});

/// How the points n of a fold are combined (ir/passes/fold.h), in place of a sum of coef[o, n] φ. States that no result
/// needs are left out.
struct FieldFold {
  std::vector<Expr> identity;  // numbers
  std::vector<Expr> update;    // the new states, over accumulators and what φ reads; coef[o, n] is incoming(0)
  std::vector<bool> summed;    // states that terms are added to and nothing else reads: partial sums may be added up
  Expr finish;                 // over accumulators, row, parameters and uniforms
  int states() const { return static_cast<int>(update.size()); }
  explicit operator bool() const { return !update.empty(); }
};

/// A field (the derivative by a feature) in two passes: the pair values, then φ per (m, n, k).
struct FieldSplit {
  std::vector<Expr> pair_outputs;  // output p is read as pair_value(p); expressions of the pair
  Expr field;                   // over x, z, w, row, col, pair_value(p), parameters and uniforms; empty with a fold
  FieldFold fold;
  Expr extra;  // a second field over the same pairs, or empty
  // What serves pairs whose sums of powers leave the range (ir/passes/safe_field.h), empty where there are none:
  std::vector<Expr> again;             // values in place of pair_outputs
  std::vector<int> units;              // pair values that are 1 within the range
  Expr scaled, scaled_extra;  // the fields, which read units
  std::vector<Expr> params;     // parameter slots of the field, as in Split
  std::vector<Expr> uniforms;
  std::vector<Expr> param_leaves() const;
};
struct FieldOptions {
  bool keep_ptx = false;  // as SplitOptions have it
  double most_scale = 0;  // the largest unit; 0: fields have none
};
FieldSplit split_field(const Expr& field, const Expr& extra = {}, const FieldOptions& options = {});
/// Whether φ has values of the pair: reductions, indices.
bool reads_pairs(const Expr& phi);
/// As `split_field`, of amplitude * φ. The caller gives the amplitude: pair value number pair_outputs.size(), the
/// only one where φ has no pair values. With `pairs_sides` functions of row and col are such, too; else those with
/// reductions alone.
FieldSplit split_amplitude_field(const Expr& phi, bool pairs_sides = false, const FieldOptions& options = {});

/// A fold in two passes: its amplitude is pair value number pair_outputs.size(), if it reads one.
FieldSplit split_fold(const Expr& fold);

/// Values of a pair that are functions of its reductions, of row, col and parameters alone.
struct ValueSplit {
  std::vector<Expr> reductions;  // each reads points of both sides; reduction r is read as pair_value(r)
  std::vector<Expr> values;      // over pair_value(r), row, col, parameters and uniforms
  std::vector<Expr> params;      // parameter slots, as in Split
  std::vector<Expr> uniforms;
  std::vector<Expr> param_leaves() const;
  explicit operator bool() const { return !values.empty(); }
};
/// An empty one where they read anything else.
ValueSplit split_values(const std::vector<Expr>& values);

/// Swaps the sides: x with z, row with col, i with j.
Expr swap_sides(const Expr& e);

}  // namespace mercer::ir
