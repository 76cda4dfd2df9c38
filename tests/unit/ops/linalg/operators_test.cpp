// Kernel operators with ridges and weights of points, row and col: products, rows and the diagonal, against the matrix.
#include <cmath>
#include <cstdint>
#include <functional>
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

const char* const kPlain = "exp(-sum(square(x-z))/2)";
const char* const kSided = "exp(-sum(square(x-z))/2)*(row+col)";
const char* const kIndexed = "exp(-sum(square(x-z))/2-abs(i-j)/8)";

template <class Body>
void on_cpu_and_cuda(const Body& body) {
  {
    TestContext context(Target::interpreter);
    body(context);
  }
  on_cuda(body);
}

struct Case {
  const char* formula;
  bool has_ridges, has_weights, has_row;
};

/// One call on arrays where the context is.
using Body = std::function<void(const linalg::Operator&, const std::function<Tensor(const Tensor&)>&)>;
void with_operator(const Case& of, const std::vector<const Tensor*>& arrays, const std::vector<const Tensor*>& outputs,
                   TestContext& context, const Body& body) {
  Context& plain = context;
  const auto run = [&](const std::function<Tensor(const Tensor&)>& at, const Queue& queue) {
    Arguments arguments;
    arguments.queue = queue;
    const Tensor points = at(*arrays[0]), ridges = at(*arrays[1]), weights = at(*arrays[2]);
    if (of.has_row) arguments.row = arguments.col = at(*arrays[3]);
    linalg::KernelTerms terms{.ridge = 0.25};
    if (of.has_ridges) terms.ridges = &ridges;
    if (of.has_weights) terms.weights = &weights;
    body(linalg::kernel_operator(of.formula, points, terms, arguments, plain), at);
  };
  if (!context.on_cuda()) return run([](const Tensor& t) { return t; }, {});
  take_linalg_to_cuda(arrays, outputs, {}, context, [&](const CudaCall& at, const linalg::Options& moved) {
    run([&](const Tensor& t) { return at(t); }, moved.queue);
  });
}

class Operators : public ::testing::Test {
 protected:
  void SetUp() override { MERCER_NEEDS_LAPACK(); }
};

