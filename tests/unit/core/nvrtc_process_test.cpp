// NVRTC in a process of its own: the same code and the same messages, and nothing where the process fails.
#include "core/nvrtc_process.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/process.h"
#include "core/testing.h"
#include "device/nvrtc.h"

namespace mercer {
namespace {

const std::string kText = "#include \"four.cuh\"\nextern \"C\" __global__ void k(float* x) { *x = four(); }\n";
const std::vector<NvrtcHeader> kHeaders = {{"four.cuh", "__device__ float four() { return 4.0f; }\n"}};
const std::vector<std::string> kOptions = {"--gpu-architecture=sm_90a", "--std=c++17", "--ptxas-options=-v"};

TEST(NvrtcProcess, CompilesAsThisProcessDoes) {
  MERCER_NEEDS_NVRTC();
  const NvrtcResult here = nvrtc()->compile("k.cu", kText, kOptions, kHeaders);
  const auto apart = compile_apart(*nvrtc(), "k.cu", kText, kOptions, kHeaders);
  ASSERT_TRUE(apart);
  EXPECT_TRUE(apart->ok) << apart->log;
  EXPECT_EQ(apart->cubin, here.cubin);
  EXPECT_NE(apart->log.find("registers"), std::string::npos) << apart->log;
}

TEST(NvrtcProcess, WrongTextsHaveTheirLog) {
  MERCER_NEEDS_NVRTC();
  const auto apart = compile_apart(*nvrtc(), "k.cu", kText + "nonsense", kOptions, kHeaders);
  ASSERT_TRUE(apart);
  EXPECT_FALSE(apart->ok);
  EXPECT_EQ(apart->log, nvrtc()->compile("k.cu", kText + "nonsense", kOptions, kHeaders).log);
}

/// In a child: what it is served with stays in the environment.
int serve(const char* file, const std::string& request, std::string* answer = nullptr) {
  std::FILE* in = std::tmpfile();
  std::FILE* out = std::tmpfile();
  const bool ready = write_whole(fileno(in), request) && std::fseek(in, 0, SEEK_SET) == 0;
  const int status = ready ? serve_nvrtc(file, fileno(in), fileno(out)) : -1;
  std::fseek(out, 0, SEEK_SET);
  const std::string written = read_to_end(fileno(out)).value_or("unread");
  if (answer != nullptr) *answer = written;
  std::fclose(in), std::fclose(out);
  return written.empty() || answer != nullptr ? status : -1;
}

TEST(NvrtcProcess, RequestsThatAreNotWholeAreRefused) {
  MERCER_NEEDS_NVRTC();
  const std::string file = nvrtc()->file();
  for (const char* request : {"", "4:", "3:1:a1:b", "3:1:a1:b1:xmore", "3:1:a1:b2:-1", "3:1:a1:b1:7", "2:1:a1:b",
                              "4:1:a1:b1:01:h", "99999999999999999999:", "1:99:a"})
    EXPECT_TRUE(testing_support::holds_in_child([&] { return serve(file.c_str(), request) == EXIT_FAILURE; }))
        << request;
}

TEST(NvrtcProcess, LibrariesThatAreNoneAreRefused) {
  const auto program = program_beside("mercer-nvrtc");
  ASSERT_TRUE(program);
  const std::string request = "3:4:k.cu1: 1:0";
  EXPECT_NE(run_process(*program, {"/nowhere/libnvrtc.so"}, request).why_not.find("status 1"), std::string::npos);
  EXPECT_NE(run_process(*program, {}, request).why_not.find("status 2"), std::string::npos);
}

TEST(NvrtcProcess, AnEmptyTextHasAnAnswer) {
  MERCER_NEEDS_NVRTC();
  const std::string file = nvrtc()->file();
  EXPECT_TRUE(testing_support::holds_in_child([&] {
    std::string answer;
    return serve(file.c_str(), "3:4:k.cu0:1:0", &answer) == EXIT_SUCCESS && answer.starts_with("3:");
  }));
}

}  // namespace
}  // namespace mercer
