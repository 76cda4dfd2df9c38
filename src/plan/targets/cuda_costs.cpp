// Measured on an H200. Other generations have its numbers until one is measured.
#include "plan/gpu/costs.h"

namespace mercer::plan {
namespace {

constexpr Costs kH200{
    .tensor_cores_from = 536870912.0,   // 2^29
    .wide_from = 16777216.0,            // 2^24
    .expanded_from = 536870912.0,       // 2^29
    .much_mixed_work = 17179869184.0,   // 2^34
    .fills_waves_always = false,
    .candidates_from = 4096,
    .stored = {2.2, 0.057, 2.6, 0.073, 0.023, 8},  // with sums of |x - z|
    .pieces = {2.2, 0.057, 7, 0.075, 0.0098, 64},
    .float64 = {9.5, 0.04, 6, 0.04, 0.042, 32},  // with Gauss kernels, whose sums are products of matrices
    .stored_call = 0.12,
    .stored_least_points = 64,  // half of a tile
};

}  // namespace

Costs Costs::everywhere() const {
  Costs costs = *this;
  costs.tensor_cores_from = costs.wide_from = costs.expanded_from = costs.much_mixed_work = 0;
  costs.fills_waves_always = true;
  costs.candidates_from = costs.stored_least_points = 0;
  costs.stored_call = 0;
  return costs;
}

const Costs& costs_of(int) { return kH200; }

}  // namespace mercer::plan
