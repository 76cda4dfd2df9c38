// Conjugate gradients: residuals by the matrix in float64, against what was promised; how columns end; what
// preconditioners save. On kernel matrices of usual size they are tested from Python.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "device/lapack.h"
#include "mercer/linalg.h"
#include "ops/device_arrays.h"
#include "ops/linalg_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

double unit_roundoff(Dtype dtype) { return dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24; }
double default_tolerance(Dtype dtype) { return dtype == Dtype::float64 ? 1e-10 : 1e-5; }

template <class Body>
void on_cpu_and_cuda(const Body& body) {
  {
    TestContext context(Target::interpreter);
    body(context);
  }
  on_cuda(body);
}

/// Q diag(values) Q, with Q = 1 - 2 q q^T for q of equal numbers.
Array matrix_of(const std::vector<double>& values, Dtype dtype, Shape strides = {}) {
  const auto n = static_cast<std::int64_t>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  Array a(dtype, {n, n}, std::move(strides));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      a.set({i, j}, (i == j ? values[i] : 0) - 2.0 / double(n) * (values[i] + values[j]) + 4.0 / double(n * n) * sum);
  return a;
}

/// Eigenvalues from 1 to 1 / condition, evenly in the logarithm.
std::vector<double> spectrum(std::int64_t n, double condition) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(std::pow(condition, -double(i) / double(n - 1)));
  return values;
}

struct Residual {
  double residual = 0, right = 0, solution = 0;  // norms
};
Residual residual_of(const Tensor& a, const Tensor& b, const Tensor& x, std::int64_t column, double ridge = 0) {
  const auto at = [&](const Tensor& t, std::int64_t i) { return t.ndim() == 1 ? read(t, {i}) : read(t, {i, column}); };
  Residual sums;
  for (std::int64_t i = 0; i < a.shape[0]; ++i) {
    double gap = at(b, i) - ridge * at(x, i);
    for (std::int64_t j = 0; j < a.shape[0]; ++j) gap -= read(a, {i, j}) * at(x, j);
    sums.residual += gap * gap;
    sums.right += at(b, i) * at(b, i);
    sums.solution += at(x, i) * at(x, i);
  }
  return {std::sqrt(sums.residual), std::sqrt(sums.right), std::sqrt(sums.solution)};
}

/// The promise holds for products in the operator's precision, which lose n u of the sums of absolute values: at most
/// n u |a|_F |x| here, where |a|_F <= size.
void expect_promise(const Residual& got, double tolerance, std::int64_t n, Dtype dtype, double size) {
  const double lost = double(n + 4) * unit_roundoff(dtype) * (size * got.solution + got.right);
  EXPECT_LE(got.residual, tolerance * got.right + lost);
}

class Cg : public ::testing::Test {
 protected:
  void SetUp() override { MERCER_NEEDS_LAPACK(); }
};

TEST_F(Cg, ResidualsAreWhatIsPromised) {
  on_cpu_and_cuda([](TestContext& context) {
    int turn = 0;
    const std::int64_t most = context.on_cuda() ? 30 : 70;  // an emulated device is slow
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{7}, most})
      for (const Dtype dtype : kWide)
        for (const double condition : {1e1, 1e2, 1e4, 1e6}) {
          if (n == 1 && condition > 10) continue;
          const std::int64_t k = turn % 3 + 1, padded = n + 3;
          const Shape layouts[] = {{padded, 1}, {1, padded}, {2 * padded, 2}, {-padded, -1}};
          const std::vector<double> values = n == 1 ? std::vector<double>{3} : spectrum(n, condition);
          const Array a = matrix_of(values, dtype, layouts[turn % 4]);
          const Shape shape = turn % 4 == 3 ? Shape{n} : Shape{n, k};
          const Shape rows = shape.size() == 1 ? Shape{2} : Shape{k + 1, 1};
          const Shape gaps = shape.size() == 1 ? Shape{-3} : Shape{1, n + 2};
          const Array b = normal(dtype, shape, 1, 1, rows), x(dtype, shape, gaps);
          const Shape columns(shape.begin() + 1, shape.end());
          const Array info(Dtype::int64, columns), iterations(Dtype::int64, columns);
          const Tensor told = info, counted = iterations;
          SCOPED_TRACE(fmt::format("{} {} {} {}", n, name_of(dtype), condition, turn));
          cg(stored, a, b, x, {.info = &told, .iterations = &counted}, context);
          const bool is_within_reach = dtype == Dtype::float64 || condition <= 1e2;
          each_index(columns, [&](const Shape& at) {
            const double said = read(told, at);
            EXPECT_TRUE(said == 0 || (!is_within_reach && (said == -2 || said == read(counted, at)))) << said;
            EXPECT_LE(read(counted, at), 10.0 * double(n));
            if (said == 0)
              expect_promise(residual_of(a, b, x, at.empty() ? 0 : at[0]), default_tolerance(dtype), n, dtype,
                             std::sqrt(double(n)) * 3);
          });
          ++turn;
        }
  });
}

