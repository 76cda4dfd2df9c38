// The end of a spectrum by products alone. With a basis V of orthonormal columns, grown by a block Q at a time,
//
//   W = a Q;  C = V^T W;  W - V C = Q' R;  V = [V Q']          a V = V H + Q' [0 R],  H = V^T a V, its last block C
//
// eigenpairs (t, s) of H give t, u = V s with |a u - t u| = |R s_last|. When the basis is full it becomes the best
// vectors u and Q', and H the diagonal of their t.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cpu/dense_matrix.h"
#include "core/aligned.h"
#include "core/error.h"
#include "ops/linalg/call.h"

namespace mercer::linalg {
namespace {

using cpu::Matrix;
using cpu::packed_columns;

constexpr std::int64_t kLeastBlock = 8, kMostBlock = 64, kLeastBasis = 96;
constexpr int kMostRestarts = 60;
/// Orders up to here are decomposed as they are: the operator's columns are its products with the identity.
constexpr std::int64_t kDense = 192;

/// LAPACK and BLAS on all threads of the pool, between products.
class Blas {
 public:
  Blas(const char* op, Context& context) : lapack_(need_lapack(op)), pool_(context.state().pool) {}
  template <class Work>
  void operator()(const Work& work) const {
    const LapackThreads threads(lapack_, pool_.threads());
    work(lapack_);
  }

 private:
  const Lapack& lapack_;
  Pool& pool_;
};

/// All eigenpairs of the leading m x m of a symmetric matrix in double precision; vectors are columns.
struct SmallPairs {
  std::vector<double> values, vectors;
};
SmallPairs decompose(const Blas& blas, const std::vector<double>& h, std::int64_t stride, std::int64_t m) {
  SmallPairs pairs{std::vector<double>(m), std::vector<double>(m * m)};
  for (std::int64_t j = 0; j < m; ++j) std::copy_n(h.begin() + j * stride, m, pairs.vectors.begin() + j * m);
  blas([&](const Lapack& lapack) {
    const auto size = lapack.syevd_scratch<double>(true, m);
    std::vector<double> elements(size.elements);
    std::vector<std::int64_t> integers(size.integers);
    const std::int64_t info = lapack.syevd(true, true, m, pairs.vectors.data(), m, pairs.values.data(), elements.data(),
                                           integers.data(), size);
    if (info != 0) fail(ErrorKind::numerical, "eigh_top: the small problem must converge. Received {}.", info);
  });
  return pairs;
}

/// Indices of the k wanted values of an ascending list, ascending too.
std::vector<std::int64_t> wanted_of(const std::vector<double>& values, std::int64_t k, Which which) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  if (which == Which::largest) std::reverse(order.begin(), order.end());
  if (which == Which::magnitude)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t i, std::int64_t j) { return std::abs(values[i]) > std::abs(values[j]); });
  order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

template <class T>
class Lanczos {
 public:
  Lanczos(const char* op, const Operator& a, std::int64_t k, const TopOptions& options, Context& context)
      : op_(op), a_(a), n_(a.order), k_(k), options_(options), blas_(op, context), random_(options.seed) {
    block_ = std::clamp(k / 2, std::min(kLeastBlock, n_), kMostBlock);
    const std::int64_t wanted = options.most_basis > 0 ? options.most_basis : std::max(6 * k, kLeastBasis);
    most_ = std::max(wanted, k + 2 * block_);
    stride_ = most_ + 2 * block_;
    tolerance_ = options.tolerance > 0 ? options.tolerance : sizeof(T) == 4 ? 2e-6 : 1e-10;
  }

  /// Whether the whole matrix is small beside the basis.
  bool is_dense() const { return n_ <= std::max(kDense, most_ + 2 * block_); }

  /// Pairs that miss the tolerance.
  std::int64_t run(Matrix<T> w, Matrix<T> v) { return is_dense() ? run_dense(w, v) : run_blocks(w, v); }

 private:
  T* column(std::int64_t j) const { return basis_.as<T>() + j * n_; }
  double& h(std::int64_t i, std::int64_t j) { return h_[static_cast<std::size_t>(i + j * stride_)]; }

