// The embedded device text is what stands in src/kernels/cuda/, byte for byte.
#include "codegen/cuda/cuda_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"
#include "device/source_folder.h"

namespace mercer::codegen {
namespace {

namespace fs = std::filesystem;

TEST(CudaText, is_the_folder_byte_for_byte) {
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(testing::source_folder() / "src" / "kernels" / "cuda")) {
    const fs::path path = entry.path();
    if (path.extension() != ".cuh" && path.extension() != ".h") continue;
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(cuda_text(path.filename().string()), bytes) << path;
    ++files;
  }
  EXPECT_EQ(cuda_texts().size(), files);
}

TEST(CudaText, an_unknown_name_is_refused) {
  try {
    cuda_text("no_such.cuh");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::compile);
    EXPECT_NE(std::string(error.what()).find("no_such.cuh"), std::string::npos);
  }
}

}  // namespace
}  // namespace mercer::codegen
