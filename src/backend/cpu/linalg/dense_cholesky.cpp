// Cholesky's factorisation and what is solved with it: a = L L^T (lower) or U^T U (upper).
//
//   solve:            x = L^-T (L^-1 b)
//   inv_quad_logdet:  inv_quad_e = |L^-1 b_e|^2 = b_e^T a^-1 b_e,  logdet = 2 sum_i log L_ii
#include <cmath>

#include "backend/cpu/linalg/dense_run.h"

namespace mercer::cpu {
namespace {

/// Factors one matrix after the other, in scratch memory unless it may be done in place.
template <class T>
class Factoriser {
 public:
  /// `home`: where the factor should come to lie, null for scratch memory.
  Factoriser(const DenseJob& job, const DenseTools& tools, const DenseArray& a, const DenseArray* home, Layout& layout)
      : job_(job), lapack_(tools.lapack), a_(a), home_(home) {
    // A matrix that gets jitter must outlive the first attempt.
    if (home_ != nullptr && (!item<T>(job, *home_, 0).suits_lapack() || (home_->data == a.data && has_jitter())))
      home_ = nullptr;
    if (home_ == nullptr) scratch_ = layout.add<T>({a.rows, a.rows});
  }

  /// Where the factor is, and info.
  std::int64_t operator()(std::int64_t matrix, char* memory, Matrix<T>& factor) const {
    const Matrix<T> a = item<T>(job_, a_, matrix);
    factor = home_ != nullptr ? item<T>(job_, *home_, matrix) : packed(a, memory + scratch_);
    const Part part = triangle_part(job_.lower);
    const bool finite = factor.data == a.data ? all_finite(a, part) : copy(a, factor, part);
    if (!finite) return kNotFinite;
    std::int64_t info = potrf(factor);
    for (std::size_t attempt = 0; info > 0 && attempt < job_.jitter.size(); ++attempt) {
      copy(a, factor, part);
      const double amount = job_.jitter[attempt] * mean_of_diagonal(a);
      for (std::int64_t i = 0; i < a.rows; ++i) factor(i, i) = static_cast<T>(factor(i, i) + amount);
      info = potrf(factor);
    }
    return info;
  }

 private:
  /// Small triangles lie in columns as they are factored, others as they are copied.
  Matrix<T> packed(Matrix<T> a, char* memory) const {
    if (a.rows > kSmallOrder) return packed_like(a, memory);
    const Matrix<T> columns = packed_columns(reinterpret_cast<T*>(memory), a.rows, a.rows);
    return job_.lower ? columns : columns.transposed();
  }
  bool has_jitter() const { return !job_.jitter.empty(); }

  std::int64_t potrf(Matrix<T> factor) const {
    if (factor.rows <= kSmallOrder) return factor_small(job_.lower ? factor : factor.transposed());
    const Matrix<T> columns = as_columns(factor);
    return lapack_.potrf(job_.lower == factor.is_column_major(), columns.rows, columns.data, columns.stride());
  }

  static double mean_of_diagonal(Matrix<T> a) {
    double sum = 0;
    for (std::int64_t i = 0; i < a.rows; ++i) sum += std::abs(static_cast<double>(a(i, i)));
    return sum / static_cast<double>(a.rows);
  }

  const DenseJob& job_;
  const Lapack& lapack_;
  const DenseArray& a_;
  const DenseArray* home_;
  std::int64_t scratch_ = 0;
};

/// x = L^-1 x, the first half of a solution.
template <class T>
void solve_first(const Lapack& lapack, Matrix<T> factor, bool lower, Matrix<T> x) {
  solve_triangular(lapack, factor, lower, !lower, false, x);
}

template <class T>
void solve_factored(const Lapack& lapack, Matrix<T> factor, bool lower, Matrix<T> x) {
  solve_first(lapack, factor, lower, x);
  solve_triangular(lapack, factor, lower, lower, false, x);
}

template <class T>
void cholesky_of(const DenseJob& job, const DenseArray& a, const DenseArray& out, const DenseArray& info,
                 const DenseTools& tools) {
  Layout layout;
  const Factoriser<T> factorise(job, tools, a, &out, layout);
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    Matrix<T> factor;
    const std::int64_t failed = factorise(matrix, memory, factor);
    set_info(job, info, matrix, failed);
    const Matrix<T> target = item<T>(job, out, matrix);
    if (failed != 0) return fill(target, nan_of<T>());
    if (factor.data != target.data) copy(factor, target, triangle_part(job.lower));
    clear_other_half(target, job.lower);
  });
}

