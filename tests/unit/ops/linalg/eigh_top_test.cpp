// The end of a spectrum by products: on operators whose eigenpairs are known. Its properties on kernel matrices are
// tested from Python, against a whole spectrum.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/emulated.h"
#include "device/lapack.h"
#include "mercer/linalg.h"
#include "ops/linalg_mirror.h"
#include "ops/testing.h"

namespace mercer {
namespace {

using namespace testing_support;

/// diag(1, 2, …, n), and how many columns it was multiplied with.
linalg::Operator ramp(std::int64_t n, Dtype dtype, std::int64_t* products) {
  return {n, dtype, [products](const Tensor& v, const Tensor& out) {
            *products += v.shape[1];
            each_index(v.shape, [&](const Shape& at) { write(out, at, static_cast<double>(at[0] + 1) * read(v, at)); });
          }};
}

class EighTop : public ::testing::Test {
 protected:
  void SetUp() override { MERCER_NEEDS_LAPACK(); }
};

TEST_F(EighTop, EndsOfARamp) {
  // A residual of tol bounds the error of its eigenvalue, and that of its vector by tol / gap = tol n.
  constexpr std::int64_t n = 600, k = 3;
  constexpr double kTolerance = 1e-5;
  for (const Dtype dtype : kWide)
    for (const linalg::Which which : {linalg::Which::largest, linalg::Which::smallest, linalg::Which::magnitude}) {
      std::int64_t products = 0;
      const Array w(dtype, {k}, {2}), v(dtype, {n, k}, {k + 1, 1});
      linalg::eigh_top(ramp(n, dtype, &products), w, v, {.which = which, .tolerance = kTolerance});
      const std::int64_t first = which == linalg::Which::smallest ? 0 : n - k;
      for (std::int64_t j = 0; j < k; ++j) {
        EXPECT_NEAR(w(j), static_cast<double>(first + j + 1), kTolerance * n);
        EXPECT_NEAR(std::abs(v(first + j, j)), 1, kTolerance * n);
      }
      EXPECT_LT(products, 20 * n);
    }
}

TEST_F(EighTop, SmallOperatorsAreDecomposedAsTheyAre) {
  std::int64_t products = 0;
  const Array w(Dtype::float64, {4}), v(Dtype::float64, {4, 4});
  linalg::eigh_top(ramp(4, Dtype::float64, &products), w, v);
  for (std::int64_t j = 0; j < 4; ++j) EXPECT_NEAR(w(j), static_cast<double>(j + 1), 1e-14);
  EXPECT_EQ(products, 4);
}

TEST_F(EighTop, ABasisMayHoldMoreThanThereIs) {
  constexpr std::int64_t n = 200;
  for (const std::int64_t most : {n, std::numeric_limits<std::int64_t>::max()}) {
    std::int64_t products = 0;
    const Array w(Dtype::float64, {2}), v(Dtype::float64, {n, 2});
    linalg::eigh_top(ramp(n, Dtype::float64, &products), w, v, {.most_basis = most});
    for (std::int64_t j = 0; j < 2; ++j) EXPECT_NEAR(w(j), static_cast<double>(n - 1 + j), 1e-11);
    EXPECT_EQ(products, n);
  }
}

TEST_F(EighTop, KernelOperatorsMultiplyWithoutTheMatrix) {
  const Array x = normal(Dtype::float64, {50, 3}, 1), v = normal(Dtype::float64, {50, 2}, 2);
  Array k(Dtype::float64, {50, 50});
  const Array by_points(Dtype::float64, {50, 2});
  const Formula f("exp(-sum(square(x-z)))");
  pairwise(f, x, nullptr, k);
  for (std::int64_t i = 0; i < 50; ++i) k.set({i, i}, 1.25);
  linalg::kernel_operator(f, x, 0.25).multiply(v, by_points);
  const Array columns = copy(v, Dtype::float64, column_major({50, 2}));
  Array out(Dtype::float64, {50, 2}, column_major({50, 2}));
  linalg::matrix_operator(k).multiply(columns, out);
  for (std::int64_t i = 0; i < 50; ++i)
    for (std::int64_t j = 0; j < 2; ++j) EXPECT_NEAR(out(i, j), by_points(i, j), 1e-12);
}

TEST_F(EighTop, MissesAreCounted) {
  std::int64_t products = 0, missed = 0;
  const Array w(Dtype::float64, {2}), v(Dtype::float64, {3000, 2});
  linalg::TopOptions options{.tolerance = 1e-16, .most_basis = 20, .unconverged = &missed};
  linalg::eigh_top(ramp(3000, Dtype::float64, &products), w, v, options);
  EXPECT_GE(missed, 1);
  options.unconverged = nullptr;
  EXPECT_EQ(message_of([&] { linalg::eigh_top(ramp(3000, Dtype::float64, &products), w, v, options); }).substr(0, 50),
            "eigh_top: residuals must meet the tolerance. Recei");
}

TEST_F(EighTop, BrokenRulesAreTold) {
  std::int64_t products = 0;
  const linalg::Operator a = ramp(5, Dtype::float64, &products);
  const Array w(Dtype::float64, {2}), v(Dtype::float64, {5, 2});
  const auto row = [&](const std::string& expected, const std::function<void()>& call) {
    EXPECT_NE(message_of(call).find(expected), std::string::npos) << expected << "\n" << message_of(call);
    EXPECT_TRUE(w.untouched() && v.untouched() && products == 0);
  };
  row("eigh_top: k must be from 1 to the order of the operator (5). Received 6.",
      [&] { linalg::eigh_top(a, Array(Dtype::float64, {6}), v); });
  row("eigh_top: v must have shape (5, 2). Received (2, 5).",
      [&] { linalg::eigh_top(a, w, Array(Dtype::float64, {2, 5})); });
  row("eigh_top: w must be float64. Received float32.", [&] { linalg::eigh_top(a, Array(Dtype::float32, {2}), v); });
  row("eigh_top: tol must not be negative. Received -1.", [&] { linalg::eigh_top(a, w, v, {.tolerance = -1}); });
  row("the formula must be symmetric", [&] { linalg::kernel_operator("sum(x-z)", v); });
  row("kernel_operator: x must be float32 or float64. Received float16.",
      [&] { linalg::kernel_operator("sum(x*z)", Array(Dtype::float16, {3, 2})); });
}

// Checks on both kinds of devices: residuals, orthogonality and the values themselves, in float64 on the host.

/// Q diag(values) Q, with Q = 1 - 2 q q^T for q of equal numbers: its eigenvectors are the columns of Q.
double reflected(const std::vector<double>& values, double sum, std::int64_t i, std::int64_t j) {
  const double n = static_cast<double>(values.size());
  return (i == j ? values[i] : 0) - 2 / n * (values[i] + values[j]) + 4 / (n * n) * sum;
}

struct Spectrum {
  const char* name;
  std::vector<double> values;
};
std::vector<Spectrum> spectra(std::int64_t n) {
  std::vector<double> falling, multiple, zero(static_cast<std::size_t>(n), 0), clustered;
  for (std::int64_t i = 0; i < n; ++i) {
    falling.push_back(std::exp(-0.05 * static_cast<double>(i)));
    multiple.push_back(i % 3 == 0 ? 2 : i % 3 == 1 ? -5 : 0.125);
    clustered.push_back(i < 12 ? 4 + 1e-7 * static_cast<double>(i) : std::cos(static_cast<double>(i)));
  }
  return {{"falling", falling}, {"multiple", multiple}, {"zero", zero}, {"clustered", clustered}};
}

/// |a v - w v|, |v^T v - 1| and the distance of w to the wanted values, as parts of the largest |value|.
void expect_pairs(const Tensor& a, const Tensor& w, const Tensor& v, std::vector<double> wanted, double scale,
                  double tolerance) {
  const std::int64_t n = a.shape[0], k = w.shape[0];
  // Products of orthonormal vectors lose n u in an entry at most; 8 n u is far above that.
  const double rounding = 8 * static_cast<double>(n) * (a.dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24);
  std::sort(wanted.begin(), wanted.end());
  for (std::int64_t p = 0; p < k; ++p) {
    double gap = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = -read(w, {p}) * read(v, {i, p});
      for (std::int64_t j = 0; j < n; ++j) sum += read(a, {i, j}) * read(v, {j, p});
      gap += sum * sum;
    }
    EXPECT_LE(std::sqrt(gap), (tolerance + rounding) * scale) << "pair " << p;
    EXPECT_NEAR(read(w, {p}), wanted[p], (tolerance + rounding) * scale) << "pair " << p;
    for (std::int64_t q = 0; q <= p; ++q) {
      double product = 0;
      for (std::int64_t i = 0; i < n; ++i) product += read(v, {i, p}) * read(v, {i, q});
      EXPECT_NEAR(product, p == q ? 1 : 0, rounding * std::sqrt(static_cast<double>(k)));
    }
  }
}

template <class Body>
void on_cpu_and_cuda(const Body& body) {
  {
    TestContext context(Target::interpreter);
    body(context);
  }
  on_cuda(body);
}

/// Products of stored matrices against sums in double: as many roundings as there are terms, of the sum of their sizes.
TEST_F(EighTop, StoredMatricesTimesColumnsOfEveryNumber) {
  constexpr std::int64_t kMost = 65;
  on_cpu_and_cuda([](TestContext& context) {
    for (const Dtype dtype : kWide)
      for (const auto& [n, padding] :
           {std::pair<std::int64_t, std::int64_t>(1, 0), {3, 0}, {4, 4}, {127, 1}, {516, 0}, {515, 1}}) {
        const Array random = normal(dtype, {n, n}, 3), columns = normal(dtype, {n, kMost}, 4);
        const auto value = [&](std::int64_t i, std::int64_t j) { return random(std::max(i, j), std::min(i, j)); };
        std::vector<double> right, sums(static_cast<std::size_t>(n * kMost)), sizes(sums.size());
        each_index(columns.shape(), [&](const Shape& at) { right.push_back(columns(at[0], at[1])); });
        for (std::int64_t i = 0; i < n; ++i)
          for (std::int64_t p = 0; p < n; ++p) {
            const double left = value(i, p), *const row = &right[p * kMost];
            for (std::int64_t j = 0; j < kMost; ++j) {
              sums[i * kMost + j] += left * row[j];
              sizes[i * kMost + j] += std::abs(left * row[j]);
            }
          }
        for (const std::int64_t k : {std::int64_t{1}, std::int64_t{9}, std::int64_t{16}, std::int64_t{33}, kMost}) {
          Array a(dtype, {n, n}, k % 2 == 0 ? Shape{n + padding, 1} : Shape{1, n + padding});
          each_index(a.shape(), [&](const Shape& at) { a.set(at, value(at[0], at[1])); });
          Array v(dtype, {n, k}, {1, n + 3});
          each_index(v.shape(), [&](const Shape& at) { v.set(at, columns(at[0], at[1])); });
          const Array out(dtype, {n, k}, {1, n + padding});
          multiply(a, v, out, context);
          const double unit = dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24;
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < k; ++j)
              ASSERT_NEAR(out(i, j), sums[i * kMost + j], (n + 1) * unit * sizes[i * kMost + j]) << n << " x " << k;
        }
      }
  });
}