TEST_F(Cg, ColumnsEndOnTheirOwn) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 40;
    for (const Dtype dtype : kWide) {
      // 1, 2, ..., n on the diagonal: a unit vector takes one step, and one product to measure it.
      Array a(dtype, {n, n});
      a.fill([] { return 0; });
      for (std::int64_t i = 0; i < n; ++i) a.set({i, i}, double(i + 1));
      Array b(dtype, {n, 5});
      each_index(b.shape(), [&](const Shape& at) {
        const double random = std::sin(1.0 + double(at[0] * at[0]));
        const double values[] = {0, at[0] == 3 ? 2.5 : 0, random, at[0] < 2 ? 1.0 : 0, at[0] == 5 ? kNan : random};
        b.set(at, values[at[1]]);
      });
      const Array x(dtype, {n, 5}), info(Dtype::int64, {5}, {2}), iterations(Dtype::int64, {5}, {-1});
      const Tensor told = info, counted = iterations;
      cg(stored, a, b, x, {.info = &told, .iterations = &counted}, context);
      EXPECT_EQ(iterations(0), 0);
      EXPECT_EQ(iterations(1), 2);
      EXPECT_EQ(iterations(3), 3);
      EXPECT_GT(iterations(2), 10);
      EXPECT_EQ(iterations(4), 0);
      for (const std::int64_t j : {0, 1, 2, 3}) EXPECT_EQ(info(j), 0);
      EXPECT_EQ(info(4), -1);
      for (std::int64_t i = 0; i < n; ++i) {
        EXPECT_EQ(x(i, 0), 0);
        EXPECT_NEAR(x(i, 1), i == 3 ? 0.625 : 0, 4 * unit_roundoff(dtype));
        EXPECT_NEAR(x(i, 3), i < 2 ? 1.0 / double(i + 1) : 0, 2 * default_tolerance(dtype));
        EXPECT_TRUE(std::isnan(x(i, 4)));
      }
    }
  });
}

TEST_F(Cg, WhatFailsIsTold) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 30;
    for (const Dtype dtype : kWide) {
      Array b = normal(dtype, {n, 3}, 2);
      for (std::int64_t i = 0; i < n; ++i) b.set({i, 1}, 0);
      const Array x(dtype, {n, 3}), info(Dtype::int64, {3});
      const Tensor told = info;
      std::vector<double> values = spectrum(n, 10);
      const Array good = matrix_of(values, dtype);
      values[4] = -0.5;
      const Array indefinite = matrix_of(values, dtype);
      Array holed = copy(good, dtype);
      holed.set({3, 7}, kNan);
      for (const auto& [a, words] : {std::pair<const Array&, std::string>(indefinite, "must be positive definite"),
                                     {holed, "must be finite. Received NaN or infinity in column"}}) {
        cg(stored, a, b, x, {.info = &told}, context);
        EXPECT_EQ(info(0), -1);
        EXPECT_EQ(info(1), 0);
        EXPECT_TRUE(std::isnan(x(n - 1, 0)) && x(n - 1, 1) == 0);
        const std::string message = message_of([&] { cg(stored, a, b, x, {}, context); });
        EXPECT_NE(message.find(words), std::string::npos) << message;
        EXPECT_NE(message.find("(2 of 3 failed)"), std::string::npos) << message;
      }
      // Out of products: x is what they led to, and the message says how far that is.
      cg(stored, good, b, x, {.most_products = 4, .info = &told}, context);
      EXPECT_EQ(info(0), 4);
      EXPECT_EQ(info(1), 0);
      const Residual far = residual_of(good, b, x, 0);
      EXPECT_LT(far.residual, 0.5 * far.right);
      const std::string message =
          message_of([&] { cg(stored, good, b, x, {.tolerance = 1e-3, .most_products = 4}, context); });
      EXPECT_NE(message.find("cg: residuals must be at most 0.001 of b. Received 0."), std::string::npos) << message;
      EXPECT_NE(message.find("after 4 products"), std::string::npos) << message;
      EXPECT_FALSE(std::isnan(x(0, 0)));
      // A tolerance that no float32 reaches: what is measured stops falling long before the products are used up.
      cg(stored, good, b, x, {.tolerance = 1e-30, .most_products = 5000, .info = &told}, context);
      EXPECT_EQ(info(0), -2);
      expect_promise(residual_of(good, b, x, 0), 0, n, dtype, std::sqrt(double(n)) * 3);
      const Array iterations(Dtype::int64, {3});
      const Tensor counted = iterations;
      const std::string stuck = message_of([&] {
        cg(stored, good, b, x, {.tolerance = 1e-30, .most_products = 5000, .iterations = &counted}, context);
      });
      EXPECT_NE(stuck.find(fmt::format("products, where it stagnated: {} gets no closer", name_of(dtype))),
                std::string::npos)
          << stuck;
      EXPECT_GT(iterations(0), 10);
      EXPECT_LT(iterations(0), 1000);
    }
  });
}

