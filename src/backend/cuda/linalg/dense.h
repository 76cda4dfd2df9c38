// Dense linear algebra on arrays of a CUDA device, by cuSOLVER and cuBLAS: the verbs of backend/cpu/linalg/dense.h.
//
// Work goes into the stream of the queue. Nothing waits for it but a call that wants its statuses on the host.
#pragma once

#include <vector>

#include "backend/dense_job.h"

namespace mercer::cuda {

/// Where statuses go: to an array of the caller, or to the host, which waits for them.
struct DenseInfo {
  DenseArray array = {};  // data is null: none
  std::vector<std::int64_t>* host = nullptr;
};

void cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& out, const DenseInfo& info);
void solve_cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                    const DenseInfo& info, bool overwrite_a);
void cho_solve(const DenseJob& job, const DenseArray& factor, const DenseArray& b, const DenseArray& x);
void cho_inverse(const DenseJob& job, const DenseArray& factor, const DenseArray& out);
void cho_inverse_diagonal(const DenseJob& job, const DenseArray& factor, const DenseArray& out);
void solve_triangular(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                      TriangleUse use);
void inv_quad_logdet(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& inv_quad,
                     const DenseArray& logdet, const DenseInfo& info, bool overwrite_a);
void lu_factor(const DenseJob& job, const DenseArray& a, const DenseArray& lu, const DenseArray& pivots,
               const DenseInfo& info);
void lu_solve(const DenseJob& job, const DenseArray& lu, const DenseArray& pivots, const DenseArray& b,
              const DenseArray& x, bool transposed);
void solve_lu(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x, const DenseInfo& info,
              bool overwrite_a);
void eigh(const DenseJob& job, const DenseArray& a, const DenseArray& w, const DenseArray& v, const DenseInfo& info,
          std::int64_t first, bool overwrite_a);

}  // namespace mercer::cuda
