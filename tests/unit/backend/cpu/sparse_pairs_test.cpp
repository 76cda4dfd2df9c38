// Sums of pairs of sparse points against dense sums in long double; arrays that are no sparse rows are refused.
#include "backend/cpu/pairs/sparse_pairs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "mercer/device.h"
#include "mercer/error.h"

namespace mercer::cpu {
namespace {

constexpr double kUnit = std::numeric_limits<double>::epsilon() / 2;

/// Points [count, features], most of them 0, and as compressed rows.
template <class Index>
struct Points {
  Points(std::int64_t count_in, std::int64_t features_in, double density, unsigned seed)
      : count(count_in), features(features_in), dense(static_cast<std::size_t>(count_in * features_in)) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform;
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t k = 0; k < features; ++k)
        if (i % 7 != 3 && uniform(random) < density) at(i, k) = normal(random);  // some points have no values
    compress();
  }
  double& at(std::int64_t i, std::int64_t k) { return dense[static_cast<std::size_t>(i * features + k)]; }
  double at(std::int64_t i, std::int64_t k) const { return dense[static_cast<std::size_t>(i * features + k)]; }
  void compress() {
    starts.assign(1, 0);
    columns.clear();
    values.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t k = 0; k < features; ++k) {
        if (at(i, k) == 0) continue;
        columns.push_back(static_cast<Index>(k));
        values.push_back(at(i, k));
      }
      starts.push_back(static_cast<Index>(columns.size()));
    }
    views = {view(starts.data(), {std::ssize(starts)}), view(columns.data(), {std::ssize(columns)}),
             view(values.data(), {std::ssize(values)})};
  }
  SparseRows rows() const { return {views[0], views[1], views[2]}; }

  std::int64_t count, features;
  std::vector<double> dense, values;
  std::vector<Index> starts, columns;
  std::vector<Tensor> views;
};

struct Sum {
  long double value = 0, sizes = 0;
};

template <class Index>
Sum dot(const Points<Index>& x, std::int64_t i, const Points<Index>& z, std::int64_t j, const std::vector<double>& w) {
  Sum sum;
  for (std::int64_t k = 0; k < x.features; ++k) {
    const long double term = (w.empty() ? 1.0L : w[static_cast<std::size_t>(k)]) * x.at(i, k) * z.at(j, k);
    sum.value += term;
    sum.sizes += std::abs(term);
  }
  return sum;
}

template <class Index>
Sum square(const Points<Index>& x, std::int64_t i, const Points<Index>& z, std::int64_t j,
           const std::vector<double>& w) {
  Sum sum;
  for (std::int64_t k = 0; k < x.features; ++k) {
    const long double gap = static_cast<long double>(x.at(i, k)) - z.at(j, k);
    const long double term = (w.empty() ? 1.0L : w[static_cast<std::size_t>(k)]) * gap * gap;
    sum.value += term;
    sum.sizes += std::abs(term);
  }
  return sum;
}

std::vector<double> weights_for(std::int64_t features, double least) {
  std::vector<double> w(static_cast<std::size_t>(features));
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(least, 1);
  for (double& value : w) value = uniform(random);
  return w;
}

