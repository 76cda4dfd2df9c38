// The verbs of dense linear algebra on a device. cuSOLVER sees columns: a matrix that lies by rows is its transpose
// there, a symmetric one the other triangle of itself.
#include "backend/cuda/linalg/dense.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "backend/cuda/linalg/dense_run.h"
#include "backend/cuda/linalg/small_matrices.h"
#include "backend/cuda/linalg/split_factor.h"
#include "backend/cuda/linalg/split_lu.h"
#include "core/error.h"

namespace mercer::cuda {
namespace {

/// Up to these orders routines of batches win over one matrix after the other.
constexpr std::int64_t kTogetherFactor = 512, kTogetherEigen = 512;

int part_of(bool lower) { return lower ? 1 : 2; }
int uplo_of(bool lower) { return lower ? kCuLower : kCuUpper; }

int narrow(std::int64_t value, const char* op) {
  require(value <= std::numeric_limits<int>::max(),
          "{}: orders, columns and strides on CUDA must fit in 32 bits. Received {}.", op, value);
  return static_cast<int>(value);
}

bool is_column_major(const DenseArray& m) {
  return (m.row_stride == 1 || m.rows <= 1) && (m.cols <= 1 || (m.col_stride >= m.rows && m.col_stride >= 1));
}

bool suits(const DenseArray& m) {
  DenseArray turned = m;
  std::swap(turned.rows, turned.cols);
  std::swap(turned.row_stride, turned.col_stride);
  return is_column_major(m) || is_column_major(turned);
}

std::int64_t least_stride(const DenseJob& job) { return std::max<std::int64_t>(job.rows, 1); }

/// Orders from which an upper triangle is turned by a copy: cuSOLVER takes longer for it (docs/kernels/cholesky.md).
constexpr std::int64_t kTurnedFrom = 128;

/// Whether matrices are factored on tensor cores, one after the other.
bool by_blocks(const DenseJob& job) {
  const std::int64_t from = job.matrices == 1 ? job.costs.blocked_from : job.costs.blocked_batch_from;
  return job.type == Dtype::float32 && job.order >= from;
}

/// Where a factor is made: at home, unless a copy is faster or, with jitter, the matrix must outlive the first attempt.
const DenseArray* factor_home(const DenseJob& job, const DenseArray& a, const DenseArray* home) {
  if (home == nullptr || (home->data == a.data && !job.jitter.empty())) return nullptr;
  const bool is_lower = is_column_major(*home) == job.lower;
  if (job.order >= kTurnedFrom && !is_lower) return nullptr;
  const bool is_aligned = SplitCholesky::is_aligned(home->data, std::max(home->row_stride, home->col_stride));
  return by_blocks(job) && !(is_lower && is_aligned) ? nullptr : home;
}

/// Cholesky's factor of each chunk, with its ladder of jitter, and solutions by it.
class CholeskyRun {
 public:
  CholeskyRun(const DenseJob& job, const DenseArray& a, const DenseArray* home, std::int64_t columns,
              const DenseInfo& info)
      : job_(job),
        a_(a),
        waits_(info.host != nullptr),
        run_(job,
             {.a = &a,
              .home = factor_home(job, a, home),
              .columns = columns,
              .scratch_by_rows = !job.lower,
              .attempts = !job.jitter.empty(),
              .most_together = kTogetherFactor},
             info) {
    if (run_.together() || job.order == 0) return;
    if (by_blocks(job)) {
      blocked_.emplace(run_.place(), run_.library(), run_.handles(), job.order);
      if (*blocked_) {
        run_.add_buffer(static_cast<std::size_t>(blocked_->bytes()), 0);
        return;
      }
      blocked_.reset();
    }
    std::size_t device = 0, host = 0, most_device = 0, most_host = 0;
    for (const int uplo : {kCuLower, kCuUpper}) {
      run_.check(run_.library().potrf_size(run_.handles().solver(), nullptr, uplo, job.order, run_.type(), a.data,
                                           least_stride(job), run_.type(), &device, &host),
                 "cusolverDnXpotrf_bufferSize");
      most_device = std::max(most_device, device);
      most_host = std::max(most_host, host);
    }
    run_.add_buffer(most_device, most_host);
  }

  DenseRun& run() { return run_; }

  void factor(DenseChunk chunk, const DenseHome& home) const {
    const int part = part_of(job_.lower);
    run_.load(chunk, a_, home, part);
    potrf(chunk, home);
    run_.settle(chunk);
    for (const double amount : job_.jitter) {
      if (waits_ && !run_.has_failed(chunk)) return;
      run_.load_attempt(chunk, a_, part, amount);
      potrf(chunk, run_.attempt());
      run_.adopt(chunk, home, part);
    }
  }

