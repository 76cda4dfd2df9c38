// CUDA text to cubin: round trips through cache and store, damage, errors, many processes, every generation.
#include "jit/cuda_compile.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/system/log.h"
#include "core/testing.h"
#include "device/nvrtc.h"

namespace mercer::jit {
namespace {

namespace fs = std::filesystem;
using Origin = CudaBinary::Origin;
using testing_support::held_in_children;
constexpr std::int64_t kMiB = 1 << 20;

CudaSource scale_source(const std::string& architecture = "sm_80", const std::string& name = "scale") {
  return {name,
          "extern \"C\" __global__ void scale(float* out, const float* in, float factor, int count) {\n"
          "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
          "  if (i < count) out[i] = in[i] * factor;\n"
          "}\n",
          architecture,
          {}};
}

Error error_of(CudaCompiler& compiler, const CudaSource& source) {
  return testing_support::error_of([&] { compiler.compile(source); });
}

class CudaCompileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mercer::testing::add_wheel_folders();
  }

  fs::path cache_folder() const { return root_ / "cache"; }
  fs::path store_folder() const { return root_ / "store"; }
  CudaCompiler compiler() const { return CudaCompiler(FileCache(cache_folder(), 64 * kMiB), store_folder()); }

  /// The one cached file of this kernel.
  fs::path file_of(const std::string& name) const {
    for (const FileCache::File& file : FileCache(cache_folder(), kMiB).files())
      if (file.key.starts_with("cubin\n") && file.first_line == name) return file.path;
    return {};
  }

  testing_support::TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(CudaCompileTest, is_compiled_once_and_then_read) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler first = compiler();
  const CudaBinary made = first.compile(scale_source());
  EXPECT_EQ(made.origin, Origin::compiled);
  EXPECT_EQ(made.cubin.substr(1, 3), "ELF");
  const CudaBinary again = first.compile(scale_source());
  EXPECT_EQ(again.origin, Origin::cache);
  EXPECT_EQ(again.cubin, made.cubin);
  CudaCompiler other = compiler();
  EXPECT_EQ(other.compile(scale_source()).origin, Origin::cache);
  struct stat status {};
  ASSERT_EQ(::stat(file_of("scale").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(CudaCompileTest, everything_that_matters_is_in_the_key) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  c.compile(scale_source());
  CudaSource text = scale_source(), option = scale_source(), architecture = scale_source("sm_86");
  text.text += "\n";
  option.options = {"-DTILE=4"};
  for (const CudaSource& other : {text, option, architecture}) EXPECT_EQ(c.compile(other).origin, Origin::compiled);
  const CudaBinary renamed = c.compile(scale_source("sm_80", "another name"));
  EXPECT_EQ(renamed.origin, Origin::cache);
  EXPECT_EQ(renamed.name, "another name");
}

TEST_F(CudaCompileTest, reading_takes_less_than_a_millisecond) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  CudaSource large = scale_source();
  large.text += std::string(100000, ' ');
  c.compile(large);
  double best = 1;
  for (int repeat = 0; repeat < 20; ++repeat) best = std::min(best, c.compile(large).seconds);
  EXPECT_LT(best, 1e-3);
}

TEST_F(CudaCompileTest, what_does_not_check_out_is_compiled_again) {
  MERCER_NEEDS_NVRTC();
  set_log_level(LogLevel::off);
  CudaCompiler c = compiler();
  const CudaBinary made = c.compile(scale_source());
  const fs::path path = file_of("scale");
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  std::string altered = good;
  altered[altered.size() / 2] ^= 1;
  for (const std::string& bad : {good.substr(0, good.size() / 2), altered, std::string("foreign"), std::string()}) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bad;
    const CudaBinary repaired = c.compile(scale_source());
    EXPECT_EQ(repaired.origin, Origin::compiled);
    EXPECT_EQ(repaired.cubin, made.cubin);
    EXPECT_EQ(c.compile(scale_source()).origin, Origin::cache);
  }
  set_log_level(LogLevel::warning);
}