TEST_F(Operators, ProductsRowsAndDiagonalsAreThoseOfTheMatrix) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 37, k = 3;
    const std::vector<std::int64_t> chosen{5, 0, 36, 5};
    int turn = 0;
    for (const Dtype dtype : kWide)
      for (const Case& of : {Case{kPlain, false, false, false}, Case{kPlain, true, false, false},
                             Case{kPlain, false, true, false}, Case{kPlain, true, true, false},
                             Case{kSided, true, true, true}, Case{kIndexed, true, true, false}}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), of.formula, turn));
        const Array points = normal(dtype, {n, 2}, 1, 1, turn % 2 == 0 ? Shape{} : Shape{1, n + 2});
        Array ridges(dtype, {n}, {turn % 2 + 1}), weights(dtype, {n}, {2 - turn % 2}), row(dtype, {n}, {2});
        for (std::int64_t i = 0; i < n; ++i) {
          ridges.set({i}, 0.1 + 0.01 * double(i));
          weights.set({i}, i % 7 == 3 ? 0 : 0.5 + 0.1 * double(i % 11));
          row.set({i}, 1 + 0.03 * double(i));
        }
        // The matrix in float64, of the values as they were rounded.
        const auto entry = [&](std::int64_t i, std::int64_t j) {
          double squares = 0;
          for (std::int64_t f = 0; f < 2; ++f) squares += std::pow(points(i, f) - points(j, f), 2);
          double value = std::exp(-squares / 2 - (of.formula == kIndexed ? std::abs(double(i - j)) / 8 : 0));
          if (of.has_row) value *= row(i) + row(j);
          return of.has_weights ? value * std::sqrt(weights(i)) * std::sqrt(weights(j)) : value;
        };
        const Array v = normal(dtype, {n, k}, 2, 1, column_major({n, k})), product(dtype, {n, k}, column_major({n, k}));
        const Array diagonal(dtype, {n}), rows(dtype, {4, n}, {n + 1, 1});
        const Tensor in[] = {points, ridges, weights, row, v}, out[] = {product, diagonal, rows};
        with_operator(of, {in, in + 1, in + 2, in + 3, in + 4}, {out, out + 1, out + 2}, context,
                      [&](const linalg::Operator& a, const auto& at) {
                        a.multiply(at(in[4]), at(out[0]));
                        a.rows(chosen, at(out[2]));
                        EXPECT_EQ(!a.diagonal, of.formula == kIndexed);
                        if (a.diagonal) a.diagonal(at(out[1]));
                      });
        // Kernel values keep `unit` of themselves, products that of the sums of absolute values.
        const double unit_of = 4 * unit(dtype);
        for (std::int64_t i = 0; i < n; ++i) {
          const double shift = 0.25 + (of.has_ridges ? ridges(i) : 0);
          for (std::int64_t j = 0; j < k; ++j) {
            double sum = shift * v(i, j), size = std::abs(sum);
            for (std::int64_t p = 0; p < n; ++p) {
              sum += entry(i, p) * v(p, j);
              size += entry(i, p) * std::abs(v(p, j));
            }
            EXPECT_NEAR(product(i, j), sum, unit_of * size);
          }
          if (of.formula != kIndexed) EXPECT_NEAR(diagonal(i), entry(i, i), unit_of * entry(i, i));
          for (std::int64_t r = 0; r < 4; ++r) EXPECT_NEAR(rows(r, i), entry(chosen[r], i), unit_of * 3);
        }
        ++turn;
      }
  });
}

TEST_F(Operators, OfStoredMatrices) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 9;
    Context& plain = context;
    for (const Dtype dtype : kWide)
      for (const Shape& strides : {Shape{}, Shape{1, n + 1}, Shape{2 * n, 2}}) {
        Array a(dtype, {n, n}, strides);
        for (std::int64_t i = 0; i < n; ++i)
          for (std::int64_t j = 0; j < n; ++j) a.set({i, j}, double(i * j + std::min(i, j)));
        const Array diagonal(dtype, {n}), rows(dtype, {2, n});
        const auto read_parts = [&](const linalg::Operator& of, const Tensor& to, const Tensor& to_rows) {
          of.diagonal(to);
          of.rows({7, 2}, to_rows);
        };
        const Tensor in = a, out[] = {diagonal, rows};
        if (!context.on_cuda())
          read_parts(linalg::matrix_operator(a, {}, plain), diagonal, rows);
        else
          take_linalg_to_cuda({&in}, {out, out + 1}, {}, context,
                              [&](const CudaCall& at, const linalg::Options& moved) {
                                read_parts(linalg::matrix_operator(at(in), moved.queue, plain), at(out[0]), at(out[1]));
                              });
        for (std::int64_t i = 0; i < n; ++i) {
          EXPECT_EQ(diagonal(i), a(i, i));
          EXPECT_EQ(rows(0, i), a(7, i));
          EXPECT_EQ(rows(1, i), a(2, i));
        }
      }
  });
}

