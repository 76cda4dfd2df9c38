// Linear algebra by its residuals, in every layout of memory. With u the rounding unit and n the order, backward
// stability bounds |a - L L^T| by (n + 1) u |a| (Higham, Accuracy and Stability of Numerical Algorithms, theorem 10.3,
// with |L| |L^T| <= n |a|), that of a x - b by a small multiple of n u |a| |x|, eigenpairs and their orthogonality by
// p(n) u |a| with a p that is taken as 10 n here. Norms are those of Frobenius.
#include <algorithm>

#include "device/lapack.h"
#include "ops/context.h"
#include "ops/dense_checks.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;
using linalg::Options;

class Linalg : public ::testing::Test {
 protected:
  void SetUp() override {
    if (is_wanted("cpu")) MERCER_NEEDS_LAPACK();  // CUDA does without
  }
};

TEST_F(Linalg, CholeskyOfEveryLayout) {
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_out) {
    for (const auto& [n, lower] : {std::pair<std::int64_t, bool>{33, true}, {33, false}, {9, true}, {9, false}}) {
      Array a = kernel_matrix_of(dtype, n, of_a);
      const Dense whole(a.tensor());
      spoil_triangle(a, lower);
      const std::vector<char> before = a.bytes();
      const Array out(dtype, {n, n}, of_out.strides(n, n));
      cholesky(a, out, {.lower = lower}, context);
      const Dense factor(out.tensor());
      expect_product(lower ? factor : factor.transposed(), lower ? factor.transposed() : factor, whole,
                     (n + 1) * rounding(dtype), "a = L L^T");
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j)
          if (lower ? j > i : j < i) ASSERT_EQ(factor(i, j), 0);
      ASSERT_EQ(a.bytes(), before);
      cholesky(a, a, {.lower = lower}, context);
      // Where rows lie together the other triangle is read: two factors of one matrix, off by its condition (near 1e3).
      EXPECT_LE((Dense(a.tensor()) - factor).norm(), 1e3 * n * rounding(dtype) * factor.norm()) << "in place";
    }
  });
}

/// Factors by blocks on tensor cores: whole blocks and rests, values far from 1, in place and not.
TEST_F(Linalg, BlockedFactorsOfEveryLayoutAndScale) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().dense.blocked_from = 1;
    for (const std::int64_t n : {256, 257, 300})
      for (const LayoutRow& layout : kLayouts)
        for (const bool lower : {true, false})
          for (const double scale : {1.0, 0x1p-90, 0x1p100}) {
            if (scale != 1 && &layout != kLayouts) continue;
            Array a = kernel_matrix_of(Dtype::float32, n, layout);
            each_index({n, n}, [&](const Shape& at) { a.set(at, read(a, at) * scale); });
            Dense given{Tensor(a)};
            for (double& value : given.values) value /= scale;
            spoil_triangle(a, lower);
            Options options;
            options.lower = lower;
            const Array out(Dtype::float32, {n, n});
            cholesky(a, out, options, context);
            cholesky(a, a, options, context);
            for (const Array* each : {&out, static_cast<const Array*>(&a)}) {
              Dense factor{Tensor(*each)};
              for (double& value : factor.values) value /= std::sqrt(scale);
              const Dense other = factor.transposed();
              const double bound = static_cast<double>(n + 1) * rounding(Dtype::float32);
              expect_product(lower ? factor : other, lower ? other : factor, given, bound,
                             fmt::format("{} {} {} {}", n, layout.name, lower, scale));
            }
          }
  });
}

