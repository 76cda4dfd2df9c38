// Executable memory: it runs, it is never writable and executable, it is given back, it can be denied.
#include "core/system/exec_memory.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "core/system/cpu_features.h"
#include "mercer/error.h"

namespace mercer {
namespace {

#if defined(__x86_64__)

ExecutableMemory returns(int value) {
  const auto low = static_cast<unsigned char>(value), high = static_cast<unsigned char>(value >> 8);
  const unsigned char code[] = {0xb8, low, high, 0, 0, 0xc3};
  return ExecutableMemory(code, sizeof code);
}

/// The rights of the mapping that holds the address, as in /proc/self/maps.
std::string rights_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long low = 0, high = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &low, &high, rights) != 3) continue;
    const auto at = reinterpret_cast<unsigned long>(address);
    if (at >= low && at < high) return rights;
  }
  return "none";
}

TEST(ExecutableMemory, runs_and_is_not_writable) {
  ASSERT_TRUE(ExecutableMemory::available());
  const ExecutableMemory memory = returns(1234);
  EXPECT_EQ(memory.as<int()>()(), 1234);
  EXPECT_EQ(rights_of(memory.data()), "r-xp");
}

TEST(ExecutableMemory, no_mapping_is_writable_and_executable) {
  const ExecutableMemory memory = returns(7);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) EXPECT_EQ(line.find(" rwxp "), std::string::npos) << line;
}

TEST(ExecutableMemory, moves) {
  ExecutableMemory first = returns(1), second = returns(2);
  first = std::move(second);
  EXPECT_EQ(first.as<int()>()(), 2);
  const ExecutableMemory third(std::move(first));
  EXPECT_EQ(third.as<int()>()(), 2);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): the contract
}

TEST(ExecutableMemory, ten_thousand_kernels_are_freed) {
  const std::int64_t before = ExecutableMemory::alive();
  {
    std::vector<ExecutableMemory> kernels;
    for (int k = 0; k < 10000; ++k) kernels.push_back(returns(k));
    EXPECT_EQ(ExecutableMemory::alive(), before + 10000);
    for (const int k : {0, 1, 4999, 9999}) EXPECT_EQ(kernels[k].as<int()>()(), k);
    EXPECT_LT(10000, ExecutableMemory::limit());
  }
  EXPECT_EQ(ExecutableMemory::alive(), before);
}

TEST(ExecutableMemory, denial_is_a_compile_error) {
  ::setenv("MERCER_NO_EXEC", "1", 1);
  EXPECT_FALSE(ExecutableMemory::available());
  try {
    returns(1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::compile);
  }
  ::unsetenv("MERCER_NO_EXEC");
  EXPECT_TRUE(ExecutableMemory::available());
}

TEST(ExecutableMemory, empty_code_is_refused) { EXPECT_THROW(ExecutableMemory("", 0), Error); }

TEST(CpuFeatures, agrees_with_the_compiler) {
  const CpuFeatures cpu = detect_cpu();
  EXPECT_EQ(cpu.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(cpu.avx512, cpu.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"));
}

#endif

TEST(CpuFeatures, caches_and_brand_are_plausible) {
  const CpuFeatures& cpu = cpu_features();
  EXPECT_GE(cpu.l1d_bytes, 8 << 10);
  EXPECT_LE(cpu.l1d_bytes, 1 << 20);
  EXPECT_GE(cpu.l2_bytes, cpu.l1d_bytes);
  EXPECT_GE(cpu.l3_bytes, cpu.l2_bytes);
  EXPECT_FALSE(cpu.brand.empty());
  EXPECT_NE(cpu.to_text().find("L1d"), std::string::npos);
}

}  // namespace
}  // namespace mercer
