// A kernel matrix by a formula, checked against the plain loop:
//
//   k[m, n] = exp(-sum_k |x[m, k] - z[n, k]|^p / bandwidth)
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kRows = 300, kColumns = 200, kFeatures = 24;
constexpr double kPower = 1.3, kBandwidth = 20.0;

std::vector<float> normal_points(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> points(count * kFeatures);
  for (float& value : points) value = normal(generator);
  return points;
}

double by_definition(const float* x, const float* z) {
  double sum = 0;
  for (std::int64_t k = 0; k < kFeatures; ++k) sum += std::pow(std::abs(double(x[k]) - z[k]), kPower);
  return std::exp(-sum / kBandwidth);
}

}  // namespace

int main() {
  const std::vector<float> x = normal_points(kRows, 1), z = normal_points(kColumns, 2);
  std::vector<float> out(kRows * kColumns);

  const mercer::Formula kernel("exp(-sum(abs(x-z)^p)/bandwidth)");
  mercer::Arguments arguments;
  arguments.params = {{"p", kPower}, {"bandwidth", kBandwidth}};
  const mercer::Tensor columns = mercer::view(z.data(), {kColumns, kFeatures});
  mercer::pairwise(kernel, mercer::view(x.data(), {kRows, kFeatures}), &columns,
                   mercer::view(out.data(), {kRows, kColumns}), arguments);

  double worst = 0;
  for (std::int64_t m = 0; m < kRows; ++m) {
    for (std::int64_t n = 0; n < kColumns; ++n) {
      const double expected = by_definition(&x[m * kFeatures], &z[n * kFeatures]);
      worst = std::max(worst, std::abs(out[m * kColumns + n] - expected) / expected);
    }
  }
  std::printf("%lld x %lld kernel matrix of %s\nlargest relative error against the plain loop in double: %.2g\n",
              static_cast<long long>(kRows), static_cast<long long>(kColumns), kernel.expression().to_text().c_str(),
              worst);
  return worst < 1e-5 ? 0 : 1;
}
