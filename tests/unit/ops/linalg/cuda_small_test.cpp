// Small matrices on CUDA by kernels of their own, against the arithmetic of the host in double precision and against
// what is known of the factors. Bounds are those of linalg_test.cpp, in the norm of Frobenius: backward stability of
// the factors with n u |a|, of the solutions with a small multiple of it, u the rounding unit.
#include <algorithm>

#include "ops/context.h"
#include "ops/device_arrays.h"
#include "ops/linalg_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;
using linalg::Options;

double rounding(Dtype dtype) { return dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24; }

/// Orders on both sides of every width and team.
constexpr std::int64_t kOrders[] = {1, 2, 4, 5, 8, 9, 12, 13, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 100, 128};

/// Symmetric, near exp(-|i - j|^2) with a ridge that grows with the item.
double kernel_value(std::int64_t item, std::int64_t i, std::int64_t j) {
  const double gap = 0.3 * static_cast<double>(i - j);
  return std::exp(-gap * gap) + (i == j ? 0.05 * static_cast<double>(1 + item) : 0);
}

Array kernel_matrices(Dtype dtype, std::int64_t batch, std::int64_t n, const Shape& strides = {}) {
  Array a(dtype, {batch, n, n}, strides);
  each_index(a.shape(), [&](const Shape& at) { a.set(at, kernel_value(at[0], at[1], at[2])); });
  return a;
}

using Value = std::function<double(std::int64_t i, std::int64_t j)>;

double norm_of(std::int64_t rows, std::int64_t cols, const Value& value) {
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j) sum += value(i, j) * value(i, j);
  return std::sqrt(sum);
}

/// |a x - b| against growth n u |a| |x|, for columns x and b.
void expect_solves(std::int64_t n, std::int64_t k, double unit, const Value& a, const Value& x, const Value& b) {
  const double error = norm_of(n, k, [&](std::int64_t i, std::int64_t e) {
    double sum = -b(i, e);
    for (std::int64_t j = 0; j < n; ++j) sum += a(i, j) * x(j, e);
    return sum;
  });
  EXPECT_LE(error, 4 * static_cast<double>(n) * unit * norm_of(n, n, a) * norm_of(n, k, x)) << "order " << n;
}

/// |a v - v w|.
double rest_of_pairs(std::int64_t n, const Value& a, const std::function<double(std::int64_t)>& w, const Value& v) {
  return norm_of(n, n, [&](std::int64_t i, std::int64_t j) {
    double sum = -v(i, j) * w(j);
    for (std::int64_t k = 0; k < n; ++k) sum += a(i, k) * v(k, j);
    return sum;
  });
}

/// Every order, both triangles: factors, solutions, and what the factor solves.
TEST(CudaSmall, CholeskyOfEveryOrder) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t k = 5;
    for (const Dtype dtype : kWide)
      for (const std::int64_t n : kOrders) {
        const std::int64_t batch = n > 64 ? 2 : 5;
        const bool lower = n % 2 == 0, columns = n % 3 == 0;
        const Shape strides = columns ? Shape{n * n + 3, 1, n} : Shape{n * n, n, 1};
        Array a = kernel_matrices(dtype, batch, n, strides);
        const Array whole = kernel_matrices(dtype, batch, n);
        each_index(a.shape(), [&](const Shape& at) {
          if (lower ? at[2] > at[1] : at[2] < at[1]) a.set(at, kNan);
        });
        const Array b = normal(dtype, {batch, n, k}, 3), x(dtype, {batch, n, k}), y(dtype, {batch, n, k});
        const Array factor(dtype, {batch, n, n}, strides);
        cholesky(a, factor, {.lower = lower}, context);
        solve_cholesky(a, b, x, {.lower = lower}, context);
        cho_solve(factor, b, y, {.lower = lower}, context);
        for (std::int64_t item = 0; item < batch; ++item) {
          const auto of = [&](const Array& array) -> Value {
            return [&array, item](std::int64_t i, std::int64_t j) { return array(item, i, j); };
          };
          const auto product = [&](std::int64_t i, std::int64_t j) {
            double sum = -whole(item, i, j);
            for (std::int64_t p = 0; p < n; ++p)
              sum += lower ? factor(item, i, p) * factor(item, j, p) : factor(item, p, i) * factor(item, p, j);
            return sum;
          };
          EXPECT_LE(norm_of(n, n, product), (n + 1) * rounding(dtype) * norm_of(n, n, of(whole))) << "order " << n;
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < n; ++j)
              if (lower ? j > i : j < i) ASSERT_EQ(factor(item, i, j), 0);
          expect_solves(n, k, rounding(dtype), of(whole), of(x), of(b));
          expect_solves(n, k, rounding(dtype), of(whole), of(y), of(b));
        }
      }
  });
}