/// Rows and columns of unlike scales are those of a factor of unlike scales, to the last digits of each row.
TEST_F(Linalg, BlockedFactorsOfUnlikeScales) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t kOrder = 300;
    const Array plain = kernel_matrix_of(Dtype::float32, kOrder, kLayouts[0]);
    for (const int spread : {8, 40}) {
      const auto exponent = [&](std::int64_t i) { return static_cast<int>(i * 7919 % (2 * spread + 1)) - spread; };
      Array a = plain;
      for (std::int64_t i = 0; i < kOrder; ++i)
        for (std::int64_t j = 0; j < kOrder; ++j)
          a.set({i, j}, std::ldexp(plain(i, j), exponent(i) + exponent(j)));
      const Array out(Dtype::float32, {kOrder, kOrder});
      context.state().own_costs().dense.blocked_from = 1;
      cholesky(a, out, {}, context);
      Dense factor{Tensor(out)};
      for (std::int64_t i = 0; i < kOrder; ++i)
        for (std::int64_t j = 0; j < kOrder; ++j) factor(i, j) = std::ldexp(factor(i, j), -exponent(i));
      const double bound = static_cast<double>(kOrder + 1) * rounding(Dtype::float32);
      expect_product(factor, factor.transposed(), Dense{Tensor(plain)}, bound, fmt::format("spread {}", spread));
    }
    // One huge pivot among tiny ones; an entry that no positive definite matrix could have.
    Array a(Dtype::float32, {kOrder, kOrder});
    each_index({kOrder, kOrder}, [&](const Shape& at) { a.set(at, at[0] == at[1] ? at[0] == 0 ? 1e19 : 1e-30 : 0); });
    const Array out(Dtype::float32, {kOrder, kOrder}), info(Dtype::int64, {});
    const Tensor said = info;
    Options options;
    options.info = &said;
    cholesky(a, out, options, context);
    EXPECT_EQ(read(info, {}), 0);
    EXPECT_NEAR(out(200, 200), 1e-15, 1e-21);
    each_index({kOrder, kOrder}, [&](const Shape& at) { a.set(at, at[0] == at[1]); });
    a.set({200, 3}, 1e20);
    a.set({3, 200}, 1e20);
    cholesky(a, out, options, context);
    EXPECT_EQ(read(info, {}), 201);
    EXPECT_TRUE(std::isnan(out(0, 0)));
  });
}

TEST_F(Linalg, BlockedFactorisationsSayWhatFailed) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().dense.blocked_from = 1;
    constexpr std::int64_t kOrder = 300;
    for (const std::int64_t bad : {3, 127, 128, 299}) {
      Array a = kernel_matrix_of(Dtype::float32, kOrder, kLayouts[0]);
      a.set({bad, bad}, -1);
      const Array out(Dtype::float32, {kOrder, kOrder}), info(Dtype::int64, {});
      Options options;
      const Tensor said = info;
      options.info = &said;
      cholesky(a, out, options, context);
      EXPECT_EQ(read(info, {}), static_cast<double>(bad + 1));
      EXPECT_TRUE(std::isnan(out(0, 0)) && std::isnan(out(bad, bad)));
      a.set({bad, bad}, kNan);
      cholesky(a, out, options, context);
      EXPECT_EQ(read(info, {}), -1);
      // A ridge that makes the matrix dominant.
      a.set({bad, bad}, -1);
      options.jitter = {1e-6, 40.0};
      cholesky(a, out, options, context);
      EXPECT_EQ(read(info, {}), 0);
      EXPECT_FALSE(std::isnan(out(bad, bad)));
    }
  });
}

TEST_F(Linalg, SolutionsOfEveryLayout) {
  constexpr std::int64_t n = 34, k = 3;
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_b) {
    const Array b = normal(dtype, {n, k}, 3, 1, of_b.strides(n, k));
    const Array symmetric = kernel_matrix_of(dtype, n, of_a), general = general_matrix(dtype, n, of_a);
    for (const bool lower : {true, false}) {
      const Array x(dtype, {n, k}, of_b.strides(n, k));
      solve_cholesky(symmetric, b, x, {.lower = lower}, context);
      expect_solution(Dense(symmetric.tensor()), Dense(x.tensor()), Dense(b.tensor()), rounding(dtype), "Cholesky");
      const Array factor(dtype, {n, n}, of_a.strides(n, n));
      cholesky(symmetric, factor, {.lower = lower}, context);
      Array again = copy(b, dtype, of_b.strides(n, k));
      cho_solve(factor, again, again, {.lower = lower}, context);  // in the place of b
      expect_solution(Dense(symmetric.tensor()), Dense(again.tensor()), Dense(b.tensor()), rounding(dtype), "factor");
    }
    // The growth of partial pivoting is small for such matrices; 16 is far above it.
    const double unit = 16 * rounding(dtype);
    Array x(dtype, {n, k}, of_b.strides(n, k));
    solve_lu(general, b, x, {}, context);
    expect_solution(Dense(general.tensor()), Dense(x.tensor()), Dense(b.tensor()), unit, "LU");
    const Array lu(dtype, {n, n}, of_a.strides(n, n));
    const Array pivots(Dtype::int64, {n}, {2});
    lu_factor(general, lu, pivots, {}, context);
    for (const bool transposed : {false, true}) {
      lu_solve(lu, pivots, b, x, transposed, {}, context);
      const Dense matrix(general.tensor());
      expect_solution(transposed ? matrix.transposed() : matrix, Dense(x.tensor()), Dense(b.tensor()), unit, "factors");
    }
  });
}