/// A path of ridges is one call: each column is that of the matrix with its own ridge.
TEST_F(Cg, ColumnsHaveTheirRidges) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 40, k = 5;
    for (const Dtype dtype : kWide)
      for (const Dtype of_ridges : kWide) {
        const Array a = matrix_of(spectrum(n, 20), dtype), x(dtype, {n, k});
        Array b = normal(dtype, {n, k}, 5), ridges(of_ridges, {k}, {2});
        const double values[] = {0, 1e-3, 0.5, 3, 1e20};
        for (std::int64_t j = 0; j < k; ++j) ridges.set({j}, values[j]);
        const Array info(Dtype::int64, {k}), iterations(Dtype::int64, {k});
        const Tensor told = info, counted = iterations, given = ridges;
        cg(stored, a, b, x, {.ridges = &given, .info = &told, .iterations = &counted}, context);
        for (std::int64_t j = 0; j < k; ++j) {
          EXPECT_EQ(info(j), 0);
          const double ridge = ridges(j), size = std::sqrt(double(n)) * (3 + ridge);
          expect_promise(residual_of(a, b, x, j, ridge), default_tolerance(dtype), n, dtype, size);
        }
        EXPECT_LT(iterations(3), iterations(1));
        // One number for all, alone or as an array without axes, gives the same bits; a guess is measured with it.
        const Array first(dtype, {n, k}), second(dtype, {n, k});
        Array single(of_ridges, Shape{});
        single.set({}, 0.5);
        const Tensor all = single;
        cg(stored, a, b, first, {.ridge = 0.5}, context);
        cg(stored, a, b, second, {.ridges = &all}, context);
        EXPECT_TRUE(same_bits(first, second));
        for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(first(i, 2), x(i, 2));
        const Tensor guess = first;
        cg(stored, a, b, x, {.tolerance = 2 * default_tolerance(dtype), .guess = &guess, .ridge = 0.5,
                             .iterations = &counted}, context);
        EXPECT_EQ(iterations(0), 1);
        // What no ridge may be ends its column, or the call where it can be seen.
        for (const double bad : {-1.0, kNan, kInf}) {
          ridges.set({1}, bad);
          const Tensor wrong = ridges;
          if (context.on_cuda()) {
            cg(stored, a, b, x, {.ridges = &wrong, .info = &told}, context);
            EXPECT_TRUE(info(0) == 0 && info(1) == -1 && info(2) == 0 && std::isnan(x(3, 1)));
          } else {
            const std::string message = message_of([&] { cg(stored, a, b, x, {.ridges = &wrong}, context); });
            EXPECT_NE(message.find("cg: ridge must be from 0 on and finite. Received"), std::string::npos) << message;
          }
        }
      }
  });
}

TEST_F(Cg, GuessesAndPlaces) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 80;
    for (const Dtype dtype : kWide) {
      const Array a = matrix_of(spectrum(n, 50), dtype), b = normal(dtype, {n, 2}, 3), first(dtype, {n, 2});
      const Array iterations(Dtype::int64, {2});
      const Tensor counted = iterations;
      cg(stored, a, b, first, {.iterations = &counted}, context);
      const double alone = iterations(0);
      const Array x = copy(first, dtype);
      const double loose = 2 * default_tolerance(dtype);
      Tensor guess = x;
      cg(stored, a, b, x, {.tolerance = loose, .guess = &guess, .iterations = &counted}, context);
      EXPECT_EQ(iterations(0), 1);  // it was measured
      EXPECT_TRUE(same_bits(x, first));
      Array near = copy(first, dtype);
      each_index(near.shape(), [&](const Shape& at) { near.set(at, read(near, at) * 1.001); });
      guess = near;
      cg(stored, a, b, near, {.guess = &guess, .iterations = &counted}, context);
      EXPECT_LT(iterations(0), alone);
      expect_promise(residual_of(a, b, near, 0), default_tolerance(dtype), n, dtype, std::sqrt(double(n)) * 3);
      const Array place = copy(b, dtype);
      cg(stored, a, place, place, {}, context);
      EXPECT_TRUE(same_bits(place, first));
      Array bad = copy(first, dtype);
      bad.set({1, 1}, kInf);
      const Array info(Dtype::int64, {2});
      const Tensor told = info;
      guess = bad;
      cg(stored, a, b, x, {.guess = &guess, .info = &told}, context);
      EXPECT_TRUE(info(0) == 0 && info(1) == -1);
    }
  });
}

TEST_F(Cg, ScalesOfTheRightHandSideDoNotMatter) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 20;
    for (const Dtype dtype : kWide) {
      const Array a = matrix_of(spectrum(n, 30), dtype), b = normal(dtype, {n, 1}, 4), x(dtype, {n, 1});
      cg(stored, a, b, x, {}, context);
      for (const double scale : dtype == Dtype::float64 ? std::vector<double>{0x1p-900, 0x1p900}
                                                        : std::vector<double>{0x1p-100, 0x1p100}) {
        Array scaled(dtype, {n, 1});
        each_index(b.shape(), [&](const Shape& at) { scaled.set(at, scale * read(b, at)); });
        const Array solved(dtype, {n, 1});
        cg(stored, a, scaled, solved, {}, context);
        for (std::int64_t i = 0; i < n; ++i) EXPECT_EQ(solved(i, 0), scale * x(i, 0));
      }
    }
  });
}