/// Pivots are those of the textbook, ties and all, in float64 and where rounding cannot change them.
TEST(CudaSmall, LuOfEveryOrder) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t k = 2;
    for (const Dtype dtype : kWide)
      for (const std::int64_t n : kOrders) {
        const std::int64_t batch = n > 64 ? 2 : 3;
        const Shape strides = n % 3 == 0 ? Shape{n * n, 1, n} : Shape{n * n, n, 1};
        Array a = normal(dtype, {batch, n, n}, 11, 1, strides);
        for (std::int64_t j = 0; n > 2 && j < n; ++j) a.set({1, n - 1, j}, -a(1, 1, j));  // a tie, not singular
        if (n > 2) a.set({1, n - 1, n - 1}, a(1, n - 1, n - 1) + 3);
        const Array lu(dtype, {batch, n, n}, strides), pivots(Dtype::int64, {batch, n});
        const Array b = normal(dtype, {batch, n, k}, 3), x(dtype, {batch, n, k});
        lu_factor(a, lu, pivots, {}, context);
        for (std::int64_t item = 0; item < batch; ++item) {
          std::vector<std::vector<double>> rows(static_cast<std::size_t>(n));
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < n; ++j) rows[static_cast<std::size_t>(i)].push_back(a(item, i, j));
          const double size = norm_of(n, n, [&](std::int64_t i, std::int64_t j) { return a(item, i, j); });
          for (std::int64_t i = 0; i < n; ++i) {
            const auto pivot = static_cast<std::int64_t>(pivots(item, i));
            ASSERT_TRUE(pivot >= i && pivot < n);
            std::swap(rows[static_cast<std::size_t>(i)], rows[static_cast<std::size_t>(pivot)]);
          }
          const double error = norm_of(n, n, [&](std::int64_t i, std::int64_t j) {
            double sum = -rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
            for (std::int64_t p = 0; p <= std::min(i, j); ++p)
              sum += (p == i ? 1 : lu(item, i, p)) * lu(item, p, j);
            return sum;
          });
          EXPECT_LE(error, 16 * n * rounding(dtype) * size) << "order " << n;
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < i; ++j) ASSERT_LE(std::abs(lu(item, i, j)), 1 + 4 * rounding(dtype));
        }
        if (n > 2) EXPECT_NE(pivots(1, 0), n - 1) << "the first of equals";
        for (const int way : {0, 1, 2}) {
          if (way == 0) solve_lu(a, b, x, {}, context);
          else lu_solve(lu, pivots, b, x, way == 2, {}, context);
          for (std::int64_t item = 0; item < batch; ++item)
            expect_solves(
                n, k, 16 * rounding(dtype),
                [&](std::int64_t i, std::int64_t j) { return way == 2 ? a(item, j, i) : a(item, i, j); },
                [&](std::int64_t i, std::int64_t e) { return x(item, i, e); },
                [&](std::int64_t i, std::int64_t e) { return b(item, i, e); });
        }
      }
  });
}