/// P a - L U of a [m, n], L [m, min(m, n)].
void expect_factors(const Dense& a, const Dense& lu, const Array& pivots, double bound) {
  const std::int64_t least = std::min(a.rows, a.cols);
  Dense lower(a.rows, least), upper(least, a.cols), permuted = a;
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j) {
      if (j < least) lower(i, j) = i == j ? 1 : j < i ? lu(i, j) : 0;
      if (i < least) upper(i, j) = j >= i ? lu(i, j) : 0;
    }
  for (std::int64_t i = 0; i < least; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j)
      std::swap(permuted(i, j), permuted(static_cast<std::int64_t>(pivots(i)), j));
  expect_product(lower, upper, permuted, bound, fmt::format("P a = L U, {} x {}", a.rows, a.cols));
}

TEST_F(Linalg, LuIsThatOfTheIndices) {
  constexpr std::int64_t n = 20;
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_lu) {
    Array a = general_matrix(dtype, n, of_a);
    const Dense before(a.tensor());
    const Array lu(dtype, {n, n}, of_lu.strides(n, n)), pivots(Dtype::int64, {n});
    lu_factor(a, lu, pivots, {}, context);
    const Dense both(lu.tensor());
    expect_factors(before, both, pivots, 16 * n * rounding(dtype));
    const Array again(Dtype::int64, {n});
    lu_factor(a, a, again, {}, context);
    EXPECT_EQ((Dense(a.tensor()) - both).norm(), 0) << "in place";
  });
}

TEST_F(Linalg, LuOfMatricesThatAreNotSquare) {
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_lu) {
    for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{9, 20}, {20, 9}, {1, 5}, {5, 1}}) {
      Array a = normal(dtype, {m, n}, 7, 1, of_a.strides(m, n));
      const Dense before(a.tensor());
      const std::int64_t least = std::min(m, n);
      const Array lu(dtype, {m, n}, of_lu.strides(m, n)), pivots(Dtype::int64, {least}, {2});
      const double bound = 16 * 20 * rounding(dtype);
      lu_factor(a, lu, pivots, {}, context);
      expect_factors(before, Dense(lu.tensor()), pivots, bound);
      lu_factor(a, a, pivots, {}, context);
      expect_factors(before, Dense(a.tensor()), pivots, bound);
    }
  });
}

TEST_F(Linalg, LuOfABatchThatIsNotSquareSaysWhatFailed) {
  on_both([](TestContext& context) {
    for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{3, 5}, {5, 3}}) {
      Array a = normal(Dtype::float64, {2, 3, m, n}, 7);
      for (std::int64_t i = 0; i < m; ++i) a.set({0, 1, i, 2}, a(0, 1, i, 0));  // equal columns
      for (std::int64_t i = 0; i < m; ++i) a.set({0, 1, i, 1}, 0);
      a.set({1, 0, m - 1, n - 1}, kNan);
      const Array lu(Dtype::float64, {2, 3, m, n}), pivots(Dtype::int64, {2, 3, 3}), info(Dtype::int64, {2, 3});
      const Tensor said = info;
      lu_factor(a, lu, pivots, {.info = &said}, context);
      each_index({2, 3}, [&](const Shape& at) {
        const std::int64_t expected = at == Shape{0, 1} ? 2 : at == Shape{1, 0} ? -1 : 0;
        EXPECT_EQ(read(info, at), static_cast<double>(expected));
        if (expected != 0) {
          EXPECT_TRUE(std::isnan(lu(at[0], at[1], 0, 0)) && pivots(at[0], at[1], 2) == 2);
          return;
        }
        Array found(Dtype::int64, {3});
        for (std::int64_t i = 0; i < 3; ++i) found.set({i}, pivots(at[0], at[1], i));
        expect_factors(Dense(item(a, at)), Dense(item(lu, at)), found, 16 * 5 * rounding(Dtype::float64));
      });
      EXPECT_THROW(lu_factor(a, lu, pivots, {}, context), Error);
    }
  });
}

void expect_eigenpairs(const Dense& a, const Dense& w, const Dense& v, double unit) {
  Dense scaled = v, identity(v.cols, v.cols);
  for (std::int64_t j = 0; j < v.cols; ++j) {
    identity(j, j) = 1;
    for (std::int64_t i = 0; i < v.rows; ++i) scaled(i, j) *= w(j, 0);
    if (j > 0) EXPECT_LE(w(j - 1, 0), w(j, 0));
  }
  const double bound = 10 * static_cast<double>(a.rows) * unit;
  EXPECT_LE((a * v - scaled).norm(), bound * a.norm());
  EXPECT_LE((v.transposed() * v - identity).norm(), bound);
}

