// What ways cost on a generation of GPUs: sizes from which they pay, and times (rows: plan/targets/cuda_costs.cpp).
#pragma once

#include <cstdint>

namespace mercer::plan {

/// Milliseconds of 10^9 pairs in a product whose values no product of matrices makes.
struct ValueCosts {
  double pass, feature;          // of a pass over 16 columns of v: a pair, and each of its features
  double store, stored_feature;  // of values that are stored: likewise
  double column;                 // of a column that these are multiplied with
  std::int64_t multiple;         // to which their number is rounded up
};

struct Costs {
  double tensor_cores_from;  // pairs times features from which sums that are products of matrices run on tensor cores
  double wide_from;          // pairs from which values of few features are an operand of products with v
  double expanded_from;      // pairs from which squares of differences of few features are expanded
  double much_mixed_work;    // pairs times features that plan::mixed_work calls much
  bool fills_waves_always;   // differences by tensor cores, whatever part of the multiprocessors they keep busy
  std::int64_t candidates_from;    // points of z from which few neighbours are found while pairs are computed
  ValueCosts stored, pieces, float64;  // of up to 312 columns, of more, and of float64
  double stored_call;              // milliseconds of the launches around values that are stored
  std::int64_t stored_least_points;  // on either side, from which that is considered

  /// With no size too small for any way.
  Costs everywhere() const;
};

/// The row of this compute capability, or of the newest one before it.
const Costs& costs_of(int capability);

}  // namespace mercer::plan
