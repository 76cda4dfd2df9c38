// Batch axes for kernels: axes of one element dropped, axes that step alike merged.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

/// Steps of several arrays along the same axes, in and out of merging.
struct BatchWalk {
  std::vector<std::int64_t> extent;
  std::vector<std::vector<std::int64_t>> steps;  // [array][axis]

  std::int64_t items() const;
  /// Throws unsupported when more axes are left than kernels take.
  void merge(const char* op);
  BatchAxes axes() const;
  /// Steps of one array into a kernel's argument.
  void write(std::size_t array, long long (&to)[MERCER_MAX_AXES]) const;
};

}  // namespace mercer::cuda
