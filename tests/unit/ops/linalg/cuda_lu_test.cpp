// LU of one large float32 matrix by blocks (backend/cuda/linalg/split_lu.cpp), with thresholds taken down so that small
// matrices go through all of it. With u = 2^-24, sums in floats or on tensor cores, which truncate, err by n 2u |L| |U|
// (Higham, Accuracy and Stability of Numerical Algorithms, theorem 9.3), the pieces of products by three halves of a
// unit of 22 digits, 2^-20 |L| |U|. What pieces lose is a part of the largest terms of its row and its column, so
// P a - L U is held against |L| |U| with each value as large as its row's largest r_i times its column's largest of
// (|L| |U|)_ij / r_i: rows and columns of any scale, each by itself.
#include <fmt/format.h>

#include <algorithm>

#include "backend/rehearsal.h"
#include "ops/context.h"
#include "ops/linalg_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;
using linalg::Options;

double bound_of(std::int64_t n) { return static_cast<double>(n) * 0x1p-23 + 0x1p-20; }

struct Factors {
  Array lu, pivots;
};

Factors lu_of(const Array& a, const Shape& strides, TestContext& context, const Options& options = {}) {
  const std::int64_t n = a.shape()[0];
  Factors f{Array(Dtype::float32, {n, n}, strides), Array(Dtype::int64, {n})};
  lu_factor(a, f.lu, f.pivots, options, context);
  return f;
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> values;
  each_index(t.shape, [&](const Shape& at) { values.push_back(read(t, at)); });
  return values;
}

/// P a = L U; |L| <= 1; pivots at or below their row.
void expect_factors(const Array& a, const Factors& f, const std::string& what) {
  const std::int64_t n = a.shape()[0];
  std::vector<double> left = values_of(a), lu = values_of(f.lu);
  const auto at = [&](std::vector<double>& m, std::int64_t i, std::int64_t j) -> double& {
    return m[static_cast<std::size_t>(i * n + j)];
  };
  for (std::int64_t i = 0; i < n; ++i) {
    const auto pivot = static_cast<std::int64_t>(f.pivots(i));
    ASSERT_TRUE(pivot >= i && pivot < n) << what << ", pivot " << i << " is " << pivot;
    for (std::int64_t j = 0; j < n; ++j) std::swap(at(left, i, j), at(left, pivot, j));
  }
  std::vector<double> errors(left.size()), sizes(left.size()), rows(static_cast<std::size_t>(n)), columns = rows;
  for (std::int64_t i = 0; i < n; ++i) {
    double& row = rows[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < i; ++j) ASSERT_LE(std::abs(at(lu, i, j)), 1) << what << " " << i << " " << j;
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k <= std::min(i, j); ++k) {
        const double term = (k == i ? 1 : at(lu, i, k)) * at(lu, k, j);
        sum += term;
        at(sizes, i, j) += std::abs(term);
      }
      ASSERT_FALSE(std::isnan(sum)) << what;
      at(errors, i, j) = std::abs(sum - at(left, i, j));
      row = std::max(row, at(sizes, i, j));
    }
    for (std::int64_t j = 0; row > 0 && j < n; ++j) {
      double& column = columns[static_cast<std::size_t>(j)];
      column = std::max(column, at(sizes, i, j) / row);
    }
  }
  double worst = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      if (at(errors, i, j) > 0)
        worst = std::max(worst, at(errors, i, j) / rows[static_cast<std::size_t>(i)] /
                                    columns[static_cast<std::size_t>(j)]);
  EXPECT_LE(worst, bound_of(n)) << what;
}

