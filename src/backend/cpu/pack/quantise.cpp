#include "backend/cpu/pack/quantise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#if defined(__SSE2__)
#include <emmintrin.h>

#include "core/integers.h"
#endif

namespace mercer::cpu {
namespace {

/// Features between two additions of residuals in double; so many lines stay in the first-level cache.
constexpr std::int64_t kBlock = 32;

/// What residuals may cost a sum, of the contract's 1e-6: each chunk's conversion and addition rounds too, and so does
/// a factor that is no power of two.
double tolerance(std::int64_t chunks, double factor) {
  int exponent = 0;
  const std::int64_t roundings = chunks + (std::frexp(factor, &exponent) == 0.5 ? 0 : 2);
  return std::max(4e-7, 9.4e-7 - static_cast<double>(roundings) * 0x1p-24);
}

/// The smallest integer for what is not in range.
[[maybe_unused]] std::int32_t rounded(float value) {
  return std::fabs(value) < 0x1p31f ? static_cast<std::int32_t>(std::lrintf(value))
                                    : std::numeric_limits<std::int32_t>::min();
}

}  // namespace

/// Per point of a panel: over the chunk, - sum of q and sum of |q|; over a block, the residuals.
struct Quantiser::Lanes {
  explicit Lanes(int width) : head(width), size(width), residual(width) {}
  std::vector<std::uint32_t> head;
  std::vector<float> size, residual;
};

Quantiser::Quantiser(std::int64_t features, std::int64_t chunk, float step, double factor,
                     const std::vector<float>& centres)
    : features_(features), chunk_(chunk), chunks_(ceil_div(features, chunk)), step_(step), per_step_(1 / step),
      bound_(1.0001 * factor / tolerance(chunks_, factor)) {
  for (float centre : centres) {
    const float q = centre * per_step_;
    centres_.push_back(std::fabs(q) < 0x1p30f ? static_cast<std::int32_t>(std::lrintf(q)) : 0);
  }
}

// value - step * integer is exact: the integer is 0, or both have the residual's places in reach. (In units of the step
// a small residual might be rounded to 0.) NaN and what is too large become the smallest integer, whose size no sum
// allows.
void Quantiser::run_block(const float* values, int width, std::int64_t k0, std::int64_t k1, std::int32_t* lines,
                          Lanes& lanes) const {
  int r = 0;
#if defined(__SSE2__)
  const __m128 step = _mm_set1_ps(step_), per_step = _mm_set1_ps(per_step_);
  const __m128 magnitude = _mm_castsi128_ps(_mm_set1_epi32(0x7fffffff));
  for (; r + 4 <= width; r += 4) {
    __m128i head = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&lanes.head[r]));
    __m128 size = _mm_loadu_ps(&lanes.size[r]), residual = _mm_setzero_ps();
    for (std::int64_t k = k0; k < k1; ++k) {
      const __m128 value = _mm_loadu_ps(values + k * width + r);
      const __m128i whole = _mm_cvtps_epi32(_mm_mul_ps(value, per_step));
      const __m128 rest = _mm_sub_ps(value, _mm_mul_ps(step, _mm_cvtepi32_ps(whole)));
      residual = _mm_add_ps(residual, _mm_and_ps(magnitude, rest));
      const __m128i q = _mm_sub_epi32(whole, _mm_set1_epi32(centres_[k]));
      size = _mm_add_ps(size, _mm_and_ps(magnitude, _mm_cvtepi32_ps(q)));
      head = _mm_sub_epi32(head, q);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(lines + (k - k0) * width + r), _mm_add_epi32(q, q));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(&lanes.head[r]), head);
    _mm_storeu_ps(&lanes.size[r], size);
    _mm_storeu_ps(&lanes.residual[r], residual);
  }
#endif
  for (; r < width; ++r) {
    lanes.residual[r] = 0;
    for (std::int64_t k = k0; k < k1; ++k) {
      const float value = values[k * width + r];
      const std::int32_t whole = rounded(value * per_step_);
      lanes.residual[r] += std::fabs(value - step_ * static_cast<float>(whole));
      const std::uint32_t q = static_cast<std::uint32_t>(whole) - static_cast<std::uint32_t>(centres_[k]);
      lanes.size[r] += std::fabs(static_cast<float>(static_cast<std::int32_t>(q)));
      lanes.head[r] -= q;
      lines[(k - k0) * width + r] = static_cast<std::int32_t>(2 * q);
    }
  }
}

bool Quantiser::operator()(const float* values, int width, bool rows, std::int32_t* panel) const {
  Lanes lanes(width);
  std::vector<double> residuals(width, 0.0);
  std::int32_t* line = panel;
  for (std::int64_t first = 0; first < features_; first += chunk_) {
    const std::int64_t end = std::min(features_, first + chunk_);
    std::int32_t* const head = line;
    std::fill(lanes.head.begin(), lanes.head.end(), 0u);
    std::fill(lanes.size.begin(), lanes.size.end(), 0.0f);
    line += width;
    for (std::int64_t k0 = first; k0 < end; k0 += kBlock) {
      const std::int64_t k1 = std::min(end, k0 + kBlock);
      run_block(values, width, k0, k1, line, lanes);
      line += (k1 - k0) * width;
      for (int r = 0; r < width; ++r) residuals[r] += static_cast<double>(lanes.residual[r]);
    }
    for (int r = 0; r < width; ++r) {
      if (!(lanes.size[r] <= kLargestSum)) return false;
      head[r] = static_cast<std::int32_t>(lanes.head[r]);
    }
  }
  const double largest = *std::max_element(residuals.begin(), residuals.end());
  for (int r = 0; r < width; ++r)
    line[r] = std::bit_cast<std::int32_t>(static_cast<float>((rows ? largest : residuals[r]) * bound_));
  return true;
}

}  // namespace mercer::cpu
