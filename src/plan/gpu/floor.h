// The least time of a plan on a GPU: what its programs issue on each unit, and what they move through memory.
//
//   ms = max over units of (pairs * (K * update + epilogue)) / rate,   bytes / stores
#pragma once

#include <span>

#include "plan/gpu/field.h"
#include "plan/gpu/plan.h"

namespace mercer::plan {

/// A GPU as far as floors are concerned. A multiprocessor issues 128 lanes a clock, its special-function unit takes 16.
struct GpuInfo {
  int capability = 90;
  const char* name = "";         // "sm_90"
  const char* device = "";       // the one that the numbers belong to
  int multiprocessors = 0;
  double gigahertz = 0;
  double bytes_per_second = 0;   // that stores of a whole output reach
  double half_flops = 0;         // a second, of products of 16-bit floats, summed in float32
  double double_flops = 0;       // the same of float64
  int float_lanes = 128;         // a clock and multiprocessor, for multiply-adds
  int double_lanes = 64;
  std::int64_t shared_per_block = 0;
};

/// A device for each generation, in the order of their compute capabilities; rows are in targets/cuda.cpp.
std::span<const GpuInfo> gpu_infos();
/// The row of this compute capability, or of the newest one before it.
const GpuInfo& gpu_info(int capability);

/// Milliseconds that each unit is busy at least.
struct GpuTimes {
  double issue = 0, fma = 0, alu = 0, unit = 0, tensor = 0, memory = 0;
  double ms() const;             ///< of the busiest
  GpuTimes& operator+=(const GpuTimes& other);  ///< one pass after the other
  GpuTimes operator*(double passes) const;
};

/// What a pair and feature costs on average: some pairs of a thread may run another program than `update`.
/// `quantised`: the values are such that integers stand for them, where the plan has mixed pipes.
GpuCost mean_update_cost(const GpuPairPlan& plan, bool quantised = true);

/// `count` runs of a program of this cost and type.
GpuTimes gpu_times(const GpuCost& cost, Dtype type, double count, const GpuInfo& gpu);
GpuTimes gpu_memory_times(double bytes, const GpuInfo& gpu);
/// `multiply_adds` of 16-bit floats on tensor cores, or of float64.
GpuTimes gpu_tensor_times(double multiply_adds, const GpuInfo& gpu);
GpuTimes gpu_double_tensor_times(double multiply_adds, const GpuInfo& gpu);

}  // namespace mercer::plan
