// The CUDA C++ files of src/kernels/cuda/, embedded into the library at build time (cmake/cuda_text.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace mercer::codegen {

struct CudaText {
  std::string_view name, text;  // "prelude.cuh" and what is in it
};

/// All of them, by name.
const std::vector<CudaText>& cuda_texts();

/// One of them. Throws compile for a name that there is not: a mistake of the library, never of its user.
std::string_view cuda_text(std::string_view file_name);

}  // namespace mercer::codegen