/// Every block of rows and columns, on one thread and on three.
template <class Index>
void check(const Points<Index>& x, const Points<Index>* z_in, const std::vector<double>& w) {
  const Points<Index>& z = z_in == nullptr ? x : *z_in;
  const Tensor weights = view(w.data(), {std::ssize(w)});
  const SparseRows of_z = z.rows();
  const SparsePairs pairs(x.rows(), z_in == nullptr ? nullptr : &of_z, x.features, w.empty() ? nullptr : &weights);
  ASSERT_EQ(pairs.rows(), x.count);
  ASSERT_EQ(pairs.cols(), z.count);
  constexpr double kNear = 1e-3;
  for (int threads : {1, 3}) {
    Pool pool(threads);
    for (std::int64_t row : {std::int64_t{0}, x.count / 3}) {
      for (std::int64_t col : {z.count / 2, std::int64_t{0}, z.count}) {  // ahead, back, and past all
        const std::int64_t count = x.count - row, cols = z.count - col, stride = cols + 3;
        std::vector<double> dots(static_cast<std::size_t>(count * stride), -7), squares(dots);
        const Tensor to_dots(dots.data(), Dtype::float64, {count, cols}, {stride, 1});
        const Tensor to_squares(squares.data(), Dtype::float64, {count, cols}, {stride, 1});
        pairs.dots(row, col, to_dots, pool);
        pairs.squares(row, col, kNear, to_squares, pool);
        for (std::int64_t i = 0; i < count; ++i) {
          for (std::int64_t j = 0; j < stride; ++j) {
            const auto place = static_cast<std::size_t>(i * stride + j);
            if (j >= cols) {
              EXPECT_EQ(dots[place], -7);
              EXPECT_EQ(squares[place], -7);
              continue;
            }
            // Each addend is rounded at most K + 2 times.
            const double roundings = kUnit * static_cast<double>(x.features + 2);
            const Sum exact_dot = dot(x, row + i, z, col + j, w), exact = square(x, row + i, z, col + j, w);
            EXPECT_NEAR(dots[place], static_cast<double>(exact_dot.value),
                        roundings * static_cast<double>(exact_dot.sizes));
            const long double norms = dot(x, row + i, x, row + i, w).sizes + dot(z, col + j, z, col + j, w).sizes;
            // Norms give three sums that are each at most `norms`; differences give a sum of their own.
            const bool may_expand = std::abs(exact.value) > 0.9 * kNear * norms;
            EXPECT_NEAR(squares[place], static_cast<double>(exact.value),
                        4 * roundings * static_cast<double>(may_expand ? norms + norms : exact.sizes));
            if (z_in == nullptr && row + i == col + j) EXPECT_EQ(squares[place], 0);
          }
        }
      }
    }
  }
}

/// Sums of x / |x| and z / |z|, and roots: each factor adds at most K + 4 roundings, for the sum, root and quotient.
void check_units(const Points<std::int32_t>& x, const Points<std::int32_t>& z, const std::vector<double>& w) {
  const Tensor weights = view(w.data(), {std::ssize(w)});
  const SparseRows of_z = z.rows();
  const SparsePairs pairs(x.rows(), &of_z, x.features, w.empty() ? nullptr : &weights, true);
  Pool pool(2);
  const std::int64_t col = 2, cols = z.count - col;
  std::vector<double> dots(static_cast<std::size_t>(x.count * cols)), squares(dots), roots(dots);
  const auto whole = [&](std::vector<double>& to) {
    return Tensor(to.data(), Dtype::float64, {x.count, cols}, {cols, 1});
  };
  pairs.squares(0, col, 1e-3, whole(squares), pool);
  pairs.squares(0, col, 1e-3, whole(roots), pool, true);
  pairs.dots(0, col, whole(dots), pool);
  for (std::int64_t i = 0; i < x.count; ++i) {
    for (std::int64_t j = col; j < z.count; ++j) {
      const auto place = static_cast<std::size_t>(i * cols + j - col);
      const Sum both = dot(x, i, z, j, w);
      const long double norms = std::sqrt(dot(x, i, x, i, w).value * dot(z, j, z, j, w).value);
      if (!(norms > 0)) {
        EXPECT_TRUE(std::isnan(dots[place]) && std::isnan(squares[place]) && std::isnan(roots[place]));
        continue;
      }
      const double bound = kUnit * static_cast<double>(3 * x.features + 12);
      EXPECT_NEAR(dots[place], static_cast<double>(both.value / norms),
                  bound * static_cast<double>(both.sizes / norms));
      EXPECT_NEAR(squares[place], static_cast<double>(2 - 2 * both.value / norms),
                  4 * bound * static_cast<double>(1 + both.sizes / norms));
      EXPECT_EQ(roots[place], std::sqrt(squares[place]));
    }
  }
}

TEST(SparsePairs, UnitsAreThoseOfDensePoints) {
  for (double density : {0.05, 0.3, 1.0}) {
    const Points<std::int32_t> x(23, 40, density, 1), z(17, 40, density, 2);
    for (const std::vector<double>& w : {std::vector<double>{}, weights_for(40, 0)}) {
      check_units(x, z, w);
      check_units(x, x, w);
    }
  }
}