TEST_F(Linalg, EigenpairsOfEveryLayout) {
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_v) {
    for (const auto& [n, lower] : {std::pair<std::int64_t, bool>{33, true}, {33, false}, {13, true}, {13, false}}) {
      const Dense whole(kernel_matrix_of(dtype, n, of_a).tensor());
      Array a = kernel_matrix_of(dtype, n, of_a);
      spoil_triangle(a, lower);
      const Array w(dtype, {n}, {2}), v(dtype, {n, n}, of_v.strides(n, n)), values(dtype, {n});
      eigh(a, w, &static_cast<const Tensor&>(v.tensor()), {}, {.lower = lower}, context);
      expect_eigenpairs(whole, Dense(w.tensor()), Dense(v.tensor()), rounding(dtype));
      const Array some(dtype, {5}), vectors(dtype, {n, 5}, of_v.strides(n, 5));
      const Tensor vectors_view = vectors;
      eigh(a, some, &vectors_view, linalg::Subset{n - 5, n - 1}, {.lower = lower}, context);
      expect_eigenpairs(whole, Dense(some.tensor()), Dense(vectors.tensor()), rounding(dtype));
      EXPECT_NEAR(some(4), w(n - 1), 10 * n * rounding(dtype) * whole.norm());
      eigh(a, values, nullptr, {}, {.lower = lower}, context);
      EXPECT_LE((Dense(values.tensor()) - Dense(w.tensor())).norm(), 10 * n * rounding(dtype) * whole.norm());
      const Tensor place = a;
      eigh(a, w, &place, {}, {.lower = lower}, context);  // vectors in the place of a
      expect_eigenpairs(whole, Dense(w.tensor()), Dense(a.tensor()), rounding(dtype));
    }
  });
}

TEST_F(Linalg, LikelihoodsAreThoseOfTheFactor) {
  constexpr std::int64_t n = 40, k = 2;
  on_both([&](TestContext& context) {
    for (const Dtype dtype : kWide) {
      const Array a = kernel_matrix_of(dtype, n, kLayouts[0]), b = normal(dtype, {n, k}, 5);
      const Array x(dtype, {n, k}), w(dtype, {n});
      const Array quad(Dtype::float64, {k}), logdet(Dtype::float64, {}), single(Dtype::float64, {});
      inv_quad_logdet(a, b, quad, logdet, {}, context);
      solve_cholesky(a, b, x, {}, context);
      eigh(a, w, nullptr, {}, {}, context);
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += std::log(w(i));
      // Eigenvalues are off by n u |a|, the least of them is 1e-2 and |a| near 10.
      EXPECT_NEAR(logdet(), sum, 1e5 * n * rounding(dtype));
      for (std::int64_t e = 0; e < k; ++e) {
        double product = 0;
        for (std::int64_t i = 0; i < n; ++i) product += b(i, e) * x(i, e);
        EXPECT_NEAR(quad(e), product, 4e3 * n * rounding(dtype) * std::abs(product));
      }
      Tensor column = b;  // [n], with gaps
      column.shape = {n};
      column.strides = {k};
      inv_quad_logdet(a, column, single, logdet, {}, context);
      EXPECT_NEAR(single(), quad(0), 4 * n * rounding(dtype) * quad(0));
    }
  });
}

TEST_F(Linalg, BatchesBroadcastBothWays) {
  on_both([&](TestContext& context) {
    constexpr std::int64_t n = 6;
    Array a(Dtype::float64, {3, 1, n, n});
    each_index(a.shape(), [&](const Shape& at) { a.set(at, kernel_value(at[2], at[3], 0.1 * (1 + at[0]))); });
    const Array b = normal(Dtype::float64, {4, n, 2}, 1), x(Dtype::float64, {3, 4, n, 2});
    const Array info(Dtype::int64, {3, 1});
    const Tensor info_view = info;
    const auto check = [&] {
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < 4; ++j)
          expect_solution(Dense(item(a, {i, 0})), Dense(item(x, {i, j})), Dense(item(b, {j})), 0x1p-53, "broadcast");
    };
    solve_cholesky(a, b, x, {.info = &info_view}, context);
    check();
    solve_lu(a, b, x, {.info = &info_view}, context);
    check();
    const Array lu(Dtype::float64, {3, 1, n, n}), pivots(Dtype::int64, {3, 1, n});
    lu_factor(a, lu, pivots, {}, context);
    lu_solve(lu, pivots, b, x, false, {}, context);
    check();
  });
}

