#include "backend/row_sums.h"

#include <cmath>
#include <cstring>

namespace mercer::cpu {
namespace {

template <class T>
struct Values {
  const T* data;
  std::int64_t row, col;
  explicit Values(const Tensor* t)
      : data(t != nullptr ? static_cast<const T*>(t->data) : nullptr), row(t != nullptr ? t->strides[0] : 0),
        col(t != nullptr && t->ndim() > 1 ? t->strides[1] : 0) {}
  double operator()(std::int64_t i, std::int64_t j) const { return data[i * row + j * col]; }
};

template <class T>
void sum_rows_of(const RowSum& sum, const Tensor& out) {
  const Values<T> from(sum.from), weights(sum.weights), v(sum.v), ridges(sum.ridges);
  T* const to = static_cast<T*>(out.data);
  for (std::int64_t j = 0; j < out.shape[1]; ++j)
    for (std::int64_t i = 0; i < out.shape[0]; ++i) {
      double value = from.data != nullptr ? from(i, j) : 0;
      if (weights.data != nullptr) value *= std::sqrt(weights(i, 0));
      if (v.data != nullptr) value += (sum.amount + (ridges.data != nullptr ? ridges(i, 0) : 0)) * v(i, j);
      to[i * out.strides[0] + j * out.strides[1]] = static_cast<T>(value);
    }
}

}  // namespace

void sum_rows(const RowSum& sum, const Tensor& out) {
  if (out.dtype == Dtype::float64)
    sum_rows_of<double>(sum, out);
  else
    sum_rows_of<float>(sum, out);
}

void gather_rows(const Tensor& from, const std::vector<std::int64_t>& indices, void* to) {
  const auto bytes = static_cast<std::int64_t>(size_of(from.dtype));
  const std::int64_t columns = from.ndim() > 1 ? from.shape[1] : 1, step = from.ndim() > 1 ? from.strides[1] : 0;
  char* next = static_cast<char*>(to);
  for (const std::int64_t i : indices)
    for (std::int64_t k = 0; k < columns; ++k, next += bytes)
      std::memcpy(next, static_cast<const char*>(from.data) + (i * from.strides[0] + k * step) * bytes,
                  static_cast<std::size_t>(bytes));
}

}  // namespace mercer::cpu