/// a v = v w and v^T v = 1 to within 8 n u, values ascending; of matrices of all kinds, of one batch.
TEST(CudaSmall, EigenpairsOfEveryOrder) {
  on_cuda([](TestContext& context) {
    struct Kind {
      const char* name;
      std::function<double(std::int64_t n, std::int64_t i, std::int64_t j, double normal)> value;
    };
    const Kind kinds[] = {
        {"normal", [](auto, auto, auto, double normal) { return normal; }},
        {"kernel", [](auto, auto i, auto j, double) { return kernel_value(0, i, j); }},
        {"huge", [](auto, auto, auto, double normal) { return std::ldexp(normal, 120); }},
        {"tiny", [](auto, auto, auto, double normal) { return std::ldexp(normal, -120); }},
        {"zeros", [](auto, auto, auto, double) { return 0.0; }},
        {"not finite", [](auto n, auto i, auto j, double) { return i == n - 1 && j == 0 ? kNan : 1.0; }},
        {"a cluster", [](auto, auto i, auto j, double normal) { return (i == j ? 1 : 0) + 1e-5 * normal; }},
        {"of rank one", [](auto, auto i, auto j, double) { return 1.0 / static_cast<double>((i + 1) * (j + 1)); }},
        {"pairs of equals", [](auto n, auto i, auto j, double) { return i + j == n - 1 ? 1.0 : 0.0; }},
    };
    constexpr auto kKinds = static_cast<std::int64_t>(std::size(kinds));
    for (const Dtype dtype : kWide)
      for (const std::int64_t n : {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 32}) {
        const Array random = normal(dtype, {n, n}, 17);
        Array a(dtype, {kKinds, n, n}, n % 2 == 0 ? Shape{n * n + 5, 1, n} : Shape{});
        each_index(a.shape(), [&](const Shape& at) {
          const std::int64_t i = std::max(at[1], at[2]), j = std::min(at[1], at[2]);
          a.set(at, kinds[at[0]].value(n, i, j, random(i, j)));
        });
        const Array w(dtype, {kKinds, n}), v(dtype, {kKinds, n, n}), info(Dtype::int64, {kKinds});
        const Tensor vectors = v, said = info;
        eigh(a, w, &vectors, {}, {.info = &said}, context);
        for (std::int64_t item = 0; item < kKinds; ++item) {
          const std::string what = fmt::format("{} of {} rows, {}", kinds[item].name, n, name_of(dtype));
          const bool fails = std::string(kinds[item].name) == "not finite";
          EXPECT_EQ(info(item), fails ? -1 : 0) << what;
          const Value of_a = [&](auto i, auto j) { return a(item, i, j); };
          const Value of_v = [&](auto i, auto j) { return v(item, i, j); };
          if (fails) {
            EXPECT_TRUE(std::isnan(w(item, 0)) && std::isnan(of_v(n - 1, n - 1))) << what;
            continue;
          }
          const double bound = 8 * static_cast<double>(n) * rounding(dtype), size = norm_of(n, n, of_a);
          for (std::int64_t j = 1; j < n; ++j) EXPECT_LE(w(item, j - 1), w(item, j)) << what;
          EXPECT_LE(rest_of_pairs(n, of_a, [&](std::int64_t j) { return w(item, j); }, of_v), bound * size) << what;
          EXPECT_LE(norm_of(n, n,
                            [&](std::int64_t i, std::int64_t j) {
                              double sum = i == j ? -1 : 0;
                              for (std::int64_t k = 0; k < n; ++k) sum += of_v(k, i) * of_v(k, j);
                              return sum;
                            }),
                    bound * std::sqrt(static_cast<double>(n)))
              << what;
        }
      }
  });
}