TEST_F(Linalg, ManySmallAndFewLargeGiveWhatOneGives) {
  if (!is_wanted("cpu")) return;
  for (const int threads : {1, 3}) {
    TestContext context(Target::interpreter);
    context.set_threads(threads);
    for (const auto& [batch, n] : {std::pair<std::int64_t, std::int64_t>{50, 9}, {2, 300}}) {
      Array a(Dtype::float64, {batch, n, n});
      each_index(a.shape(), [&](const Shape& at) { a.set(at, kernel_value(at[1], at[2], 0.1 * (1 + at[0]))); });
      const Array b = normal(Dtype::float64, {n, 2}, 1), x(Dtype::float64, {batch, n, 2});
      solve_cholesky(a, b, x, {}, context);
      for (const std::int64_t i : {std::int64_t{0}, batch - 1})
        expect_solution(Dense(item(a, {i})), Dense(item(x, {i})), Dense(b.tensor()), 0x1p-53, "batch");
    }
  }
}

/// Matrices by fours and columns by ones, as if there were many more of them; n = 9, so 324 bytes a matrix.
TEST_F(Linalg, ChunksAndPartsGiveWhatOneGives) {
  on_cuda([](TestContext& context) {
    context.state().own_costs().dense.small_until = 0;
    constexpr std::int64_t n = 9, batch = 10, k = 3;
    Array a(Dtype::float32, {batch, n, n}), symmetric(Dtype::float32, {batch, n, n});
    each_index(a.shape(), [&](const Shape& at) {
      symmetric.set(at, kernel_value(at[1], at[2], 0.1 * (1 + at[0])));
      a.set(at, std::sin(static_cast<double>(1 + 7 * at[0] + 5 * at[1] * at[1] + 11 * at[2])) + 3 * (at[1] == at[2]));
    });
    const Array b = normal(Dtype::float32, {2, batch, n, k}, 1);
    for (const std::int64_t bytes : {4 * 324, 1, 1 << 20}) {
      context.state().own_costs().dense.part_bytes = bytes;
      const Array x(Dtype::float32, {2, batch, n, k}), y(Dtype::float32, {2, batch, n, k});
      const Array w(Dtype::float32, {batch, n}), v(Dtype::float32, {batch, n, n}), info(Dtype::int64, {batch});
      const Tensor info_view = info, vectors = v;
      solve_cholesky(symmetric, b, x, {.info = &info_view}, context);
      solve_lu(a, b, y, {}, context);
      eigh(symmetric, w, &vectors, {}, {}, context);
      for (std::int64_t i = 0; i < batch; ++i) {
        EXPECT_EQ(info(i), 0);
        expect_eigenpairs(Dense(item(symmetric, {i})), Dense(item(w, {i})), Dense(item(v, {i})), 0x1p-24);
        for (const std::int64_t j : {0, 1}) {
          const Dense rhs(item(b, {j, i}));
          expect_solution(Dense(item(symmetric, {i})), Dense(item(x, {j, i})), rhs, 0x1p-24, "Cholesky");
          expect_solution(Dense(item(a, {i})), Dense(item(y, {j, i})), rhs, 0x1p-20, "LU");
        }
      }
    }
  });
}

/// Too large for routines of batches: each goes through a stream of its own.
TEST_F(Linalg, LargerMatricesOfABatchGoSideBySide) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t n = 520, batch = 6;
    Array a(Dtype::float64, {batch, n, n});
    each_index(a.shape(), [&](const Shape& at) { a.set(at, kernel_value(at[1], at[2], 0.1 * (1 + at[0]))); });
    a.set({3, 100, 7}, kNan);
    a.set({4, 9, 9}, -1);
    const Array b = normal(Dtype::float64, {batch, n, 2}, 1), x(Dtype::float64, {batch, n, 2}),
                info(Dtype::int64, {batch});
    const Tensor info_view = info;
    solve_cholesky(a, b, x, {.jitter = {1e-9}, .info = &info_view}, context);
    for (std::int64_t i = 0; i < batch; ++i) EXPECT_EQ(info(i), i == 3 ? -1 : i == 4 ? 10 : 0);
    for (const std::int64_t i : {0, 1, 5})
      expect_solution(Dense(item(a, {i})), Dense(item(x, {i})), Dense(item(b, {i})), 0x1p-53, "side by side");
    EXPECT_TRUE(std::isnan(x(3, 0, 0)) && std::isnan(x(4, n - 1, 1)));
  });
}

