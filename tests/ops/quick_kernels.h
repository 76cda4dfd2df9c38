// First calls with quick kernels (jit/quick_compile.h), which test programs otherwise do without.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

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

}  // namespace mercer::testing_support