/// s k s + ridge of zero weights is the ridge alone there, and cg solves with it.
TEST_F(Operators, ConjugateGradientsOfWeightedPoints) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 33;
    for (const Dtype dtype : kWide) {
      const Array points = normal(dtype, {n, 2}, 3), b = normal(dtype, {n, 2}, 4), x(dtype, {n, 2});
      Array weights(dtype, {n}), matrix(dtype, {n, n}), own(dtype, {2});
      for (std::int64_t i = 0; i < n; ++i) weights.set({i}, i % 4 == 0 ? 0 : 0.3 * double(i % 5));
      own.set({0}, 0);
      own.set({1}, 1.5);
      pairwise(kPlain, points, nullptr, matrix);
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j)
          matrix.set({i, j}, matrix(i, j) * std::sqrt(weights(i) * weights(j)) + (i == j ? 0.5 : 0));
      const double tolerance = dtype == Dtype::float64 ? 1e-10 : 1e-4;
      Context& plain = context;
      const auto solve = [&](const Tensor& at_x, const Tensor& at_weights, const Tensor& at_own, const Tensor& at_b,
                             const Tensor& out, const Queue& queue) {
        Arguments arguments;
        arguments.queue = queue;
        const linalg::KernelTerms terms{.ridge = 0.5, .weights = &at_weights};
        linalg::cg(linalg::kernel_operator(kPlain, at_x, terms, arguments, plain), at_b, out,
                   {.tolerance = tolerance, .ridges = &at_own}, plain);
      };
      const Tensor in[] = {points, weights, own, b}, out = x;
      if (!context.on_cuda())
        solve(points, weights, own, b, x, {});
      else
        take_linalg_to_cuda({in, in + 1, in + 2, in + 3}, {&out}, {}, context,
                            [&](const CudaCall& at, const linalg::Options& moved) {
                              solve(at(in[0]), at(in[1]), at(in[2]), at(in[3]), at(out), moved.queue);
                            });
      for (std::int64_t j = 0; j < 2; ++j)
        for (std::int64_t i = 0; i < n; ++i) {
          double gap = b(i, j) - own(j) * x(i, j), squares = 0;
          for (std::int64_t p = 0; p < n; ++p) {
            gap -= matrix(i, p) * x(p, j);
            squares += b(p, j) * b(p, j);
          }
          EXPECT_LE(std::abs(gap), 2 * tolerance * std::sqrt(squares));
        }
    }
  });
}

TEST_F(Operators, BrokenRulesAreTold) {
  const Array points = normal(Dtype::float64, {5, 2}, 1);
  const auto row = [&](const std::string& words, const linalg::KernelTerms& terms, const Arguments& arguments,
                       const char* formula = kPlain) {
    const std::string message = message_of([&] { linalg::kernel_operator(formula, points, terms, arguments); });
    EXPECT_NE(message.find(words), std::string::npos) << words << "\n" << message;
  };
  Array numbers(Dtype::float64, {5}), other(Dtype::float64, {5});
  for (std::int64_t i = 0; i < 5; ++i) numbers.set({i}, 1);
  for (std::int64_t i = 0; i < 5; ++i) other.set({i}, 1);
  const Tensor four = Array(Dtype::float64, {4}), narrow = Array(Dtype::float32, {5});
  row("kernel_operator: ridge must be from 0 on and finite. Received -1.", {.ridge = -1}, {});
  row("kernel_operator: ridge must have shape (5,). Received (4,).", {.ridges = &four}, {});
  row("kernel_operator: weights must be float64. Received float32.", {.weights = &narrow}, {});
  Arguments sides;
  sides.row = numbers;
  row("kernel_operator: row and col must be one array", {}, sides, kSided);
  sides.col = other;
  row("kernel_operator: row and col must be one array", {}, sides, kSided);
  for (const double bad : {-1e-9, kNan, kInf}) {
    numbers.set({3}, bad);
    const Tensor wrong = numbers;
    row("kernel_operator: ridge must be from 0 on and finite. Received", {.ridges = &wrong}, {});
    row("kernel_operator: weights must be from 0 on and finite. Received", {.weights = &wrong}, {});
  }
  const linalg::Operator a = linalg::kernel_operator(kPlain, points);
  const Array rows(Dtype::float64, {1, 5});
  EXPECT_NE(message_of([&] { a.rows({5}, rows); }).find("rows must be from 0 to 4. Received 5."), std::string::npos);
  EXPECT_TRUE(rows.untouched());
}

}  // namespace
}  // namespace mercer
