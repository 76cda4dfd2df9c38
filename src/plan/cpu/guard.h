// Which sums of a plan may leave the range of normal numbers, or lose digits to the rounding of their streams. The CPU
// back end looks at those of each tile and computes pairs of them again (backend/cpu/pairs/second_look.h).
//
//   sum over k of |x - z|^p          p > 1: leaves the range before its root does
//   sum over k of (x/|x| - z/|z|)^2  float32 streams are rounded once; their difference is as wrong as they are
#pragma once

#include <vector>

#include "ir/expr/program.h"
#include "ir/passes/split.h"

namespace mercer::plan {

/// A sum that is compared with the sum over k of w |x|^power + w |z|^power, x and z the streams that it subtracts.
struct CloseSum {
  int power = 0;  // 0: it is not; 2: of squares
  bool weighted = false;
  int x_stream = 0, z_stream = 0;
  int row_slot = 0, col_slot = 0;  // where packing leaves the two halves
};

struct SumGuard {
  int state = 0;
  bool ranged = false;  // computed again below `least` and from `most` on
  bool scaled = false;  // terms have factors that are no points: infinite ones times a weight of 0 are no numbers
  double least = 0, most = 0;
  CloseSum close;       // and below kCloseSum times that
};

struct PairGuard {
  std::vector<SumGuard> sums;
  ir::Magnitudes within;  // points of these magnitudes keep all ranged sums inside; see PanelKind
  // Weights and parameters in their terms must be 0 or between 1 / most and most for that.
  double most_weight = 0, most_param = 0;  // 0: none read them
  bool shows_in_output = false;  // one sum, with which the only output rises: of a fused kernel the output is looked at
  int close_sums = 0;     // sums to be compared, each with a slot of row and of col; looked at whatever the points are
};

/// Rounding streams of K features moves sums from here on by less than 1.4e-6/sqrt(K) of themselves, but for data whose
/// features round alike.
inline constexpr float kCloseSum = 1 / 65.0f;  // of points of length one a little less than 2^-5

struct PairProblem;

/// The slots are counted from 0. In float64 sums count only where one of the outputs has a form that scales them.
PairGuard guard_sums(const ir::Split& split, const PairProblem& problem);

}  // namespace mercer::plan