/// Nystrom's preconditioner of a matrix that was multiplied with a scale.
MakePreconditioner nystrom_of_scale(double scale) {
  return [=](const linalg::Operator& a, const Tensor&, Context& context) {
    return linalg::nystrom_preconditioner(a, 6, 0.01 * scale, 3, context);
  };
}

TEST_F(Cg, ScalesOfTheMatrixDoNotMatter) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 20;
    for (const Dtype dtype : kWide)
      for (const bool indefinite : {false, true})
        for (const bool preconditioned : {false, !indefinite}) {
          SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), indefinite, preconditioned));
          std::vector<double> values = spectrum(n, 30);
          for (std::int64_t i = 0; i < n && indefinite; i += 3) values[i] = -values[i];
          const Array a = matrix_of(values, dtype), b = normal(dtype, {n, 2}, 4);
          const auto solve = [&](const Array& matrix, const Array& right, const Array& x, double scale) {
            cg(stored, matrix, right, x, {.ridge = 0.01 * scale}, context,
               preconditioned ? nystrom_of_scale(scale) : MakePreconditioner(),
               indefinite ? linalg::minres : linalg::cg);
          };
          const Array x(dtype, {n, 2});
          solve(a, b, x, 1);
          // What is computed with squares is not that of Nystrom's approximation of an ordinary matrix to the bit.
          const double lost = preconditioned ? (dtype == Dtype::float64 ? 1e-8 : 1e-3) : 0;
          for (const int exponent : dtype == Dtype::float64 ? std::vector<int>{-940, 1000, -520, 520}
                                                            : std::vector<int>{-85, 110, -64, 64})
            for (const bool both : {false, true}) {
              const bool is_end = std::abs(exponent) > (dtype == Dtype::float64 ? 600 : 70);
              if (context.on_cuda() && (!is_end || both == (exponent > 0))) continue;
              const double scale = std::ldexp(1.0, exponent);
              Array matrix(dtype, {n, n}), right(dtype, {n, 2});
              each_index(a.shape(), [&](const Shape& at) { matrix.set(at, scale * read(a, at)); });
              each_index(b.shape(), [&](const Shape& at) { right.set(at, (both ? scale : 1) * read(b, at)); });
              const Array solved(dtype, {n, 2});
              solve(matrix, right, solved, scale);
              each_index(b.shape(), [&](const Shape& at) {
                const double found = read(solved, at) * (both ? 1 : scale), wanted = read(x, at);
                EXPECT_NEAR(found, wanted, lost) << exponent << both;
              });
            }
        }
  });
}

TEST_F(Cg, NothingToSolve) {
  on_cpu_and_cuda([](TestContext& context) {
    const Array none(Dtype::float32, {0, 0}), b(Dtype::float32, {0, 2}), x(Dtype::float32, {0, 2});
    const Array info(Dtype::int64, {2});
    const Tensor told = info;
    cg(stored, none, b, x, {.info = &told}, context);
    EXPECT_TRUE(info(0) == 0 && info(1) == 0);
    const Array a = matrix_of(spectrum(5, 2), Dtype::float32), empty(Dtype::float32, {5, 0});
    cg(stored, a, empty, empty, {}, context);
  });
}

// ---- minimal residuals ----------------------------------------------------------------------------------------------

TEST_F(Cg, MinimalResidualsOfIndefiniteMatrices) {
  on_cpu_and_cuda([](TestContext& context) {
    const std::int64_t n = context.on_cuda() ? 24 : 60, k = 4;
    for (const Dtype dtype : kWide) {
      std::vector<double> values = spectrum(n, 20);
      for (std::int64_t i = 0; i < n; i += 3) values[i] = -values[i];
      const Array a = matrix_of(values, dtype), x(dtype, {n, k}), first(dtype, {n, k});
      Array b = normal(dtype, {n, k}, 8), ridges(Dtype::float64, {k});
      for (std::int64_t i = 0; i < n; ++i) b.set({i, 1}, 0);
      b.set({2, 3}, kNan);
      for (std::int64_t j = 0; j < k; ++j) ridges.set({j}, j == 2 ? 1.5 : 0);
      const Array info(Dtype::int64, {k}), iterations(Dtype::int64, {k});
      const Tensor told = info, counted = iterations, given = ridges;
      const linalg::CgOptions options{.ridges = &given, .info = &told, .iterations = &counted};
      cg(stored, a, b, x, options, context, {}, linalg::minres);
      for (const std::int64_t j : {0, 1, 2}) EXPECT_EQ(info(j), 0);
      EXPECT_TRUE(info(3) == -1 && std::isnan(x(0, 3)) && iterations(1) == 0 && x(5, 1) == 0);
      for (const std::int64_t j : {0, 2})
        expect_promise(residual_of(a, b, x, j, ridges(j)), default_tolerance(dtype), n, dtype,
                       std::sqrt(double(n)) * (3 + ridges(j)));
      // A guess is measured, products that ran out are told from what the dtype does not reach.
      linalg::CgOptions again{.tolerance = 4 * default_tolerance(dtype), .ridges = &given, .info = &told,
                              .iterations = &counted};
      const Array near = copy(x, dtype);
      Tensor start = near;
      again.guess = &start;
      cg(stored, a, b, first, again, context, {}, linalg::minres);
      EXPECT_TRUE(iterations(0) == 1 && iterations(2) == 1 && info(3) == -1);
      cg(stored, a, b, first, {.most_products = 3, .info = &told}, context, {}, linalg::minres);
      EXPECT_TRUE(info(0) == 3 && info(1) == 0);
      cg(stored, a, b, first, {.tolerance = 1e-30, .most_products = 3000, .info = &told}, context, {}, linalg::minres);
      EXPECT_EQ(info(0), -2);
    }
  });
}