/// Pivots, determinants and quotients at the ends of the range.
TEST(CudaSmall, HugeAndTinyValues) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t n = 6;
    for (const Dtype dtype : kWide) {
      const bool wide = dtype == Dtype::float64;
      // The last ones are subnormal.
      const std::vector<int> scales =
          wide ? std::vector<int>{0, -600, 900, 1000, -1060} : std::vector<int>{0, -60, 90, 120, -140};
      const auto batch = static_cast<std::int64_t>(scales.size());
      Array a(dtype, {batch, n, n}), b(dtype, {batch, n});
      each_index(a.shape(), [&](const Shape& at) {
        a.set(at, at[1] == at[2] ? std::ldexp(1.0 + 0.5 * (at[1] % 2), scales[static_cast<std::size_t>(at[0])]) : 0);
      });
      each_index(b.shape(),
                 [&](const Shape& at) { b.set(at, a(at[0], at[1], at[1]) * static_cast<double>(at[1] + 1)); });
      const Array x(dtype, {batch, n}), y(dtype, {batch, n}), factor(dtype, {batch, n, n});
      // b [batch, n] is a matrix to the call: a column each.
      Tensor columns = b, solved = x, again = y;
      for (Tensor* t : {&columns, &solved, &again}) {
        t->shape = {batch, n, 1};
        t->strides = {n, 1, 1};
      }
      solve_cholesky(a, columns, solved, {}, context);
      solve_lu(a, columns, again, {}, context);
      cholesky(a, factor, {}, context);
      for (std::int64_t item = 0; item < batch; ++item)
        for (std::int64_t i = 0; i < n; ++i) {
          const double expected = read(b, {item, i}) / a(item, i, i), given = a(item, i, i);
          EXPECT_NEAR(x(item, i), expected, 8 * rounding(dtype) * std::abs(expected)) << item << " " << i;
          EXPECT_NEAR(y(item, i), expected, 8 * rounding(dtype) * std::abs(expected)) << item << " " << i;
          EXPECT_NEAR(factor(item, i, i), std::sqrt(given), 4 * rounding(dtype) * std::sqrt(given)) << item << " " << i;
        }
    }
  });
}

/// Each team of a block fails, or not, on its own.
TEST(CudaSmall, FailuresStayAlone) {
  on_cuda([](TestContext& context) {
    for (const Dtype dtype : kWide)
      for (const std::int64_t n : {3, 16, 32, 40}) {
        constexpr std::int64_t kBatch = 7;
        Array a = kernel_matrices(dtype, kBatch, n);
        a.set({1, n - 1, n - 1}, -1);     // the whole matrix is no longer positive
        a.set({3, 1, 0}, kNan);
        a.set({4, 0, n - 1}, kInf);       // not read with lower
        a.set({5, 0, 0}, 0);              // the first minor
        const Array out(dtype, {kBatch, n, n}), info(Dtype::int64, {kBatch}), b = normal(dtype, {kBatch, n, 2}, 3),
            x(dtype, {kBatch, n, 2}), quad(Dtype::float64, {kBatch, 2}), logdet(Dtype::float64, {kBatch});
        const Tensor said = info;
        Options options{.info = &said};
        const auto failed = [](std::int64_t item) { return item == 1 || item == 3 || item == 5; };
        for (const bool solves : {false, true}) {
          if (solves) solve_cholesky(a, b, x, options, context);
          else cholesky(a, out, options, context);
          const double expected[] = {0, static_cast<double>(n), 0, -1, 0, 1, 0};
          for (std::int64_t item = 0; item < kBatch; ++item) {
            EXPECT_EQ(info(item), expected[item]) << n << " " << item;
            EXPECT_EQ(std::isnan(solves ? x(item, n - 1, 1) : out(item, 0, n - 1)), failed(item));
            if (!solves) EXPECT_EQ(std::isnan(out(item, 1, 0)), failed(item));
          }
        }
        inv_quad_logdet(a, b, quad, logdet, options, context);
        for (std::int64_t item = 0; item < kBatch; ++item)
          EXPECT_TRUE(std::isnan(quad(item, 1)) == failed(item) && std::isnan(logdet(item)) == failed(item));
        // A ridge that makes those matrices dominant; the others get none.
        const Array plain(dtype, {kBatch, n, n});
        a.set({4, 0, n - 1}, 0);
        cholesky(a, plain, options, context);
        options.jitter = {1e-9, 2.0 * static_cast<double>(n)};
        cholesky(a, out, options, context);
        for (std::int64_t item = 0; item < kBatch; ++item) {
          EXPECT_EQ(info(item), item == 3 ? -1 : 0);
          EXPECT_EQ(std::isnan(out(item, 0, 0)), item == 3);
          if (!failed(item)) EXPECT_EQ(out(item, n - 1, 0), plain(item, n - 1, 0));
        }
        double mean = 0;
        for (std::int64_t i = 0; i < n; ++i) mean += std::abs(a(1, i, i)) / static_cast<double>(n);
        const double raised = a(1, 0, 0) + 2.0 * static_cast<double>(n) * mean;
        EXPECT_NEAR(out(1, 0, 0) * out(1, 0, 0), raised, 8 * rounding(dtype) * raised);
        // Singular, of zeros, and NaN, with LU.
        each_index({n, n}, [&](const Shape& at) { a.set({2, at[0], at[1]}, at[0] == at[1] ? 1 : 0); });
        for (std::int64_t i = 0; i < n; ++i) a.set({2, i, 1}, 0);
        const Array pivots(Dtype::int64, {kBatch, n});
        lu_factor(a, out, pivots, {.info = &said}, context);
        EXPECT_TRUE(info(0) == 0 && info(2) == 2 && info(3) == -1 && info(6) == 0);
        EXPECT_TRUE(std::isnan(out(2, 0, 0)) && !std::isnan(out(6, 0, 0)));
        EXPECT_EQ(pivots(2, n - 1), n - 1);
        Array wrong = copy(pivots, Dtype::int64, {n, 1});
        wrong.set({0, 1}, 0);
        lu_solve(out, wrong, b, x, false, {}, context);
        EXPECT_TRUE(std::isnan(x(0, 0, 0)) && std::isnan(x(2, 0, 0)) && !std::isnan(x(6, 0, 0)));
      }
  });
}

