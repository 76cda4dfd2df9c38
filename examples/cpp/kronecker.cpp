// Products with a Kronecker product of three matrices of different shapes, which is never stored: 120 x 42 values would
// be few, but ten factors of 8 x 8 make a matrix of 2^60.
#include <array>

#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kRows = 7;
constexpr std::array<std::int64_t, 3> kP = {4, 5, 6}, kQ = {7, 2, 3};

/// (F1 (x) F2 (x) F3)[p, q]: the first factor belongs to the slowest index.
double entry(const std::vector<double>* factors, std::int64_t p, std::int64_t q) {
  double product = 1;
  for (std::size_t i = 3; i-- > 0; p /= kP[i], q /= kQ[i]) product *= factors[i][p % kP[i] * kQ[i] + q % kQ[i]];
  return product;
}

}  // namespace

int main() {
  using mercer::Tensor, mercer::view;
  std::vector<double> factors[3];
  std::vector<Tensor> views;
  for (std::size_t i = 0; i < 3; ++i) {
    factors[i] = normal_values<double>(kP[i] * kQ[i], unsigned(i));
    views.push_back(view(factors[i].data(), {kP[i], kQ[i]}));
  }
  constexpr std::int64_t kAllP = 4 * 5 * 6, kAllQ = 7 * 2 * 3;
  const std::vector<double> x = normal_values<double>(kRows * kAllP, 9), y = normal_values<double>(kRows * kAllQ, 10);
  std::vector<double> out(kRows * kAllQ), back(kAllP);

  // out = 2 x (F1 (x) F2 (x) F3) - y
  const Tensor added = view(y.data(), {kRows, kAllQ});
  mercer::kron::Options options;
  options.alpha = 2;
  options.beta = -1;
  options.y = &added;
  mercer::kron::matmul(view(x.data(), {kRows, kAllP}), views, view(out.data(), {kRows, kAllQ}), options);

  // back = (F1 (x) F2 (x) F3) v for a vector, the first row of y
  mercer::kron::kron_matmul(views, view(y.data(), {kAllQ}), view(back.data(), {kAllP}));

  Worst worst;
  for (std::int64_t m = 0; m < kRows; ++m)
    for (std::int64_t q = 0; q < kAllQ; ++q) {
      double sum = -y[m * kAllQ + q];
      for (std::int64_t p = 0; p < kAllP; ++p) sum += 2 * x[m * kAllP + p] * entry(factors, p, q);
      worst.compare(out[m * kAllQ + q], sum);
    }
  for (std::int64_t p = 0; p < kAllP; ++p) {
    double sum = 0;
    for (std::int64_t q = 0; q < kAllQ; ++q) sum += entry(factors, p, q) * y[q];
    worst.compare(back[p], sum);
  }
  return worst.report("Kronecker products", 1e-12);
}