TEST_F(Linalg, MatricesThatAreOverwrittenServeAsScratch) {
  in_every_layout([](TestContext& context, Dtype dtype, const LayoutRow& of_a, const LayoutRow& of_b) {
    constexpr std::int64_t n = 12, k = 2;
    const Array b = normal(dtype, {n, k}, 3, 1, of_b.strides(n, k)), x(dtype, {n, k}, of_b.strides(n, k));
    for (const bool lower : {true, false}) {
      const Options options{.lower = lower, .overwrite_a = true};
      const Dense symmetric(kernel_matrix_of(dtype, n, of_a).tensor()),
          general(general_matrix(dtype, n, of_a).tensor());
      Array a = kernel_matrix_of(dtype, n, of_a);
      spoil_triangle(a, lower);
      solve_cholesky(a, b, x, options, context);
      expect_solution(symmetric, Dense(x.tensor()), Dense(b.tensor()), rounding(dtype), "Cholesky");
      a = general_matrix(dtype, n, of_a);
      solve_lu(a, b, x, options, context);
      expect_solution(general, Dense(x.tensor()), Dense(b.tensor()), 16 * rounding(dtype), "LU");
      a = kernel_matrix_of(dtype, n, of_a);
      const Array w(dtype, {3}), v(dtype, {n, 3}, of_b.strides(n, 3));
      const Tensor vectors = v;
      eigh(a, w, &vectors, linalg::Subset{2, 4}, options, context);
      expect_eigenpairs(symmetric, Dense(w.tensor()), Dense(v.tensor()), rounding(dtype));
    }
  });
}

TEST_F(Linalg, InfoNamesWhatFailedAndTheRestIsRight) {
  on_both([&](TestContext& context) {
    constexpr std::int64_t n = 5;
    for (const Dtype dtype : kWide) {
      Array a(dtype, {4, n, n});
      each_index(a.shape(), [&](const Shape& at) { a.set(at, kernel_value(at[1], at[2], 1)); });
      a.set({1, 3, 3}, -1);     // the leading minor of order 4
      a.set({2, 4, 1}, kNan);   // read with lower
      a.set({3, 0, 4}, -kInf);  // not read with lower
      const Array info(Dtype::int64, {4}), x(dtype, {4, n}), out(dtype, {4, n, n}), w(dtype, {4, n});
      const Tensor info_view = info;
      const Options unchecked{.info = &info_view};
      const auto infos = [&] { return std::vector<double>{info(0), info(1), info(2), info(3)}; };
      const Array b = filled(dtype, {n}, {1, 2, 3, 4, 5});
      solve_cholesky(a, b, x, unchecked, context);
      EXPECT_EQ(infos(), (std::vector<double>{0, 4, -1, 0}));
      for (const std::int64_t i : {0, 1, 2, 3})
        for (std::int64_t j = 0; j < n; ++j) EXPECT_EQ(std::isnan(x(i, j)), i == 1 || i == 2);
      cholesky(a, out, unchecked, context);
      EXPECT_EQ(infos(), (std::vector<double>{0, 4, -1, 0}));
      for (std::int64_t j = 0; j < n; ++j) EXPECT_TRUE(std::isnan(out(1, j, n - 1)));
      eigh(a, w, nullptr, {}, unchecked, context);
      EXPECT_EQ(infos(), (std::vector<double>{0, 0, -1, 0}));
      for (std::int64_t j = 0; j < n; ++j) a.set({1, j, 2}, 0);  // singular
      solve_lu(a, b, x, unchecked, context);
      EXPECT_TRUE(infos()[0] == 0 && infos()[1] > 0 && infos()[2] == -1 && infos()[3] == -1);
      EXPECT_TRUE(std::isnan(x(1, 0)) && std::isnan(x(3, 0)) && !std::isnan(x(0, 0)));
      EXPECT_EQ(
          message_of([&] { cholesky(a, out, {}, context); }),
          "cholesky: a must be positive definite. Received item (1,) (2 of 4 failed) whose leading minor of order "
          "3 is not; jitter adds to the diagonal.");
      EXPECT_EQ(message_of([&] { eigh(a, w, nullptr, {}, {}, context); }),
                "eigh: a must be finite. Received item (2,) with NaN or infinity.");
    }
  });
}