/// Layouts, ends of the spectrum and sizes of the basis take turns.
void expect_spectrum(TestContext& context, const Spectrum& spectrum, Dtype dtype, std::int64_t k, double tolerance,
                     int turn) {
  const auto n = static_cast<std::int64_t>(spectrum.values.size()), padded = n + 3;
  SCOPED_TRACE(fmt::format("{} {} {} {}", spectrum.name, n, name_of(dtype), turn));
  const Shape strides[] = {{padded, 1}, {1, padded}, {2 * padded, 2}, {-padded, -1}};
  Array a(dtype, {n, n}, strides[turn % 4]);
  double sum = 0, scale = 1e-300;
  for (const double value : spectrum.values) sum += value, scale = std::max(scale, std::abs(value));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) a.set({i, j}, reflected(spectrum.values, sum, i, j));
  // The lower end of `clustered` has no gaps to speak of.
  const auto which = static_cast<linalg::Which>(spectrum.name != std::string("clustered") ? turn % 2 : 0);
  const Array w(dtype, {k}, {2}), v(dtype, {n, k}, turn % 2 == 0 ? Shape{1, n + 1} : Shape{k + 1, 1});
  const std::int64_t basis = turn % 3 == 0 ? 40 : 0;
  std::int64_t missed = -1;
  eigh_top(a, w, v, {.which = which, .tolerance = tolerance, .most_basis = basis, .seed = 1, .unconverged = &missed},
           context);
  EXPECT_EQ(missed, 0);
  std::vector<double> wanted = spectrum.values;
  std::sort(wanted.begin(), wanted.end());
  if (which == linalg::Which::largest) std::reverse(wanted.begin(), wanted.end());
  wanted.resize(static_cast<std::size_t>(k));
  expect_pairs(a, w, v, wanted, scale, tolerance);
}

