// Microseconds of a call on tiny arrays from C++ and from C, where hardly anything but the host's part is left:
//
//   make bench-calls
//
// Plans are cached, one thread computes. Times are the best of rounds that take turns, of the thread's CPU time. What a
// loop in double takes for the same is there for comparison.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mercer/c/mercer.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kPoints = 8, kFeatures = 4, kSide = 4;
constexpr int kRounds = 60, kCalls = 500;

using Call = std::function<void()>;

double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void print_row(const char* name, const std::vector<std::pair<const char*, Call>>& calls) {
  std::vector<double> best(calls.size(), 1e9);
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t c = 0; c < calls.size(); ++c) {
      const double start = seconds();
      for (int i = 0; i < kCalls; ++i) calls[c].second();
      best[c] = std::min(best[c], (seconds() - start) / kCalls);
    }
  std::printf("%-28s", name);
  for (std::size_t c = 0; c < calls.size(); ++c) std::printf("  %s %.2f", calls[c].first, 1e6 * best[c]);
  std::printf("\n");
}

void must(mercer_status status) {
  if (status != MERCER_OK) throw std::runtime_error(mercer_last_error());
}

mercer_tensor c_array(float* data, int32_t ndim, const int64_t* shape) {
  mercer_tensor array = {};
  array.data = data;
  array.dtype = MERCER_FLOAT32;
  array.ndim = ndim;
  array.shape = shape;
  return array;
}

void pairwise_row(std::vector<float>& x, std::vector<float>& z, std::vector<float>& out) {
  const mercer::Formula gauss("exp(-sum((x-z)^2)/h)");
  const auto by_cpp = [&] {
    mercer::Arguments arguments;
    arguments.params = {{"h", 2.0}};
    const mercer::Tensor columns = mercer::view(z.data(), {kPoints, kFeatures});
    mercer::pairwise(gauss, mercer::view(x.data(), {kPoints, kFeatures}), &columns,
                     mercer::view(out.data(), {kPoints, kPoints}), arguments);
  };
  mercer_formula* formula = nullptr;
  must(mercer_formula_create("exp(-sum((x-z)^2)/h)", &formula));
  const auto by_c = [&] {
    const int64_t points[] = {kPoints, kFeatures}, square[] = {kPoints, kPoints};
    const mercer_tensor a = c_array(x.data(), 2, points), b = c_array(z.data(), 2, points);
    const mercer_tensor c = c_array(out.data(), 2, square);
    const mercer_param params[] = {{"h", 2.0, nullptr}};
    mercer_arguments arguments = MERCER_ARGUMENTS_INIT;
    arguments.params = params;
    arguments.param_count = 1;
    must(mercer_pairwise(formula, &a, &b, &c, &arguments, nullptr));
  };
  const auto by_loop = [&] {
    for (std::int64_t m = 0; m < kPoints; ++m)
      for (std::int64_t n = 0; n < kPoints; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < kFeatures; ++k)
          sum += std::pow(double(x[m * kFeatures + k]) - z[n * kFeatures + k], 2);
        out[m * kPoints + n] = float(std::exp(-sum / 2));
      }
  };
  print_row("pairwise 8 x 8 x 4", {{"C++", by_cpp}, {"C", by_c}, {"loop", by_loop}});
  mercer_formula_destroy(formula);
}

void kron_row(std::vector<float>& x, std::vector<float>& factor, std::vector<float>& out) {
  const auto by_cpp = [&] {
    const mercer::Tensor f = mercer::view(factor.data(), {kSide, kSide}), factors[] = {f, f};
    mercer::kron::matmul(mercer::view(x.data(), {1, kSide * kSide}), factors,
                         mercer::view(out.data(), {1, kSide * kSide}));
  };
  const auto by_c = [&] {
    const int64_t square[] = {kSide, kSide}, row[] = {1, kSide * kSide};
    const mercer_tensor f = c_array(factor.data(), 2, square), factors[] = {f, f};
    const mercer_tensor a = c_array(x.data(), 2, row), c = c_array(out.data(), 2, row);
    must(mercer_kron_matmul(&a, factors, 2, &c, nullptr, nullptr));
  };
  print_row("kron.matmul 1 x 4^2", {{"C++", by_cpp}, {"C", by_c}});
}

void rows_of_cpp(std::vector<float>& x_values, std::vector<float>& z_values, std::vector<float>& out) {
  using namespace mercer;
  const Formula gauss("exp(-sum((x-z)^2)/h)"), distance(zoo("euclidean"));
  const Tensor x = view(x_values.data(), {kPoints, kFeatures}), z = view(z_values.data(), {kPoints, kFeatures});
  const Tensor v = view(z_values.data(), {kPoints}), y = view(out.data(), {kPoints});
  const Tensor by_x = view(out.data(), {kPoints, kFeatures}), nearest = view(out.data(), {kPoints, 3});
  std::vector<std::int64_t> where(kPoints * 3);
  const Tensor indices = view(where.data(), {kPoints, 3});
  Arguments h;
  h.params = {{"h", 2.0}};
  print_row("kernel_product 8 x 8 x 4", {{"C++", [&] { kernel_product(gauss, x, &z, v, y, h); }}});
  print_row("kernel_reduce 8 x 8 x 4", {{"C++", [&] { kernel_reduce(gauss, x, &z, ReduceKind::max, y, h); }}});
  print_row("kernel_gradient 8 x 8 x 4", {{"C++", [&] { kernel_gradient(gauss, x, &z, v, by_x, h); }}});
  const Tensor agop = view(out.data(), {kFeatures, kFeatures});
  print_row("kernel_agop 8 x 8 x 4", {{"C++", [&] { kernel_agop(gauss, x, &z, v, agop, h); }}});
  print_row("knn 8 x 8 x 4", {{"C++", [&] { knn(distance, x, &z, 3, nearest, indices); }}});
}

void linalg_row(std::vector<float>& b, std::vector<float>& out) {
  std::vector<float> a(kSide * kSide, 0.5f);
  for (std::int64_t i = 0; i < kSide; ++i) a[i * (kSide + 1)] = 4;
  const mercer::Tensor matrix = mercer::view(a.data(), {kSide, kSide}), side = mercer::view(b.data(), {kSide, 2});
  const mercer::Tensor x = mercer::view(out.data(), {kSide, 2});
  print_row("solve_cholesky 4 x 4", {{"C++", [&] { mercer::linalg::solve_cholesky(matrix, side, x); }}});
}

}  // namespace

int main() {
  mercer::Context::shared().set_threads(1);
  std::vector<float> x(64), z(64), out(64);
  for (std::size_t i = 0; i < 64; ++i) x[i] = std::sin(float(i)), z[i] = std::cos(float(i));
  std::printf("microseconds a call, %s\n", mercer_version());
  pairwise_row(x, z, out);
  kron_row(x, z, out);
  rows_of_cpp(x, z, out);
  linalg_row(z, out);
}