 private:
  void potrf(DenseChunk chunk, const DenseHome& home) const {
    if (job_.order == 0) return;
    const int uplo = uplo_of(job_.lower != home.by_rows);
    if (run_.together()) {
      const int n = narrow(job_.order, job_.op);
      void** const matrices = run_.matrix_pointers(chunk, home);
      run_.check(run_.library().potrf_batched[run_.type()](run_.handles().solver(), uplo, n, matrices, n, run_.said(),
                                                           static_cast<int>(chunk.count)),
                 "cusolverDnpotrfBatched");
      return run_.check_pivots(chunk, home);
    }
    if (blocked_)
      return blocked_->run(reinterpret_cast<float*>(home.data), home.stride, static_cast<char*>(run_.buffer()),
                           run_.said());
    run_.check(run_.library().potrf(run_.handles().solver(), nullptr, uplo, job_.order, run_.type(), home.data,
                                    home.stride, run_.type(), run_.buffer(), run_.buffer_bytes(), run_.host_buffer(),
                                    run_.host_bytes(), run_.said()),
               "cusolverDnXpotrf");
    run_.check_pivots(chunk, home);
  }

  const DenseJob& job_;
  const DenseArray& a_;
  const bool waits_;
  DenseRun run_;
  std::optional<SplitCholesky> blocked_;
};

/// columns = op(triangle)^-1 columns.
void solve_triangle(DenseRun& run, DenseChunk chunk, const DenseHome& home, std::int64_t columns, TriangleUse use) {
  const DenseJob& job = run.job();
  const int uplo = uplo_of(job.lower != home.by_rows), op = use.transposed != home.by_rows ? kCuTransposed : kCuPlain;
  const int diagonal = use.unit_diagonal ? kCuUnit : kCuNonUnit;
  const int n = narrow(job.order, job.op), k = narrow(columns, job.op), stride = narrow(home.stride, job.op);
  const float single_one = 1;
  const double double_one = 1;
  const void* const one = run.type() == kCuFloat64 ? static_cast<const void*>(&double_one) : &single_one;
  if (!run.together())
    return run.check(run.library().trsm[run.type()](run.handles().blas(), kCuLeft, uplo, op, diagonal, n, k, one,
                                                    home.data, stride, run.columns(), n),
                     "cublastrsm");
  void** const matrices = run.matrix_pointers(chunk, home);
  void** const sides = run.column_pointers(chunk, columns);
  run.check(run.library().trsm_batched[run.type()](run.handles().blas(), kCuLeft, uplo, op, diagonal, n, k, one,
                                                   matrices, stride, sides, n, static_cast<int>(chunk.count)),
            "cublastrsmBatched");
}

/// Solves by L or U^T, or else by L^T or U.
void solve_half(DenseRun& run, DenseChunk chunk, const DenseHome& home, std::int64_t columns, bool first) {
  solve_triangle(run, chunk, home, columns, {.transposed = run.job().lower != first});
}

void solve_by_factor(DenseRun& run, DenseChunk chunk, const DenseHome& home, const DenseArray& b, const DenseArray& x) {
  run.solve(chunk, b, x, [&](std::int64_t columns) {
    solve_half(run, chunk, home, columns, true);
    solve_half(run, chunk, home, columns, false);
  });
}

/// Whether matrices are factored on tensor cores, one after the other, and so only where no lanes are.
bool lu_by_blocks(const DenseJob& job) {
  const CudaDevice* const planned = job.queue->rehearsal != nullptr ? job.queue->rehearsal->device : nullptr;
  const CudaDevice& device = planned != nullptr ? *planned : cuda_device(job.device);
  const std::int64_t from = job.matrices == 1 ? job.costs.lu.from : std::max(job.costs.lu.from, kMostSideBySide + 1);
  const bool wanted =
      job.type == Dtype::float32 && job.rows == job.cols && job.order >= std::max<std::int64_t>(from, 1);
  return wanted && SplitLu::serves(device, job.order);
}

/// Where a factor is made: by columns for cuSOLVER, by rows and by vectors for blocks.
DenseNeeds lu_needs(const DenseJob& job, DenseNeeds needs) {
  needs.pivots = true;
  needs.most_together = kTogetherFactor;
  if (!lu_by_blocks(job)) return needs;
  needs.scratch_by_rows = true;
  const DenseArray* const home = needs.home;
  if (home == nullptr) return needs;
  DenseArray turned = *home;
  std::swap(turned.rows, turned.cols);
  std::swap(turned.row_stride, turned.col_stride);
  bool fits = is_column_major(turned) && SplitLu::is_aligned(home->data, home->row_stride);
  for (const std::int64_t stride : home->outer_strides) fits = fits && SplitLu::is_aligned(nullptr, stride);
  if (!fits || (is_column_major(*home) && job.order > 1)) needs.home = nullptr;
  return needs;
}

/// LU of each chunk and solutions by it.
class LuRun {
 public:
  LuRun(const DenseJob& job, const DenseNeeds& needs, const DenseInfo& info, bool factors)
      : job_(job), a_(*needs.a), run_(job, needs, info) {
    if (run_.together() || job.order == 0 || !factors) return;
    if (lu_by_blocks(job)) {
      blocked_.emplace(run_.place(), run_.library(), run_.handles(), job.order, run_.columns_of_part(), job.costs.lu);
      run_.add_buffer(static_cast<std::size_t>(blocked_->bytes()), 0);
      return;
    }
    std::size_t device = 0, host = 0;
    run_.check(run_.library().getrf_size(run_.handles().solver(), nullptr, job.rows, job.cols, run_.type(), a_.data,
                                         least_stride(job), run_.type(), &device, &host),
               "cusolverDnXgetrf_bufferSize");
    run_.add_buffer(device, host);
  }

