#!/usr/bin/env bash
# Copies the headers that the build needs (fmt, xxHash, xbyak) into a folder, for a machine where they cannot be
# installed. There, with cmake, ninja, nanobind and scikit-build-core present:
#
#   pip install --no-build-isolation --no-deps --no-index -C cmake.define.fmt_DIR=FOLDER/cmake .
#
# fmt is used without its library then. FOLDER must be an absolute path.
set -euo pipefail
folder=${1:?usage: tools/offline_headers.sh FOLDER}
from=${INCLUDE:-/usr/include}
mkdir -p "$folder/include" "$folder/cmake"
cp -r "$from/fmt" "$from/xbyak" "$folder/include/"
cp "$from/xxhash.h" "$from/xxh3.h" "$folder/include/"
cat > "$folder/cmake/fmt-config.cmake" <<'CMAKE'
if(NOT TARGET fmt::fmt)
  add_library(fmt::fmt INTERFACE IMPORTED)
  target_include_directories(fmt::fmt INTERFACE "${CMAKE_CURRENT_LIST_DIR}/../include")
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
endif()
CMAKE
echo "headers in $folder; build with fmt_DIR=$(cd "$folder/cmake" && pwd)"
