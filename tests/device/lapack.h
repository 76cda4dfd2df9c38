// For tests that need LAPACK: where this checkout's OpenBLAS lies, and a skip that says what is missing.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "core/devices/lapack.h"
#include "device/source_folder.h"

namespace mercer::testing {

/// The wheel of the checkout's .venv (make setup), for programs that no package hands files to.
inline const Lapack* lapack_for_tests() {
  for (const auto& packages : venv_packages()) {
    const auto file = packages / "scipy_openblas64" / "lib" / "libscipy_openblas64_.so";
    std::error_code missing;
    if (std::filesystem::exists(file, missing)) add_lapack_file(file);
  }
  return lapack();
}

}  // namespace mercer::testing

// NOLINTNEXTLINE: GTEST_SKIP returns from the test, so this is a macro.
#define MERCER_NEEDS_LAPACK() \
  if (::mercer::testing::lapack_for_tests() == nullptr) GTEST_SKIP() << ::mercer::describe_lapack()
