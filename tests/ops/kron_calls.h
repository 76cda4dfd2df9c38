// Calls of mercer::kron::matmul, against products in long double, by the bound of mercer/kron.h.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/context.h"
#include "ops/kron_mirror.h"
#include "ops/testing.h"

namespace mercer::testing_support {

using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;  // P, Q of each factor

/// A call, and what it has been given.
struct Call {
  Sizes sizes;
  std::int64_t rows = 3, items = 1;
  Dtype dtype = Dtype::float32;
  bool turned = false, gaps = false;  // factors lie by columns; x and out have something between neighbours
  double alpha = 1, beta = 0;
  double x_scale = 1, factor_scale = 1;
  bool by_columns = false;  // rows of x, y and out are neighbours in memory, as in products from the left
};

inline Call call_of(Sizes sizes, std::int64_t rows, Dtype dtype = Dtype::float32) {
  Call call;
  call.sizes = std::move(sizes);
  call.rows = rows;
  call.dtype = dtype;
  return call;
}

/// A batch with factors of each item, that lie by columns, and with alpha, beta and y.
inline Call with_items(Call call, std::int64_t items) {
  call.items = items;
  call.turned = true;
  call.alpha = -0.5;
  call.beta = 2;
  return call;
}

/// Strides of x or out.
inline Shape spread(const Call& c, const Shape& shape) {
  if (c.by_columns) return {shape[1] * shape[2], 1, shape[1]};
  if (!c.gaps) return row_major(shape);
  Shape wide = shape;
  wide.back() = 2 * wide.back() + 1;
  Shape strides = row_major(wide);
  strides.back() = 2;
  return strides;
}

inline std::int64_t extent(const Sizes& sizes, bool of_p) {
  std::int64_t product = 1;
  for (const auto& [p, q] : sizes) product *= of_p ? p : q;
  return product;
}

struct Arrays {
  Array x, y, out;
  std::vector<Array> factors;
  std::vector<Tensor> views;
  explicit Arrays(const Call& c)
      : x(normal(c.dtype, {c.items, c.rows, extent(c.sizes, true)}, 1, c.x_scale,
                 spread(c, {c.items, c.rows, extent(c.sizes, true)}))),
        y(normal(c.dtype, {c.items, c.rows, extent(c.sizes, false)}, 2, c.x_scale,
                 spread(c.by_columns ? c : Call{}, {c.items, c.rows, extent(c.sizes, false)}))),
        out(c.dtype, {c.items, c.rows, extent(c.sizes, false)},
            spread(c, {c.items, c.rows, extent(c.sizes, false)})) {
    unsigned seed = 3;
    for (const auto& [p, q] : c.sizes)
      factors.push_back(normal(c.dtype, {c.items, p, q}, seed++, c.factor_scale,
                               c.turned ? column_major({c.items, p, q}) : Shape{}));
    for (const Array& factor : factors) views.push_back(factor.tensor());
  }
  void multiply(const Call& c, TestContext& context, const Tensor& to, ops::Trial* trial = nullptr) const {
    const Tensor added = y;
    kron::Options options{.alpha = c.alpha, .beta = c.beta, .y = c.beta != 0 ? &added : nullptr};
    options.queue.trial = trial;
    matmul(x, views, to, options, context);
  }
};

/// Row m of item i of x times all factors, or of magnitudes.
inline std::vector<long double> product_of(const Call& c, const Arrays& a, std::int64_t i, std::int64_t m,
                                           bool magnitudes) {
  const auto value = [&](double v) -> long double { return magnitudes ? std::abs(v) : v; };
  std::vector<long double> row;
  for (std::int64_t e = 0; e < extent(c.sizes, true); ++e) row.push_back(value(a.x(i, m, e)));
  std::int64_t left = 1;
  for (std::size_t f = 0; f < c.sizes.size(); ++f) {
    const auto [p, q] = c.sizes[f];
    const std::int64_t right = static_cast<std::int64_t>(row.size()) / left / p;
    std::vector<long double> next(static_cast<std::size_t>(left * q * right));
    for (std::int64_t k = 0; k < p; ++k)
      for (std::int64_t j = 0; j < q; ++j) {
        const long double factor = value(a.factors[f](i, k, j));
        for (std::int64_t l = 0; l < left; ++l)
          for (std::int64_t r = 0; r < right; ++r)
            next[(l * q + j) * right + r] += row[(l * p + k) * right + r] * factor;
      }
    row.swap(next);
    left *= q;
  }
  return row;
}

/// max |x row| prod P_i max |F_i|
inline double size_of_row(const Call& c, const Arrays& a, std::int64_t i, std::int64_t m) {
  double size = 0;
  for (std::int64_t e = 0; e < extent(c.sizes, true); ++e) size = std::max(size, std::abs(a.x(i, m, e)));
  for (std::size_t f = 0; f < c.sizes.size(); ++f) {
    double most = 0;
    each_index({c.sizes[f].first, c.sizes[f].second},
               [&](const Shape& at) { most = std::max(most, std::abs(a.factors[f](i, at[0], at[1]))); });
    size *= most * static_cast<double>(c.sizes[f].first);
  }
  return size;
}

/// The whole bound: arithmetic, and one rounding to the type of out, which also has a least magnitude.
inline double bound_of(const Call& c, double wanted, double magnitude, double added, double row_size) {
  double steps = 2;
  for (const auto& [p, q] : c.sizes) steps += static_cast<double>(p) + 2;
  const double size = std::abs(c.alpha) * magnitude + std::abs(c.beta * added);
  if (c.dtype == Dtype::float64) return steps * 0x1p-53 * size;
  const double last = c.dtype == Dtype::float16 ? 0x1p-11 : c.dtype == Dtype::bfloat16 ? 0x1p-8 : 0;
  const double least = c.dtype == Dtype::float16 ? 0x1p-25 : 0x1p-149;
  return steps * 0x1p-22 * size + 0x1p-26 * std::abs(c.alpha) * row_size + 1.01 * last * std::abs(wanted) + least;
}

/// The first, the last, and one between.
inline std::vector<std::int64_t> some_of(std::int64_t count) {
  std::vector<std::int64_t> some = {0, count / 2, count - 1};
  some.erase(std::unique(some.begin(), some.end()), some.end());
  return some;
}

/// Some rows of some items.
inline void expect_right(const Call& c, const Arrays& a, const Tensor& out) {
  for (const std::int64_t i : some_of(c.items))
    for (const std::int64_t m : some_of(c.rows)) {
      const std::vector<long double> values = product_of(c, a, i, m, false), sizes = product_of(c, a, i, m, true);
      const double row_size = size_of_row(c, a, i, m);
      for (std::int64_t j = 0; j < extent(c.sizes, false); ++j) {
        const double added = c.beta != 0 ? a.y(i, m, j) : 0, value = read(out, {i, m, j});
        const long double exact = c.alpha * values[j] + static_cast<long double>(c.beta) * added;
        const auto wanted = static_cast<double>(exact), size = static_cast<double>(sizes[j]);
        const double bound = bound_of(c, wanted, size, added, row_size);
        // The reference of a float64 product has digits that a double has not.
        const bool right = c.dtype == Dtype::float64 ? static_cast<double>(std::abs(value - exact)) <= bound
                                                     : within(value, wanted, bound, c.dtype);
        ASSERT_TRUE(right) << name_of(c.dtype) << " " << c.sizes[0].first << " at " << i << ", " << m << ", " << j
                           << ": " << value << " for " << wanted << ", off by " << std::abs(value - wanted) / bound
                           << " bounds";
      }
    }
}

inline void expect_right(const Call& c, TestContext& context) {
  const Arrays a(c);
  a.multiply(c, context, a.out);
  expect_right(c, a, a.out);
}

inline void expect_all_right(const std::vector<Call>& calls) {
  on_cuda([&](TestContext& context) {
    for (const Call& call : calls) {
      expect_right(call, context);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

/// Rows that are not finite leave the others alone: not a bit differs. Six rows, of as many values as results.
inline void expect_rows_apart(const Call& c, Arrays& a, TestContext& context) {
  const std::int64_t k = extent(c.sizes, true);
  a.multiply(c, context, a.out);
  expect_right(c, a, a.out);
  const Array clean = copy(a.out, c.dtype);
  a.x.set({0, 3, k / 2}, kNan);
  a.x.set({0, 5, k - 1}, -kInf);
  a.multiply(c, context, a.out);
  for (std::int64_t m = 0; m < 6; ++m)
    for (std::int64_t j = 0; j < k; ++j) {
      if (m == 3) ASSERT_TRUE(std::isnan(a.out(0, m, j)));
      else if (m == 5) ASSERT_FALSE(std::isfinite(a.out(0, m, j)));
      else ASSERT_EQ(a.out(0, m, j), clean(0, m, j));
    }
}

/// A factor's value that is not finite reaches its own outputs, and no other's.
inline void expect_outputs_apart(const Call& c, TestContext& context) {
  constexpr std::int64_t kColumn = 7;
  std::int64_t right = 1;
  for (std::size_t f = c.sizes.size(); f-- > 0; right *= c.sizes[f].second)
    for (const double bad : {kNan, kInf}) {
      Arrays a(c);
      a.multiply(c, context, a.out);
      const Array clean = copy(a.out, c.dtype);
      a.factors[f].set({0, 5, kColumn}, bad);
      a.multiply(c, context, a.out);
      for (std::int64_t m = 0; m < c.rows; ++m)
        for (std::int64_t j = 0; j < extent(c.sizes, false); ++j) {
          const double value = a.out(0, m, j);
          if (j / right % c.sizes[f].second == kColumn) ASSERT_FALSE(std::isfinite(value)) << f << " " << j;
          else ASSERT_EQ(value, clean(0, m, j)) << f << " " << j;
        }
    }
}

/// A product may take the place of x: bit by bit what it is elsewhere.
inline void expect_in_place(const Call& c, TestContext& context) {
  const Arrays a(c);
  a.multiply(c, context, a.out);
  a.multiply(c, context, a.x);
  ASSERT_TRUE(same_bits(a.x, a.out)) << c.sizes[0].first << " " << c.gaps;
}

}  // namespace mercer::testing_support