TEST_F(Linalg, JitterIsAddedWhereItIsNeeded) {
  on_both([&](TestContext& context) {
    constexpr std::int64_t n = 4;
    Array a(Dtype::float64, {2, n, n});
    // Ones everywhere have rank 1; twice the identity needs nothing.
    each_index(a.shape(), [&](const Shape& at) {
      a.set(at, at[0] == 0 ? 1.0 - 1e-9 * (at[1] == 3 && at[2] == 3) : 2.0 * (at[1] == at[2]));
    });
    const Array out(Dtype::float64, {2, n, n});
    EXPECT_THROW(cholesky(a, out, {}, context), Error);
    EXPECT_THROW(cholesky(a, out, {.jitter = {1e-12}}, context), Error);
    cholesky(a, out, {.jitter = {1e-12, 1e-6}}, context);
    EXPECT_NEAR(out(0, 0, 0), std::sqrt(1 + 1e-6), 1e-9);
    EXPECT_EQ(out(1, 0, 0), std::sqrt(2.0));
    cholesky(a, a, {.jitter = {1e-12, 1e-6}}, context);
    EXPECT_TRUE(same_bits(a, out));
  });
}

TEST_F(Linalg, EmptyArraysAreFine) {
  on_both([&](TestContext& context) {
    for (const Shape& shape : {Shape{0, 0}, Shape{0, 4, 4}, Shape{2, 0, 0}}) {
      const std::int64_t n = shape.back();
      const Shape batch(shape.begin(), shape.end() - 2);
      Shape of_b = batch;
      of_b.insert(of_b.end(), {n, 2});
      Shape of_w = batch;
      of_w.push_back(n);
      const Array a(Dtype::float32, shape), out(Dtype::float32, shape), b(Dtype::float32, of_b),
          x(Dtype::float32, of_b);
      const Array w(Dtype::float32, of_w), pivots(Dtype::int64, of_w), info(Dtype::int64, batch);
      const Tensor info_view = info, v = out;
      const Options options{.info = &info_view};
      cholesky(a, out, options, context);
      solve_cholesky(a, b, x, options, context);
      solve_lu(a, b, x, options, context);
      lu_factor(a, out, pivots, options, context);
      eigh(a, w, &v, {}, options, context);
      if (info.tensor().count() > 0) EXPECT_EQ(read(info, Shape(batch.size(), 0)), 0);
    }
    const Array a = filled(Dtype::float64, {1, 1}, {4}), b(Dtype::float64, {1, 0}), x(Dtype::float64, {1, 0});
    solve_cholesky(a, b, x, {}, context);
    const Array minus = filled(Dtype::float64, {1, 1}, {-4});
    EXPECT_THROW(solve_cholesky(minus, b, x, {}, context), Error) << "no columns, but a matrix to look at";
  });
}

TEST_F(Linalg, BrokenRulesAreToldBeforeAnythingIsWritten) {
  if (!is_wanted("cpu")) return;
  Context context;
  const Array a = kernel_matrix_of(Dtype::float64, 4, kLayouts[0]), b = normal(Dtype::float64, {4, 2}, 1);
  const Array out(Dtype::float64, {4, 4}), x(Dtype::float64, {4, 2}), w(Dtype::float64, {4}), p(Dtype::int64, {4});
  const Tensor v = out;
  const auto row = [&](const std::string& expected, const std::function<void()>& call) {
    EXPECT_NE(message_of(call).find(expected), std::string::npos) << expected << "\n" << message_of(call);
    EXPECT_TRUE(out.untouched() && x.untouched() && w.untouched() && p.untouched()) << expected;
  };
  row("cholesky: a must have the shape [..., n, n]. Received (4, 2).", [&] { linalg::cholesky(b, out); });
  row("lu_solve: lu must have the shape [..., n, n]. Received (4, 2).",
      [&] { linalg::lu_solve(b, Array(Dtype::int64, {2}), b, x); });
  row("lu_factor: pivots must have shape (2,). Received (4,).",
      [&] { linalg::lu_factor(b, x, p); });
  row("cholesky: a must be float32 or float64. Received int64.",
      [&] { linalg::cholesky(Array(Dtype::int64, {4, 4}), out); });
  row("cholesky: out must be float64. Received float32.", [&] { linalg::cholesky(a, Array(Dtype::float32, {4, 4})); });
  row("cholesky: out must have shape (4, 4). Received (4, 2).", [&] { linalg::cholesky(a, x); });
  row("solve_lu: b must have the shape [..., n, k] or [n], n = 4 as in a. Received (3, 2).",
      [&] { linalg::solve_lu(a, Array(Dtype::float64, {3, 2}), x); });
  row("solve_lu: b must have the dtype of a, float64. Received float32.",
      [&] { linalg::solve_lu(a, Array(Dtype::float32, {4, 2}), x); });
  row("solve_cholesky: batch axes must broadcast. Received (2,) and (3,).",
      [&] { linalg::solve_cholesky(Array(Dtype::float64, {2, 4, 4}), Array(Dtype::float64, {3, 4, 2}), x); });
  Tensor shifted = a;
  shifted.shape = {4, 2};
  shifted.data = static_cast<double*>(shifted.data) + 1;
  row("solve_cholesky: x must not overlap a.", [&] { linalg::solve_cholesky(a, b, shifted); });
  Tensor repeated = out;
  repeated.strides = {0, 1};
  row("cholesky: no two elements of out may share memory. Received strides (0, 1).",
      [&] { linalg::cholesky(a, repeated); });
  Tensor shared(a.tensor().data, Dtype::float64, {2, 4, 4}, {0, 4, 1});
  row("solve_cholesky: no two elements of a may share memory.", [&] {
    const Array many(Dtype::float64, {2, 4, 2});
    linalg::solve_cholesky(shared, b, many, {.overwrite_a = true});
  });
  row("eigh: subset_by_index must be (first, last), 0 <= first <= last < 4. Received (2, 4).",
      [&] { linalg::eigh(a, w, &v, linalg::Subset{2, 4}); });
  row("cholesky: jitter must be positive and finite. Received -1.",
      [&] { linalg::cholesky(a, out, {.jitter = {-1}}); });
  row("lu_solve: pivot 1 must be from 1 to 3. Received 0.",
      [&] { linalg::lu_solve(a, filled(Dtype::int64, {4}, {0, 0, 2, 3}), b, x); });
  Tensor far = a;
  far.device = {DeviceKind::cuda, 0};
  row("cholesky: out must lie on the device of a, cuda:0. Received one on cpu.", [&] { linalg::cholesky(far, out); });
  EXPECT_EQ(message_of([&] { linalg::solve_lu(Array(Dtype::float64, {4, 4}).fill([] { return 1; }), b, x); }),
            "solve_lu: a must not be singular. Received one whose pivot 2 is zero.");
}

