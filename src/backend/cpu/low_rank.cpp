#include "backend/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/dense_matrix.h"
#include "core/aligned.h"

namespace mercer::cpu {
namespace {

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

  void apply(double scale, const Tensor& r, const Tensor& out, const Queue&) const override {
    const std::int64_t k = r.shape[1];
    const Matrix<T> from{static_cast<T*>(r.data), n_, k, 1, r.strides[1]};
    const Matrix<T> to{static_cast<T*>(out.data), n_, k, 1, out.strides[1]};
    cpu::copy(from, to);
    std::vector<T> parts(static_cast<std::size_t>(rank_ * k));
    const LapackThreads threads(lapack_, pool_.threads());
    lapack_.gemm<T>(true, false, rank_, k, n_, 1, memory_.as<T>(), n_, from.data, from.stride(), 0, parts.data(),
                    rank_);
    lapack_.gemm<T>(false, false, n_, k, rank_, static_cast<T>(-scale), memory_.as<T>(), n_, parts.data(), rank_,
                    static_cast<T>(scale), to.data, to.stride());
  }

 private:
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

  Start begin(const Tensor& diagonal) override {
    for (std::int64_t i = 0; i < n_; ++i) left_[i] = static_cast<const T*>(diagonal.data)[i * diagonal.strides[0]];
    return {largest(), *std::min_element(left_.begin(), left_.end())};
  }

  Pivot add(const Tensor& columns, Pivot pivot) override {
    T* const all = static_cast<T*>(columns.data);
    const std::int64_t before = columns.shape[1] - 1;
    T* const column = all + before * n_;
    if (before > 0) {
      const LapackThreads threads(lapack_, pool_.threads());
      lapack_.gemm<T>(false, true, n_, 1, before, -1, all, n_, all + pivot.index, n_, 1, column, n_);
    }
    const double root = std::sqrt(pivot.left);
    for (std::int64_t i = 0; i < n_; ++i) {
      column[i] = static_cast<T>(i == pivot.index ? root : double(column[i]) / root);
      left_[i] -= double(column[i]) * double(column[i]);
    }
    left_[pivot.index] = 0;
    return largest();
  }

 private:
  Pivot largest() const {
    Pivot most{0, n_ > 0 ? left_[0] : 0};
    for (std::int64_t i = 0; i < n_; ++i) {
      if (!std::isfinite(left_[i])) return {i, std::numeric_limits<double>::quiet_NaN()};
      if (left_[i] > most.left) most = {i, left_[i]};
    }
    return most;
  }

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