  void multiply(const T* v, T* out, std::int64_t columns) const {
    const Tensor from(const_cast<T*>(v), dtype_of<T>(), {n_, columns}, {1, n_});
    a_.multiply(from, Tensor(out, dtype_of<T>(), {n_, columns}, {1, n_}));
    if (!cpu::all_finite(packed_columns(out, n_, columns), cpu::Part::all))
      fail(ErrorKind::numerical, "{}: products with the operator must be finite. Received NaN or infinity.", op_);
  }

  std::int64_t run_dense(Matrix<T> w, Matrix<T> v) {
    AlignedBuffer identity = aligned_array<T>(n_ * n_), dense = aligned_array<T>(n_ * n_);
    std::fill_n(identity.as<T>(), n_ * n_, T(0));
    for (std::int64_t i = 0; i < n_; ++i) identity.as<T>()[i * (n_ + 1)] = 1;
    multiply(identity.as<T>(), dense.as<T>(), n_);
    std::vector<double> matrix(static_cast<std::size_t>(n_ * n_));
    for (std::int64_t i = 0; i < n_; ++i)
      for (std::int64_t j = 0; j < n_; ++j)
        matrix[i + j * n_] = 0.5 * (double(dense.as<T>()[i + j * n_]) + double(dense.as<T>()[j + i * n_]));
    const SmallPairs pairs = decompose(blas_, matrix, n_, n_);
    const std::vector<std::int64_t> wanted = wanted_of(pairs.values, k_, options_.which);
    for (std::int64_t j = 0; j < k_; ++j) {
      w(j, 0) = static_cast<T>(pairs.values[wanted[j]]);
      for (std::int64_t i = 0; i < n_; ++i) v(i, j) = static_cast<T>(pairs.vectors[i + wanted[j] * n_]);
    }
    return 0;
  }

  std::int64_t run_blocks(Matrix<T> w, Matrix<T> v) {
    basis_ = aligned_array<T>(n_ * stride_);
    vectors_ = aligned_array<T>(n_ * std::max(2 * k_, most_));
    h_.assign(static_cast<std::size_t>(stride_ * stride_), 0);
    draw(0, block_);
    std::vector<double> r(static_cast<std::size_t>(block_ * block_));
    orthonormalise(0, block_, nullptr, r);
    std::int64_t missed = k_;
    for (int restart = 0, measured = 0; restart < kMostRestarts && measured < 3; ++restart) {
      while (held_ + 2 * block_ <= stride_ && held_ + block_ <= most_) {
        extend(r);
        const bool full = held_ + block_ > most_;
        if (!full && (held_ < 2 * k_ || held_ / block_ % 2 != 0)) continue;
        if (!is_near(r)) continue;
        ++measured;
        missed = measure(w, v);
        if (missed == 0) return 0;
      }
      thicken();
    }
    if (measured_once_) return missed;
    pairs_ = decompose(blas_, h_, stride_, held_);
    return measure(w, v);
  }