/// |a x - b| in each row against (|a| |x| + |b|) of it: the error of the factors, and of the two triangles.
void expect_solution(const Array& a, const Array& x, const Array& b, double growth, const std::string& what) {
  const std::int64_t n = a.shape()[0];
  for (std::int64_t c = 0; c < b.shape()[1]; ++c)
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = -b(i, c), sizes = std::abs(b(i, c)), most = 0;
      for (std::int64_t j = 0; j < n; ++j) {
        sum += a(i, j) * x(j, c);
        most = std::max(most, std::abs(x(j, c)));
      }
      double row = 0;
      for (std::int64_t j = 0; j < n; ++j) row = std::max(row, std::abs(a(i, j)));
      sizes += row * most * static_cast<double>(n);
      ASSERT_LE(std::abs(sum), 3 * growth * bound_of(n) * sizes) << what << ", row " << i << ", column " << c;
    }
}

bool goes_by_blocks(const std::function<void(const Options&)>& call) {
  cuda::Rehearsal rehearsal{.purpose = cuda::Rehearsal::Purpose::sources};
  Options options;
  options.queue.rehearsal = &rehearsal;
  call(options);
  return std::any_of(rehearsal.sources.begin(), rehearsal.sources.end(),
                     [](const jit::CudaSource& source) { return source.name == "panels of LU"; });
}

template <class Body>
void by_blocks(const Body& body) {
  on_cuda([&](TestContext& context) {
    context.state().own_costs().dense.lu.from = 1;
    context.state().own_costs().dense.small_until = 0;
    const Array a = normal(Dtype::float32, {3, 3}, 1);
    const Array b = normal(Dtype::float32, {3, 1}, 1), x(Dtype::float32, {3, 1});
    Tensor place[] = {a, b, x};
    for (Tensor& each : place) each.device = {DeviceKind::cuda, 0};
    const bool ours = goes_by_blocks(
        [&](const Options& options) { linalg::solve_lu(place[0], place[1], place[2], options, context); });
    if (!ours) GTEST_SKIP() << "a device that LU by blocks does not serve";
    body(context);
  });
}

Array scaled(const Array& a, const std::function<int(std::int64_t, std::int64_t)>& exponent) {
  Array b = a;
  each_index(a.shape(), [&](const Shape& at) { b.set(at, std::ldexp(read(a, at), exponent(at[0], at[1]))); });
  return b;
}

TEST(CudaLu, EveryPanelAndOrder) {
  by_blocks([](TestContext& context) {
    for (const int rows : {2, 4, 8, 16})
      for (const auto& [n, block, cluster] :
           {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 0, 0}, {31, 32, 2}, {70, 32, 4},
            {530, 128, 1}}) {
        context.state().own_costs().dense.lu = {.from = 1, .block = block, .rows = rows, .cluster = cluster};
        Array a = normal(Dtype::float32, {n, n}, 7);
        // A thread has two of 530 rows, or a second block the last ones: the first of equal candidates is taken.
        if (n == 530)
          for (std::int64_t i = 0; i < n; ++i) a.set({i, 0}, i == 5 ? 1 : i == 517 ? -1 : 0.5 * std::tanh(a(i, 0)));
        const Factors f = lu_of(a, {}, context);
        expect_factors(a, f, fmt::format("{} rows a thread, order {}", rows, n));
        if (n == 530) EXPECT_EQ(f.pivots(0), 5);
      }
  });
}

// The rows after the first 512, which a block of its own has, are all taken before the first panel ends.
TEST(CudaLu, BlockWhoseRowsAreDone) {
  by_blocks([](TestContext& context) {
    constexpr std::int64_t n = 530, first = 512;
    context.state().own_costs().dense.lu = {.from = 1, .block = 64, .rows = 2};
    const Array plain = normal(Dtype::float32, {n, n}, 11);
    const Array a = scaled(plain, [](std::int64_t i, std::int64_t) { return i < first ? 0 : 12; });
    const Factors f = lu_of(a, {}, context);
    expect_factors(a, f, "rows of the last block first");
    for (std::int64_t j = 0; j < n - first; ++j) EXPECT_GE(f.pivots(j), j);
    EXPECT_GE(f.pivots(0), first);
  });
}

