#include "backend/block_basis.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/small_matrix.h"
#include "core/error.h"

namespace mercer {
namespace {

double rounding_of(Dtype type) {
  return type == Dtype::float32 ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
}
double least_of(Dtype type) {
  return type == Dtype::float32 ? std::numeric_limits<float>::min() : std::numeric_limits<double>::min();
}

constexpr int kMostPasses = 6;
/// Where less than this part of a column's length is left, rounding of what was taken away counts (Kahan, Parlett).
constexpr double kKept = 0.5;

}  // namespace

BlockBasis::BlockBasis(const Sizes& sizes) : sizes_(sizes) {}

// Gram matrices are factored with a shift where rounding has made them indefinite, and columns that shrink bring the
// rounding of their projection up to their new length, so that a few passes may be needed; what has no direction left
// gets a random one.
void BlockBasis::append_carefully(std::int64_t first, std::int64_t count) {
  r_.assign(static_cast<std::size_t>(count * count), 0);
  for (std::int64_t j = 0; j < count; ++j) r_[j * (count + 1)] = 1;
  std::vector<double> c(static_cast<std::size_t>(first * count), 0);
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const Projection projection = project(first, count);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t p = 0; p <= j; ++p) {
        const double factor = r_[p + j * count];
        for (std::int64_t i = 0; i < first && factor != 0; ++i)
          c[i + j * first] += projection.coefficients[i + p * first] * factor;
      }
    const bool clean = factor(first, count, projection.gram);
    if (clean && pass > 0) break;
  }
  if (first > 0) record(first, count, c);
}

/// block = block u^-1 with block^T block = u^T u, r = u r. False when a shift was needed, or when a column of length 1
/// was nearly one of the columns before it.
bool BlockBasis::factor(std::int64_t first, std::int64_t count, const std::vector<double>& gram) {
  const double rounding = rounding_of(sizes_.type);
  double trace = 0;
  for (std::int64_t j = 0; j < count; ++j) trace += gram[j * (count + 1)];
  if (!std::isfinite(trace))
    fail(ErrorKind::numerical,
         "{}: products with the operator must be finite, as must be their squares. Received NaN, infinity or larger "
         "ones.",
         sizes_.op);
  if (!(trace > least_of(sizes_.type) * double(sizes_.length))) {  // nothing is left of the block
    draw(first, count);
    std::fill(r_.begin(), r_.end(), 0);
    return false;
  }
  // What lies below this part of the block is rounding; its direction is as good as random.
  SmallMatrix u;
  double shift = 0, shortest = 0;
  for (;; shift = shift > 0 ? 10 * shift : 4 * double(count) * rounding * trace) {
    u = SmallMatrix(count, count, gram);
    if (!factor_upper(u, shift)) continue;
    double least = u(0, 0), largest = u(0, 0);
    for (std::int64_t j = 0; j < count; ++j) {
      least = std::min(least, u(j, j));
      largest = std::max(largest, u(j, j));
    }
    shortest = least;
    if (least * least > rounding * double(count) * largest * largest) break;
  }
  divide(first, count, u.values);
  std::vector<double> product(r_.size(), 0);
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t i = 0; i <= j; ++i)
      for (std::int64_t p = i; p <= j; ++p) product[i + j * count] += u(i, p) * r_[p + j * count];
  r_ = std::move(product);
  return shift == 0 && shortest >= kKept;
}

// The block that was multiplied is the one before `first`: its own columns of c come in both orders.
void HostProducts::record(std::int64_t first, std::int64_t count, const std::vector<double>& c) {
  const std::int64_t from = first - count;
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t i = 0; i < first; ++i) at(i, from + j) = at(from + j, i) = c[i + j * first];
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t i = 0; i < j; ++i)
      at(from + i, from + j) = at(from + j, from + i) = 0.5 * (c[from + i + j * first] + c[from + j + i * first]);
}

void HostProducts::restart(const std::vector<double>& values) {
  std::fill(h_.begin(), h_.end(), 0);
  const auto count = static_cast<std::int64_t>(values.size());
  for (std::int64_t j = 0; j < count; ++j) at(j, j) = values[static_cast<std::size_t>(j)];
}

void HostProducts::set(const std::vector<double>& h, std::int64_t m) {
  for (std::int64_t j = 0; j < m; ++j)
    for (std::int64_t i = 0; i < m; ++i) at(i, j) = h[i + j * m];
}

}  // namespace mercer