TEST(SparsePairs, PlainRowsAreThoseThatMayBeTakenAsTheyAre) {
  const auto is_plain = [](std::vector<std::int64_t> starts, std::vector<std::int64_t> columns,
                           std::vector<double> values) {
    const Tensor parts[] = {view(starts.data(), {std::ssize(starts)}), view(columns.data(), {std::ssize(columns)}),
                            view(values.data(), {std::ssize(values)})};
    return are_plain({parts[0], parts[1], parts[2]}, 4, 0.5, 8);
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(is_plain({0, 2, 2, 3}, {0, 3, 0}, {0.5, -8, 1}));
  EXPECT_TRUE(is_plain({0}, {}, {}));
  EXPECT_FALSE(is_plain({}, {}, {}));
  for (double value : {0.0, 0.25, -9.0, kNan, kInf}) EXPECT_FALSE(is_plain({0, 2, 2, 3}, {0, 3, 0}, {1, value, 1}));
  for (std::int64_t column : {-1, 0, 4}) EXPECT_FALSE(is_plain({0, 2, 2, 3}, {0, column, 0}, {1, 1, 1}));
  EXPECT_FALSE(is_plain({0, 2, 2, 3}, {-1, 3, 0}, {1, 1, 1}));
  EXPECT_FALSE(is_plain({0, 2, 1, 3}, {0, 3, 0}, {1, 1, 1}));
  EXPECT_FALSE(is_plain({0, 9, 2, 3}, {0, 3, 0}, {1, 1, 1}));
  EXPECT_FALSE(is_plain({1, 2, 2, 3}, {0, 3, 0}, {1, 1, 1}));
  EXPECT_FALSE(is_plain({0, 2, 2}, {0, 3, 0}, {1, 1, 1}));
  EXPECT_FALSE(is_plain({0, 2, 2, 3}, {0, 3, 0}, {1, 1}));
}

TEST(SparsePairs, SumsAreThoseOfDensePoints) {
  for (double density : {0.0, 0.05, 0.3, 1.0}) {
    const Points<std::int32_t> x(23, 40, density, 1), z(17, 40, density, 2);
    const Points<std::int64_t> wide_x(23, 40, density, 1), wide_z(17, 40, density, 2);
    for (const std::vector<double>& w : {std::vector<double>{}, weights_for(40, 0), weights_for(40, -1)}) {
      check(x, &z, w);
      check(x, static_cast<const Points<std::int32_t>*>(nullptr), w);
      check(wide_x, &wide_z, w);
    }
  }
}

TEST(SparsePairs, NearPointsKeepTheirDigits) {
  Points<std::int32_t> x(9, 30, 0.4, 3);
  Points<std::int32_t> z = x;
  for (std::int64_t i = 0; i < 9; ++i) {
    z.at(i, (5 * i) % 30) += 1e-9;  // also where x is 0
    z.at(i, 29) = -x.at(i, 29);
    x.at(i, 29) = z.at(i, 29) *= 1e-12;
  }
  x.compress();
  z.compress();
  check(x, &z, {});
  check(x, &z, weights_for(30, 0));
}

TEST(SparsePairs, EmptySides) {
  for (std::int64_t m : {0, 3})
    for (std::int64_t n : {0, 2})
      for (std::int64_t k : {0, 4}) {
        const Points<std::int32_t> x(m, k, 0.5, 1), z(n, k, 0.5, 2);
        check(x, &z, {});
      }
}

TEST(SparsePairs, CopiesStartsAndColumns) {
  Points<std::int32_t> x(5, 6, 1, 1);
  const SparsePairs pairs(x.rows(), nullptr, 6, nullptr);
  const Points<std::int32_t> before = x;
  std::fill(x.columns.begin(), x.columns.end(), 1 << 30);
  std::fill(x.starts.begin(), x.starts.end(), 1 << 30);
  Pool pool(1);
  std::vector<double> found(25);
  pairs.dots(0, 0, view(found.data(), {5, 5}), pool);
  EXPECT_NEAR(found[0], static_cast<double>(dot(before, 0, before, 0, {}).value), 1e-14);
}

TEST(SparsePairs, WhatIsNoSparseRowsIsRefused) {
  using Change = void (*)(Points<std::int32_t>& x);
  const std::pair<const char*, Change> wrong[] = {
      {"starts of x must ascend from 0", [](Points<std::int32_t>& x) { x.starts[0] = 1; }},
      {"starts of x must ascend from 0", [](Points<std::int32_t>& x) { x.starts[2] = 1000; }},
      {"starts of x must ascend from 0", [](Points<std::int32_t>& x) { x.starts[2] = -1; }},
      {"starts of x must ascend from 0", [](Points<std::int32_t>& x) { x.starts.back() += 1; }},
      {"between 0 and 5. Received 6 after 4", [](Points<std::int32_t>& x) { x.columns[5] = 6; }},
      {"between 0 and 5. Received -1 after -1", [](Points<std::int32_t>& x) { x.columns[0] = -1; }},
      {"must ascend and lie", [](Points<std::int32_t>& x) { x.columns[1] = 0; }},
      {"must ascend and lie", [](Points<std::int32_t>& x) { std::swap(x.columns[1], x.columns[2]); }},
      {"x must be float64[12]", [](Points<std::int32_t>& x) { x.views[2].shape[0] = 11; }},
      {"x must be float64[12]", [](Points<std::int32_t>& x) { x.views[2].dtype = Dtype::float32; }},
      {"columns of x must be int32 or int64", [](Points<std::int32_t>& x) { x.views[1].dtype = Dtype::float64; }},
      {"an element more than there are points", [](Points<std::int32_t>& x) { x.views[0].shape[0] = 0; }},
  };
  for (const auto& [words, change] : wrong) {
    Points<std::int32_t> x(2, 6, 2, 1);
    change(x);
    try {
      const SparsePairs pairs(x.rows(), nullptr, 6, nullptr);
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  const Points<std::int32_t> x(2, 6, 2, 1);
  EXPECT_THROW(SparsePairs(x.rows(), nullptr, -1, nullptr), Error);
  EXPECT_THROW(SparsePairs(x.rows(), nullptr, (std::int64_t{1} << 32) + 1, nullptr), Error);
}

TEST(SparsePairs, BlocksOutsideOfTheMatrixAreRefused) {
  const Points<std::int32_t> x(4, 6, 1, 1);
  const SparsePairs pairs(x.rows(), nullptr, 6, nullptr);
  Pool pool(1);
  std::vector<double> memory(64, -7);
  const auto refused = [&](std::int64_t row, std::int64_t col, std::vector<std::int64_t> shape) {
    EXPECT_THROW(pairs.dots(row, col, view(memory.data(), shape), pool), Error);
    EXPECT_THROW(pairs.squares(row, col, 0, view(memory.data(), shape), pool), Error);
  };
  refused(-1, 0, {1, 4});
  refused(3, 0, {2, 4});
  refused(0, -1, {1, 5});
  refused(0, 5, {1, 0});
  refused(0, 1, {1, 4});
  refused(0, 0, {4});
  EXPECT_THROW(pairs.dots(0, 0, Tensor(memory.data(), Dtype::float64, {4, 4}, {1, 4}), pool), Error);
  EXPECT_THROW(pairs.dots(0, 0, Tensor(memory.data(), Dtype::float32, {4, 4}), pool), Error);
  EXPECT_TRUE(std::all_of(memory.begin(), memory.end(), [](double v) { return v == -7; }));
}

TEST(SparsePairs, ACallEndsWhereItsCallerWantsThat) {
  const Points<std::int32_t> x(40, 10, 1, 1);
  const SparsePairs pairs(x.rows(), nullptr, 10, nullptr);
  Pool pool(1);
  std::vector<double> found(1600);
  const CancelScope scope([] { return false; });
  EXPECT_THROW(
      {
        for (;;) pairs.dots(0, 0, view(found.data(), {40, 40}), pool);
      },
      Cancelled);
}

template <class T>
void check_mirror(std::int64_t n) {
  const std::int64_t stride = n + 5;
  for (int threads : {1, 3}) {
    Pool pool(threads);
    std::vector<T> values(static_cast<std::size_t>(n * stride));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i);
    const std::vector<T> before = values;
    const Tensor matrix(values.data(), dtype_of<T>(), {n, n}, {stride, 1});
    const std::int64_t first = n / 3, last = n - n / 4;
    mirror_rows(matrix, first, last, pool);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < stride; ++j) {
        const bool is_copy = j >= first && j < last && j < i;
        const std::int64_t from = is_copy ? j * stride + i : i * stride + j;
        ASSERT_EQ(values[static_cast<std::size_t>(i * stride + j)], before[static_cast<std::size_t>(from)]);
      }
  }
}

TEST(SparsePairs, MirroredRows) {
  for (std::int64_t n : {0, 1, 7, 8, 9, 33, 100}) {
    check_mirror<float>(n);
    check_mirror<double>(n);
  }
  Pool pool(1);
  std::vector<double> memory(16);
  EXPECT_THROW(mirror_rows(view(memory.data(), {2, 8}), 0, 2, pool), Error);
  EXPECT_THROW(mirror_rows(view(memory.data(), {4, 4}), 0, 5, pool), Error);
  EXPECT_THROW(mirror_rows(view(memory.data(), {4, 4}), 3, 2, pool), Error);
}

}  // namespace
}  // namespace mercer::cpu