  DenseRun& run() { return run_; }

  void factor(DenseChunk chunk, const DenseHome& home) const {
    run_.load(chunk, a_, home, 0);
    if (job_.order > 0) getrf(chunk, home);
    run_.settle(chunk);
  }

  /// op of the matrix whose columns home has.
  void solve(DenseChunk chunk, const DenseHome& home, bool transposed, const DenseArray& b, const DenseArray& x) const {
    const int op = transposed != home.by_rows ? kCuTransposed : kCuPlain;
    run_.solve(chunk, b, x, [&](std::int64_t columns) { getrs(chunk, home, op, columns); });
  }

 private:
  void getrf(DenseChunk chunk, const DenseHome& home) const {
    if (blocked_)
      return blocked_->factor(reinterpret_cast<float*>(home.data), home.stride,
                              static_cast<std::int64_t*>(run_.pivots()), static_cast<char*>(run_.buffer()),
                              run_.said());
    if (!run_.together())
      return run_.check(
          run_.library().getrf(run_.handles().solver(), nullptr, job_.rows, job_.cols, run_.type(), home.data,
                               home.stride, static_cast<std::int64_t*>(run_.pivots()), run_.type(), run_.buffer(),
                               run_.buffer_bytes(), run_.host_buffer(), run_.host_bytes(), run_.said()),
          "cusolverDnXgetrf");
    const int n = narrow(job_.order, job_.op);
    void** const matrices = run_.matrix_pointers(chunk, home);
    run_.check(run_.library().getrf_batched[run_.type()](run_.handles().blas(), n, matrices, n,
                                                         static_cast<int*>(run_.pivots()), run_.said(),
                                                         static_cast<int>(chunk.count)),
               "cublasgetrfBatched");
  }

  void getrs(DenseChunk chunk, const DenseHome& home, int op, std::int64_t columns) const {
    if (blocked_)
      return blocked_->solve(reinterpret_cast<const float*>(home.data), home.stride,
                             reinterpret_cast<float*>(run_.columns()), columns, static_cast<char*>(run_.buffer()));
    if (!run_.together())
      return run_.check(run_.library().getrs(run_.handles().solver(), nullptr, op, job_.order, columns, run_.type(),
                                             home.data, home.stride, static_cast<const std::int64_t*>(run_.pivots()),
                                             run_.type(), run_.columns(), job_.order, run_.said()),
                        "cusolverDnXgetrs");
    const int n = narrow(job_.order, job_.op);
    void** const matrices = run_.matrix_pointers(chunk, home);
    void** const sides = run_.column_pointers(chunk, columns);
    int wrong = 0;
    run_.check(run_.library().getrs_batched[run_.type()](run_.handles().blas(), op, n, narrow(columns, job_.op),
                                                         matrices, n, static_cast<const int*>(run_.pivots()), sides, n,
                                                         &wrong, static_cast<int>(chunk.count)),
               "cublasgetrsBatched");
    run_.check(wrong, "cublasgetrsBatched");
  }

