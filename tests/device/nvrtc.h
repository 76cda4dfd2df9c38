// For tests that need NVRTC or a GPU: where this checkout's NVRTC lies, and a skip that says what is missing.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "core/cuda_driver.h"
#include "core/nvrtc.h"

namespace mercer::testing {

/// The wheels of the checkout's .venv (make setup), for programs that no package hands folders to.
inline void add_wheel_folders() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path libraries = fs::path(MERCER_SOURCE_DIR) / ".venv" / "lib";
  for (fs::directory_iterator at(libraries, error), end; !error && at != end; at.increment(error)) {
    for (const char* wheel : {"cu13", "cuda_nvrtc"})
      add_library_folder(at->path() / "site-packages" / "nvidia" / wheel / "lib");
  }
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
