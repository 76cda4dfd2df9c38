// Quick kernels and the full ones after them, by NVRTC itself; what runs them is tested in ops.
#include "jit/quick_compile.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "core/sanitized.h"
#include "core/testing.h"
#include "device/nvrtc.h"

namespace mercer::jit {
namespace {

using Origin = CudaBinary::Origin;
using testing_support::holds_in_child;

/// A text that no cache has; a loop that the full compiler unrolls.
CudaSource new_source() {
  const unsigned number = std::random_device()();
  return {"sum", fmt::format("extern \"C\" __global__ void sum(unsigned* out, const unsigned* in) {{\n"
                             "  unsigned s = {}u;\n"
                             "  for (int i = 0; i < 64; ++i) s += in[i] * s;\n"
                             "  out[threadIdx.x] = s;\n"
                             "}}\n", number), "sm_90", {}};
}

/// Runs a check in a process of its own, with a cache of its own and so many threads.
template <class Check>
bool holds(const char* quick, const char* threads, const Check& check) {
  const testing_support::TemporaryFolder folder;
  return holds_in_child([&] {
    ::setenv("MERCER_CACHE_DIR", folder.path().c_str(), 1);
    ::setenv("MERCER_QUICK_COMPILE", quick, 1);
    ::setenv("MERCER_THREADS", threads, 1);
    return check();
  });
}

TEST(QuickCompile, TheFullKernelFollowsAndIsKept) {
  MERCER_NEEDS_NVRTC();
  if (nvrtc()->major() == 12 && nvrtc()->minor() < 9) GTEST_SKIP() << "NVRTC " << nvrtc()->version();
  EXPECT_TRUE(holds("1", "2", [] {
    const std::vector<CudaSource> sources = {new_source(), new_source()};
    const std::vector<QuickBinary> quick = compile_quickly(sources);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (quick.at(i).binary.cubin.empty() || !quick[i].full.valid()) return false;
      if (i == 0) finish_compiling();
      if (quick[i].full.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
      const CudaBinary& full = quick[i].full.get();
      if (full.cubin.empty() || full.cubin == quick[i].binary.cubin) return false;
    }
    const QuickBinary again = compile_quickly(sources).at(1);
    const bool is_kept = again.binary.origin == Origin::cache && again.binary.cubin == quick[1].full.get().cubin;
    return !again.full.valid() && is_kept;
  }));
}

TEST(QuickCompile, OneThreadOrTheUserAskForTheFullKernel) {
  MERCER_NEEDS_NVRTC();
  for (const auto& [quick, threads] : {std::pair("1", "1"), {"0", "2"}})
    EXPECT_TRUE(holds(quick, threads, [] {
      const QuickBinary binary = compile_quickly({new_source()}).at(0);
      return !binary.full.valid() && binary.binary.origin == Origin::compiled;
    }));
}

TEST(QuickCompile, WithoutThreadsTheCallCompiles) {
  MERCER_NEEDS_NVRTC();
  EXPECT_TRUE(holds("1", "2", [] {
    const testing_support::NoThreads none;
    const QuickBinary binary = compile_quickly({new_source()}).at(0);
    return !binary.full.valid() && !binary.binary.cubin.empty();
  }));
}

TEST(QuickCompile, WrongTextsAreRefused) {
  MERCER_NEEDS_NVRTC();
  EXPECT_TRUE(holds("1", "2", [] {
    CudaSource wrong = new_source();
    wrong.text += "nonsense";
    const Error error = testing_support::error_of([&] { compile_quickly({new_source(), wrong}); });
    return error.kind() == ErrorKind::compile && std::string(error.what()).find("nonsense") != std::string::npos;
  }));
}

/// Settings that NVRTC 13.0 keeps for the rest of a process change these: after --Ofast-compile=max and -opt=0 a loop
/// over memory reads its parameters by generic addresses, after --Ofast-compile=mid a quotient is computed again where
/// one of two ways there has it.
CudaSource walk_source(const std::string& name) {
  return {name, R"(
struct Walk { int count; long long extent[6], step[6]; const float* in; float* out; };
static __device__ __forceinline__ long long offset(const Walk& walk, long long i) {
  long long at = 0;
  for (int axis = walk.count - 1; axis >= 0; --axis) {
    at += i % walk.extent[axis] * walk.step[axis];
    i /= walk.extent[axis];
  }
  return at;
}
extern "C" __global__ void walk(const __grid_constant__ Walk walk) {
  for (long long i = threadIdx.x; i < walk.extent[0]; i += blockDim.x) walk.out[i] = walk.in[offset(walk, i)];
}
extern "C" __global__ void divide(int* __restrict__ out, const int* __restrict__ in, int n, int m) {
  int s = 0;
  if (m > 3) out[1] = s = n / m;
  out[0] = s + n / m;
  for (int i = 0; i < n; ++i) out[i] += in[n / m];
}
// )" + name, "sm_90", {}};
}

TEST(QuickCompile, LaterKernelsAreAsBefore) {
  MERCER_NEEDS_NVRTC();
  EXPECT_TRUE(holds("1", "2", [] {
    const CudaSource source = walk_source("walk");
    const std::string before = CudaCompiler::shared().compile_now(source).cubin;
    if (!compile_quickly({walk_source("another")}).at(0).full.valid()) return false;
    return CudaCompiler::shared().compile_now(source).cubin == before;
  }));
}

TEST(QuickCompile, KernelsOfOtherThreadsAreAsBefore) {
  MERCER_NEEDS_NVRTC();
  EXPECT_TRUE(holds("1", "2", [] {
    const CudaSource source = walk_source("walk");
    const std::string before = CudaCompiler::shared().compile_now(source).cubin;
    std::atomic<bool> is_over = false;
    int others = 0;
    std::thread other([&] {
      while (!is_over) others += CudaCompiler::shared().compile_now(source).cubin != before;
    });
    for (int i = 0; i < 10; ++i) compile_quickly({walk_source(fmt::format("another {}", i))});
    is_over = true;
    other.join();
    return others == 0;
  }));
}

/// A fork has none of the threads that compile, and must not wait for them.
TEST(QuickCompile, AForkEndsWithoutThem) {
  if (testing_support::kSanitized) GTEST_SKIP() << "a fork may find the sanitizer's allocator locked for ever";
  MERCER_NEEDS_NVRTC();
  EXPECT_TRUE(holds("1", "2", [] {
    CudaSource slow = new_source();
    for (int i = 0; i < 40; ++i) {
      std::string again = new_source().text;
      slow.text += again.replace(again.find(" sum("), 5, fmt::format(" sum{}(", i));
    }
    const QuickBinary binary = compile_quickly({slow}).at(0);
    const pid_t fork = ::fork();
    if (fork == 0) std::exit(0);
    if (binary.full.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return false;  // no test
    int status = 0;
    for (int turn = 0; turn < 3000; ++turn) {
      if (::waitpid(fork, &status, WNOHANG) == fork) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ::kill(fork, SIGKILL);
    ::waitpid(fork, &status, 0);
    return false;
  }));
}

/// NVRTC must not lose what it works with under a thread that compiles, whether the quick kernel compiled or not.
TEST(QuickCompile, AProcessMayEndMeanwhile) {
  MERCER_NEEDS_NVRTC();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* threads : {"2", "8"})
    for (const char* more : {"", "nonsense"}) {
      const auto run = [&] {
        ::setenv("MERCER_CACHE_DIR", "off", 1);
        ::setenv("MERCER_QUICK_COMPILE", "1", 1);
        ::setenv("MERCER_THREADS", threads, 1);
        CudaSource second = walk_source("walk");
        second.text += std::string("\n") + more;
        try {
          compile_quickly({new_source(), second});
        } catch (const Error&) {
          std::exit(1);
        }
        std::exit(0);
      };
      EXPECT_EXIT(run(), ::testing::ExitedWithCode(*more == '\0' ? 0 : 1), "");
    }
}

}  // namespace
}  // namespace mercer::jit