/// A matrix that serves many right-hand sides is worked on by several teams; x in the place of b, and with gaps.
TEST(CudaSmall, ManyRightHandSidesOfFewMatrices) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t n = 7, kRepeats = 9, k = 33;
    const Array a = kernel_matrices(Dtype::float32, 2, n), b = normal(Dtype::float32, {kRepeats, 2, n, k}, 5);
    Array x = copy(b, Dtype::float32, {2 * n * (k + 2), n * (k + 2), k + 2, 1}), y(Dtype::float32, {kRepeats, 2, n, k});
    const Array quad(Dtype::float64, {kRepeats, 2, k}), logdet(Dtype::float64, {2}), factor(Dtype::float32, {2, n, n});
    solve_cholesky(a, x, x, {}, context);
    solve_lu(a, b, y, {}, context);
    inv_quad_logdet(a, b, quad, logdet, {}, context);
    cholesky(a, factor, {}, context);
    for (std::int64_t item = 0; item < 2; ++item) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += 2 * std::log(factor(item, i, i));
      EXPECT_NEAR(logdet(item), sum, 4 * 0x1p-24 * (n + std::abs(sum)));
      for (std::int64_t repeat = 0; repeat < kRepeats; ++repeat)
        for (const Array* each : {&x, &y}) {
          const auto of = [&](const Array& array) {
            return [&, item, repeat](std::int64_t i, std::int64_t e) { return array(repeat, item, i, e); };
          };
          expect_solves(
              n, k, 16 * 0x1p-24, [&](std::int64_t i, std::int64_t j) { return a(item, i, j); }, of(*each), of(b));
        }
      for (std::int64_t repeat = 0; repeat < kRepeats; ++repeat)
        for (std::int64_t e = 0; e < k; ++e) {
          double product = 0;
          for (std::int64_t i = 0; i < n; ++i) product += b(repeat, item, i, e) * x(repeat, item, i, e);
          EXPECT_NEAR(quad(repeat, item, e), product, 1e3 * n * 0x1p-24 * std::abs(product));
        }
    }
  });
}

/// Above 64 rows the library solves for more than 16 right-hand sides, by factors of ours.
TEST(CudaSmall, FactorsServeManyRightHandSides) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t kBatch = 2, k = 19;
    for (const std::int64_t n : {65, 100, 128}) {
      const Array kernels = kernel_matrices(Dtype::float32, kBatch, n), a = normal(Dtype::float32, {kBatch, n, n}, 5);
      const Array b = normal(Dtype::float32, {kBatch, n, k}, 6), x(Dtype::float32, {kBatch, n, k});
      const Array factor(Dtype::float32, {kBatch, n, n}), pivots(Dtype::int64, {kBatch, n});
      const auto check = [&](const Array& of, bool transposed, double unit) {
        for (std::int64_t item = 0; item < kBatch; ++item)
          expect_solves(
              n, k, unit,
              [&](std::int64_t i, std::int64_t j) { return transposed ? of(item, j, i) : of(item, i, j); },
              [&](std::int64_t i, std::int64_t e) { return x(item, i, e); },
              [&](std::int64_t i, std::int64_t e) { return b(item, i, e); });
      };
      cholesky(kernels, factor, {}, context);
      cho_solve(factor, b, x, {}, context);
      check(kernels, false, 0x1p-24);
      lu_factor(a, factor, pivots, {}, context);
      for (const bool transposed : {false, true}) {
        lu_solve(factor, pivots, b, x, transposed, {}, context);
        check(a, transposed, 16 * 0x1p-24);
      }
    }
  });
}

