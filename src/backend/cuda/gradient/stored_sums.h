// What a backward has in addition to its field, of pairs that are stored some rows at a time
// (kernels/cuda/gradient/stored_sums.cuh).
#pragma once

#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/runtime/panels.h"
#include "backend/cuda/runtime/params.h"
#include "plan/gpu/stored_sums.h"

namespace mercer::cuda {

/// Planes of values of some rows' pairs.
struct StoredPlanes {
  void* values = nullptr;         // the first plane: those of the amplitudes may come after others
  const void* weights = nullptr;  // of the pairs, or null
  const void *row_values = nullptr, *col_values = nullptr;  // the caller's, of these rows and of all points z
  std::int64_t row = 0, plane = 0;
};

class StoredSumsLaunch {
 public:
  /// Lays its memory out in `workspace`; `rows`: of a part. `row_factors`, `column_factors`: panels of the factors of
  /// the weights, the latter of v.
  StoredSumsLaunch(const PairKernels& kernels, const PairJob& job, const FieldJob& operands, std::int64_t rows,
                   const PlainPanel& row_factors, const PlainPanel& column_factors, Workspace& workspace);
  void prepare(const Workspace& workspace) const { params_.run(kernels_.common.field_uniforms, workspace); }
  /// Computes rows `first` …: amplitudes in place of the reductions, and results. `adds`: to what these have.
  void run(const StoredPlanes& planes, std::int64_t first, std::int64_t rows, bool adds,
           const Workspace& workspace) const;

 private:
  StoredSumArguments arguments(const StoredPlanes& planes, std::int64_t first, std::int64_t rows,
                               const Workspace& workspace) const;

  const PairKernels& kernels_;
  const plan::StoredSums& plan_;
  const PairJob& job_;
  const FieldJob& operands_;
  const PlainPanel &row_factors_, &column_factors_;
  ParamTable params_;
  std::int64_t size_, ranges_, ld_, partial_;
};

}  // namespace mercer::cuda