TEST_F(CudaCompileTest, a_store_is_read_before_the_cache_and_never_written) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  const CudaBinary made = c.compile(scale_source());
  add_to_cuda_store(store_folder(), scale_source(), made);
  for (const auto& entry : fs::directory_iterator(store_folder())) ::chmod(entry.path().c_str(), 0664);
  const CudaBinary shipped = c.compile(scale_source());
  EXPECT_EQ(shipped.origin, Origin::store);
  EXPECT_EQ(shipped.cubin, made.cubin);
  for (const auto& entry : fs::directory_iterator(store_folder())) std::ofstream(entry.path()) << "damaged";
  EXPECT_EQ(c.compile(scale_source()).origin, Origin::cache);
  EXPECT_EQ(std::distance(fs::directory_iterator(store_folder()), fs::directory_iterator()), 1);
}

TEST_F(CudaCompileTest, an_unusable_cache_is_no_obstacle) {
  MERCER_NEEDS_NVRTC();
  set_log_level(LogLevel::off);
  std::ofstream(root_ / "file") << "";
  for (const fs::path& place : {fs::path(), root_ / "file" / "cache"}) {
    CudaCompiler c(FileCache(place, kMiB), {});
    EXPECT_EQ(c.compile(scale_source()).origin, Origin::compiled);
    EXPECT_EQ(c.compile(scale_source()).origin, Origin::compiled);
  }
  set_log_level(LogLevel::warning);
}

TEST_F(CudaCompileTest, errors_show_the_log_and_the_lines) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  CudaSource source = scale_source();
  source.text += "extern \"C\" __global__ void wrong(float* out) {\n  *out = undeclared;\n}\n";
  const Error error = error_of(c, source);
  EXPECT_EQ(error.kind(), ErrorKind::compile);
  const std::string what = error.what();
  EXPECT_NE(what.find("cuda: scale must compile for sm_80. Received"), std::string::npos) << what;
  EXPECT_NE(what.find("identifier \"undeclared\" is undefined"), std::string::npos) << what;
  EXPECT_NE(what.find("kernel.cu:6:   *out = undeclared;"), std::string::npos) << what;
  EXPECT_FALSE(c.find(source));
}

/// Warnings come before errors and would fill what is shown of the log. The front end and the assembler find them.
TEST_F(CudaCompileTest, errors_are_not_hidden_by_warnings) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  std::string warned = "extern \"C\" __global__ void wrong(float* out) {\n";
  for (int i = 0; i < 200; ++i) warned += "  int unused_" + std::to_string(i) + ";\n";
  const std::pair<const char*, const char*> wrongs[] = {{"*out = undeclared;", "\"undeclared\" is undefined"},
                                                       {"asm volatile(\"nonsense;\");", "ptxas"}};
  for (const auto& [statement, told] : wrongs) {
    CudaSource source = scale_source();
    source.text += warned + statement + "\n}\n";
    const std::string what = error_of(c, source).what();
    EXPECT_NE(what.find(told), std::string::npos) << what;
    EXPECT_EQ(what.find("unused_"), std::string::npos) << what;
  }
}

TEST_F(CudaCompileTest, an_unknown_architecture_is_named) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  const Error error = error_of(c, scale_source("sm_999a"));
  EXPECT_EQ(error.kind(), ErrorKind::compile);
  EXPECT_NE(std::string(error.what()).find("sm_999a"), std::string::npos) << error.what();
}