TEST(CudaLu, Layouts) {
  by_blocks([](TestContext& context) {
    constexpr std::int64_t n = 44, k = 3;
    context.state().own_costs().dense.lu = {.from = 1, .block = 32};
    const Shape layouts[] = {{n, 1}, {1, n}, {n + 3, 1}, {1, n + 3}, {2 * n + 1, 2}, {-1, -n}};
    for (const Shape& of_a : layouts) {
      const Array a = normal(Dtype::float32, {n, n}, 3, 1, of_a), b = normal(Dtype::float32, {n, k}, 5);
      const std::string what = fmt::format("strides {} {}", of_a[0], of_a[1]);
      Factors plain = lu_of(a, {}, context);
      expect_factors(a, plain, what);
      for (const Shape& of_lu : {layouts[1], layouts[2], layouts[5]})
        EXPECT_EQ(values_of(lu_of(a, of_lu, context).lu), values_of(plain.lu)) << what << " " << of_lu[0];
      Factors in_place{a, Array(Dtype::int64, {n})};
      lu_factor(in_place.lu, in_place.lu, in_place.pivots, {}, context);
      EXPECT_EQ(values_of(in_place.lu), values_of(plain.lu)) << what << ", in place";
      EXPECT_EQ(values_of(in_place.pivots), values_of(plain.pivots)) << what << ", in place";
      Array x(Dtype::float32, {n, k}), y(Dtype::float32, {n, k}), z(Dtype::float32, {n, k}), taken = a;
      solve_lu(a, b, x, {}, context);
      expect_solution(a, x, b, 16, what);
      solve_lu(taken, b, y, {.overwrite_a = true}, context);
      EXPECT_EQ(values_of(x), values_of(y)) << what << ", overwritten";
      lu_solve(plain.lu, plain.pivots, b, z, false, {}, context);
      expect_solution(a, z, b, 16, what + ", lu_solve");
    }
  });
}

// Blocks of 256 rows and of 16 right-hand sides, and those that cuBLAS solves.
TEST(CudaLu, RightHandSides) {
  by_blocks([](TestContext& context) {
    context.state().own_costs().dense.lu = {.from = 1, .block = 96};
    for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{257, 1}, {257, 65}, {530, 17}}) {
      const Array a = normal(Dtype::float32, {n, n}, 21), b = normal(Dtype::float32, {n, k}, 22);
      const Array x(Dtype::float32, {n, k});
      solve_lu(a, b, x, {}, context);
      expect_solution(a, x, b, 16, fmt::format("order {}, {} right-hand sides", n, k));
    }
    // Divisors whose inverses, or they, are not far enough from the ends of the range.
    for (const int exponent : {-112, 112}) {
      const Array a = scaled(normal(Dtype::float32, {70, 70}, 23), [&](auto, auto) { return exponent; });
      const Array b = normal(Dtype::float32, {70, 2}, 24), x(Dtype::float32, {70, 2});
      solve_lu(a, b, x, {}, context);
      expect_solution(a, x, b, 16, fmt::format("of the size of 2^{}", exponent));
    }
  });
}