  const DenseJob& job_;
  const DenseArray& a_;
  DenseRun run_;
  std::optional<SplitLu> blocked_;
};

/// Eigenvalues and vectors of each chunk.
class EigenRun {
 public:
  EigenRun(const DenseJob& job, const DenseArray& a, const DenseArray& w, const DenseArray& v, const DenseInfo& info,
           std::int64_t first, bool overwrite_a)
      : job_(job),
        a_(a),
        first_(first),
        count_(w.rows),
        job_mode_(v.data != nullptr ? kCuVectors : kCuValuesOnly),
        run_(job,
             {.a = &a,
              .home = home_of(a, w, v, overwrite_a),
              .values = true,
              .most_together = all() && need_cuda_solver(job.op).syev_batched != nullptr ? kTogetherEigen : 0},
             info) {
    if (job.order == 0) return;
    std::size_t device = 0, host = 0;
    const CuSolverHandle handle = run_.handles().solver();
    const int type = run_.type();
    const int uplo = uplo_of(job.lower);
    if (run_.together())
      run_.check(run_.library().syev_batched_size(handle, nullptr, job_mode_, uplo, job.order, type, a.data, job.order,
                                                  type, w.data, type, &device, &host, run_.chunk()),
                 "cusolverDnXsyevBatched_bufferSize");
    else
      run_.check(run_.library().syevdx_size(handle, nullptr, job_mode_, range(), uplo, job.order, type, a.data,
                                            job.order, limits_, limits_, first_ + 1, first_ + count_, &found_, type,
                                            w.data, type, &device, &host),
                 "cusolverDnXsyevdx_bufferSize");
    run_.add_buffer(device, host);
  }

  DenseRun& run() { return run_; }

  void decompose(DenseChunk chunk, const DenseHome& home) const {
    run_.load(chunk, a_, home, part_of(job_.lower));
    if (job_.order > 0) syev(chunk, home);
    run_.settle(chunk);
  }

 private:
  bool all() const { return count_ == job_.order; }
  int range() const { return all() ? kCuRangeAll : kCuRangeIndices; }

  /// v where all vectors come to lie in its columns; a where it may be destroyed and v is not its memory.
  const DenseArray* home_of(const DenseArray& a, const DenseArray& w, const DenseArray& v, bool overwrite_a) const {
    const bool wants_all = v.data != nullptr && w.rows == job_.order;
    if (wants_all && is_column_major(v)) return &v;
    return overwrite_a && v.data != a.data && suits(a) ? &a : nullptr;
  }

  void syev(DenseChunk chunk, const DenseHome& home) const {
    const CuSolverHandle handle = run_.handles().solver();
    const int uplo = uplo_of(job_.lower != home.by_rows), type = run_.type();
    if (run_.together())
      return run_.check(
          run_.library().syev_batched(handle, nullptr, job_mode_, uplo, job_.order, type, home.data, home.stride, type,
                                      run_.values(), type, run_.buffer(), run_.buffer_bytes(), run_.host_buffer(),
                                      run_.host_bytes(), run_.said(), chunk.count),
          "cusolverDnXsyevBatched");
    run_.check(
        run_.library().syevdx(handle, nullptr, job_mode_, range(), uplo, job_.order, type, home.data, home.stride,
                              limits_, limits_, first_ + 1, first_ + count_, &found_, type, run_.values(), type,
                              run_.buffer(), run_.buffer_bytes(), run_.host_buffer(), run_.host_bytes(), run_.said()),
        "cusolverDnXsyevdx");
  }

  const DenseJob& job_;
  const DenseArray& a_;
  const std::int64_t first_, count_;
  const int job_mode_;
  mutable double limits_[1] = {};   // of a range by value, which is not asked for
  mutable std::int64_t found_ = 0;  // written before the routine returns
  DenseRun run_;
};

}  // namespace

void cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& out, const DenseInfo& info) {
  if (are_small(job)) return run_small(job, {.a = a, .out = out}, info);
  CholeskyRun cholesky(job, a, &out, 0, info);
  DenseRun& run = cholesky.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    cholesky.factor(chunk, home);
    run.store(chunk, home, out, part_of(job.lower), true);
  });
}

void solve_cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                    const DenseInfo& info, bool overwrite_a) {
  if (are_small(job, b.cols)) return run_small(job, {.a = a, .b = b, .x = x}, info);
  CholeskyRun cholesky(job, a, overwrite_a ? &a : nullptr, x.cols, info);
  DenseRun& run = cholesky.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    cholesky.factor(chunk, home);
    solve_by_factor(run, chunk, home, b, x);
  });
}

void cho_solve(const DenseJob& job, const DenseArray& factor, const DenseArray& b, const DenseArray& x) {
  if (are_small(job, b.cols)) return run_small(job, {.factors = false, .a = factor, .b = b, .x = x}, {});
  DenseRun run(job,
               {.a = &factor, .home = &factor, .columns = x.cols, .keeps_home = true, .most_together = kTogetherFactor},
               {});
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    run.load(chunk, factor, home, part_of(job.lower));
    solve_by_factor(run, chunk, home, b, x);
  });
}