TEST_F(CudaCompileTest, many_are_compiled_at_once_and_the_first_error_is_thrown) {
  MERCER_NEEDS_NVRTC();
  CudaCompiler c = compiler();
  std::vector<CudaSource> sources;
  for (const char* architecture : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"})
    if (nvrtc()->knows(architecture)) sources.push_back(scale_source(architecture));
  const std::vector<CudaBinary> binaries = c.compile_all(sources);
  ASSERT_EQ(binaries.size(), sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    EXPECT_EQ(binaries[i].architecture, sources[i].architecture);
    EXPECT_EQ(c.compile(sources[i]).cubin, binaries[i].cubin);
  }
  sources[1].text = "first wrong";
  sources[3].text = "second wrong";
  try {
    c.compile_all(sources);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("first wrong"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(c.compile_all({}).empty());
  CudaSource twin = scale_source("sm_80", "twin");
  twin.text += "// alike\n";
  CudaSource other_twin = twin;
  other_twin.name = "other twin";
  const auto twins = c.compile_all({twin, other_twin});
  EXPECT_EQ(twins[0].cubin, twins[1].cubin);
  EXPECT_EQ(twins[1].name, "other twin");
}

TEST_F(CudaCompileTest, ptxas_reports_are_read_from_the_log) {
  MERCER_NEEDS_NVRTC();
  CudaSource source = scale_source("sm_90a");
  source.options = {"--ptxas-options=-v"};
  const CudaBinary binary = compiler().compile_now(source);
  const auto reports = ptxas_reports(binary.log);
  ASSERT_EQ(reports.size(), 1u) << binary.log;
  EXPECT_EQ(reports[0].kernel, "scale");
  EXPECT_GT(reports[0].registers, 3);
  EXPECT_EQ(reports[0].spill_stores, 0);
  EXPECT_TRUE(ptxas_reports("").empty());
}

TEST(PtxasReports, hold_every_number) {
  const auto reports = ptxas_reports(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
      "ptxas info    : Function properties for a\n"
      "ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
      "ptxas info    : Used 128 registers, used 1 barriers, 256 bytes smem, 376 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
      "ptxas info    : Used 40 registers\n");
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].kernel, "a");
  EXPECT_EQ(reports[0].stack, 8);
  EXPECT_EQ(reports[0].spill_stores, 12);
  EXPECT_EQ(reports[0].spill_loads, 16);
  EXPECT_EQ(reports[0].registers, 128);
  EXPECT_EQ(reports[0].shared, 256);
  EXPECT_EQ(reports[1].registers, 40);
}

TEST_F(CudaCompileTest, many_processes_share_one_cache) {
  MERCER_NEEDS_NVRTC();
  const auto same_everywhere = [&] {
    CudaCompiler c = compiler();
    const CudaBinary mine = c.compile(scale_source());
    return mine.cubin.substr(1, 3) == "ELF" && c.compile(scale_source()).origin == Origin::cache;
  };
  constexpr int kCompiling = 6, kReading = 200;
  EXPECT_EQ(held_in_children(kCompiling, same_everywhere), kCompiling);
  EXPECT_EQ(held_in_children(kReading, same_everywhere), kReading);
}

TEST_F(CudaCompileTest, compiles_with_the_threads_that_the_system_gives) {
  MERCER_NEEDS_NVRTC();
  ::setenv("MERCER_THREADS", "3", 1);
  std::vector<CudaBinary> binaries;
  {
    const testing_support::NoThreads none;
    binaries = compiler().compile_all({scale_source("sm_80"), scale_source("sm_86"), scale_source("sm_90")});
  }
  ::unsetenv("MERCER_THREADS");
  ASSERT_EQ(binaries.size(), 3u);
  for (const CudaBinary& binary : binaries) EXPECT_FALSE(binary.cubin.empty());
}

TEST_F(CudaCompileTest, without_nvrtc_the_cache_serves_and_misses_say_what_to_install) {
  if (std::getenv("MERCER_TEST_CACHE") == nullptr) {  // the child below runs this test anew, with the variable set
    MERCER_NEEDS_NVRTC();
    compiler().compile(scale_source());
    ::setenv("MERCER_TEST_CACHE", root_.c_str(), 1);
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("MERCER_NVRTC", "/nowhere/libnvrtc.so.13", 1);
        CudaCompiler c(FileCache(fs::path(std::getenv("MERCER_TEST_CACHE")) / "cache", kMiB), {});
        const bool served = c.compile(scale_source()).origin == Origin::cache;
        const Error error = error_of(c, scale_source("sm_86"));
        const std::string what = error.what();
        std::_Exit(served && error.kind() == ErrorKind::unsupported &&
                           what.find("pip install nvidia-cuda-nvrtc") != std::string::npos &&
                           what.find("/nowhere/") != std::string::npos
                       ? 0
                       : 1);
      },
      ::testing::ExitedWithCode(0), "");
  ::unsetenv("MERCER_TEST_CACHE");
}

}  // namespace
}  // namespace mercer::jit
