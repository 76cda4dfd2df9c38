// The range of the sums of pairs, as a plan's guard has it (plan/cpu/guard.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cpu/pair_sums.h"
#include "backend/cpu/pairs/pair_engine.h"

namespace mercer::cpu {

template <class T>
class SumRange {
 public:
  explicit SumRange(const PairProgram& program)
      : kernels_(sum_kernels(program.plan().problem.target)), is_bounded_(program.forms.is_ranged) {
    if (!is_bounded_) return;
    least_ = static_cast<T>(program.plan().guard.sums[0].least);
    most_ = static_cast<T>(program.plan().guard.sums[0].most);
  }

  /// Whether some of these sums lie outside, as those of equal points may.
  bool is_left_by(const T* sums, std::int64_t count) const {
    return is_bounded_ && kernels_.any_outside(sums, count, least_, most_);
  }

  /// Whether a block's sums hold. `x_of(r)`, `z_of(c)`: features of the points of a row and of a column, side by side.
  template <class XOf, class ZOf>
  bool holds(const SumBlock<T>& block, const XOf& x_of, const ZOf& z_of) const {
    for (std::int64_t r = 0; is_bounded_ && r < block.rows; ++r) {
      const T* const row = block.out + r * block.out_stride;
      if (!is_left_by(row, block.cols)) continue;
      for (std::int64_t c = 0; c < block.cols; ++c)
        if (!is_right(row[c], x_of(r), z_of(c), block.features)) return false;
    }
    return true;
  }

 private:
  /// Within the range, 0 of equal points, or not finite as a point is.
  bool is_right(T sum, const T* x, const T* z, std::int64_t features) const {
    if (sum == 0) return x == z || std::equal(x, x + features, z);
    if (sum != sum || (std::abs(sum) >= least_ && std::abs(sum) < most_)) return true;
    const auto is_finite = [](T value) { return std::isfinite(value); };
    return !std::isfinite(sum) && !(std::all_of(x, x + features, is_finite) && std::all_of(z, z + features, is_finite));
  }

  const SumKernels& kernels_;
  bool is_bounded_;
  T least_ = 0, most_ = 0;
};

}  // namespace mercer::cpu