void solve_triangular(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                      TriangleUse use) {
  DenseRun run(job,
               {.a = &a, .home = &a, .columns = x.cols, .keeps_home = true, .most_together = kTogetherFactor}, {});
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    run.load(chunk, a, home, part_of(job.lower) + (use.unit_diagonal ? 2 : 0));
    run.solve(chunk, b, x, [&](std::int64_t columns) { solve_triangle(run, chunk, home, columns, use); });
  });
}

void inv_quad_logdet(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& inv_quad,
                     const DenseArray& logdet, const DenseInfo& info, bool overwrite_a) {
  if (are_small(job, b.cols))
    return run_small(job, {.sums = true, .a = a, .b = b, .x = inv_quad, .logdet = logdet}, info);
  CholeskyRun cholesky(job, a, overwrite_a ? &a : nullptr, b.cols, info);
  DenseRun& run = cholesky.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    cholesky.factor(chunk, home);
    run.sum_logarithms(chunk, home, logdet);
    for (std::int64_t repeat = 0; repeat < job.repeats; ++repeat) {
      for (std::int64_t from = 0; from < b.cols; from += run.columns_of_part()) {
        const std::int64_t count = std::min(run.columns_of_part(), b.cols - from);
        run.load_columns(chunk, b, repeat, from, count);
        if (job.order > 0) solve_half(run, chunk, home, count, true);
        run.square_columns(chunk, inv_quad, repeat, from, count);
      }
    }
  });
}

void lu_factor(const DenseJob& job, const DenseArray& a, const DenseArray& lu, const DenseArray& pivots,
               const DenseInfo& info) {
  if (are_small(job)) return run_small(job, {.verb = plan::SmallVerb::lu, .a = a, .out = lu, .pivots = pivots}, info);
  const bool serves_as_home = is_column_major(lu) || lu_by_blocks(job);
  LuRun factors(job, lu_needs(job, {.a = &a, .home = serves_as_home ? &lu : nullptr}), info, true);
  DenseRun& run = factors.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    factors.factor(chunk, home);
    run.store(chunk, home, lu, 0, false);
    run.write_pivots(chunk, pivots);
  });
}

void lu_solve(const DenseJob& job, const DenseArray& lu, const DenseArray& pivots, const DenseArray& b,
              const DenseArray& x, bool transposed) {
  if (are_small(job, b.cols))
    return run_small(job,
                     {.verb = plan::SmallVerb::lu,
                      .factors = false,
                      .transposed = transposed,
                      .a = lu,
                      .b = b,
                      .x = x,
                      .pivots = pivots},
                     {});
  LuRun factors(job,
                {.a = &lu,
                 .home = is_column_major(lu) ? &lu : nullptr,
                 .columns = x.cols,
                 .keeps_home = true,
                 .pivots = true,
                 .most_together = kTogetherFactor},
                {}, false);
  DenseRun& run = factors.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    run.load(chunk, lu, home, 0);
    run.read_pivots(chunk, pivots);
    factors.solve(chunk, home, transposed, b, x);
  });
}

void solve_lu(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x, const DenseInfo& info,
              bool overwrite_a) {
  if (are_small(job, b.cols)) return run_small(job, {.verb = plan::SmallVerb::lu, .a = a, .b = b, .x = x}, info);
  LuRun factors(job, lu_needs(job, {.a = &a, .home = overwrite_a ? &a : nullptr, .columns = x.cols}), info, true);
  DenseRun& run = factors.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, const DenseHome& home) {
    factors.factor(chunk, home);
    factors.solve(chunk, home, false, b, x);
  });
}

void eigh(const DenseJob& job, const DenseArray& a, const DenseArray& w, const DenseArray& v, const DenseInfo& info,
          std::int64_t first, bool overwrite_a) {
  if (are_small_for_eigh(job))
    return run_small(job, {.verb = plan::SmallVerb::eigh, .a = a, .out = v, .x = w, .skipped = first}, info);
  EigenRun eigen(job, a, w, v, info, first, overwrite_a);
  DenseRun& run = eigen.run();
  if (!run.begin()) return;
  run.for_each_chunk([&](DenseChunk chunk, DenseHome home) {
    eigen.decompose(chunk, home);
    run.store_values(chunk, w);
    if (v.data == nullptr) return;
    home.by_rows = false;  // vectors are the columns of the memory, whatever was there before
    run.store(chunk, home, v, 0, false);
  });
}

}  // namespace mercer::cuda
