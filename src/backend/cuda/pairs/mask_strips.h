// Calls whose formula has a mask (plan/forms/pair_mask.h), cut into strips of rows: each has the columns that can
// contribute to it, from the first to the last.
//
//   · m m m m m m m     m  pairs of a strip, which is a call on a part of both sides
//   · · · m m m m m     ·  pairs whose value is known: a fold skips those that add nothing, a matrix is filled there
//   · · · · · m m m
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "backend/cuda/runtime/workspace.h"
#include "plan/gpu/plan.h"

namespace mercer::cuda {

/// Places of a strip are multiples of so many points, which keeps the alignment of rows that it begins with.
inline constexpr std::int64_t kStripPoints = 128;

struct MaskStrip {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
  double before = 0, after = 0;  // values of the pairs of the columns on either side

  std::int64_t column_end() const { return column + columns; }
};

/// What pairs that are left out must have for a value, in all outputs.
struct LeftOut {
  bool is_any = false;  // a value that is stored: the same for all columns on a side
  double neutral = 0;   // else the value that adds nothing to what becomes of a row
};
/// What pairs cost, in operations of a lane.
struct MaskedWork {
  double pair = 0;   // of a pair that is computed
  double known = 0;  // of one that is written alone
  double strip = 1;  // of a strip, in those of a product
  std::int64_t least = 0;  // columns of a strip at least
  bool symmetric = false;  // strips have columns from their first row on
  double all(const PairJob& job) const;
};
/// Whether a call is large enough for strips.
bool pays_strips(const PairJob& job, const MaskedWork& work);
/// The strips that take less time than all pairs; none where no strips do. `params`: numbers that the mask reads.
std::vector<MaskStrip> mask_strips(const plan::PairMask& mask, const PairJob& job, std::vector<double> params,
                                   const LeftOut& left_out, const MaskedWork& work);
/// Those of a product with v, of a fold, of stored values or of the nearest neighbours, `least` of each row.
std::vector<MaskStrip> mask_strips(const plan::GpuPairPlan& plan, const PairJob& job, bool symmetric = false,
                                   std::int64_t least = 0);

/// What a strip has of a call and of v, and a matrix from this element on.
PairJob part_of(const PairJob& job, const MaskStrip& strip);
JobMatrix part_of(const JobMatrix& out, std::int64_t row, std::int64_t column);
JobOperand part_of(const JobOperand& v, const MaskStrip& strip);

/// Bytes of scratch memory that `run` takes, which is given the job of a rehearsal.
std::int64_t scratch_bytes(const PairJob& job, const std::function<void(const PairJob&, Workspace&)>& run);

/// A matrix of values around what its strips compute.
class KnownValues {
 public:
  KnownValues(const PairJob& job, const JobMatrix& out, bool symmetric);
  /// Writes the known values of a strip, before its others; of a symmetric matrix those of its columns from its first
  /// row on, and their mirror images.
  void fill(const MaskStrip& strip) const;
  /// Writes the mirror image of what a strip has computed.
  void mirror(const MaskStrip& strip) const;

 private:
  struct Rectangle {
    std::int64_t row, rows, column, columns;
  };
  void fill(const Rectangle& pairs, double value) const;

  const PairJob& job_;
  const JobMatrix& out_;
  bool symmetric_;
  Kernel mark_;
};

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
