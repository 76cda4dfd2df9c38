// What the machine code of a kernel depends on.
#pragma once

#include <string>

#include "jit/cuda_compile.h"

namespace mercer::jit {

/// Equal for sources of which this compiler makes the same code: by text, options and architecture.
std::string key_of(const CudaSource& source, const std::string& compiler);

}  // namespace mercer::jit