TEST_F(Cg, MinimalResidualsOfSingularMatricesAreLeast) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 20;
    for (const Dtype dtype : kWide) {
      Array a(dtype, {n, n});
      a.fill([] { return 0; });
      for (std::int64_t i = 3; i < n; ++i) a.set({i, i}, i % 2 == 0 ? 1 + double(i) / n : -1 - double(i) / n);
      Array b(dtype, {n, 2});
      each_index(b.shape(), [&](const Shape& at) { b.set(at, at[0] < 3 && at[1] == 0 ? 0 : 1 + 0.1 * double(at[0])); });
      const Array x(dtype, {n, 2}), info(Dtype::int64, {2});
      const Tensor told = info;
      cg(stored, a, b, x, {.most_products = 2000, .info = &told}, context, {}, linalg::minres);
      EXPECT_TRUE(info(0) == 0 && info(1) == -2);
      const Residual got = residual_of(a, b, x, 1);
      EXPECT_NEAR(got.residual, std::sqrt(1 + 1.1 * 1.1 + 1.2 * 1.2), 1e-3);
    }
  });
}

// ---- preconditioners ------------------------------------------------------------------------------------------------

const char* const kGauss = "exp(-sum(square(x-z))/2)";

MakeOperator kernel_with(double ridge) {
  return [ridge](const Tensor& x, const Queue& queue, Context& context) {
    Arguments arguments;
    arguments.queue = queue;
    return linalg::kernel_operator(kGauss, x, ridge, arguments, context);
  };
}
MakePreconditioner nystrom(std::int64_t rank, double ridge, std::int64_t* got = nullptr) {
  return [=](const linalg::Operator& a, const Tensor&, Context& context) {
    const linalg::Preconditioner inverse = linalg::nystrom_preconditioner(a, rank, ridge, 1, context);
    if (got != nullptr) *got = inverse.rank;
    return inverse;
  };
}
MakePreconditioner pivoted(std::int64_t rank, double ridge, std::int64_t* got = nullptr) {
  return [=](const linalg::Operator& a, const Tensor& x, Context& context) {
    Arguments arguments;
    arguments.queue = a.queue;
    const linalg::Preconditioner inverse =
        linalg::pivoted_cholesky_preconditioner(kGauss, x, ridge, rank, arguments, context);
    if (got != nullptr) *got = inverse.rank;
    return inverse;
  };
}

TEST_F(Cg, PreconditionersSaveProducts) {
  on_cpu_and_cuda([](TestContext& context) {
    const std::int64_t n = context.on_cuda() ? 60 : 150, rank = context.on_cuda() ? 25 : 40;
    constexpr double kRidge = 1e-2;
    for (const Dtype dtype : kWide) {
      const Array points = normal(dtype, {n, 2}, 5), b = normal(dtype, {n, 2}, 6);
      Array k(dtype, {n, n});
      pairwise(kGauss, points, nullptr, k);
      // float32 cannot reach what it does by default: the ridge is 1e-4 of the matrix.
      const double tolerance = dtype == Dtype::float64 ? 1e-10 : 2e-3;
      const auto products = [&](const MakePreconditioner& make) {
        const Array x(dtype, {n, 2}), iterations(Dtype::int64, {2}), info(Dtype::int64, {2});
        const Tensor counted = iterations, told = info;
        cg(kernel_with(kRidge), points, b, x, {.tolerance = tolerance, .info = &told, .iterations = &counted}, context,
           make);
        for (const std::int64_t j : {0, 1}) {
          EXPECT_EQ(info(j), 0);
          // The contract of kernel products: 1e-6 of the sums of absolute values in float32.
          const Residual got = residual_of(k, b, x, j, kRidge);
          EXPECT_LE(got.residual, tolerance * got.right + 2 * unit(dtype) * double(n) * got.solution);
        }
        return std::max(iterations(0), iterations(1));
      };
      const double plain = products({});
      for (const MakePreconditioner& make : {nystrom(rank, kRidge), pivoted(rank, kRidge)})
        EXPECT_LT(2 * products(make), plain);
      // Both are a's inverse at full rank, as far as its digits go.
      std::int64_t by_products = 0, by_pivots = 0;
      EXPECT_LE(products(nystrom(n + 5, kRidge, &by_products)), 6);
      EXPECT_LE(products(pivoted(n + 5, kRidge, &by_pivots)), 6);
      // The kernel is smooth: in float32 the rest of its spectrum is rounding.
      EXPECT_LE(by_products, n);
      EXPECT_LE(by_pivots, dtype == Dtype::float32 ? n - 1 : n);
    }
  });
}

