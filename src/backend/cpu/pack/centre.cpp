#include "backend/cpu/pack/centre.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/integers.h"

namespace mercer::cpu {
namespace {

/// Features whose q are added up before their sum is added to the head: a head of n features rounds n / 16 + 16 times.
constexpr std::int64_t kBlock = 16;
/// Roundings of q itself, of the two heads' sum, and of products of small errors.
constexpr std::int64_t kOtherRoundings = 4;
constexpr double kUnit = 0x1p-53;
/// The largest sum of |q|: two of them, and their double, are finite.
constexpr double kLargestSum = 1e300;

/// What roundings before the promotions may cost a sum. For very many chunks it stops at half of the contract.
double tolerance(std::int64_t chunks) {
  return std::max(2.5e-14, 5e-14 - static_cast<double>(chunks + 2) * kUnit);
}

}  // namespace

/// Per point of a panel: sums of q over the block and over the chunk, of |q| over all features.
struct Centring::Lanes {
  explicit Lanes(int width) : block(width), chunk(width), size(width) {}
  std::vector<double> block, chunk, size;
};

// Each of a chunk's additions rounds a number that is not above the sums of |q| of both points.
Centring::Centring(std::int64_t features, std::int64_t chunk, double factor, std::vector<double> centres)
    : features_(features), chunk_(chunk), chunks_(ceil_div(features, chunk)), centres_(std::move(centres)) {
  const std::int64_t roundings = chunk + ceil_div(chunk, kBlock) + kBlock + kOtherRoundings;
  bound_ = 1.0001 * factor * static_cast<double>(roundings) * kUnit / tolerance(chunks_);
}

void Centring::run_block(const double* values, int width, std::int64_t k0, std::int64_t k1, double* lines,
                         Lanes& lanes) const {
  double *const block = lanes.block.data(), *const size = lanes.size.data();
  std::fill_n(block, width, 0.0);
  for (std::int64_t k = k0; k < k1; ++k) {
    const double centre = centres_[k];
    const double* const from = values + k * width;
    double* const line = lines + (k - k0) * width;
    for (int r = 0; r < width; ++r) {
      const double q = from[r] - centre;
      line[r] = q + q;
      block[r] += q;
      size[r] += std::fabs(q);
    }
  }
  for (int r = 0; r < width; ++r) lanes.chunk[r] += block[r];
}

bool Centring::operator()(const double* values, int width, bool rows, double* panel) const {
  Lanes lanes(width);
  double* line = panel;
  for (std::int64_t first = 0; first < features_; first += chunk_) {
    const std::int64_t end = std::min(features_, first + chunk_);
    double* const head = line;
    std::fill_n(lanes.chunk.data(), width, 0.0);
    line += width;
    for (std::int64_t k0 = first; k0 < end; k0 += kBlock) {
      const std::int64_t k1 = std::min(end, k0 + kBlock);
      run_block(values, width, k0, k1, line, lanes);
      line += (k1 - k0) * width;
    }
    for (int r = 0; r < width; ++r) head[r] = -lanes.chunk[r];
  }
  for (double size : lanes.size)
    if (!(size <= kLargestSum)) return false;
  const double largest = *std::max_element(lanes.size.begin(), lanes.size.end());
  for (int r = 0; r < width; ++r) line[r] = (rows ? largest : lanes.size[r]) * bound_;
  return true;
}

}  // namespace mercer::cpu