// Backward stability bounds what the reduction, bisection and the entries of a lose by p(n) u |a|, Frobenius's norm,
// which is n^(1/2) times the largest value here; p is taken as 10 n^(1/2), as in linalg_test.cpp.
TEST_F(EighTop, SmallOrdersAreDecomposedAsTheyAre) {
  on_cpu_and_cuda([](TestContext& context) {
    int turn = 0;
    for (const std::int64_t n : {1, 2, 5, 40})
      for (const Dtype dtype : kWide)
        for (const Spectrum& spectrum : spectra(n)) {
          const double unit = dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24;
          expect_spectrum(context, spectrum, dtype, (n + 1) / 2, 10 * static_cast<double>(n) * unit, turn++);
        }
  });
}

TEST_F(EighTop, SpectraByBlocks) {
  on_cpu_and_cuda([](TestContext& context) {
    int turn = 0;
    for (const Dtype dtype : kWide)
      for (const Spectrum& spectrum : spectra(320))
        // What products of float32 lose, n u of sums of absolute values, must be less.
        expect_spectrum(context, spectrum, dtype, 7, dtype == Dtype::float64 ? 1e-9 : 4e-5, turn++);
  });
}

TEST_F(EighTop, KernelsOnBothDevices) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 260, k = 5;
    const Formula f("exp(-sum(square(x-z)))");
    for (const Dtype dtype : kWide) {
      const Array x = normal(dtype, {n, 3}, 1), w(dtype, {k}), v(dtype, {n, k});
      Array a(dtype, {n, n});
      pairwise(f, x, nullptr, a);
      for (std::int64_t i = 0; i < n; ++i) a.set({i, i}, read(a, {i, i}) + 0.25);
      eigh_top(f, x, 0.25, w, v, {}, context);
      const Array whole(dtype, {n}), vectors(dtype, {n, n});
      const Tensor all = vectors;
      linalg::eigh(a, whole, &all);
      std::vector<double> wanted;
      for (std::int64_t j = 0; j < k; ++j) wanted.push_back(whole(n - 1 - j));
      expect_pairs(a, w, v, wanted, whole(n - 1), dtype == Dtype::float64 ? 1e-10 : 2e-6);
    }
  });
}