TEST_F(Cg, PreconditionersAreTheInversesThatTheySay) {
  // P = k + ridge at full rank, but for a factor in Nystrom's: with a well-conditioned k that is a test of every part.
  on_cpu_and_cuda([](TestContext& context) {
    if (context.on_cuda()) return;  // arrays of the host go in and out of `apply` here
    constexpr std::int64_t n = 20;
    Array points(Dtype::float64, {n, 1}, {2, 1}), k(Dtype::float64, {n, n});
    for (std::int64_t i = 0; i < n; ++i) points.set({i, 0}, 1.3 * double(i));
    pairwise(kGauss, points, nullptr, k);
    const Array r = normal(Dtype::float64, {n, 3}, 7, 1, column_major({n, 3}));
    for (const bool by_pivots : {false, true}) {
      const linalg::Operator a = linalg::kernel_operator(kGauss, points, 0.5);
      const linalg::Preconditioner inverse = by_pivots ? linalg::pivoted_cholesky_preconditioner(kGauss, points, 0.5, n)
                                                       : linalg::nystrom_preconditioner(a, n, 0.5);
      const Array z(Dtype::float64, {n, 3}, column_major({n, 3}));
      inverse.apply(r, z, {});
      EXPECT_EQ(inverse.rank, n);
      const Array w(Dtype::float64, {n});
      linalg::eigh(k, w, nullptr);
      const double factor = by_pivots ? 1 : w(0) + 0.5;  // P z = factor r
      for (std::int64_t j = 0; j < 3; ++j)
        for (std::int64_t i = 0; i < n; ++i) {
          double sum = 0.5 * z(i, j);
          for (std::int64_t p = 0; p < n; ++p) sum += k(i, p) * z(p, j);
          EXPECT_NEAR(sum, factor * r(i, j), 1e-12);
        }
    }
  });
}

TEST_F(Cg, PreconditionersOfDuplicatesAndOfNothing) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 36;
    for (const Dtype dtype : kWide) {
      const Array few = normal(dtype, {6, 2}, 8);
      Array points(dtype, {n, 2});
      each_index(points.shape(), [&](const Shape& at) { points.set(at, few(at[0] % 6, at[1])); });
      const Array b = normal(dtype, {n}, 9), x(dtype, {n}), iterations(Dtype::int64, Shape{});
      const Tensor counted = iterations;
      std::int64_t rank = 0;
      for (const MakePreconditioner& make : {nystrom(12, 0.1, &rank), pivoted(12, 0.1, &rank)}) {
        cg(kernel_with(0.1), points, b, x, {.iterations = &counted}, context, make);
        EXPECT_LE(iterations(), 5);
      }
      EXPECT_EQ(rank, 6);  // pivots end where nothing is left
      // A multiple of the identity: nothing to precondition.
      Array identity(dtype, {8, 8});
      each_index(identity.shape(), [&](const Shape& at) { identity.set(at, at[0] == at[1] ? 3 : 0); });
      const Array e = normal(dtype, {8}, 10), out(dtype, {8});
      cg(stored, identity, e, out, {.iterations = &counted}, context, nystrom(3, 3, &rank));
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(iterations(), 2);
      for (std::int64_t i = 0; i < 8; ++i) EXPECT_NEAR(out(i), e(i) / 3, 4 * unit_roundoff(dtype) * std::abs(e(i)));
    }
  });
}

