// Gradients of a formula of one's own: by the points, without a buffer of M x N x K values, and by a parameter. Mercer
// differentiates the formula; the plain loop below has the derivatives by hand.
//
//   f(x, z) = exp(-sqrt(1 + sum_k (x_k - z_k)^2) / h)
#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kRows = 150, kColumns = 120, kFeatures = 6;
constexpr double kBandwidth = 2.0;

}  // namespace

int main() {
  using namespace mercer;
  const std::vector<float> x_values = normal_values(kRows * kFeatures, 1);
  const std::vector<float> z_values = normal_values(kColumns * kFeatures, 2), coef = normal_values(kColumns, 3);
  std::vector<float> by_x(kRows * kFeatures), by_h(kRows);
  const Tensor x = view(x_values.data(), {kRows, kFeatures}), z = view(z_values.data(), {kColumns, kFeatures});
  const Tensor v = view(coef.data(), {kColumns});
  const Formula f("exp(-sqrt(1 + sum((x-z)^2))/h)");
  Arguments arguments;
  arguments.params = {{"h", kBandwidth}};

  // by_x[m, k] = sum_n coef[n] d f(x_m, z_n) / d x_mk: the gradient of the model sum_n coef[n] f(x, z_n) at each x_m.
  kernel_gradient(f, x, &z, v, view(by_x.data(), {kRows, kFeatures}), arguments);

  // The derivative by a parameter is a formula again, and goes into any verb: here the product with coef.
  const Expr derivative = differentiate(f.expression(), param("h"));
  kernel_product(derivative, x, &z, v, view(by_h.data(), {kRows}), arguments);
  std::printf("d f / d h = %s\n", derivative.to_text().c_str());

  Worst worst;
  for (std::int64_t m = 0; m < kRows; ++m) {
    double gradient[kFeatures] = {}, parameter = 0;
    for (std::int64_t n = 0; n < kColumns; ++n) {
      double squares = 0;
      const float *const a = &x_values[m * kFeatures], *const b = &z_values[n * kFeatures];
      for (std::int64_t k = 0; k < kFeatures; ++k) squares += (double(a[k]) - b[k]) * (double(a[k]) - b[k]);
      const double root = std::sqrt(1 + squares), value = coef[n] * std::exp(-root / kBandwidth);
      for (std::int64_t k = 0; k < kFeatures; ++k) gradient[k] -= value / (kBandwidth * root) * (double(a[k]) - b[k]);
      parameter += value * root / (kBandwidth * kBandwidth);
    }
    for (std::int64_t k = 0; k < kFeatures; ++k) worst.compare(by_x[m * kFeatures + k], gradient[k]);
    worst.compare(by_h[m], parameter);
  }
  return worst.report("gradients", 1e-5);
}
