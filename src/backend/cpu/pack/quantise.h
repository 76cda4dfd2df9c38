// Integers in place of a call item's values, for sums of absolute differences in float32
// (docs/design/sums_of_maxima.md):
//
//   q[k] = round(value[k] / step) - centre[k]         step a power of two, both sides alike
//
//   panel  [line][width]    for each chunk: a head, - sum of q over the chunk; then a line 2 q[k] for each feature
//                           at the end, bounds: what the residuals |value - step * round(value / step)| can cost a sum,
//                           divided by the share of the sum that they may cost
#pragma once

#include <cstdint>
#include <vector>

namespace mercer::cpu {

class Quantiser {
 public:
  using Element = std::int32_t;

  /// The values are multiplied by `factor` > 0 after their sums are taken. `step` is a power of two.
  Quantiser(std::int64_t features, std::int64_t chunk, float step, double factor, const std::vector<float>& centres);

  std::int64_t chunk() const { return chunk_; }
  float step() const { return step_; }
  /// Lines of a panel.
  std::int64_t lines() const { return features_ + chunks_ + 1; }
  /// values [k][width] → panel. The rows' side has one bound for all its points. False when some value or sum is too
  /// large; the panel holds nothing of use then.
  bool operator()(const float* values, int width, bool rows, std::int32_t* panel) const;

  /// No sum of |q| over a chunk is larger: two of them fit a signed integer.
  static constexpr float kLargestSum = 0x1p30f - 0x1p20f;

 private:
  struct Lanes;
  void run_block(const float* values, int width, std::int64_t k0, std::int64_t k1, std::int32_t* lines,
                 Lanes& lanes) const;

  std::int64_t features_, chunk_, chunks_;
  float step_, per_step_;
  double bound_;  // the least sum that may lose a step to residuals
  std::vector<std::int32_t> centres_;
};

}  // namespace mercer::cpu
