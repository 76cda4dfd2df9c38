// Distances from a centre in place of a call item's values, for sums of absolute differences in float64
// (docs/design/sums_of_maxima.md):
//
//   q[k] = value[k] - centre[k]                       both sides alike
//
//   panel  [line][width]    for each chunk: a head, - sum of q over the chunk; then a line 2 q[k] for each feature
//                           at the end, bounds: what rounding can cost a sum, divided by the share that it may cost
#pragma once

#include <cstdint>
#include <vector>

namespace mercer::cpu {

class Centring {
 public:
  using Element = double;

  /// The sums are multiplied by `factor` > 0 after they are taken.
  Centring(std::int64_t features, std::int64_t chunk, double factor, std::vector<double> centres);

  std::int64_t chunk() const { return chunk_; }
  double step() const { return 1; }
  /// Lines of a panel.
  std::int64_t lines() const { return features_ + chunks_ + 1; }
  /// values [k][width] → panel. The rows' side has one bound for all its points. False when some sum is too large; the
  /// panel holds nothing of use then.
  bool operator()(const double* values, int width, bool rows, double* panel) const;

 private:
  struct Lanes;
  void run_block(const double* values, int width, std::int64_t k0, std::int64_t k1, double* lines, Lanes& lanes) const;

  std::int64_t features_, chunk_, chunks_;
  double bound_;  // the least sum that may lose to rounding what a sum of |q| of 1 loses
  std::vector<double> centres_;
};

}  // namespace mercer::cpu