TEST(CudaLu, RowsAndColumnsOfUnlikeScales) {
  by_blocks([](TestContext& context) {
    constexpr std::int64_t n = 150;
    context.state().own_costs().dense.lu = {.from = 1, .block = 32};
    const Array plain = normal(Dtype::float32, {n, n}, 11), b = normal(Dtype::float32, {n, 2}, 12);
    const auto spread = [](std::int64_t i, int most) { return static_cast<int>(i * 7919 % (2 * most + 1)) - most; };
    struct Row {
      const char* name;
      std::function<int(std::int64_t, std::int64_t)> exponent;
    };
    const Row rows[] = {
        {"huge", [](auto, auto) { return 90; }},
        {"tiny", [](auto, auto) { return -90; }},
        // Quotients of rows must stay floats: L has them.
        {"rows", [&](auto i, auto) { return spread(i, 50); }},
        {"columns", [&](auto, auto j) { return spread(j, 100); }},
        {"both", [&](auto i, auto j) { return spread(i, 45) + spread(j, 40); }},
        {"a huge row", [](auto i, auto) { return i == 70 ? 60 : 0; }},
        {"a tiny column", [](auto, auto j) { return j == 140 ? -70 : 0; }},
        {"a huge block", [](auto i, auto j) { return i > 60 && j < 80 ? 60 : 0; }},
    };
    for (const Row& row : rows) {
      const Array a = scaled(plain, row.exponent);
      expect_factors(a, lu_of(a, {}, context), row.name);
    }
    const Array a = scaled(plain, rows[2].exponent), x(Dtype::float32, {n, 2});
    Array scaled_b = b;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < 2; ++c) scaled_b.set({i, c}, std::ldexp(b(i, c), spread(i, 50)));
    solve_lu(a, scaled_b, x, {}, context);
    expect_solution(a, x, scaled_b, 16, "rows");
  });
}

TEST(CudaLu, ScaledColumnsChangeNoBit) {
  by_blocks([](TestContext& context) {
    constexpr std::int64_t n = 150;
    context.state().own_costs().dense.lu = {.from = 1, .block = 32};
    const Array plain = normal(Dtype::float32, {n, n}, 13);
    const Factors one = lu_of(scaled(plain, [](auto, auto) { return 40; }), {}, context);
    const Factors other = lu_of(scaled(plain, [](auto, auto j) { return static_cast<int>(j % 3) * 30 - 60; }), {},
                                context);
    EXPECT_EQ(values_of(one.pivots), values_of(other.pivots));
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const int apart = i > j ? 0 : static_cast<int>(j % 3) * 30 - 100;
        ASSERT_EQ(std::ldexp(one.lu(i, j), apart), other.lu(i, j)) << i << " " << j;
      }
  });
}

TEST(CudaLu, TiesZerosAndGrowth) {
  by_blocks([](TestContext& context) {
    constexpr std::int64_t n = 130;
    context.state().own_costs().dense.lu = {.from = 1, .block = 32, .rows = 2, .cluster = 4};
    // Ones and minus ones below ones: every candidate of every column is as large as the others. Growth is 2^(n - 1).
    Array a(Dtype::float32, {n, n});
    each_index({n, n}, [&](const Shape& at) {
      a.set(at, at[0] == at[1] || at[1] == n - 1 ? 1 : at[0] > at[1] ? -1 : 0);
    });
    a.set({100, n - 1}, 3);
    Factors f = lu_of(a, {}, context);
    for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(f.pivots(i), static_cast<double>(i));
    // Its last column doubles each time but for the 3; up to 2^127 floats have all of that.
    for (std::int64_t i = 0; i < 60; ++i)
      EXPECT_NEAR(std::ldexp(f.lu(i, n - 1), static_cast<int>(-i)), 1, 60 * bound_of(60)) << i;
    // A permutation, with signs.
    each_index({n, n}, [&](const Shape& at) { a.set(at, (at[0] * 37 + 5) % n == at[1] ? at[0] % 2 ? -2 : 2 : 0); });
    f = lu_of(a, {}, context);
    expect_factors(a, f, "a permutation");
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) ASSERT_EQ(std::abs(f.lu(i, j)), i == j ? 2 : 0);
    // A second call gives the same bits.
    const Array random = normal(Dtype::float32, {n, n}, 2);
    EXPECT_EQ(values_of(lu_of(random, {}, context).lu), values_of(lu_of(random, {}, context).lu));
  });
}