  void draw(std::int64_t first, std::int64_t count) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < count * n_; ++i) column(first)[i] = static_cast<T>(normal(random_));
  }

  /// The block behind the basis is multiplied and becomes part of it.
  void extend(std::vector<double>& r) {
    const std::int64_t m = held_ + block_;
    multiply(column(held_), column(m), block_);
    std::vector<double> c(static_cast<std::size_t>(m * block_), 0);
    held_ = m;
    orthonormalise(m, block_, &c, r);
    for (std::int64_t j = 0; j < block_; ++j)
      for (std::int64_t i = 0; i < m; ++i) h(i, m - block_ + j) = h(m - block_ + j, i) = c[i + j * m];
    for (std::int64_t j = m - block_; j < m; ++j)
      for (std::int64_t i = m - block_; i < j; ++i)
        h(i, j) = h(j, i) = 0.5 * (c[i + (j - m + block_) * m] + c[j + (i - m + block_) * m]);
  }

  /// Columns from `first` on become orthonormal, and orthogonal to those before: old = V c + new r. Gram matrices are
  /// factored with a shift where rounding has made them indefinite, so three passes may be needed; what has no
  /// direction left gets a random one.
  void orthonormalise(std::int64_t first, std::int64_t count, std::vector<double>* c, std::vector<double>& r) {
    std::fill(r.begin(), r.end(), 0);
    for (std::int64_t j = 0; j < count; ++j) r[j * (count + 1)] = 1;
    for (int pass = 0; pass < 4; ++pass) {
      const std::vector<T> coefficients = project(first, count);
      if (c != nullptr)
        for (std::int64_t j = 0; j < count; ++j)
          for (std::int64_t i = 0; i < first; ++i)
            for (std::int64_t p = 0; p <= j; ++p)
              (*c)[i + j * first] += double(coefficients[i + p * first]) * r[p + j * count];
      const bool clean = factor_gram(first, count, r);
      if (clean && pass > 0) return;
    }
  }

  /// block -= V V^T block; gives V^T block.
  std::vector<T> project(std::int64_t first, std::int64_t count) const {
    std::vector<T> c(static_cast<std::size_t>(std::max<std::int64_t>(first, 1) * count), 0);
    if (first == 0) return c;
    blas_([&](const Lapack& lapack) {
      lapack.gemm<T>(true, false, first, count, n_, 1, column(0), n_, column(first), n_, 0, c.data(), first);
      lapack.gemm<T>(false, false, n_, count, first, -1, column(0), n_, c.data(), first, 1, column(first), n_);
    });
    return c;
  }

  /// block = block u^-1 with block^T block = u^T u, r = u r. False when a shift was needed.
  bool factor_gram(std::int64_t first, std::int64_t count, std::vector<double>& r) {
    std::vector<T> gram(static_cast<std::size_t>(count * count));
    std::vector<double> u(gram.size());
    blas_([&](const Lapack& lapack) {
      lapack.gemm<T>(true, false, count, count, n_, 1, column(first), n_, column(first), n_, 0, gram.data(), count);
    });
    double trace = 0;
    for (std::int64_t j = 0; j < count; ++j) trace += gram[j * (count + 1)];
    if (!std::isfinite(trace))
      fail(ErrorKind::numerical, "{}: squares of products must fit the dtype. Received larger ones; scale a.", op_);
    if (!(trace > std::numeric_limits<T>::min() * double(n_))) {  // nothing is left of the block
      draw(first, count);
      std::fill(r.begin(), r.end(), 0);
      return false;
    }
    const double rounding = std::numeric_limits<T>::epsilon();
    // What lies below this part of the block is rounding; its direction is as good as random.
    double shift = 0;
    for (;; shift = shift > 0 ? 10 * shift : 4 * double(count) * rounding * trace) {
      std::copy(gram.begin(), gram.end(), u.begin());
      for (std::int64_t j = 0; j < count; ++j) u[j * (count + 1)] += shift;
      std::int64_t info = 0;
      blas_([&](const Lapack& lapack) { info = lapack.potrf(false, count, u.data(), count); });
      double least = u[0], largest = u[0];
      for (std::int64_t j = 0; info == 0 && j < count; ++j) {
        least = std::min(least, u[j * (count + 1)]);
        largest = std::max(largest, u[j * (count + 1)]);
      }
      if (info == 0 && least * least > rounding * double(count) * largest * largest) break;
    }
    std::vector<T> narrow(gram.size(), 0);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t i = 0; i <= j; ++i) narrow[i + j * count] = static_cast<T>(u[i + j * count]);
    blas_([&](const Lapack& lapack) {
      lapack.trsm<T>(true, false, false, false, n_, count, narrow.data(), count, column(first), n_);
    });
    std::vector<double> product(r.size(), 0);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t i = 0; i <= j; ++i)
        for (std::int64_t p = i; p <= j; ++p) product[i + j * count] += u[i + p * count] * r[p + j * count];
    r = std::move(product);
    return shift == 0;
  }

  /// Whether the wanted pairs should meet the tolerance, by what the recurrence says of their residuals.
  bool is_near(const std::vector<double>& r) {
    pairs_ = decompose(blas_, h_, stride_, held_);
    const double scale = std::max(std::abs(pairs_.values.front()), std::abs(pairs_.values.back()));
    for (const std::int64_t index : wanted_of(pairs_.values, k_, options_.which)) {
      const double* s = pairs_.vectors.data() + index * held_ + held_ - block_;
      double squares = 0;
      for (std::int64_t i = 0; i < block_; ++i) {
        double sum = 0;
        for (std::int64_t p = i; p < block_; ++p) sum += r[i + p * block_] * s[p];
        squares += sum * sum;
      }
      if (!(std::sqrt(squares) <= 0.5 * tolerance_ * scale)) return false;
    }
    return true;
  }

  /// u = V s of these columns, into vectors_.
  void combine(const std::vector<std::int64_t>& indices) const {
    const auto count = static_cast<std::int64_t>(indices.size());
    std::vector<T> s(static_cast<std::size_t>(held_ * count));
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t i = 0; i < held_; ++i)
        s[i + j * held_] = static_cast<T>(pairs_.vectors[i + indices[j] * held_]);
    blas_([&](const Lapack& lapack) {
      lapack.gemm<T>(false, false, n_, count, held_, 1, column(0), n_, s.data(), held_, 0, vectors_.as<T>(), n_);
    });
  }

  /// Writes the pairs; gives how many have a residual beyond the tolerance.
  std::int64_t measure(Matrix<T> w, Matrix<T> v) {
    measured_once_ = true;
    const std::vector<std::int64_t> wanted = wanted_of(pairs_.values, k_, options_.which);
    combine(wanted);
    T* const u = vectors_.as<T>();
    T* const product = u + n_ * k_;
    multiply(u, product, k_);
    const double scale = std::max(std::abs(pairs_.values.front()), std::abs(pairs_.values.back()));
    std::int64_t missed = 0;
    for (std::int64_t j = 0; j < k_; ++j) {
      const double value = pairs_.values[wanted[j]];
      double squares = 0;
      for (std::int64_t i = 0; i < n_; ++i) {
        const double gap = double(product[i + j * n_]) - value * double(u[i + j * n_]);
        squares += gap * gap;
        v(i, j) = u[i + j * n_];
      }
      w(j, 0) = static_cast<T>(value);
      missed += !(std::sqrt(squares) <= tolerance_ * scale);
    }
    return missed;
  }

  /// The basis becomes the best vectors, some more than are wanted, and the block behind it.
  void thicken() {
    pairs_ = decompose(blas_, h_, stride_, held_);
    const std::int64_t kept = std::min(k_ + block_, held_ - block_);
    const std::vector<std::int64_t> best = wanted_of(pairs_.values, kept, options_.which);
    combine(best);
    std::copy_n(column(held_), block_ * n_, column(kept));
    std::copy_n(vectors_.as<T>(), kept * n_, column(0));
    std::fill(h_.begin(), h_.end(), 0);
    for (std::int64_t j = 0; j < kept; ++j) h(j, j) = pairs_.values[best[j]];
    held_ = kept;
  }

  const char* op_;
  const Operator& a_;
  const std::int64_t n_, k_;
  const TopOptions& options_;
  const Blas blas_;
  std::mt19937_64 random_;
  std::int64_t block_ = 0, most_ = 0, stride_ = 0, held_ = 0;
  double tolerance_ = 0;
  bool measured_once_ = false;
  AlignedBuffer basis_, vectors_;  // [stride_] and some columns of n
  std::vector<double> h_;          // [stride_, stride_], of which held_ are filled
  SmallPairs pairs_;
};

