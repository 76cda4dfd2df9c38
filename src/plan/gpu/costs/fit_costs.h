// A device's own times of stored values (ValueCosts), fitted to times of products by two ways.
#pragma once

#include <functional>

#include "mercer/tensor.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::plan {

/// A product with v of as many points x as z, whose formula is exp of a sum of |x - z| in float32, a Gauss kernel in
/// float64.
struct ProductSample {
  Dtype type = Dtype::float32;
  bool stores = false;  // by the way `materialised`; else values are made again for every 16 columns of v
  std::int64_t points = 0, features = 0, columns = 0;
  double billions() const { return static_cast<double>(points) * static_cast<double>(points) * 1e-9; }
};
/// Milliseconds of it.
using SampleTime = std::function<double(const ProductSample&)>;

/// How many points samples have: of float64, which most devices compute slowly, half as many.
inline constexpr std::int64_t kSamplePoints = 32768;
/// The largest features and columns of a sample.
inline constexpr std::int64_t kSampleFeatures = 96, kSampleColumns = 512;

/// How many are timed.
constexpr int samples_of_fit(bool reads_stored) { return reads_stored ? 13 : 10; }

/// `base` with the times of stored values that `time` says, each to three digits. A number that comes out as nothing or
/// less, by noise, stays the one of `base`. `reads_stored`: the device has the tile that reads values where they lie
/// (compute capability 9.0); else the numbers of that tile stay those of `base` too.
Costs fit_costs(const Costs& base, bool reads_stored, const SampleTime& time);

}  // namespace mercer::plan
