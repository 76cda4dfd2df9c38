// Masks: formulas that have a known value on some rectangles of pairs, whatever their points are.
//
//   where(i <= j, f, 0)      0 for every pair below the diagonal: drivers skip the tiles that lie there
//
// A rectangle gives i, j, row and col as intervals. Interval arithmetic decides conditions, or leaves them open. A
// value is known only where conditions select it, so that a NaN counts exactly where the formula has it: one in a
// branch that is not taken does not, one in a factor does, so (i <= j)*f has no mask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/expr/expr.h"
#include "mercer/tensor.h"

namespace mercer::plan {

/// Numbers from `least` to `most`, and NaN as well where `has_nan`.
struct Interval {
  double least = 0, most = 0;
  bool has_nan = false;
};

/// Pairs of some rows and some columns, at least one of each: what the formula reads of them.
struct Rectangle {
  Interval i, j, row, col;
};

enum class MaskAnswer : std::uint8_t {
  known,     // all pairs have the same outputs, which are known
  computed,  // pairs must be computed, those of every part of the rectangle too
  open,      // parts of the rectangle may have another answer
};

class PairMask {
 public:
  /// That of formulas without one.
  PairMask() = default;
  /// That of simplified outputs of a pair; none where one of them has none. `params`: leaves, in the order of values.
  PairMask(const std::vector<Expr>& outputs, Dtype type, const std::vector<Expr>& params);

  explicit operator bool() const { return !steps_.empty(); }
  bool reads(ir::Op leaf) const;
  int outputs() const { return static_cast<int>(outputs_.size()); }
  /// `values`: numbers of the computing type, one for each output, written where the answer is `known`.
  MaskAnswer of(const Rectangle& pairs, std::span<const double> params, std::int64_t features, double* values) const;
  /// Points of a side of which `computed_part` takes no longer than a tile.
  static constexpr std::int64_t kLook = 256;
  /// About which part of m x n pairs, with indices from these on, must be computed. Open rectangles of `least` points
  /// or fewer a side count as one half; where row or col decide, all pairs do.
  double computed_part(std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n, std::span<const double> params,
                       std::int64_t features, std::int64_t least = kLook) const;

  /// One operation, on earlier steps.
  struct Step {
    ir::Op op = ir::Op::constant;
    int args[3] = {};
    int param = 0;
    double number = 0;
  };

 private:
  std::vector<Step> steps_;
  std::vector<int> outputs_;  // steps
  Dtype type_ = Dtype::float32;
};

}  // namespace mercer::plan