template <class T>
Matrix<T> as_matrix(const Tensor& t) {
  return {static_cast<T*>(t.data), t.shape[0], t.ndim() > 1 ? t.shape[1] : 1, t.strides[0],
          t.ndim() > 1 ? t.strides[1] : 1};
}

void check_array(const char* op, const char* name, const Tensor& t, const ops::Shape& expected, Dtype dtype) {
  require(t.shape == expected, "{}: {} must have shape {}. Received {}.", op, name, ops::text_of(expected),
          ops::text_of(t.shape));
  require(t.dtype == dtype, "{}: {} must be {}. Received {}.", op, name, name_of(dtype), name_of(t.dtype));
  ops::check_layout(op, name, t);
  require(t.device.kind == DeviceKind::cpu, "{}: {} must lie on the CPU. Received one on {}.", op, name,
          t.device.to_text());
}

}  // namespace

void eigh_top(const Operator& a, const Tensor& w, const Tensor& v, const TopOptions& options, Context& context) {
  const char* op = options.verb != nullptr ? options.verb : "eigh_top";
  const std::int64_t k = w.ndim() == 1 ? w.shape[0] : 0;
  require(a.dtype == Dtype::float32 || a.dtype == Dtype::float64,
          "{}: the operator must be of float32 or float64. Received {}.", op, name_of(a.dtype));
  require(a.order <= need_lapack(op).largest_size(), "{}: orders must be at most {} with this LAPACK. Received {}.", op,
          need_lapack(op).largest_size(), a.order);
  require(k >= 1 && k <= a.order, "{}: k must be from 1 to the order of the operator ({}). Received {}.", op, a.order,
          k);
  require(options.tolerance >= 0 && std::isfinite(options.tolerance), "{}: tol must not be negative. Received {}.", op,
          options.tolerance);
  require(options.most_basis >= 0, "{}: max_basis must not be negative. Received {}.", op, options.most_basis);
  check_array(op, "w", w, {k}, a.dtype);
  check_array(op, "v", v, {a.order, k}, a.dtype);
  require(!ops::overlaps_itself(w) && !ops::overlaps_itself(v) && !ops::overlap(w, v),
          "{}: elements of w and v must not share memory. Received {} and {}.", op, w.to_text(), v.to_text());
  std::int64_t missed = 0;
  if (a.dtype == Dtype::float64)
    missed = Lanczos<double>(op, a, k, options, context).run(as_matrix<double>(w), as_matrix<double>(v));
  else
    missed = Lanczos<float>(op, a, k, options, context).run(as_matrix<float>(w), as_matrix<float>(v));
  if (options.unconverged != nullptr)
    *options.unconverged = missed;
  else if (missed > 0)
    fail(
        ErrorKind::numerical,
        "{}: residuals must meet the tolerance. Received {} of {} pairs that miss it; a larger max_basis or tol helps.",
        op, missed, k);
}