TEST_F(Linalg, WorkspacesAreWhatTheCallAsksFor) {
  if (!cuda_serves()) return;
  const DeviceStream stream;
  std::uintptr_t next = 0;
  const auto place = [&](Shape shape, Dtype dtype = Dtype::float64) {  // nothing need be there
    Tensor t(reinterpret_cast<void*>(next += std::uintptr_t{1} << 34), dtype, std::move(shape));
    t.device = {DeviceKind::cuda, 0};
    return t;
  };
  const Tensor a = place({5, 20, 20}), one = place({20, 20}), b = place({20, 3}), x = place({5, 20, 3}),
               y = place({20, 3});
  const Tensor out = place({5, 20, 20}), w = place({5, 20}), pivots = place({5, 20}, Dtype::int64), v = place({20, 20});
  const Tensor values = place({20}), tall = place({5, 20, 3}), few = place({5, 3}, Dtype::int64);
  const std::vector<std::function<void(const Options&)>> calls = {
      [&](const Options& options) { linalg::cholesky(a, out, options); },
      [&](const Options& options) { linalg::solve_cholesky(a, b, x, options); },
      [&](const Options& options) { linalg::solve_cholesky(one, b, y, options); },
      [&](const Options& options) { linalg::lu_factor(a, out, pivots, options); },
      [&](const Options& options) { linalg::solve_lu(one, b, y, options); },
      [&](const Options& options) { linalg::lu_factor(x, tall, few, options); },
      [&](const Options& options) { linalg::eigh(a, w, &out, {}, options); },
      [&](const Options& options) { linalg::eigh(one, values, &v, {}, options); },
  };
  for (const auto& call : calls)
    for (const std::vector<double>& jitter : {std::vector<double>{}, {1e-6}}) {
      struct Stop {};
      std::int64_t asked = 0;
      Options options{.jitter = jitter};
      options.queue.stream = static_cast<CuStream>(stream);
      const std::int64_t bytes = linalg::workspace_size(options, call);
      options.queue.allocate = [&](std::int64_t wanted) -> void* {
        asked = wanted;
        throw Stop();
      };
      EXPECT_THROW(call(options), Stop);
      EXPECT_EQ(asked, bytes);
      EXPECT_GT(bytes, 0);
    }
}

TEST_F(Linalg, WorkspacesOfTheCpuAreEmpty) {
  const Tensor a(nullptr, Dtype::float32, {0, 0}), out = a;
  EXPECT_EQ(linalg::workspace_size({}, [&](const Options& options) { linalg::cholesky(a, out, options); }), 0);
}

}  // namespace
}  // namespace mercer
