#include "backend/low_rank.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/linalg/dense_matrix.h"
#include "core/system/aligned.h"

namespace mercer::cpu {
namespace {

template <class T>
Matrix<T> matrix_of(const Tensor& t) {
  return {static_cast<T*>(t.data), t.shape[0], t.shape[1], 1, t.strides[1]};
}

template <class T>
class Factor;

template <class T>
class Map final : public LowRankMap {
 public:
  Map(std::shared_ptr<const Factor<T>> factor, const LowRankWeights& weights)
      : factor_(std::move(factor)), weights_(weights) {}

  void apply(const Tensor& r, const Tensor& out, const Queue&) const override {
    const Factor<T>& u = *factor_;
    const std::int64_t n = u.n_, rank = u.rank_, k = r.shape[1];
    const Matrix<T> from = matrix_of<T>(r), to = matrix_of<T>(out);
    cpu::copy(from, to);
    std::vector<T> parts(static_cast<std::size_t>(rank * k));
    const LapackThreads threads(u.lapack_, u.pool_.threads());
    u.lapack_.template gemm<T>(true, false, rank, k, n, 1, u.data(), n, from.data, from.stride(), 0, parts.data(),
                               rank);
    const bool is_one = weights_.count() == 1;
    for (std::int64_t j = 0; j < k; ++j) {
      const double* const own = weights_.weights.data() + (is_one ? 0 : j * rank);
      T* const column = parts.data() + j * rank;
      for (std::int64_t i = 0; i < rank; ++i) column[i] = static_cast<T>(own[i] * double(column[i]));
    }
    const auto scale = static_cast<T>(is_one ? weights_.scales[0] : 1);
    u.lapack_.template gemm<T>(false, false, n, k, rank, -scale, u.data(), n, parts.data(), rank, scale, to.data,
                               to.stride());
    if (is_one) return;
    for (std::int64_t j = 0; j < k; ++j)
      for (std::int64_t i = 0; i < n; ++i) to(i, j) = static_cast<T>(weights_.scales[j] * double(to(i, j)));
  }

 private:
  const std::shared_ptr<const Factor<T>> factor_;
  const LowRankWeights weights_;
};

template <class T>
class Factor final : public TallFactor {
 public:
  Factor(const char* op, std::int64_t length, std::int64_t rank, Pool& pool)
      : n_(length), rank_(rank), lapack_(need_lapack(op)), pool_(pool), memory_(aligned_array<T>(length * rank)) {}

  Tensor columns() const override { return {memory_.as<T>(), dtype_of<T>(), {n_, rank_}, {1, n_}}; }

  void copy(void* host, bool to_host) const override {
    void* const own = memory_.as<T>();
    std::memcpy(to_host ? host : own, to_host ? own : host, static_cast<std::size_t>(n_ * rank_) * sizeof(T));
  }

  std::unique_ptr<LowRankMap> map(const LowRankWeights& weights, const Queue&) const override {
    return std::make_unique<Map<T>>(std::static_pointer_cast<const Factor>(shared_from_this()), weights);
  }

  std::vector<double> row_squares(const std::vector<double>& weights, const Queue&) const override {
    std::vector<double> sums(static_cast<std::size_t>(n_), 0);
    for (std::int64_t j = 0; j < rank_; ++j) {
      stop_if_cancelled();
      const T* const column = data() + j * n_;
      for (std::int64_t i = 0; i < n_; ++i) sums[i] += weights[j] * double(column[i]) * double(column[i]);
    }
    return sums;
  }

  void scaled(const std::vector<double>& rows, const std::vector<double>& columns, const Tensor& to,
              const Queue&) const override {
    const Matrix<T> out = matrix_of<T>(to);
    for (std::int64_t j = 0; j < rank_; ++j)
      for (std::int64_t i = 0; i < n_; ++i)
        out(i, j) = static_cast<T>(rows[i] * columns[j] * double(data()[i + j * n_]));
  }

 private:
  friend class Map<T>;
  T* data() const { return memory_.as<T>(); }

  const std::int64_t n_, rank_;
  const Lapack& lapack_;
  Pool& pool_;
  AlignedBuffer memory_;
};

template <class T>
class Pivots final : public PivotedColumns {
 public:
  Pivots(const char* op, std::int64_t length, Pool& pool)
      : n_(length), lapack_(need_lapack(op)), pool_(pool), left_(static_cast<std::size_t>(length)) {}

  void begin(const Tensor& diagonal) override {
    for (std::int64_t i = 0; i < n_; ++i) left_[i] = static_cast<const T*>(diagonal.data)[i * diagonal.strides[0]];
  }

  std::vector<double>& left() override { return left_; }

  SmallMatrix rows(const Tensor& columns, const std::vector<std::int64_t>& indices) override {
    const auto count = static_cast<std::int64_t>(indices.size());
    SmallMatrix found(count, columns.shape[1]);
    for (std::int64_t j = 0; j < found.cols; ++j) {
      const T* const column = static_cast<const T*>(columns.data) + j * n_;
      for (std::int64_t i = 0; i < count; ++i) found(i, j) = double(column[indices[i]]);
    }
    return found;
  }

  void add(const Tensor& columns, const std::vector<std::int64_t>& pivots, const SmallMatrix& above,
           const SmallMatrix& factor) override {
    const std::int64_t count = factor.cols, before = columns.shape[1] - count;
    T* const all = static_cast<T*>(columns.data);
    T* const block = all + before * n_;
    const std::vector<T> rows(above.values.begin(), above.values.end()), u(factor.values.begin(), factor.values.end());
    {
      const LapackThreads threads(lapack_, pool_.threads());
      if (before > 0)
        lapack_.gemm<T>(false, true, n_, count, before, -1, all, n_, rows.data(), count, 1, block, n_);
      lapack_.trsm<T>(true, false, false, false, n_, count, u.data(), count, block, n_);
    }
    for (std::int64_t j = 0; j < count; ++j) {
      T* const column = block + j * n_;
      for (std::int64_t i = 0; i < count; ++i) column[pivots[i]] = static_cast<T>(factor(j, i));
      for (std::int64_t i = 0; i < n_; ++i) left_[i] -= double(column[i]) * double(column[i]);
    }
    for (const std::int64_t pivot : pivots) left_[pivot] = 0;
  }

 private:
  const std::int64_t n_;
  const Lapack& lapack_;
  Pool& pool_;
  std::vector<double> left_;
};

}  // namespace

std::shared_ptr<TallFactor> tall_factor(const char* op, Dtype type, std::int64_t length, std::int64_t rank,
                                        Pool& pool) {
  if (type == Dtype::float64) return std::make_shared<Factor<double>>(op, length, rank, pool);
  return std::make_shared<Factor<float>>(op, length, rank, pool);
}

std::unique_ptr<PivotedColumns> pivoted_columns(const char* op, Dtype type, std::int64_t length, Pool& pool) {
  if (type == Dtype::float64) return std::make_unique<Pivots<double>>(op, length, pool);
  return std::make_unique<Pivots<float>>(op, length, pool);
}

}  // namespace mercer::cpu
