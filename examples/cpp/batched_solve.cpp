// Batched linear algebra: 50 Gaussian processes at once. Each has its own points and bandwidth; one call makes their
// kernel matrices, one solves all systems and one gives the two parts of their likelihoods. A matrix that fails is
// named and leaves the others alone.
#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kItems = 50, kPoints = 24, kFeatures = 3, kSides = 2, kBroken = 7;

}  // namespace

int main() {
  using mercer::view;
  const std::vector<double> x = normal_values<double>(kItems * kPoints * kFeatures, 1);
  const std::vector<double> b = normal_values<double>(kItems * kPoints * kSides, 2);
  std::vector<double> bandwidths(kItems), a(kItems * kPoints * kPoints), solution(b.size());
  std::vector<double> inv_quad(kItems * kSides), logdet(kItems);
  std::vector<std::int64_t> info(kItems);
  for (std::int64_t i = 0; i < kItems; ++i) bandwidths[i] = 1 + 0.05 * double(i);

  // A parameter that is an array adds its axes to the batch: matrix i has bandwidth i. i == j is the noise's diagonal.
  mercer::Arguments arguments;
  arguments.params = {{"h", view(bandwidths.data(), {kItems})}, {"noise", 0.1}};
  const mercer::Tensor matrices = view(a.data(), {kItems, kPoints, kPoints});
  mercer::pairwise("exp(-sum(abs(x-z))/h) + noise*(i==j)", view(x.data(), {kItems, kPoints, kFeatures}), nullptr,
                   matrices, arguments);
  a[kBroken * kPoints * kPoints] = -1;  // no longer positive definite

  const mercer::Tensor sides = view(b.data(), {kItems, kPoints, kSides}), failed = view(info.data(), {kItems});
  mercer::linalg::Options options;
  options.info = &failed;  // without it, the call throws Error of the kind numerical once all is written
  mercer::linalg::solve_cholesky(matrices, sides, view(solution.data(), {kItems, kPoints, kSides}), options);
  mercer::linalg::inv_quad_logdet(matrices, sides, view(inv_quad.data(), {kItems, kSides}),
                                  view(logdet.data(), {kItems}), options);

  Worst worst;
  for (std::int64_t i = 0; i < kItems; ++i) {
    if (i == kBroken) {
      worst.compare(double(info[i]), 1);  // the leading minor of order 1 is not positive
      worst.compare(std::isnan(solution[i * kPoints * kSides]), 1);
      continue;
    }
    for (std::int64_t e = 0; e < kSides; ++e) {
      double quad = 0;
      for (std::int64_t m = 0; m < kPoints; ++m) {
        double sum = 0;
        for (std::int64_t n = 0; n < kPoints; ++n)
          sum += a[(i * kPoints + m) * kPoints + n] * solution[(i * kPoints + n) * kSides + e];
        worst.compare(sum, b[(i * kPoints + m) * kSides + e]);
        quad += b[(i * kPoints + m) * kSides + e] * solution[(i * kPoints + m) * kSides + e];
      }
      worst.compare(inv_quad[i * kSides + e], quad);
    }
  }
  return worst.report("50 systems, one of them broken", 1e-12);
}
