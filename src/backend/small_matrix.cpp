#include "backend/small_matrix.h"

#include "core/devices/lapack.h"

namespace mercer {
namespace {

/// Up to this order a call of LAPACK costs more than the arithmetic.
constexpr std::int64_t kSmallOrder = 24;

const Lapack* lapack_for(std::int64_t order) { return order > kSmallOrder ? lapack() : nullptr; }

}  // namespace

bool SmallAlgebra::factor_upper(SmallMatrix& a, double shift) const {
  const Lapack* const lapack = lapack_for(a.cols);
  if (lapack == nullptr) return mercer::factor_upper(a, shift);
  const std::int64_t n = a.cols;
  for (std::int64_t j = 0; j < n; ++j) a(j, j) += shift;
  {
    const LapackThreads threads(*lapack, threads_);
    if (lapack->potrf<double>(false, n, a.values.data(), n) != 0) return false;
  }
  for (std::int64_t j = 0; j < n; ++j) {
    if (!(a(j, j) > 0)) return false;
    for (std::int64_t i = j + 1; i < n; ++i) a(i, j) = 0;
  }
  return true;
}

SmallMatrix SmallAlgebra::product(const SmallMatrix& a, const SmallMatrix& b, bool a_transposed) const {
  SmallMatrix product(a_transposed ? a.cols : a.rows, b.cols);
  if (const Lapack* const lapack = lapack_for(std::max({product.rows, product.cols, b.rows}))) {
    const LapackThreads threads(*lapack, threads_);
    lapack->gemm<double>(a_transposed, false, product.rows, product.cols, b.rows, 1, a.values.data(), a.rows,
                         b.values.data(), b.rows, 0, product.values.data(), product.rows);
    return product;
  }
  for (std::int64_t j = 0; j < product.cols; ++j)
    for (std::int64_t i = 0; i < product.rows; ++i)
      for (std::int64_t p = 0; p < b.rows; ++p) product(i, j) += (a_transposed ? a(p, i) : a(i, p)) * b(p, j);
  return product;
}

SmallMatrix SmallAlgebra::inverse_upper(const SmallMatrix& u) const {
  const std::int64_t n = u.cols;
  SmallMatrix inverse(n, n);
  for (std::int64_t j = 0; j < n; ++j) inverse(j, j) = 1;
  if (const Lapack* const lapack = lapack_for(n)) {
    const LapackThreads threads(*lapack, threads_);
    lapack->trsm<double>(false, false, false, false, n, n, u.values.data(), n, inverse.values.data(), n);
    return inverse;
  }
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = j; i >= 0; --i) {
      double sum = i == j ? 1 : 0;
      for (std::int64_t p = i + 1; p <= j; ++p) sum -= u(i, p) * inverse(p, j);
      inverse(i, j) = sum / u(i, i);
    }
  return inverse;
}

}  // namespace mercer
