// Calls of very many features: panels are packed some features at a time, so that the scratch memory does not grow with
// all of them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "core/sanitized.h"
#include "core/testing.h"
#include "ops/expected_fields.h"
#include "ops/expected_folds.h"

namespace mercer {
namespace {

using namespace testing_support;

/// Sums, maxima, products and machines; functions of one side, stage 0, weights, values of the points.
const char* const kTexts[] = {"sum(abs(x-z))",
                              "max(abs(x-z)) + row*sum(x*z)/K",
                              "sum(w*tanh(x)*z)/sqrt(sum(x*x)*sum(z*z))",
                              "prod(1 + x*z/K)",
                              "logsumexp(x - z)",
                              "sum((x - sum(x)/K)*z)/K"};

/// A run of two tiles; the oracle has a pair of each.
TEST(ManyFeatures, EveryOperation) {
  constexpr std::int64_t kM = 9, kK = 360001;
  for (const Dtype dtype : kWide)
    for (const char* text : kTexts) {
      if (dtype == Dtype::float64 && std::string(text).find('w') == std::string::npos) continue;
      const Array x = uniform(dtype, {kM, kK}, 1), z = normal(dtype, {1, kK}, 2), w = uniform(dtype, {kK}, 3),
                  row = normal(dtype, {kM}, 4), v = filled(dtype, {1, 1}, {0.5});
      Tensor zt = z, ends = x;
      ends.shape[0] = 2;
      ends.strides[0] = (kM - 1) * kK;
      Extra extra;
      Arguments arguments;
      if (parse(text)->uses.row) arguments.row = row;
      if (parse(text)->uses.w) arguments.w = w;
      for (std::int64_t k = 0; k < kK; ++k) extra.w.push_back(w(k));
      extra.row = {row(0), row(kM - 1)};
      // float64 adds up a part's features one by one, and float32 the products of machines.
      const double tolerance = dtype == Dtype::float64 ? 1e-10 : std::string(text).starts_with("sum(abs") ? 1e-6 : 2e-3;
      const Expected expected = expected_pairs(parse(text), ends, z, tolerance, abs(parse(text)) + 0.1, extra);
      on_each_cpu_target([&](TestContext& context) {
        // One formula, of sums and of a maximum, where there are no vectors.
        if (context.target() == Target::interpreter && (kSanitized || !parse(text)->uses.row)) return;
        const Array out(dtype, {kM, 1}), product(dtype, {kM, 1});
        Tensor values = out;
        values.shape[0] = 2;
        values.strides[0] = kM - 1;
        pairwise(text, x, &zt, out, arguments, context);
        expect_pairs(values, expected, text);
        kernel_product(text, x, &zt, v, product, arguments, context);
        for (std::int64_t m = 0; m < kM; ++m)
          ASSERT_NEAR(product(m, 0), 0.5 * out(m, 0), tolerance * (1 + std::abs(out(m, 0)))) << text;
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
}

/// The values of the pairs of a gradient.
TEST(ManyFeatures, Gradients) {
  constexpr std::int64_t kM = 3, kN = 2, kK = 360000;
  const char* text = "exp(-sum((x-z)^2)/K)";
  for (const Dtype dtype : kWide) {
    const Array x = normal(dtype, {kM, kK}, 1), z = normal(dtype, {kN, kK}, 2), coef = normal(dtype, {kN}, 3),
                pairs(dtype, {kM, kN});
    const Tensor zt = z;
    pairwise(text, x, &zt, pairs);
    on_each_cpu_target([&](TestContext& context) {
      const Array out(dtype, {kM, kK});
      kernel_gradient(text, x, &zt, coef, out, {}, context);
      for (std::int64_t m = 0; m < kM; ++m)
        for (std::int64_t k = 0; k < kK; k += 997) {
          double sum = 0, size = 0;
          for (std::int64_t n = 0; n < kN; ++n) {
            const double term = -2 * coef(n) * pairs(m, n) * (x(m, k) - z(n, k)) / static_cast<double>(kK);
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(out(m, k), sum, 20 * unit(dtype) * size) << m << "," << k;
        }
    });
  }
}

/// Bytes of addresses that this process has.
std::int64_t address_space() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

/// Two points whose features lie at one place: all memory is scratch. Panels of all features would take 768 MB.
TEST(ManyFeatures, ScratchMemoryIsBounded) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve addresses";
  constexpr std::int64_t kK = 4000000, kBound = std::int64_t{192} << 20;
  static const float values[] = {0.25f, 0.75f};
  const Tensor x(const_cast<float*>(values), Dtype::float32, {2, kK}, {1, 0});
  EXPECT_TRUE(holds_in_child([&] {
    Context context;
    context.set_threads(1);
    const rlim_t limit = static_cast<rlim_t>(address_space() + kBound);
    const rlimit bounds{limit, limit};
    if (::setrlimit(RLIMIT_AS, &bounds) != 0) return false;
    const Array out(Dtype::float32, {2, 2}), product(Dtype::float32, {2});
    const Array v = filled(Dtype::float32, {2}, {1, 1});
    pairwise("sum(abs(x-z))/K", x, nullptr, out, {}, context);
    kernel_product("sum(abs(x-z))/K", x, nullptr, v, product, {}, context);
    return out(0, 0) == 0 && out(0, 1) == 0.5 && out(1, 0) == 0.5 && product(0) == 0.5;
  }));
}

}  // namespace
}  // namespace mercer
