#include "backend/block_basis.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/cpu/linalg/dense_matrix.h"
#include "core/error.h"
#include "core/system/aligned.h"
#include "core/system/apart.h"

namespace mercer::cpu {
namespace {

/// Orders from which LAPACK may take more than some tenths of a second.
constexpr std::int64_t kLongProblem = 768;

/// Owns what LAPACK writes: a call that is cancelled leaves it at work.
struct SmallProblem {
  explicit SmallProblem(std::int64_t m) : vectors(m * m), values(m) {}
  std::vector<double> vectors, values;
  std::int64_t info = 0;
};

template <class T>
class Basis final : public BlockBasis {
 public:
  Basis(const Sizes& sizes, Pool& pool)
      : BlockBasis(sizes), op_(sizes.op), n_(sizes.length), lapack_(need_lapack(sizes.op)), pool_(pool),
        random_(sizes.seed),
        basis_(aligned_array<T>(n_ * sizes.columns)), results_(aligned_array<T>(n_ * sizes.results)),
        h_(sizes.columns) {}

  Tensor basis(std::int64_t first, std::int64_t count) const override { return columns(basis_, first, count); }
  Tensor results(std::int64_t first, std::int64_t count) const override { return columns(results_, first, count); }

  void draw(std::int64_t first, std::int64_t count) override {
    std::normal_distribution<double> normal;
    for (std::int64_t j = first; j < first + count; ++j) {
      stop_if_cancelled();
      for (std::int64_t i = 0; i < n_; ++i) column(j)[i] = static_cast<T>(normal(random_));
    }
  }

  void fill(std::int64_t first, std::int64_t count, const std::vector<double>& values) override {
    for (std::int64_t i = 0; i < count * n_; ++i) column(first)[i] = static_cast<T>(values[i]);
  }

  std::vector<double> read(const Tensor& columns) override {
    const T* const values = static_cast<const T*>(columns.data);
    return {values, values + columns.count()};
  }

  bool seems_finite(const Tensor& columns) const override {
    return all_finite(packed_columns(static_cast<T*>(columns.data), n_, columns.shape[1]), Part::all);
  }

  void restart(const std::vector<double>& values) override { h_.restart(values); }
  void set_products(const std::vector<double>& h, std::int64_t m) override { h_.set(h, m); }

  void combine(std::int64_t held, std::int64_t count, const std::vector<double>& s) override {
    const std::vector<T> narrow(s.begin(), s.end());
    with_blas([&] {
      lapack_.gemm<T>(false, false, n_, count, held, 1, column(0), n_, narrow.data(), held, 0, results_.as<T>(), n_);
    });
  }

  void copy(const Tensor& from, const Tensor& to) override { cpu::copy(matrix(from), matrix(to)); }

  std::vector<double> residuals(const Tensor& columns, const Tensor& product,
                                const std::vector<double>& values) override {
    std::vector<double> result(values.size());
    const Matrix<T> u = matrix(columns), p = matrix(product);
    for (std::int64_t j = 0; j < u.cols; ++j) {
      stop_if_cancelled();
      double squares = 0;
      for (std::int64_t i = 0; i < n_; ++i) {
        const double gap = double(p(i, j)) - values[j] * double(u(i, j));
        squares += gap * gap;
      }
      result[j] = std::sqrt(squares);
    }
    return result;
  }

  void write(const std::vector<double>& values, const Tensor& to) override {
    for (std::size_t j = 0; j < values.size(); ++j)
      static_cast<T*>(to.data)[static_cast<std::int64_t>(j) * to.strides[0]] = static_cast<T>(values[j]);
  }

  SmallPairs decompose(std::int64_t m, const Choice& choice) override {
    const auto problem = std::make_shared<SmallProblem>(m);
    for (std::int64_t j = 0; j < m; ++j) std::copy_n(&h_.at(0, j), m, problem->vectors.begin() + j * m);
    const auto solve = [problem, m, &lapack = lapack_, threads = pool_.threads()] {
      const LapackThreads setting(lapack, threads);
      const auto size = lapack.syevd_scratch<double>(true, m);
      std::vector<double> elements(size.elements);
      std::vector<std::int64_t> integers(size.integers);
      problem->info = lapack.syevd(true, true, m, problem->vectors.data(), m, problem->values.data(), elements.data(),
                                   integers.data(), size);
    };
    if (m >= kLongProblem)
      run_apart(solve);
    else
      solve();
    if (problem->info != 0)
      fail(ErrorKind::numerical, "{}: the small problem must converge. Received {}.", op_, problem->info);
    SmallPairs pairs{std::move(problem->values), {}, {}};
    pairs.wanted = choice(pairs.values);
    for (const std::int64_t index : pairs.wanted)
      pairs.vectors.insert(pairs.vectors.end(), problem->vectors.begin() + index * m,
                           problem->vectors.begin() + (index + 1) * m);
    return pairs;
  }

 protected:
  Projection project(std::int64_t first, std::int64_t count) override {
    std::vector<T> c(static_cast<std::size_t>(std::max<std::int64_t>(first, 1) * count), 0);
    std::vector<T> gram(static_cast<std::size_t>(count * count));
    T* const block = column(first);
    with_blas([&] {
      if (first > 0) {
        lapack_.gemm<T>(true, false, first, count, n_, 1, column(0), n_, block, n_, 0, c.data(), first);
        lapack_.gemm<T>(false, false, n_, count, first, -1, column(0), n_, c.data(), first, 1, block, n_);
      }
      lapack_.syrk<T>(false, true, count, n_, 1, block, n_, 0, gram.data(), count);
    });
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t i = 0; i < j; ++i) gram[j + i * count] = gram[i + j * count];
    return {{c.begin(), c.end()}, {gram.begin(), gram.end()}};
  }

  void divide(std::int64_t first, std::int64_t count, const std::vector<double>& u) override {
    const std::vector<T> narrow(u.begin(), u.end());
    with_blas(
        [&] { lapack_.trsm<T>(true, false, false, false, n_, count, narrow.data(), count, column(first), n_); });
  }

  void record(std::int64_t first, std::int64_t count, const std::vector<double>& c) override {
    h_.record(first, count, c);
  }

 private:
  T* column(std::int64_t j) const { return basis_.as<T>() + j * n_; }
  Tensor columns(const AlignedBuffer& buffer, std::int64_t first, std::int64_t count) const {
    return {buffer.as<T>() + first * n_, dtype_of<T>(), {n_, count}, {1, n_}};
  }
  static Matrix<T> matrix(const Tensor& t) {
    return {static_cast<T*>(t.data), t.shape[0], t.shape[1], t.strides[0], t.strides[1]};
  }
  /// LAPACK and BLAS on all threads of the pool, between products.
  template <class Work>
  void with_blas(const Work& work) const {
    const LapackThreads threads(lapack_, pool_.threads());
    work();
  }

  const char* op_;
  const std::int64_t n_;
  const Lapack& lapack_;
  Pool& pool_;
  std::mt19937_64 random_;
  AlignedBuffer basis_, results_;
  HostProducts h_;
};

}  // namespace

std::unique_ptr<BlockBasis> block_basis(const BlockBasis::Sizes& sizes, Pool& pool) {
  if (sizes.type == Dtype::float64) return std::make_unique<Basis<double>>(sizes, pool);
  return std::make_unique<Basis<float>>(sizes, pool);
}

}  // namespace mercer::cpu
