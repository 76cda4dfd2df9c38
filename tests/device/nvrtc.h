// For tests that need NVRTC or a GPU: where this checkout's NVRTC lies, and a skip that says what is missing.
#pragma once

#include <gtest/gtest.h>

#include "core/devices/cuda_driver.h"
#include "core/devices/nvrtc.h"
#include "device/source_folder.h"

namespace mercer::testing {

/// The wheels of the checkout's .venv (make setup), for programs that no package hands folders to.
inline void add_wheel_folders() {
  for (const auto& packages : venv_packages())
    for (const char* wheel : {"cu13", "cuda_nvrtc"}) add_library_folder(packages / "nvidia" / wheel / "lib");
}

inline const Nvrtc* nvrtc_for_tests() {
  add_wheel_folders();
  return nvrtc();
}

}  // namespace mercer::testing

// NOLINTBEGIN: GTEST_SKIP returns from the test, so these are macros.
#define MERCER_NEEDS_NVRTC() \
  if (::mercer::testing::nvrtc_for_tests() == nullptr) GTEST_SKIP() << ::mercer::describe_nvrtc()
#define MERCER_NEEDS_GPU() \
  if (::mercer::cuda_device_count() == 0) GTEST_SKIP() << ::mercer::describe_cuda()
// NOLINTEND
