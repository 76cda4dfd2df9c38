// What the drivers of dense linear algebra share: scratch memory, the sharing out of matrices, layouts for LAPACK.
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/linalg/dense.h"
#include "backend/cpu/linalg/dense_matrix.h"
#include "core/integers.h"
#include "core/system/aligned.h"

namespace mercer::cpu {

/// Places in the scratch memory of one worker.
class Layout {
 public:
  template <class T>
  std::int64_t add(std::initializer_list<std::int64_t> extents) {
    const std::int64_t at = bytes_;
    const std::int64_t size = checked_product(extents) * static_cast<std::int64_t>(sizeof(T));
    bytes_ += round_up(size, std::int64_t{AlignedBuffer::kAlignment});
    return at;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

/// Whether threads take a matrix each. Small ones gain little from threads inside; many keep all threads busy; in
/// between, a few large ones are done one after the other by all.
inline bool takes_matrix_each(std::int64_t matrices, std::int64_t order, int threads) {
  constexpr std::int64_t kSmall = 256, kMiddle = 1024;
  if (matrices < 2 || threads < 2) return false;
  return order <= kSmall || (order <= kMiddle && matrices >= threads) || matrices >= std::int64_t{4} * threads;
}

/// body(matrix, scratch) for every matrix of the job.
template <class Body>
void for_each_matrix(const DenseJob& job, const DenseTools& tools, const Layout& layout, const Body& body) {
  constexpr std::int64_t kTasksPerWorker = 8;
  const int threads = tools.pool.threads();
  const bool each = takes_matrix_each(job.matrices, std::max(job.rows, job.cols), threads);
  const int workers = each ? static_cast<int>(std::min<std::int64_t>(threads, job.matrices)) : 1;
  const AlignedBuffer memory(checked_product({workers, layout.bytes()}));
  const LapackThreads setting(tools.lapack, each ? 1 : threads);
  const std::int64_t tasks = each ? std::min(job.matrices, workers * kTasksPerWorker) : 1;
  const auto run_task = [&](std::int64_t task, int worker) {
    char* const scratch = memory.as<char>() + worker * layout.bytes();
    const std::int64_t end = job.matrices * (task + 1) / tasks;
    for (std::int64_t matrix = job.matrices * task / tasks; matrix < end; ++matrix) {
      stop_if_cancelled();
      body(matrix, scratch);
    }
  };
  if (each)
    tools.pool.run(tasks, run_task, nullptr, workers);
  else
    run_task(0, 0);
}

/// A packed matrix in the layout of `model`, so that copies run along memory.
template <class T>
Matrix<T> packed_like(const Matrix<T>& model, char* memory) {
  T* const data = reinterpret_cast<T*>(memory);
  if (model.is_column_major() || !model.transposed().is_column_major())
    return packed_columns(data, model.rows, model.cols);
  return packed_columns(data, model.cols, model.rows).transposed();
}

/// The memory of a square matrix that suits LAPACK, read as column-major.
template <class T>
Matrix<T> as_columns(const Matrix<T>& square) {
  return square.is_column_major() ? square : square.transposed();
}

template <class T>
T nan_of() {
  return std::numeric_limits<T>::quiet_NaN();
}

inline void set_info(const DenseJob& job, const DenseArray& info, std::int64_t matrix, std::int64_t value) {
  *reinterpret_cast<std::int64_t*>(job.at(info, matrix, 0)) = value;
}

/// Room for one item of x where it suits no routine.
template <class T>
std::int64_t add_columns(Layout& layout, const DenseJob& job, const DenseArray& x) {
  const bool direct = item<T>(job, x, 0).suits_lapack() || x.cols == 1;
  return direct ? 0 : layout.add<T>({x.rows, x.cols});
}

/// Solves into x by way of scratch memory where x suits no routine.
template <class T, class Solve>
void solve_into(Matrix<T> b, Matrix<T> x, char* scratch, const Solve& solve) {
  const bool direct = x.suits_lapack() || x.cols == 1;
  const Matrix<T> target = direct ? x : packed_columns(reinterpret_cast<T*>(scratch), x.rows, x.cols);
  if (b.data != target.data) copy(b, target);
  solve(target);
  if (!direct) copy(target, x);
}

/// The right-hand sides of a matrix: each x solved, or NaN where its factors have failed.
template <class T, class Solve>
void solve_repeats(const DenseJob& job, const DenseArray& b, const DenseArray& x, std::int64_t matrix, bool failed,
                   char* scratch, const Solve& solve) {
  for (std::int64_t repeat = 0; repeat < job.repeats; ++repeat) {
    const Matrix<T> target = item<T>(job, x, matrix, repeat);
    if (failed) fill(target, nan_of<T>());
    else solve_into(item<T>(job, b, matrix, repeat), target, scratch, solve);
  }
}

/// x = solve(triangle, b) for every matrix and its right-hand sides; a triangle that suits no routine is packed.
template <class T, class Solve>
void solve_by_triangle(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                       const DenseTools& tools, const Solve& solve) {
  Layout layout;
  const bool direct = item<T>(job, a, 0).suits_lapack();
  const std::int64_t matrix_memory = direct ? 0 : layout.add<T>({a.rows, a.rows});
  const std::int64_t column_memory = add_columns<T>(layout, job, x);
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    Matrix<T> triangle = item<T>(job, a, matrix);
    if (!direct) {
      const Matrix<T> packed = packed_like(triangle, memory + matrix_memory);
      copy(triangle, packed, triangle_part(job.lower));
      triangle = packed;
    }
    solve_repeats<T>(job, b, x, matrix, false, memory + column_memory, [&](Matrix<T> rhs) { solve(triangle, rhs); });
  });
}

/// Calls body with a value of the job's type.
template <class Body>
void with_type(const DenseJob& job, const Body& body) {
  if (job.type == Dtype::float64)
    body(double{});
  else
    body(float{});
}

}  // namespace mercer::cpu
