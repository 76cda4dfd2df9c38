// Products that are made to be timed, for the device's own row of costs (plan/gpu/costs/fit_costs.h).
#pragma once

#include "core/devices/cuda_driver.h"
#include "mercer/device.h"
#include "mercer/tensor.h"
#include "plan/gpu/costs/fit_costs.h"

namespace mercer::ops {

/// Memory of a device, for a while.
class SampleMemory {
 public:
  SampleMemory(int device, std::int64_t bytes);
  ~SampleMemory();
  SampleMemory(const SampleMemory&) = delete;
  SampleMemory& operator=(const SampleMemory&) = delete;
  /// An array from an offset on, in bytes.
  Tensor array(std::int64_t offset, Dtype type, std::vector<std::int64_t> shape) const;
  void upload(const std::vector<char>& bytes) const;

 private:
  int device_;
  CuPointer memory_ = 0;
};

class ProductSamples {
 public:
  /// Throws what cuda_device does.
  explicit ProductSamples(int device);
  /// The median of some calls, after one that compiles.
  double milliseconds(const plan::ProductSample& sample);

 private:
  int device_;
  Context stores_, passes_, double_passes_;  // each is held to a way
};

}  // namespace mercer::ops