template <class T>
void solve_of(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
              const DenseArray& info, bool overwrite_a, const DenseTools& tools) {
  Layout layout;
  const Factoriser<T> factorise(job, tools, a, overwrite_a ? &a : nullptr, layout);
  const std::int64_t column_memory = add_columns<T>(layout, job, x);
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    Matrix<T> factor;
    const std::int64_t failed = factorise(matrix, memory, factor);
    set_info(job, info, matrix, failed);
    solve_repeats<T>(job, b, x, matrix, failed != 0, memory + column_memory,
                     [&](Matrix<T> rhs) { solve_factored(tools.lapack, factor, job.lower, rhs); });
  });
}

template <class T>
void inv_quad_logdet_of(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& inv_quad,
                        const DenseArray& logdet, const DenseArray& info, bool overwrite_a, const DenseTools& tools) {
  Layout layout;
  const Factoriser<T> factorise(job, tools, a, overwrite_a ? &a : nullptr, layout);
  const std::int64_t column_memory = layout.add<T>({b.rows, b.cols});
  for_each_matrix(job, tools, layout, [&](std::int64_t matrix, char* memory) {
    Matrix<T> factor;
    const std::int64_t failed = factorise(matrix, memory, factor);
    set_info(job, info, matrix, failed);
    double sum = failed != 0 ? nan_of<double>() : 0;
    for (std::int64_t i = 0; failed == 0 && i < factor.rows; ++i) sum += std::log(static_cast<double>(factor(i, i)));
    item<double>(job, logdet, matrix)(0, 0) = 2 * sum;
    for (std::int64_t repeat = 0; repeat < job.repeats; ++repeat) {
      const Matrix<double> result = item<double>(job, inv_quad, matrix, repeat);
      if (failed != 0) {
        fill(result, nan_of<double>());
        continue;
      }
      const Matrix<T> given = item<T>(job, b, matrix, repeat);
      const Matrix<T> columns = packed_like(given, memory + column_memory);
      copy(given, columns);
      solve_first(tools.lapack, factor, job.lower, columns);
      for (std::int64_t j = 0; j < columns.cols; ++j) {
        double squares = 0;
        for (std::int64_t i = 0; i < columns.rows; ++i) {
          const double value = columns(i, j);
          squares += value * value;
        }
        result(0, j) = squares;
      }
    }
  });
}

}  // namespace

void cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& out, const DenseArray& info,
              DenseTools tools) {
  with_type(job, [&](auto type) { cholesky_of<decltype(type)>(job, a, out, info, tools); });
}

void solve_cholesky(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& x,
                    const DenseArray& info, bool overwrite_a, DenseTools tools) {
  with_type(job, [&](auto type) { solve_of<decltype(type)>(job, a, b, x, info, overwrite_a, tools); });
}

void cho_solve(const DenseJob& job, const DenseArray& factor, const DenseArray& b, const DenseArray& x,
               DenseTools tools) {
  with_type(job, [&](auto type) {
    using T = decltype(type);
    solve_by_triangle<T>(job, factor, b, x, tools, [&](Matrix<T> triangle, Matrix<T> rhs) {
      solve_factored(tools.lapack, triangle, job.lower, rhs);
    });
  });
}

void inv_quad_logdet(const DenseJob& job, const DenseArray& a, const DenseArray& b, const DenseArray& inv_quad,
                     const DenseArray& logdet, const DenseArray& info, bool overwrite_a, DenseTools tools) {
  with_type(job, [&](auto type) {
    inv_quad_logdet_of<decltype(type)>(job, a, b, inv_quad, logdet, info, overwrite_a, tools);
  });
}

}  // namespace mercer::cpu
