#include "codegen/cuda/cuda_text.h"

#include <algorithm>

#include "core/error.h"

namespace mercer::codegen {

std::string_view cuda_text(std::string_view file_name) {
  const auto& texts = cuda_texts();
  const auto found = std::find_if(texts.begin(), texts.end(), [&](const CudaText& t) { return t.name == file_name; });
  if (found == texts.end())
    fail(ErrorKind::compile, "cuda_text: the name must be one of a file in src/kernels/cuda/. Received {}.", file_name);
  return found->text;
}

}  // namespace mercer::codegen