TEST(CudaLu, InfoNamesTheFirstZeroPivot) {
  by_blocks([](TestContext& context) {
    constexpr std::int64_t n = 70;
    context.state().own_costs().dense.lu = {.from = 1, .block = 32};
    const Array info(Dtype::int64, {}), b = normal(Dtype::float32, {n, 2}, 1), x(Dtype::float32, {n, 2});
    const Tensor said = info;
    const Options options{.info = &said};
    for (const std::int64_t column : {0, 31, 32, 66, 69}) {
      Array a = normal(Dtype::float32, {n, n}, 4);
      for (std::int64_t i = 0; i < n; ++i) a.set({i, column}, i % 2 ? 0.0 : -0.0);
      if (column == 31)
        for (std::int64_t i = 0; i < n; ++i) a.set({i, 67}, 0);
      const Factors f = lu_of(a, {}, context, options);
      EXPECT_EQ(info(), static_cast<double>(column + 1));
      EXPECT_TRUE(std::isnan(f.lu(0, 0)) && std::isnan(f.lu(n - 1, n - 1)));
      for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(f.pivots(i), static_cast<double>(i));
      solve_lu(a, b, x, options, context);
      EXPECT_EQ(info(), static_cast<double>(column + 1));
      EXPECT_TRUE(std::isnan(x(3, 1)));
      EXPECT_EQ(message_of([&] { solve_lu(a, b, x, {}, context); }),
                fmt::format("solve_lu: a must not be singular. Received one whose pivot {} is zero.", column + 1));
    }
    Array a = normal(Dtype::float32, {n, n}, 4);
    a.set({50, 60}, kNan);
    solve_lu(a, b, x, options, context);
    EXPECT_EQ(info(), -1);
    // Finite values whose factors are not.
    each_index({n, n}, [&](const Shape& at) {
      a.set(at, at[0] == at[1] || at[1] == n - 1 ? 3e38 : at[0] > at[1] ? -3e38 : 0);
    });
    solve_lu(a, b, x, options, context);
    EXPECT_EQ(info(), 0);
    // A block of zeros in the middle is fine, and so is a matrix that fails next to one that does not.
    a = normal(Dtype::float32, {n, n}, 4);
    for (std::int64_t i = 20; i < 60; ++i)
      for (std::int64_t j = 20; j < 60; ++j) a.set({i, j}, 0);
    expect_factors(a, lu_of(a, {}, context), "zeros");
  });
}

TEST(CudaLu, WorkspacesAndOtherTypes) {
  by_blocks([](TestContext& context) {
    std::uintptr_t next = std::uintptr_t{1} << 34;
    const auto place = [&](Shape shape, Dtype dtype) {
      Tensor t(reinterpret_cast<void*>(next += std::uintptr_t{1} << 34), dtype, std::move(shape));
      t.device = {DeviceKind::cuda, 0};
      return t;
    };
    const Tensor a = place({300, 300}, Dtype::float32), wide = place({300, 300}, Dtype::float64);
    const Tensor b = place({300, 2}, Dtype::float32), x = place({300, 2}, Dtype::float32);
    const Tensor lu = place({300, 300}, Dtype::float64), pivots = place({300}, Dtype::int64);
    const auto solves = [&](const Options& options) { linalg::solve_lu(a, b, x, options, context); };
    EXPECT_FALSE(goes_by_blocks([&](const Options& o) { linalg::lu_factor(wide, lu, pivots, o, context); }));
    struct Stop {};
    std::int64_t asked = 0;
    const DeviceStream stream;
    Options options;
    options.queue.stream = static_cast<CuStream>(stream);
    const std::int64_t bytes = linalg::workspace_size(options, solves);
    options.queue.allocate = [&](std::int64_t wanted) -> void* {
      asked = wanted;
      throw Stop();
    };
    EXPECT_THROW(solves(options), Stop);
    EXPECT_EQ(asked, bytes);
    context.state().own_costs().dense.lu.from = 301;
    EXPECT_FALSE(goes_by_blocks(solves));
  });
}

}  // namespace
}  // namespace mercer
