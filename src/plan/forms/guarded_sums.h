// Values that read a sum of powers as a root of it, where the sum leaves the range of normal numbers before its root
// does: what a tile on a GPU computes of such a pair in place of its program (kernels/cuda/pairs/safe_norms.cuh).
//
//   S = sum over k of w |t|^p,  p > 1         L = max |t|      s = sum over k of w (|t| / L)^p      S^(1/p) = L s^(1/p)
//
// The largest |t| first, then the sums of scaled powers, and an epilogue that reads norms. Nothing of it runs where all
// sums are in range.
#pragma once

#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"
#include "plan/forms/sides.h"

namespace mercer::plan {

struct GpuGuard {
  std::vector<int> states;  // accumulators of a pair that hold such sums
  double least = 0;         // they stand from here on,
  double most = 0;          // and below this
  bool vanishes = false;    // they are 0 where points are equal, and only there are values read as they are
  /// The states of the second pass: the scaled sums, then those of all else.
  std::vector<double> identity;
  ir::Program largest;   // acc[q] = max(acc[q], |t|)
  ir::Program update;    // reads the scales of |t| as pair values 2 q and 2 q + 1, one multiplied after the other
  ir::Program merge;     // of acc and incoming; empty where the features must keep their order
  ir::Program epilogue;  // reads L as pair value q
  explicit operator bool() const { return !states.empty(); }
  int norms() const { return static_cast<int>(states.size()); }
  /// Whether sums on tensor cores, times a factor, leave the range only where they cancel: points whose sizes would let
  /// others do so have no pieces there.
  bool serves_products(double factor) const;
};

/// What outputs would read of norms, before they are split. `always`: even if all of them stay as they are.
struct GuardedOutputs {
  std::vector<Expr> sums;     // formulas of the sums
  std::vector<Expr> outputs;  // that read the norm of sum q as pair value q
};
GuardedOutputs guarded_outputs(const std::vector<Expr>& outputs, bool always = false);

/// The split of outputs, and the guard that `guarded` makes of it, if any. Uniforms that only a guard reads are the
/// split's, too.
ir::Split split_guarded(const std::vector<Expr>& outputs, const GuardedOutputs& guarded,
                        const ir::SplitOptions& options, Dtype type, GpuGuard& guard);

}  // namespace mercer::plan
