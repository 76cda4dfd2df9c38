// A call on CUDA arrays that is not made: its checks, plans and lay-out are, the device is left alone, and no array's
// memory is read but that of parameters of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/devices/cuda_driver.h"
#include "jit/cuda_compile.h"

namespace mercer::cuda {

struct Rehearsal {
  enum class Purpose {
    sources,    ///< the kernels that the call would run are listed in `sources`
    kernels,    ///< they are compiled and loaded
    workspace,  ///< the call ends where it would take its scratch memory; `bytes` says how much
  };
  Purpose purpose;
  const CudaDevice* device = nullptr;  ///< to plan for; null: that of the arrays
  bool lists_bare_sums = false;        ///< in addition to the call's own kernels (plan/gpu/sums/bare_sums.h)
  std::vector<jit::CudaSource> sources = {};
  std::int64_t bytes = 0;
  std::vector<std::string> ways = {};  ///< that calls of pairs took (plan/gpu/ways.h)
};

}  // namespace mercer::cuda