TEST_F(Cg, PreconditionersRefuse) {
  on_cpu_and_cuda([](TestContext& context) {
    const Array points = normal(Dtype::float32, {9, 2}, 11), b = normal(Dtype::float32, {9}, 12);
    const Array x(Dtype::float32, {9});
    const auto row = [&](const std::string& words, const MakePreconditioner& make, const Tensor& of) {
      const std::string message = message_of([&] { cg(kernel_with(0.5), of, b, x, {}, context, make); });
      EXPECT_NE(message.find(words), std::string::npos) << words << "\n" << message;
    };
    row("nystrom: rank must be positive. Received 0.", nystrom(0, 0.5), points);
    row("nystrom: ridge must not be negative. Received -1.", nystrom(3, -1), points);
    row("pivoted_cholesky: ridge must be positive, and it and 1 / ridge normal numbers of float32. Received 0.",
        pivoted(3, 0), points);
    row("nystrom: a less the ridge must be positive semi-definite.", nystrom(3, 5), points);
    Array holed = copy(points, Dtype::float32);
    holed.set({4, 1}, kNan);
    row("nystrom: products with a must be finite", nystrom(3, 0.5), holed);
    row("pivoted_cholesky: products with a must be finite", pivoted(3, 0.5), holed);
    for (const char* const text : {"-1-sum(square(x-z))", "sum(x*z)-2"})  // the second has both signs
      row("pivoted_cholesky: a less the ridge must be positive semi-definite. Received a matrix with -",
          [text](const linalg::Operator& a, const Tensor& at, Context& plain) {
            Arguments arguments;
            arguments.queue = a.queue;
            return linalg::pivoted_cholesky_preconditioner(text, at, 0.5, 3, arguments, plain);
          },
          points);
    row("the preconditioner must be of the operator's order, dtype and device (9, float32,",
        [](const linalg::Operator&, const Tensor&, Context&) { return linalg::Preconditioner{}; }, points);
    row("is not offered for formulas that read indices",
        [](const linalg::Operator& a, const Tensor& at, Context& plain) {
          Arguments arguments;
          arguments.queue = a.queue;
          const Formula of_indices("exp(-abs(i-j)-sum(square(x-z)))");
          return linalg::pivoted_cholesky_preconditioner(of_indices, at, 0.5, 3, arguments, plain);
        },
        points);
  });
}

/// diag(1, ..., 1, least): of nine rows the negative one is -least / 2.83 of their size.
TEST_F(Cg, NystromTakesAwayNoMoreThanItSays) {
  const auto words_of = [](double least) {
    const linalg::Operator a{9, Dtype::float64, [least](const Tensor& v, const Tensor& out) {
                               each_index(v.shape, [&](const Shape& at) {
                                 write(out, at, (at[0] == 8 ? least : 1) * read(v, at));
                               });
                             }};
    return message_of([&] { linalg::nystrom_preconditioner(a, 9, 0); });
  };
  EXPECT_EQ(words_of(0), "");
  EXPECT_EQ(words_of(-1e-6), "");
  for (const double least : {-0.04, -0.1, -2.0})
    EXPECT_NE(words_of(least).find("must be positive semi-definite"), std::string::npos) << least;
}

