// Measured on an H200. Other generations have its numbers, times scaled by what limits them in the rows of cuda.cpp:
// lanes of multiply-adds, bytes a second, products a second.
#include "plan/gpu/costs.h"

#include <map>

#include "core/mutex.h"
#include "plan/expanded.h"
#include "plan/gpu_floor.h"

namespace mercer::plan {
namespace {

constexpr Costs kH200{
    .tensor_cores_from = kTensorCoresFrom,
    .wide_from = kWideFrom,
    .expanded_from = kExpandedFrom,
    .much_mixed_work = kMuchMixedWork,
    .fills_waves_always = false,
    .candidates_from = 4096,
    .stored = {2.2, 0.057, 2.6, 0.073, 0.023, 8},  // with sums of |x - z|
    .pieces = {2.2, 0.057, 7, 0.075, 0.0098, 64},
    .float64 = {9.5, 0.04, 6, 0.04, 0.042, 32},  // with Gauss kernels, whose sums are products of matrices
    .stored_call = 0.12,
    .stored_least_points = 64,  // half of a tile
};

/// How many times as long a device takes.
struct Slower {
  double lanes, memory, products;
  void apply(ValueCosts& costs) const {
    costs.pass *= lanes;
    costs.feature *= lanes;
    costs.store *= memory;
    costs.stored_feature *= lanes;
    costs.column *= products;
  }
};

double lanes_of(const GpuInfo& gpu, int of_multiprocessor) {
  return gpu.multiprocessors * gpu.gigahertz * of_multiprocessor;
}

Costs scaled(const GpuInfo& gpu) {
  constexpr int kMeasured = 90;
  const GpuInfo& h200 = gpu_info(kMeasured);
  const double memory = h200.bytes_per_second / gpu.bytes_per_second;
  const Slower floats{lanes_of(h200, h200.float_lanes) / lanes_of(gpu, gpu.float_lanes), memory,
                      h200.half_flops / gpu.half_flops};
  const Slower doubles{lanes_of(h200, h200.double_lanes) / lanes_of(gpu, gpu.double_lanes), memory,
                       h200.double_flops / gpu.double_flops};
  Costs costs = kH200;
  floats.apply(costs.stored);
  floats.apply(costs.pieces);
  doubles.apply(costs.float64);
  return costs;
}

}  // namespace

Costs Costs::everywhere() const {
  Costs costs = *this;
  costs.tensor_cores_from = costs.wide_from = costs.expanded_from = costs.much_mixed_work = 0;
  costs.fills_waves_always = true;
  costs.candidates_from = costs.stored_least_points = 0;
  costs.stored_call = 0;
  return costs;
}

const Costs& costs_of(int capability) {
  static constinit Lazy<std::map<int, Costs>> rows;
  const std::map<int, Costs>& all = rows.get([] {
    std::map<int, Costs> made;
    for (const GpuInfo& gpu : gpu_infos()) made.emplace(gpu.capability, scaled(gpu));
    return made;
  });
  return all.at(gpu_info(capability).capability);
}

}  // namespace mercer::plan