Operator matrix_operator(const Tensor& a, Context& context) {
  require(a.ndim() == 2 && a.shape[0] == a.shape[1], "eigh_top: a must have the shape [n, n]. Received {}.",
          ops::text_of(a.shape));
  check_array("eigh_top", "a", a, a.shape, a.dtype);
  Operator result{a.shape[0], a.dtype, {}};
  Context* const used = &context;
  result.multiply = [a, used](const Tensor& v, const Tensor& out) {
    const auto product = [&](auto type) {
      using T = decltype(type);
      Matrix<T> matrix = as_matrix<T>(a);
      AlignedBuffer copied;
      if (!matrix.suits_lapack()) {
        copied = aligned_array<T>(matrix.rows * matrix.rows);
        cpu::copy(matrix, packed_columns(copied.as<T>(), matrix.rows, matrix.rows));
        matrix = packed_columns(copied.as<T>(), matrix.rows, matrix.rows);
      }
      const bool by_rows = !matrix.is_column_major();
      const std::int64_t stride = (by_rows ? matrix.transposed() : matrix).stride();
      Blas("eigh_top", *used)([&](const Lapack& lapack) {
        lapack.gemm<T>(by_rows, false, matrix.rows, v.shape[1], matrix.rows, 1, matrix.data, stride,
                       static_cast<const T*>(v.data), v.strides[1], 0, static_cast<T*>(out.data), out.strides[1]);
      });
    };
    if (a.dtype == Dtype::float64)
      product(double{});
    else
      product(float{});
  };
  return result;
}

Operator kernel_operator(const Formula& f, const Tensor& x, double ridge, const Arguments& arguments,
                         Context& context) {
  require(x.ndim() == 2, "eigh_top: x must have the shape [n, K]. Received {}.", ops::text_of(x.shape));
  require(f.symmetric(), "eigh_top: the formula must be symmetric, f(x, z) = f(z, x). Received {}.",
          f.expression().to_text());
  Operator result{x.shape[0], x.dtype, {}};
  Context* const used = &context;
  result.multiply = [f, x, ridge, arguments, used](const Tensor& v, const Tensor& out) {
    kernel_product(f, x, nullptr, v, out, arguments, *used);
    if (ridge == 0) return;
    const auto add = [&](auto type) {
      using T = decltype(type);
      const Matrix<T> from = as_matrix<T>(v), to = as_matrix<T>(out);
      for (std::int64_t j = 0; j < from.cols; ++j)
        for (std::int64_t i = 0; i < from.rows; ++i) to(i, j) += static_cast<T>(ridge) * from(i, j);
    };
    if (x.dtype == Dtype::float64)
      add(double{});
    else
      add(float{});
  };
  return result;
}

}  // namespace mercer::linalg
