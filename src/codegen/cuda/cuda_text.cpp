#include "codegen/cuda/cuda_text.h"

#include <algorithm>
#include <set>

#include "core/error.h"

namespace mercer::codegen {
namespace {

constexpr std::string_view kInclude = "#include \"", kOnce = "#pragma once";

void append(std::string& to, std::string_view text, std::set<std::string_view>& there) {
  std::size_t from = 0;
  for (std::size_t at = text.find('#'); at != std::string_view::npos; at = text.find('#', at + 1)) {
    if (at > 0 && text[at - 1] != '\n') continue;
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    const bool includes = line.starts_with(kInclude);
    if (!includes && line != kOnce) continue;
    to += text.substr(from, at - from);
    from = std::min(at + line.size() + 1, text.size());
    if (!includes) continue;
    const std::string_view file = line.substr(kInclude.size(), line.find('"', kInclude.size()) - kInclude.size());
    if (there.insert(file).second) append(to, cuda_text(file), there);
  }
  to += text.substr(from);
}

}  // namespace

std::string_view cuda_text(std::string_view file_name) {
  const auto& texts = cuda_texts();
  const auto found = std::find_if(texts.begin(), texts.end(), [&](const CudaText& t) { return t.name == file_name; });
  if (found == texts.end())
    fail(ErrorKind::compile, "cuda_text: the name must be one of a file in src/kernels/cuda/. Received {}.", file_name);
  return found->text;
}

std::string include(std::string_view file_name) { return std::string(kInclude) + std::string(file_name) + "\"\n"; }

std::string flattened(std::string_view text) {
  std::string flat;
  std::set<std::string_view> there;
  append(flat, text, there);
  return flat;
}

}  // namespace mercer::codegen
