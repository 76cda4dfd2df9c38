// Eigenvalues and eigenvectors of symmetric matrices: a v_j = w_j v_j, w ascending. All of them by divide and conquer,
// a range by relatively robust representations. A call of LAPACK that is long runs apart, in memory of its own: whoever
// cancels it gets nothing of what it writes afterwards.
#include "backend/cpu/linalg/dense_run.h"
#include "core/system/apart.h"
#include "core/system/parallel.h"

namespace mercer::cpu {
namespace {

/// Orders from which a call of LAPACK may take more than some tenths of a second.
constexpr std::int64_t kLong = 768;

/// One call's choices and the places of its scratch memory.
template <class T>
class Eigensolver {
 public:
  Eigensolver(const DenseJob& job, const DenseTools& tools, const DenseArray& a, const DenseArray& w,
              const DenseArray& v, std::int64_t first, bool overwrite_a)
      : job_(job),
        lapack_(tools.lapack),
        threads_(takes_matrix_each(job.matrices, job.order, tools.pool.threads()) ? 1 : tools.pool.threads()),
        a_(a),
        w_(w),
        v_(v),
        first_(first),
        wants_vectors_(v.data != nullptr),
        all_(w.rows == job.order),
        is_apart_(job.order >= kLong && may_be_cancelled()) {
    const std::int64_t n = job.order;
    const bool a_serves = !is_apart_ && item<T>(job, a, 0).suits_lapack();
    const bool v_serves = !is_apart_ && wants_vectors_ && item<T>(job, v, 0).suits_lapack();
    if (all_ && v_serves)
      place_ = Place::v;
    else if (overwrite_a && a_serves)
      place_ = Place::a;
    if (place_ == Place::scratch) matrix_memory_ = layout_.add<T>({n, n});
    // Vectors of a range have a place of their own next to the matrix.
    v_direct_ = !all_ && v_serves && item<T>(job, v, 0).is_column_major();
    if (wants_vectors_ && !all_ && !v_direct_) vector_memory_ = layout_.add<T>({n, w.rows});
    size_ = all_ ? lapack_.syevd_scratch<T>(wants_vectors_, n) : lapack_.syevr_scratch<T>(wants_vectors_, n);
    value_memory_ = layout_.add<T>({n});
    element_memory_ = layout_.add<T>({size_.elements});
    integer_memory_ = layout_.add<std::int64_t>({size_.integers});
  }

  /// The memory that a worker has for all its matrices.
  Layout layout() const { return is_apart_ ? Layout() : layout_; }

  std::int64_t operator()(std::int64_t matrix, char* memory) const {
    const auto own = is_apart_ ? std::make_shared<AlignedBuffer>(layout_.bytes()) : nullptr;
    if (own) memory = own->as<char>();
    const Matrix<T> a = item<T>(job_, a_, matrix), w = item<T>(job_, w_, matrix);
    const Matrix<T> v = wants_vectors_ ? item<T>(job_, v_, matrix) : Matrix<T>{};
    Matrix<T> home = packed_columns(reinterpret_cast<T*>(memory + matrix_memory_), a.rows, a.rows);
    if (place_ != Place::scratch) home = place_ == Place::v ? v : a;
    // A symmetric matrix by rows is its other triangle by columns.
    const bool is_there = home.data == a.data, by_rows = !home.is_column_major();
    const Matrix<T> columns = as_columns(home);
    const bool lower = is_there && by_rows ? !job_.lower : job_.lower;
    const Part part = triangle_part(job_.lower);
    std::int64_t failed = 0;
    if (!(is_there ? all_finite(a, part) : copy(a, columns, part))) failed = kNotFinite;
    T* const values = reinterpret_cast<T*>(memory + value_memory_);
    Matrix<T> vectors = columns;
    if (failed == 0 && a.rows > 0)
      failed = all_ ? solve_all(columns, lower, values, memory, own)
                    : solve_range(columns, lower, values, v, memory, vectors, own);
    if (failed != 0) {
      fill(w, nan_of<T>());
      if (wants_vectors_) fill(v, nan_of<T>());
      return failed;
    }
    for (std::int64_t i = 0; i < w.rows; ++i) w(i, 0) = values[i];
    if (!wants_vectors_) return 0;
    if (vectors.data != v.data)
      copy(vectors, v);
    else if (by_rows && all_)
      transpose_in_place(columns);
    return 0;
  }

 private:
  enum class Place { scratch, a, v };

  using Owner = std::shared_ptr<AlignedBuffer>;

  /// LAPACK's info. `owner`: of the memory that the call uses, where it runs apart; it takes copies of all else.
  template <class Solve>
  std::int64_t run(const Owner& owner, const Solve& solve) const {
    if (!owner) return solve(lapack_);
    const auto info = std::make_shared<std::int64_t>(0);
    run_apart([owner, info, solve, &lapack = lapack_, threads = threads_] {
      const LapackThreads setting(lapack, threads);  // the caller's may end before
      *info = solve(lapack);
    });
    return *info;
  }

  std::int64_t solve_all(Matrix<T> columns, bool lower, T* values, char* memory, const Owner& owner) const {
    auto* const elements = reinterpret_cast<T*>(memory + element_memory_);
    auto* const integers = reinterpret_cast<std::int64_t*>(memory + integer_memory_);
    return run(owner, [=, vectors = wants_vectors_, size = size_](const Lapack& lapack) {
      return lapack.syevd(vectors, lower, columns.rows, columns.data, columns.stride(), values, elements, integers,
                          size);
    });
  }

  std::int64_t solve_range(Matrix<T> columns, bool lower, T* values, Matrix<T> v, char* memory, Matrix<T>& vectors,
                           const Owner& owner) const {
    const std::int64_t count = w_.rows;
    vectors = v_direct_ ? v : packed_columns(reinterpret_cast<T*>(memory + vector_memory_), columns.rows, count);
    auto* const elements = reinterpret_cast<T*>(memory + element_memory_);
    auto* const integers = reinterpret_cast<std::int64_t*>(memory + integer_memory_);
    const Matrix<T> to = wants_vectors_ ? vectors : Matrix<T>{};
    return run(owner, [=, wanted = wants_vectors_, first = first_, size = size_](const Lapack& lapack) {
      return lapack.syevr(wanted, lower, columns.rows, columns.data, columns.stride(), first, first + count - 1, values,
                          to.data, wanted ? to.stride() : 1, elements, integers, size);
    });
  }

  const DenseJob& job_;
  const Lapack& lapack_;
  const int threads_;
  const DenseArray &a_, &w_, &v_;
  const std::int64_t first_;
  const bool wants_vectors_, all_, is_apart_;
  Place place_ = Place::scratch;
  bool v_direct_ = false;
  Lapack::Scratch size_;
  Layout layout_;
  std::int64_t matrix_memory_ = 0, vector_memory_ = 0, value_memory_ = 0, element_memory_ = 0, integer_memory_ = 0;
};

}  // namespace

void eigh(const DenseJob& job, const DenseArray& a, const DenseArray& w, const DenseArray& v, const DenseArray& info,
          std::int64_t first, bool overwrite_a, DenseTools tools) {
  with_type(job, [&](auto type) {
    const Eigensolver<decltype(type)> solve(job, tools, a, w, v, first, overwrite_a);
    for_each_matrix(job, tools, solve.layout(),
                    [&](std::int64_t matrix, char* memory) { set_info(job, info, matrix, solve(matrix, memory)); });
  });
}

}  // namespace mercer::cpu
