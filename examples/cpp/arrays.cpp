// Arrays are views of memory that the program owns: an address, an element type, a shape, and strides in elements.
// Columns first, every second row, backwards, one matrix for a whole batch: no copy is made of any of them.
#include "check.h"
#include "mercer/mercer.h"

namespace {

constexpr std::int64_t kBatch = 3, kRows = 40, kColumns = 30, kFeatures = 5;

double euclidean(const float* x, std::int64_t x_stride, const float* z, std::int64_t z_stride) {
  double sum = 0;
  for (std::int64_t k = 0; k < kFeatures; ++k) sum += std::pow(double(x[k * x_stride]) - z[k * z_stride], 2);
  return std::sqrt(sum);
}

}  // namespace

int main() {
  using mercer::Dtype, mercer::Tensor;
  // The points x [3, 40, 5] are stored with the features outermost in each matrix, as Fortran and MATLAB do.
  std::vector<float> x_memory = normal_values(kBatch * kFeatures * kRows, 1);
  const Tensor x(x_memory.data(), Dtype::float32, {kBatch, kRows, kFeatures}, {kRows * kFeatures, 1, kRows});

  // The points z are every second row of a table, from the last to the first, and serve all three matrices of x: a
  // stride may be negative, and is 0 along an axis that repeats.
  std::vector<float> table = normal_values(2 * kColumns * kFeatures, 2);
  float* const last = table.data() + 2 * (kColumns - 1) * kFeatures;
  const Tensor z(last, Dtype::float32, {kBatch, kColumns, kFeatures}, {0, -2 * kFeatures, 1});

  // The distances go into the right half of a wider matrix, whose left half is left as it is.
  constexpr std::int64_t kWidth = 2 * kColumns;
  std::vector<float> wide(kBatch * kRows * kWidth, -1);
  const Tensor out(wide.data() + kColumns, Dtype::float32, {kBatch, kRows, kColumns}, {kRows * kWidth, kWidth, 1});

  mercer::pairwise(mercer::zoo("euclidean"), x, &z, out);

  Worst worst;
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t m = 0; m < kRows; ++m)
      for (std::int64_t n = 0; n < kColumns; ++n) {
        const float* const row = &wide[(b * kRows + m) * kWidth];
        const float* const point = &x_memory[b * kRows * kFeatures + m];
        worst.compare(row[kColumns + n], euclidean(point, kRows, last - 2 * n * kFeatures, 1));
        worst.compare(row[n], -1);
      }
  return worst.report("distances of strided arrays", 1e-6);
}
