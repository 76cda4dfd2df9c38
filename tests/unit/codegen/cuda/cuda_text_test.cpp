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
  const fs::path folder = testing::source_folder() / "src" / "kernels" / "cuda";
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const fs::path path = entry.path();
    if (path.extension() != ".cuh" && path.extension() != ".h") continue;
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(cuda_text(path.lexically_relative(folder).string()), bytes) << path;
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

TEST(CudaText, a_file_is_there_once_behind_what_it_includes) {
  const std::string text = flattened("#define A 1\n" + include("pack/centre.cuh") + "#define B 2\n" +
                                     include("common/prelude.cuh") + include("pack/centre.cuh") + "#define C 3");
  EXPECT_EQ(text.find("#include"), std::string::npos);
  EXPECT_EQ(text.find("#pragma once"), std::string::npos);
  std::size_t last = 0;
  const char* const parts[] = {"#define A 1", "struct BatchAxes", "#define MERCER_INLINE", "CENTRE_SAMPLES",
                               "#define B 2\n#define C 3"};
  for (const char* part : parts) {
    const std::size_t at = text.find(part, last);
    ASSERT_NE(at, std::string::npos) << part;
    last = at;
  }
  EXPECT_EQ(text.find("#define MERCER_INLINE"), text.rfind("#define MERCER_INLINE"));
  EXPECT_THROW(flattened("#include \"common/no_such.cuh\"\n"), Error);
}

/// Files say what they use: what a file includes is there, and the order of the rooms has no circle.
TEST(CudaText, every_file_flattens) {
  for (const CudaText& file : cuda_texts()) {
    EXPECT_NE(file.text.find("#pragma once\n"), std::string_view::npos) << file.name;
    EXPECT_EQ(flattened(file.text).find("#include"), std::string::npos) << file.name;
  }
}

}  // namespace
}  // namespace mercer::codegen
