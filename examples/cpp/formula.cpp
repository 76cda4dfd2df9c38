// A formula of one's own, as C++ operators and as text, with parameters, and a reduction of one's own:
//
//   k[m, n] = exp(-sum_k huber(x[m, k] - z[n, k]) / h)      huber(d) = d^2 / 2 up to |d| = c, then c (|d| - c / 2)
//   s[m, n] = the second largest |x[m, k] - z[n, k]|
#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kRows = 300, kColumns = 200, kFeatures = 24;
constexpr double kEdge = 0.8, kBandwidth = 20.0;

double huber(double d) { return d <= kEdge ? d * d / 2 : kEdge * (d - kEdge / 2); }

}  // namespace

int main() {
  using namespace mercer;
  const std::vector<float> x_values = normal_values(kRows * kFeatures, 1);
  const std::vector<float> z_values = normal_values(kColumns * kFeatures, 2);
  std::vector<float> kernels(kRows * kColumns), seconds(kRows * kColumns);
  const Tensor x = view(x_values.data(), {kRows, kFeatures}), z = view(z_values.data(), {kColumns, kFeatures});

  // `left` and `right` are symbols; min and where are of Mercer, since their arguments are expressions.
  const auto [left, right] = points();
  const Expr d = abs(left - right), c = param("c"), h = param("h");
  const Formula kernel(exp(-sum(where(d <= c, square(d) / 2, c * (d - c / 2))) / h));
  const Formula as_text("exp(-sum(where(abs(x-z) <= c, (x-z)^2/2, c*(abs(x-z)-c/2)))/h)");
  Arguments arguments;
  arguments.params = {{"c", kEdge}, {"h", kBandwidth}};
  pairwise(kernel, x, &z, view(kernels.data(), {kRows, kColumns}), arguments);

  // State 0 is the largest so far, state 1 the second largest; incoming(0) is the term of the next feature.
  Reduce description;
  description.term = {d, 0};  // one for each state
  description.combine = {max(state(0), incoming(0)), max(state(1), min(state(0), incoming(0)))};
  description.identity = {0, 0};
  description.finish = state(1);
  pairwise(reduce(description), x, &z, view(seconds.data(), {kRows, kColumns}));

  Worst worst;
  for (std::int64_t m = 0; m < kRows; ++m)
    for (std::int64_t n = 0; n < kColumns; ++n) {
      double sum = 0, largest = 0, second = 0;
      for (std::int64_t k = 0; k < kFeatures; ++k) {
        const double distance = std::abs(double(x_values[m * kFeatures + k]) - z_values[n * kFeatures + k]);
        sum += huber(distance);
        second = std::max(second, std::min(largest, distance));
        largest = std::max(largest, distance);
      }
      worst.compare(kernels[m * kColumns + n], std::exp(-sum / kBandwidth));
      worst.compare(seconds[m * kColumns + n], second);
    }
  // Operators and text give one and the same expression, so both find one compiled plan.
  if (!same(kernel.expression(), as_text.expression())) {
    std::printf("%s differs from %s\n", kernel.expression().to_text().c_str(), as_text.expression().to_text().c_str());
    return 1;
  }
  std::printf("%s\n", kernel.expression().to_text().c_str());
  return worst.report("a kernel and a reduction of one's own", 2e-6);
}
