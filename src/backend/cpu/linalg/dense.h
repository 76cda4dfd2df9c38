// Dense linear algebra on arrays of the host, by LAPACK. An output whose data is that of an input is computed in its
// place. What info says of each matrix: 0, the order of the minor or the pivot that failed, or kNotFinite; the outputs
// of a matrix that failed are NaN.
#pragma once

#include "backend/dense_job.h"
#include "core/devices/lapack.h"
#include "core/system/parallel.h"

namespace mercer::cpu {

struct DenseTools {
  const Lapack& lapack;
  Pool& pool;
};

void cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& out, const DenseArray& info,
              DenseTools tools);
/// x = a^-1 b; `overwrite_a`: a may be where the factor comes to lie.
void solve_cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                    const DenseArray& info, bool overwrite_a, DenseTools tools);
void cho_solve(const DenseJob& job, const DenseArray& factor, const DenseArray& b, const DenseArray& x,
               DenseTools tools);
/// NaN where the factor has a pivot that is not positive, or holds NaN or an infinity; so has the next one.
void cho_inverse(const DenseJob& job, const DenseArray& factor, const DenseArray& out, DenseTools tools);
/// out [n, 1].
void cho_inverse_diagonal(const DenseJob& job, const DenseArray& factor, const DenseArray& out, DenseTools tools);
void solve_triangular(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                      TriangleUse use, DenseTools tools);
/// inv_quad [1, columns of b], logdet [1, 1].
void inv_quad_logdet(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& inv_quad,
                     const DenseArray& logdet, const DenseArray& info, bool overwrite_a, DenseTools tools);

void lu_factor(const DenseJob& job, const DenseArray& a, const DenseArray& lu, const DenseArray& pivots,
               const DenseArray& info, DenseTools tools);
/// Throws, before it writes, unless pivot i is from i to n - 1.
void lu_solve(const DenseJob& job, const DenseArray& lu, const DenseArray& pivots, const DenseArray& b,
              const DenseArray& x, bool transposed, DenseTools tools);
void solve_lu(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
              const DenseArray& info, bool overwrite_a, DenseTools tools);

/// w [count, 1]: eigenvalues `first` and up, ascending. v [n, count], or without data when no vectors are wanted; v may
/// be a where all of them are.
void eigh(const DenseJob& job, const DenseArray& a, const DenseArray& w, const DenseArray& v, const DenseArray& info,
          std::int64_t first, bool overwrite_a, DenseTools tools);

}  // namespace mercer::cpu
