// Calls whose formula has a mask (plan/forms/pair_mask.h), cut into strips of rows: each has the columns that can
// contribute to it, from the first to the last.
//
//   · m m m m m m m     m  pairs of a strip, which is a call on a part of both sides
//   · · · m m m m m     ·  pairs whose value is known and adds nothing to a fold
//   · · · · · m m m
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "plan/gpu/plan.h"

namespace mercer::cuda {

/// Places of a strip are multiples of so many points, which keeps the alignment of rows that it begins with.
inline constexpr std::int64_t kStripPoints = 128;

struct MaskStrip {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// The strips of a product with v or of a fold, which take less time than all pairs; none where no strips do.
std::vector<MaskStrip> mask_strips(const plan::GpuPairPlan& plan, const PairJob& job);

/// What a strip has of a call, of its results, and of v.
PairJob part_of(const PairJob& job, const MaskStrip& strip);
JobMatrix part_of(const JobMatrix& out, const MaskStrip& strip);
JobOperand part_of(const JobOperand& v, const MaskStrip& strip);

/// Rows of v that strips skip: 0 v is NaN where v is not finite.
class SkippedRows {
 public:
  /// The call has no batch axes.
  SkippedRows(const PairJob& job, const JobOperand& v, std::int64_t columns, Dtype out);
  /// The size of the flags, which `find` and `mark` share.
  std::int64_t bytes() const { return blocks_ * columns_; }
  /// Looks at all of v.
  void find(char* flags) const;
  /// Writes NaN to the rows of a strip, which the product of its part has written before.
  void mark(const MaskStrip& strip, const JobMatrix& out, char* flags) const;

 private:
  const PairJob& job_;
  const JobOperand& v_;
  std::int64_t columns_, blocks_;
  Kernel mark_;
};

}  // namespace mercer::cuda
