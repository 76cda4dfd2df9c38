// First calls with quick kernels (jit/quick_compile.h), which test programs otherwise do without.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "core/testing.h"
#include "jit/quick_compile.h"
#include "ops/testing.h"

namespace mercer::testing_support {

class QuickKernels : public ::testing::Test {
 protected:
  QuickKernels() {
    ::setenv("MERCER_QUICK_COMPILE", "1", 1);
    ::setenv("MERCER_THREADS", "4", 1);
  }
  ~QuickKernels() override {
    ::setenv("MERCER_QUICK_COMPILE", "0", 1);
    ::unsetenv("MERCER_THREADS");
  }
};

/// Runs body(folder of the store) with an empty cache and an empty store, waits for the compiler and ends the process,
/// with 0 where nothing failed: the body of a death test.
template <class Body>
[[noreturn]] void end_after(const Body& body) {
  {
    const TemporaryFolder cache, store;
    ::setenv("MERCER_CACHE_DIR", cache.path().c_str(), 1);
    ::setenv("MERCER_STORE", store.path().c_str(), 1);
    body(store.path());
    jit::finish_compiling();
  }
  const ::testing::TestResult& result = *::testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); ++i) std::cerr << result.GetTestPartResult(i).message() << "\n";
  std::_Exit(result.Failed() ? 1 : 0);
}

}  // namespace mercer::testing_support