/// A graph holds calls with info, which wait for nothing and take no memory; a call without says why it does not.
TEST(CudaSmall, CapturedCallsRunAgain) {
  on_cuda([](TestContext& context) {
    constexpr std::int64_t n = 8, kBatch = 20;
    const DeviceStream stream;
    DeviceArrays arrays(stream, 1 << 16);
    const Tensor a = arrays.take(Dtype::float32, {kBatch, n, n}), b = arrays.take(Dtype::float32, {kBatch, n, 1}),
                 x = arrays.take(Dtype::float32, {kBatch, n, 1}), w = arrays.take(Dtype::float32, {kBatch, n}),
                 v = arrays.take(Dtype::float32, {kBatch, n, n}), info = arrays.take(Dtype::int64, {kBatch}),
                 info_of_pairs = arrays.take(Dtype::int64, {kBatch});
    Options options{.jitter = {1e-6}, .info = &info};
    options.queue.stream = static_cast<CuStream>(stream);
    Options checked = options, of_pairs{.info = &info_of_pairs, .queue = options.queue};
    checked.info = nullptr;
    const auto solve = [&](const Options& own) { linalg::solve_cholesky(a, b, x, own, context); };
    const auto find_pairs = [&](const Options& own) { linalg::eigh(a, w, &v, {}, own, context); };
    EXPECT_EQ(linalg::workspace_size(options, solve), 0);
    EXPECT_GT(linalg::workspace_size(checked, solve), 0);
    EXPECT_EQ(linalg::workspace_size(of_pairs, find_pairs), 0);
    Array matrices = kernel_matrices(Dtype::float32, kBatch, n);
    arrays.upload(a, matrices);
    solve(options);  // compiles
    find_pairs(of_pairs);
    std::string refused;
    const Recording recording(stream, [&] {
      refused = message_of([&] { solve(checked); });
      solve(options);
      find_pairs(of_pairs);
    });
    EXPECT_NE(refused.find("must stay out of the capture of a CUDA graph"), std::string::npos) << refused;
    matrices.set({7, 0, 0}, -1);
    arrays.upload(a, matrices);
    for (const unsigned seed : {23u, 24u}) {
      const Array sides = normal(Dtype::float32, {kBatch, n, 1}, seed);
      arrays.upload(b, sides);
      for (const Tensor* out : {&x, &w, &v, &info, &info_of_pairs}) arrays.poison(*out);
      recording.play();
      const Array found = arrays.download(x), values = arrays.download(w), vectors = arrays.download(v),
                  said = arrays.download(info), said_of_pairs = arrays.download(info_of_pairs);
      for (std::int64_t item = 0; item < kBatch; ++item) {
        const Value of_a = [&](std::int64_t i, std::int64_t j) { return matrices(item, i, j); };
        EXPECT_EQ(said_of_pairs(item), 0);
        EXPECT_LE(rest_of_pairs(n, of_a, [&](std::int64_t j) { return values(item, j); },
                                [&](std::int64_t i, std::int64_t j) { return vectors(item, i, j); }),
                  8 * n * 0x1p-24 * norm_of(n, n, of_a));
        EXPECT_EQ(said(item), item == 7 ? 1 : 0);
        if (item == 7) continue;
        expect_solves(
            n, 1, 0x1p-24, of_a, [&](std::int64_t i, std::int64_t e) { return found(item, i, e); },
            [&](std::int64_t i, std::int64_t e) { return sides(item, i, e); });
      }
    }
  });
}

}  // namespace
}  // namespace mercer
