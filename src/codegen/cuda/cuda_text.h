// The CUDA C++ files of src/kernels/cuda/, embedded into the library at build time (cmake/cuda_text.cmake).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mercer::codegen {

struct CudaText {
  std::string_view name, text;  // "common/prelude.cuh" and what is in it
};

/// All of them, by name.
const std::vector<CudaText>& cuda_texts();

/// One of them. Throws compile for a name that there is not: a mistake of the library, never of its user.
std::string_view cuda_text(std::string_view file_name);

/// The line that stands for a file, as the files have it for one another.
std::string include(std::string_view file_name);

/// The text with files in the place of the lines that include them. Each file is there once, at the first place that
/// asks for it, after those that it includes itself: NVRTC compiles one text without a header.
std::string flattened(std::string_view text);

}  // namespace mercer::codegen
