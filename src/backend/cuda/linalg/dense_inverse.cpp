// Inverses from Cholesky's factor on a device. With a = L L^T (or U^T U, L = U^T) and M = L^-1, a large matrix by
// blocks of w columns, in one place:
//
//   M[j:, j : j + w] = L[j:, j:]^-1 [1; 0]                          a third of n^3, and as much again for
//   a^-1[i : i + w, : i + w] = M[i:, i : i + w]^T M[i:, : i + w]
//
// What stands right of a block is read after it alone, and what stands above never again. Matrices of a batch, up to
// 512 rows, go together, with the whole identity for right-hand sides.
#include <algorithm>
#include <limits>
#include <utility>

#include "backend/cuda/linalg/dense.h"
#include "backend/cuda/linalg/dense_run.h"
#include "core/error.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kTogether = 512, kPanel = 512;
constexpr int kLowerPart = 1;

DenseArray transposed(DenseArray m) {
  std::swap(m.rows, m.cols);
  std::swap(m.row_stride, m.col_stride);
  return m;
}

bool is_column_major(const DenseArray& m) {
  return (m.row_stride == 1 || m.rows <= 1) && (m.cols <= 1 || (m.col_stride >= m.rows && m.col_stride >= 1));
}

/// The call with the lower factor in place of the upper one.
DenseJob of_lower(DenseJob job) {
  job.lower = true;
  return job;
}

bool goes_together(const DenseJob& job) { return job.matrices > 1 && job.order <= kTogether; }

/// Panels of one factor after the other, or whole batches.
class InverseRun {
 public:
  InverseRun(const DenseJob& job, const DenseArray& factor, const DenseArray* home)
      : job_(of_lower(job)),
        lower_(job.lower ? factor : transposed(factor)),
        run_(job_,
             {.a = &lower_,
              .home = home,
              .columns = goes_together(job) ? job.order : std::min(job.order, kPanel),
              .most_together = kTogether},
             {}) {}

  DenseRun& run() { return run_; }

  void load(DenseChunk chunk, const DenseHome& home) const {
    run_.load(chunk, lower_, home, kLowerPart);
    run_.examine_factors(chunk, home);
  }

  /// body(first, rows, count): columns() [rows, count] holds columns of M from `first` on, without what is above them,
  /// or, of a batch and `whole`, of the inverse.
  template <class Body>
  void for_each_panel(DenseChunk chunk, const DenseHome& home, bool whole, const Body& body) const {
    const std::int64_t n = job_.order, width = run_.columns_of_part();
    for (std::int64_t first = 0; first < n; first += width) {
      const std::int64_t above = run_.together() ? 0 : first, rows = n - above, count = std::min(width, n - first);
      run_.unit_columns(chunk, rows, count, first - above);
      if (run_.together()) {
        solve_together(chunk, home, kCuPlain, count);
        if (whole) solve_together(chunk, home, kCuTransposed, count);
      } else {
        solve(home, above, rows, count);
      }
      body(first, rows, count);
    }
  }

  /// M at home becomes the lower triangle of M^T M.
  void square(DenseChunk chunk, const DenseHome& home) const {
    const std::int64_t n = job_.order, width = run_.columns_of_part();
    for (std::int64_t first = 0; first < n; first += width) {
      const std::int64_t count = std::min(width, n - first), cols = first + count;
      const char* const rows = home.data + first * size();
      run_.check(run_.library().gemm[run_.type()](run_.handles().blas(), kCuTransposed, kCuPlain, narrow(count),
                                                  narrow(cols), narrow(n - first), one(),
                                                  rows + first * home.stride * size(), narrow(home.stride), rows,
                                                  narrow(home.stride), zero(), run_.columns(), narrow(count)),
                 "cublasgemm");
      run_.store_block(chunk, home, first, 0, count, cols);
    }
  }

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(size_of(job_.type)); }
  const void* one() const { return number(kOne, kSingleOne); }
  const void* zero() const { return number(kZero, kSingleZero); }
  const void* number(const double& wide, const float& narrow) const {
    return run_.type() == kCuFloat64 ? static_cast<const void*>(&wide) : &narrow;
  }
  int narrow(std::int64_t value) const {
    require(value <= std::numeric_limits<int>::max(),
            "{}: orders, columns and strides on CUDA must fit in 32 bits. Received {}.", job_.op, value);
    return static_cast<int>(value);
  }

  void solve(const DenseHome& home, std::int64_t from, std::int64_t rows, std::int64_t count) const {
    run_.check(run_.library().trsm[run_.type()](run_.handles().blas(), kCuLeft, kCuLower, kCuPlain, kCuNonUnit,
                                                narrow(rows), narrow(count), one(),
                                                home.data + from * (home.stride + 1) * size(), narrow(home.stride),
                                                run_.columns(), narrow(rows)),
               "cublastrsm");
  }

  void solve_together(DenseChunk chunk, const DenseHome& home, int op, std::int64_t count) const {
    const int n = narrow(job_.order);
    void** const matrices = run_.matrix_pointers(chunk, home);
    void** const sides = run_.column_pointers(chunk, count);
    run_.check(run_.library().trsm_batched[run_.type()](run_.handles().blas(), kCuLeft, kCuLower, op, kCuNonUnit, n,
                                                        narrow(count), one(), matrices, narrow(home.stride), sides, n,
                                                        static_cast<int>(chunk.count)),
               "cublastrsmBatched");
  }

  static constexpr double kOne = 1, kZero = 0;
  static constexpr float kSingleOne = 1, kSingleZero = 0;
  const DenseJob job_;
  const DenseArray lower_;
  DenseRun run_;
};

}  // namespace

void cho_inverse(const DenseJob& job, const DenseArray& factor, const DenseArray& out) {
  // The result is symmetric: either triangle of the memory serves, unless the factor is there the other way round.
  const DenseArray columns = is_column_major(out) ? out : transposed(out);
  const bool in_place = factor.data == out.data;
  const bool serves = is_column_major(columns) && (!in_place || is_column_major(factor) == job.lower);
  InverseRun inverse(job, factor, serves ? &columns : nullptr);
  DenseRun& run = inverse.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    inverse.load(chunk, home);
    if (run.together()) {
      inverse.for_each_panel(chunk, home, true, [&](std::int64_t first, std::int64_t, std::int64_t count) {
        run.store_columns(chunk, columns, 0, first, count);
      });
      return run.mirror(chunk, columns);
    }
    inverse.for_each_panel(chunk, home, false, [&](std::int64_t first, std::int64_t rows, std::int64_t count) {
      run.store_block(chunk, home, first, first, rows, count);
    });
    inverse.square(chunk, home);
    if (!home.is_callers) run.store(chunk, home, columns, kLowerPart, false);
    run.mirror(chunk, columns);
  });
}

void cho_inverse_diagonal(const DenseJob& job, const DenseArray& factor, const DenseArray& out) {
  InverseRun inverse(job, factor, nullptr);
  DenseRun& run = inverse.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    inverse.load(chunk, home);
    inverse.for_each_panel(chunk, home, false, [&](std::int64_t first, std::int64_t rows, std::int64_t count) {
      run.square_panel(chunk, out, first, rows, count);
    });
  });
}

}  // namespace mercer::cuda
