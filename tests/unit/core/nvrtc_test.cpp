// NVRTC: found where it should be, compiles for every generation, tells what it took and what is wrong.
#include "core/devices/nvrtc.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/system/log.h"
#include "device/nvrtc.h"

namespace mercer {
namespace {

namespace fs = std::filesystem;

const std::string kScale = R"(
extern "C" __global__ void scale(float* out, const float* in, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factor;
}
)";

std::vector<std::string> options_for(const std::string& architecture) {
  return {"--gpu-architecture=" + architecture, "--std=c++17", "--ptxas-options=-v"};
}

TEST(Nvrtc, compiles_for_every_generation) {
  MERCER_NEEDS_NVRTC();
  int compiled = 0;
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
    if (!nvrtc()->knows(architecture)) continue;
    const NvrtcResult result = nvrtc()->compile("scale.cu", kScale, options_for(architecture));
    ASSERT_TRUE(result.ok) << architecture << ": " << result.log;
    EXPECT_EQ(result.cubin.substr(1, 3), "ELF") << architecture;
    EXPECT_NE(result.log.find("registers"), std::string::npos) << architecture << ": " << result.log;
    ++compiled;
  }
  EXPECT_GE(compiled, 4);
  EXPECT_FALSE(nvrtc()->knows("sm_999a"));
  EXPECT_FALSE(nvrtc()->knows("nonsense"));
}

TEST(Nvrtc, virtual_architectures_give_ptx) {
  MERCER_NEEDS_NVRTC();
  const NvrtcResult result = nvrtc()->compile("scale.cu", kScale, {"--gpu-architecture=compute_80"});
  ASSERT_TRUE(result.ok) << result.log;
  EXPECT_NE(result.cubin.find(".entry scale"), std::string::npos);
}

TEST(Nvrtc, errors_come_with_the_log) {
  MERCER_NEEDS_NVRTC();
  const NvrtcResult result =
      nvrtc()->compile("bad.cu", "__global__ void k() { undeclared = 1; }", options_for("sm_80"));
  EXPECT_FALSE(result.ok);
  EXPECT_TRUE(result.cubin.empty());
  EXPECT_NE(result.log.find("bad.cu(1)"), std::string::npos) << result.log;
  EXPECT_NE(result.log.find("undeclared"), std::string::npos) << result.log;
  const NvrtcResult option = nvrtc()->compile("k.cu", kScale, {"--no-such-option"});
  EXPECT_FALSE(option.ok);
  EXPECT_FALSE(option.log.empty());
}

TEST(Nvrtc, many_threads_compile_at_once) {
  MERCER_NEEDS_NVRTC();
  std::vector<NvrtcResult> results(6);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&results, i] {
      const std::string text = i % 3 == 2 ? "broken" : kScale;
      results[i] = nvrtc()->compile("t" + std::to_string(i) + ".cu", text, options_for("sm_80"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].ok, i % 3 != 2) << results[i].log;
    if (!results[i].ok) EXPECT_NE(results[i].log.find("t" + std::to_string(i) + ".cu"), std::string::npos);
  }
  EXPECT_EQ(results[0].cubin.size(), results[1].cubin.size());
}

TEST(Nvrtc, says_where_it_is) {
  MERCER_NEEDS_NVRTC();
  EXPECT_EQ(nvrtc_why_not(), "");
  EXPECT_EQ(nvrtc_if_loaded(), nvrtc());
  EXPECT_TRUE(fs::exists(nvrtc()->file())) << nvrtc()->file();
  EXPECT_EQ(nvrtc_file(), nvrtc()->file());
  EXPECT_NE(describe_nvrtc().find(nvrtc()->version()), std::string::npos);
}

[[noreturn]] void exit_with(bool good) { std::_Exit(good ? 0 : 1); }

class NvrtcSearch : public ::testing::Test {
 protected:
  // "threadsafe" starts the test anew in a process where nothing is loaded.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(NvrtcSearch, a_named_library_that_does_not_serve_is_an_answer) {
  EXPECT_EXIT(
      {
        ::setenv("MERCER_NVRTC", "/nowhere/libnvrtc.so.13", 1);
        testing::add_wheel_folders();
        const std::string reason = nvrtc_why_not();
        exit_with(nvrtc() == nullptr && reason.find("MERCER_NVRTC") != std::string::npos &&
                  describe_nvrtc().find("nvidia-cuda-nvrtc") != std::string::npos);
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        ::setenv("MERCER_NVRTC", "libm.so.6", 1);
        exit_with(nvrtc() == nullptr && nvrtc_why_not().find("has no symbol") != std::string::npos);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcSearch, the_variable_and_folders_are_followed) {
  testing::add_wheel_folders();
  if (!nvrtc_file()) GTEST_SKIP() << "no file of NVRTC is known";  // asking nvrtc() would load it
  EXPECT_EXIT(
      {
        testing::add_wheel_folders();
        exit_with(nvrtc_file() == testing::nvrtc_for_tests()->file());
      },
      ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      {
        testing::add_wheel_folders();
        ::setenv("MERCER_NVRTC", nvrtc_file()->c_str(), 1);
        exit_with(nvrtc() != nullptr && nvrtc()->file() == nvrtc_file());
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(NvrtcSearch, foreign_files_in_a_folder_are_passed_over) {
  testing::add_wheel_folders();
  if (!nvrtc_file()) GTEST_SKIP() << "no file of NVRTC is known";  // asking nvrtc() would load it
  EXPECT_EXIT(
      {
        const fs::path mine = fs::temp_directory_path() / fmt::format("mercer-nvrtc-{}", ::getpid());
        fs::create_directories(mine);
        std::ofstream(mine / "libnvrtc.so.13") << "no library";
        std::ofstream(mine / "libnvrtc-builtins.so.13.0") << "neither";
        std::ofstream(mine / "libnvrtc.so.99") << "of the future";
        add_library_folder(mine);
        testing::add_wheel_folders();
        const bool good = nvrtc() != nullptr && nvrtc()->file().find("mercer-nvrtc") == std::string::npos;
        fs::remove_all(mine);
        exit_with(good);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace mercer