TEST_F(EighTop, ScalesOfTheMatrixDoNotMatter) {
  on_cpu_and_cuda([](TestContext& context) {
    constexpr std::int64_t n = 200, k = 2;
    for (const Dtype dtype : kWide)
      for (const int exponent : dtype == Dtype::float64 ? std::vector<int>{-900, -500, 900}
                                                      : std::vector<int>{-80, 90}) {
        if (context.on_cuda() && is_emulated() && dtype == Dtype::float64) continue;
        const double scale = std::ldexp(1.0, exponent);
        Array a(dtype, {n, n});
        each_index(a.shape(), [&](const Shape& at) { a.set(at, at[0] == at[1] ? scale / double(at[0] + 1) : 0); });
        const Array w(dtype, {k}), v(dtype, {n, k});
        eigh_top(a, w, v, {}, context);
        const double lost = dtype == Dtype::float64 ? 1e-10 : 4e-6;
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t place = k - 1 - j;
          EXPECT_NEAR(w(j) / scale, 1.0 / double(place + 1), lost) << exponent;
          EXPECT_NEAR(std::abs(v(place, j)), 1, lost) << exponent;
        }
      }
  });
}

TEST_F(EighTop, NaNIsToldOnBothDevices) {
  on_cpu_and_cuda([](TestContext& context) {
    for (const std::int64_t n : {7, 320}) {
      Array a(Dtype::float32, {n, n});
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j) a.set({i, j}, i == j ? 1.0 : 0.0);
      a.set({n - 1, 2}, std::nan(""));
      const Array w(Dtype::float32, {2}), v(Dtype::float32, {n, 2});
      EXPECT_NE(message_of([&] { eigh_top(a, w, v, {}, context); }).find("must be finite"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace mercer
