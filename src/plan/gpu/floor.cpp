#include "plan/gpu/floor.h"

#include <algorithm>

namespace mercer::plan {

double GpuTimes::ms() const { return std::max({issue, fma, alu, unit, tensor, memory}); }

GpuTimes& GpuTimes::operator+=(const GpuTimes& other) {
  issue += other.issue;
  fma += other.fma;
  alu += other.alu;
  unit += other.unit;
  tensor += other.tensor;
  memory += other.memory;
  return *this;
}

GpuTimes GpuTimes::operator*(double passes) const {
  return {issue * passes, fma * passes, alu * passes, unit * passes, tensor * passes, memory * passes};
}

GpuCost mean_update_cost(const GpuPairPlan& plan, bool quantised) {
  constexpr GpuCost kSad{.issue = 1, .fma = 0, .alu = 1, .unit = 0};  // an absolute difference and its sum
  if (plan.input.bytes) return {.issue = kSad.issue / 4, .fma = 0, .alu = kSad.alu / 4, .unit = 0};  // of four features
  const GpuCost cost = count_gpu(plan.pipes.powers ? plan.pipes.powers.moderate : plan.programs.update);
  if (plan.pipes.mixed_sixteenths > 0 && quantised) return blend(cost, kSad, plan.pipes.mixed_sixteenths / 16.0);
  if (plan.pipes.differs) return {.issue = cost.issue - 1, .fma = cost.fma - 1, .alu = cost.alu, .unit = cost.unit};
  return blend(cost, count_gpu(plan.pipes.alternative), plan.pipes.alternative_eighths / 8.0);
}

GpuTimes gpu_times(const GpuCost& cost, Dtype type, double count, const GpuInfo& gpu) {
  constexpr double kIssued = 128, kAlu = 64, kUnit = 16;  // lanes a clock
  const double clocks = 1e3 * count / (gpu.multiprocessors * gpu.gigahertz * 1e9);
  const double fma_lanes = type == Dtype::float64 ? gpu.double_lanes : gpu.float_lanes;
  return {cost.issue * clocks / kIssued, cost.fma * clocks / fma_lanes, cost.alu * clocks / kAlu,
          cost.unit * clocks / kUnit, 0, 0};
}

GpuTimes gpu_memory_times(double bytes, const GpuInfo& gpu) {
  GpuTimes times;
  times.memory = 1e3 * bytes / gpu.bytes_per_second;
  return times;
}

GpuTimes gpu_tensor_times(double multiply_adds, const GpuInfo& gpu) {
  GpuTimes times;
  times.tensor = 2e3 * multiply_adds / gpu.half_flops;
  return times;
}

GpuTimes gpu_double_tensor_times(double multiply_adds, const GpuInfo& gpu) {
  GpuTimes times;
  times.tensor = 2e3 * multiply_adds / gpu.double_flops;
  return times;
}

}  // namespace mercer::plan