TEST_F(Cg, BrokenRulesAreTold) {
  std::int64_t products = 0;
  const linalg::Operator a{5, Dtype::float64, [&](const Tensor&, const Tensor&) { ++products; }};
  const Array b = normal(Dtype::float64, {5, 2}, 1), x(Dtype::float64, {5, 2}), info(Dtype::int64, {2});
  const Tensor told = info, wrong = Array(Dtype::int64, {3}), narrow = Array(Dtype::float64, {2});
  const auto row = [&](const std::string& expected, const std::function<void()>& call) {
    EXPECT_NE(message_of(call).find(expected), std::string::npos) << expected << "\n" << message_of(call);
    EXPECT_TRUE(x.untouched() && info.untouched() && products == 0);
  };
  row("cg: b must have shape (5, 2). Received (4, 2).", [&] { linalg::cg(a, normal(Dtype::float64, {4, 2}, 1), x); });
  row("cg: b must have the shape [n, k] or [n]. Received (5, 2, 1).",
      [&] { linalg::cg(a, normal(Dtype::float64, {5, 2, 1}, 1), x); });
  row("cg: x must have shape (5, 2). Received (5,).", [&] { linalg::cg(a, b, Array(Dtype::float64, {5})); });
  row("cg: b must be float64. Received float32.", [&] { linalg::cg(a, normal(Dtype::float32, {5, 2}, 1), x); });
  row("cg: tol must be from 0 to 1. Received -1.", [&] { linalg::cg(a, b, x, {.tolerance = -1}); });
  row("cg: tol must be from 0 to 1. Received nan.", [&] { linalg::cg(a, b, x, {.tolerance = kNan}); });
  row("cg: max_iter must not be negative. Received -3.", [&] { linalg::cg(a, b, x, {.most_products = -3}); });
  row("cg: ridge must be from 0 on and finite. Received -1.", [&] { linalg::cg(a, b, x, {.ridge = -1}); });
  row("cg: ridge must be from 0 on and finite. Received nan.", [&] { linalg::cg(a, b, x, {.ridge = kNan}); });
  row("cg: ridge and ridges must not be given both.", [&] { linalg::cg(a, b, x, {.ridge = 1, .ridges = &narrow}); });
  const Tensor three = Array(Dtype::float64, {3});
  row("cg: ridge must be a number or have one for each column of b, shape (2,). Received (3,).",
      [&] { linalg::cg(a, b, x, {.ridges = &three}); });
  row("cg: ridge must be float32 or float64. Received int64.", [&] { linalg::cg(a, b, x, {.ridges = &told}); });
  row("cg: info must be int64 of shape (2,). Received", [&] { linalg::cg(a, b, x, {.info = &wrong}); });
  row("cg: iterations must be int64 of shape (2,). Received", [&] { linalg::cg(a, b, x, {.iterations = &narrow}); });
  row("cg: iterations must not overlap info.", [&] { linalg::cg(a, b, x, {.info = &told, .iterations = &told}); });
  Tensor shifted = b;
  shifted.shape = {5, 1};
  Tensor inside = b;
  inside.shape = {5, 1};
  inside.strides = {1, 1};
  row("cg: x must not overlap b, unless it is the same view.", [&] { linalg::cg(a, shifted, inside); });
  row("cg: no two elements of x may share memory.",
      [&] { linalg::cg(a, b, Tensor(x.tensor().data, Dtype::float64, {5, 2}, {0, 1})); });
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

struct CapturedCase {
  Dtype dtype;
  bool is_stored, is_preconditioned;
};

/// The recorded call holds three products where rounds repeat in it, and gives the bits of the plain one; with a
/// preconditioner, whose products may be other kernels, both are as near the solution as their residuals say.
void expect_captured_solves(const CapturedCase& row, TestContext& context) {
  constexpr std::int64_t n = 70, k = 3;
  constexpr double ridge = 2;
  const std::int64_t products = row.is_preconditioned ? 70 : 12;
  const Array points = normal(row.dtype, {n, 3}, 21);
  Array matrix(row.dtype, {n, n});
  pairwise(Formula(kGauss), points, nullptr, matrix);
  for (std::int64_t i = 0; i < n; ++i) matrix.set({i, i}, matrix(i, i) + ridge);
  const DeviceStream stream;
  DeviceArrays arrays(stream, 1 << 17);
  const Tensor given = arrays.take(row.is_stored ? matrix : points), b = arrays.take(row.dtype, {n, k}),
               x = arrays.take(row.dtype, {n, k}), info = arrays.take(Dtype::int64, {k});
  Arguments arguments;
  arguments.queue.stream = static_cast<CuStream>(stream);
  linalg::Operator a = row.is_stored ? linalg::matrix_operator(given, arguments.queue, context)
                                     : linalg::kernel_operator(kGauss, given, ridge, arguments, context);
  linalg::Preconditioner inverse;
  if (row.is_preconditioned)
    inverse = row.is_stored ? linalg::rpcholesky_preconditioner(a, 5, ridge, {.ridge_in_rows = true}, context)
                                  .with_ridges({ridge, 2 * ridge, ridge})
                            : linalg::nystrom_preconditioner(a, 5, ridge, 1, context);
  int recorded = 0;
  a.multiply_in = [&, multiply = a.multiply_in](const Tensor& v, const Tensor& out, const Queue& queue) {
    if (queue.rehearsal == nullptr) ++recorded;
    multiply(v, out, queue);
  };
  const linalg::CgOptions options{
      .most_products = products, .preconditioner = row.is_preconditioned ? &inverse : nullptr, .info = &info};
  arrays.upload(b, normal(row.dtype, {n, k}, 22));
  linalg::cg(a, b, x, options, context);  // compiles
  std::string refused;
  const Recording recording(stream, [&] {
    refused = message_of([&] { linalg::cg(a, b, x, {.most_products = 3}, context); });
    linalg::cg(a, b, x, options, context);
  });
  EXPECT_NE(refused.find("in a graph capture nothing can be thrown"), std::string::npos) << refused;
  EXPECT_EQ(recorded, cuda_driver()->has_conditions() ? 3 : 0);
  for (const unsigned seed : {23u, 24u}) {
    Array next = normal(row.dtype, {n, k}, seed);
    for (std::int64_t i = 0; i < n; ++i) next.set({i, 1}, 0);
    arrays.upload(b, next);
    for (const Tensor* out : {&x, &info}) arrays.poison(*out);
    recording.play();
    const Array played = arrays.download(x), said = arrays.download(info);
    for (const Tensor* out : {&x, &info}) arrays.poison(*out);
    linalg::cg(a, b, x, options, context);
    const Array plain = arrays.download(x), said_plainly = arrays.download(info);
    for (std::int64_t j = 0; j < k; ++j) {
      // |x - a^-1 b| <= |a^-1| |residual|, and the ridge is the least eigenvalue.
      double squares = 0;
      for (std::int64_t i = 0; i < n; ++i) squares += next(i, j) * next(i, j);
      const double residual = (row.dtype == Dtype::float32 ? 1e-5 : 1e-10) * std::sqrt(squares);
      for (std::int64_t i = 0; i < n; ++i)
        EXPECT_NEAR(played(i, j), plain(i, j), row.is_preconditioned ? 2 * residual / ridge : 0);
      EXPECT_EQ(said(j), row.is_preconditioned ? 0 : said_plainly(j));
    }
    EXPECT_EQ(said(1), 0);
  }
}

TEST_F(Cg, ACapturedCallSolvesForNewRightHandSides) {
  for (const Dtype dtype : {Dtype::float32, Dtype::float64})
    for (const bool is_stored : {false, true})
      for (const bool is_preconditioned : {false, true})
        on_cuda([&](TestContext& context) {
          SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), is_stored, is_preconditioned));
          expect_captured_solves({dtype, is_stored, is_preconditioned}, context);
        });
}

}  // namespace
}  // namespace mercer
