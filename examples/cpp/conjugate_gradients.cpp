// Conjugate gradients on an operator: (K + ridge) x = b with the kernel matrix K of 2000 points, which is never stored.
// A preconditioner from a few of its rows takes most of the rounds away.
#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kPoints = 2000, kFeatures = 3, kSides = 2;
constexpr double kRidge = 0.01, kBandwidth = 4.0;

double kernel(const double* x, const double* z) {
  double sum = 0;
  for (std::int64_t k = 0; k < kFeatures; ++k) sum += (x[k] - z[k]) * (x[k] - z[k]);
  return std::exp(-sum / kBandwidth);
}

}  // namespace

int main() {
  using namespace mercer;
  const std::vector<double> points = normal_values<double>(kPoints * kFeatures, 1);
  const std::vector<double> b = normal_values<double>(kPoints * kSides, 2);
  std::vector<double> solution(b.size());
  std::vector<std::int64_t> rounds(kSides);

  Arguments arguments;
  arguments.params = {{"h", kBandwidth}};
  const Tensor x = view(points.data(), {kPoints, kFeatures});
  // Formula, points and arguments must outlive the operator. A matrix that is stored, or a function of one's own that
  // multiplies, is an operator likewise: linalg::matrix_operator, linalg::Operator{...}.
  const Formula gauss("exp(-sum((x-z)^2)/h)");
  const linalg::Operator a = linalg::kernel_operator(gauss, x, 0.0, arguments);
  const linalg::Preconditioner preconditioner = linalg::rpcholesky_preconditioner(a, 150, kRidge);

  const Tensor iterations = view(rounds.data(), {kSides});
  linalg::CgOptions options;
  options.tolerance = 1e-10;
  options.ridge = kRidge;
  options.preconditioner = &preconditioner;
  options.iterations = &iterations;
  linalg::cg(a, view(b.data(), {kPoints, kSides}), view(solution.data(), {kPoints, kSides}), options);
  std::printf("%lld and %lld products\n", static_cast<long long>(rounds[0]), static_cast<long long>(rounds[1]));

  double residual[kSides] = {}, norm[kSides] = {};
  for (std::int64_t m = 0; m < kPoints; ++m) {
    double sum[kSides] = {};
    for (std::int64_t e = 0; e < kSides; ++e) sum[e] = kRidge * solution[m * kSides + e];
    for (std::int64_t n = 0; n < kPoints; ++n) {
      const double value = kernel(&points[m * kFeatures], &points[n * kFeatures]);
      for (std::int64_t e = 0; e < kSides; ++e) sum[e] += value * solution[n * kSides + e];
    }
    for (std::int64_t e = 0; e < kSides; ++e) {
      residual[e] += std::pow(b[m * kSides + e] - sum[e], 2);
      norm[e] += std::pow(b[m * kSides + e], 2);
    }
  }
  Worst worst;
  for (std::int64_t e = 0; e < kSides; ++e) worst.compare(std::sqrt(residual[e] / norm[e]), 0);
  return worst.report("residuals, as parts of |b|", 1.1e-10);
}
