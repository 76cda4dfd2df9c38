// Batches of small matrices by kernels of our own: a matrix in the registers of a few threads, which load it, factor
// it, solve with it and store what is wanted, in one launch (kernels/cuda/linalg/small_matrix.cuh). No library is
// asked, no scratch memory taken but for statuses on their way to the host, and a call without them may be captured.
#pragma once

#include "backend/cuda/linalg/dense.h"
#include "plan/gpu/small_tile.h"

namespace mercer::cuda {

/// One verb; arrays without data are not wanted.
struct SmallCall {
  plan::SmallVerb verb = plan::SmallVerb::cholesky;
  bool factors = true;      // a holds a matrix, not its factor
  bool transposed = false;  // with factors of LU: solves with the transpose
  bool sums = false;        // x gets sums of the squares of L^-1 b
  const DenseArray& a;
  DenseArray out = {}, b = {}, x = {}, pivots = {}, logdet = {};  // of eigh: out vectors, x values
  std::int64_t skipped = 0;                                       // eigenvalues that are not wanted
};

/// Whether the order is small enough, and, above 64, the right-hand sides of a matrix are few: they go by four.
bool are_small(const DenseJob& job, std::int64_t columns = 0);
/// Likewise of eigenvalues.
bool are_small_for_eigh(const DenseJob& job);

void run_small(const DenseJob& job, const SmallCall& call, const DenseInfo& info);

}  // namespace mercer::cuda
