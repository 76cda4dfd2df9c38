// For tests that need LAPACK: where this checkout's OpenBLAS lies, and a skip that says what is missing.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "core/lapack.h"

namespace mercer::testing {

/// The wheel of the checkout's .venv (make setup), for programs that no package hands files to.
inline const Lapack* lapack_for_tests() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path libraries = fs::path(MERCER_SOURCE_DIR) / ".venv" / "lib";
  for (fs::directory_iterator at(libraries, error), end; !error && at != end; at.increment(error)) {
    const fs::path file = at->path() / "site-packages" / "scipy_openblas64" / "lib" / "libscipy_openblas64_.so";
    std::error_code missing;
    if (fs::exists(file, missing)) add_lapack_file(file);
  }
  return lapack();
}

}  // namespace mercer::testing

// NOLINTNEXTLINE: GTEST_SKIP returns from the test, so this is a macro.
#define MERCER_NEEDS_LAPACK() \
  if (::mercer::testing::lapack_for_tests() == nullptr) GTEST_SKIP() << ::mercer::describe_lapack()
