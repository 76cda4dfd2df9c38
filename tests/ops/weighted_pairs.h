// Points of two sides whose pairs have the weights u v': what the tests of backward calls draw.
#pragma once

#include <utility>

#include "mercer/formula.h"
#include "ops/testing.h"

namespace mercer::testing_support {

struct WeightedPairs {
  Array x, z, u, v;
  Arguments arguments;
  Extra extra;  // the same, for the oracle

  /// Reads row and col where the formula does.
  WeightedPairs(const Expr& f, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t columns)
      : x(normal(dtype, {m, k}, 1)), z(normal(dtype, {n, k}, 2)), u(normal(dtype, {m, columns}, 3)),
        v(normal(dtype, {n, columns}, 4)), row_(normal(dtype, {m}, 5)), col_(normal(dtype, {n}, 6)) {
    if (!f->uses.row) return;
    arguments.row = row_;
    arguments.col = col_;
    for (std::int64_t i = 0; i < m; ++i) extra.row.push_back(row_(i));
    for (std::int64_t j = 0; j < n; ++j) extra.col.push_back(col_(j));
  }

  std::int64_t m() const { return x.shape()[0]; }
  std::int64_t n() const { return z.shape()[0]; }
  std::int64_t k() const { return x.shape()[1]; }

  /// u v', rounded as a call by a matrix has it.
  Array matrix(Dtype dtype) const {
    Array product(dtype, {m(), n()});
    each_index({m(), n()}, [&](const Shape& at) {
      double sum = 0;
      for (std::int64_t e = 0; e < u.shape()[1]; ++e) sum += u(at[0], e) * v(at[1], e);
      product.set(at, sum);
    });
    return product;
  }

 private:
  Array row_, col_;
};

inline Tensor transposed(const Array& array) {
  Tensor view = array;
  std::swap(view.shape[0], view.shape[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

}  // namespace mercer::testing_support
