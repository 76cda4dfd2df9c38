// Products over n against the oracle's values; other folds against the values of pairwise.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "ops/testing.h"

namespace mercer::testing_support {

/// [m][n] values of the oracle.
inline std::vector<std::vector<double>> table(const Expr& f, const Tensor& x, const Tensor& z,
                                              const Extra& extra = {}) {
  Reference reference(f, x, z, extra);
  std::vector<std::vector<double>> values(reference.m());
  for (std::int64_t m = 0; m < reference.m(); ++m)
    for (std::int64_t n = 0; n < reference.n(); ++n) values[m].push_back(reference(m, n));
  return values;
}

/// The only row of `one`, so many times.
inline Tensor repeated(const Array& one, std::int64_t count) {
  Tensor rows = one;
  rows.shape[0] = count;
  rows.strides[0] = 0;
  return rows;
}

/// Within the contract of sums over n: 2 units of the sum of |terms|.
inline void expect_product(const Tensor& out, const std::vector<std::vector<double>>& k, const Tensor& v,
                           const std::string& what) {
  for (std::int64_t m = 0; m < out.shape[0]; ++m)
    for (std::int64_t e = 0; e < (out.ndim() == 2 ? out.shape[1] : 1); ++e) {
      double sum = 0, size = 0;
      for (std::size_t n = 0; n < k[m].size(); ++n) {
        const auto point = static_cast<std::int64_t>(n);
        const double term = k[m][n] * (v.ndim() == 2 ? read(v, {point, e}) : read(v, {point}));
        sum += term;
        size += std::abs(term);
      }
      const double value = out.ndim() == 2 ? read(out, {m, e}) : read(out, {m});
      ASSERT_TRUE(within(value, sum, 2 * unit(out.dtype) * size, out.dtype))
          << what << " at " << m << "," << e << ": " << value << " for " << sum << " of " << size;
    }
}

/// Items of a batch of products with 18 columns, of widths `b`, are bit by bit those of calls of their own.
inline void expect_product_items_alone(const Formula& f, std::int64_t m, std::int64_t n, std::int64_t k,
                                       const std::vector<double>& b, TestContext& context) {
  const auto items = static_cast<std::int64_t>(b.size());
  constexpr std::int64_t kColumns = 18;
  const Array x = normal(Dtype::float32, {2, 1, m, k}, 1), z = normal(Dtype::float32, {n, k}, 2);
  const Array v = normal(Dtype::float32, {items, n, kColumns}, 3), widths = filled(Dtype::float64, {items}, b);
  const Tensor zt = z;
  Arguments arguments;
  arguments.params["b"] = widths.tensor();
  const Array out(Dtype::float32, {2, items, m, kColumns});
  kernel_product(f, x, &zt, v, out, arguments, context);
  each_index({2, items}, [&](const Shape& i) {
    Arguments one;
    one.params["b"] = item(widths, {i[1]});
    const Array alone(Dtype::float32, {m, kColumns});
    kernel_product(f, item(x, {i[0], 0}), &zt, item(v, {i[1]}), alone, one, context);
    each_index({m, kColumns}, [&](const Shape& at) {
      ASSERT_EQ(out(i[0], i[1], at[0], at[1]), alone(at[0], at[1])) << i[0] << "," << i[1];
    });
  });
}

/// The fold by its definition: NaN wins, ties to the smaller index.
inline double folded(ReduceKind kind, const std::vector<double>& row) {
  const bool largest = kind == ReduceKind::max || kind == ReduceKind::argmax;
  std::size_t best = 0;
  double top = -kInf, sum = 0;
  for (std::size_t n = 0; n < row.size(); ++n) {
    if (kind == ReduceKind::sum) sum += row[n];
    top = row[n] > top || std::isnan(row[n]) ? row[n] : top;
    const bool better = largest ? row[n] > row[best] : row[n] < row[best];
    if (better || (std::isnan(row[n]) && !std::isnan(row[best]))) best = n;
    if (std::isnan(top)) break;
  }
  switch (kind) {
    case ReduceKind::sum: return sum;
    case ReduceKind::argmax:
    case ReduceKind::argmin: return static_cast<double>(best);
    case ReduceKind::logsumexp: {
      if (std::isnan(top) || std::isinf(top)) return top;
      for (double value : row) sum += std::exp(value - top);
      return top + std::log(sum);
    }
    default: return row[best];
  }
}

inline constexpr ReduceKind kKinds[] = {ReduceKind::sum,    ReduceKind::max,    ReduceKind::min,
                                        ReduceKind::argmax, ReduceKind::argmin, ReduceKind::logsumexp};

/// Indices need values on which both sides agree: those of pairwise, themselves checked against the oracle.
inline void expect_reductions(const char* text, const Tensor& x, const Tensor& z, TestContext& context) {
  const Dtype dtype = x.dtype;
  const Array pairs(dtype, {x.shape[0], z.shape[0]});
  context.set_ways("pairwise:packed_tile,pairwise:packed_halves");  // folds are of its values
  pairwise(text, x, &z, pairs, {}, context);
  context.set_ways("");
  for (ReduceKind kind : kKinds) {
    const bool index = kind == ReduceKind::argmax || kind == ReduceKind::argmin;
    const Array out(index ? Dtype::int64 : dtype, {x.shape[0]});
    kernel_reduce(text, x, &z, kind, out, {}, context);
    for (std::int64_t m = 0; m < x.shape[0]; ++m) {
      std::vector<double> row;
      double size = 1;
      for (std::int64_t n = 0; n < z.shape[0]; ++n) {
        row.push_back(pairs(m, n));
        if (kind == ReduceKind::sum) size += std::abs(row.back());
      }
      const double wanted = folded(kind, row);
      if (kind == ReduceKind::logsumexp) size += std::abs(wanted);
      const bool exact = kind != ReduceKind::sum && kind != ReduceKind::logsumexp;
      ASSERT_TRUE(within(out(m), wanted, exact ? 0 : unit(dtype) * size, dtype))
          << text << ", " << name_of(kind) << " at " << m << ": " << out(m) << " for " << wanted;
    }
  }
}

}  // namespace mercer::testing_support
