#!/usr/bin/env bash
# check_deb.sh FILE.deb: the package says and holds what it should; its dependencies are there for apt; programs of C
# and C++ link with what it unpacks, by CMake and by pkg-config, and run. Nothing is installed.
set -euo pipefail
package=$(realpath "$1")
sources=$(realpath "$(dirname "$0")/../examples")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

fault() { echo "check-deb: $1" >&2; exit 1; }
has() { grep -qE -- "$2" <<<"$1" || fault "$3: there is no '$2' in:
$1"; }

fields=$(dpkg-deb -f "$package")
has "$fields" "^Package: libmercer$" fields
has "$fields" "^Architecture: $(dpkg --print-architecture)$" fields
for needed in libc6 libfmt libstdc++6; do
  has "$fields" "^Depends: (.*, )?${needed//+/\\+}[0-9]* \(>= " dependencies
done
dpkg-deb -e "$package" "$root/scripts"
has "$(cat "$root/scripts/shlibs")" "^libmercer [0-9]+\.[0-9]+ libmercer " shlibs
has "$(cat "$root/scripts/postinst")" "ldconfig" postinst

files=$(dpkg-deb -c "$package")
for name in include/mercer/{mercer.h,c/mercer.h,compat/fastkron.h} 'lib/.*libmercer(_fastkron)?.so.[0-9.]+' \
    'lib/.*libmercer.a' 'lib/.*cmake/mercer/mercerConfig.cmake' 'lib/.*pkgconfig/mercer.pc' \
    share/doc/libmercer/copyright; do
  has "$files" " \./usr/$name( ->.*)?$" contents
done
grep -vE '^[dlrwx-]+ root/root .* \./(usr/.*|)$' <<<"$files" && fault "files outside /usr, or not of root"

# Against the lists of this machine, where it has some.
if apt-cache show libfmt-dev >/dev/null 2>&1; then
  apt-get install --simulate --no-install-recommends "$package" | grep -E '^(Inst|Conf) libmercer' ||
    fault "apt cannot install it"
fi

dpkg-deb -x "$package" "$root/unpacked"
library=$(dirname "$(find "$root/unpacked" -name libmercer.so)")
export LD_LIBRARY_PATH=$library PKG_CONFIG_PATH=$library/pkgconfig
cc -std=c99 "$sources/c/main.c" -o "$root/by_pkg_config_c" $(pkg-config --cflags --libs mercer) -lm
"$root/by_pkg_config_c"
c++ -std=c++20 "$sources/cpp/kronecker.cpp" -o "$root/by_pkg_config" $(pkg-config --cflags --libs mercer)
"$root/by_pkg_config"
cmake -S "$sources/c" -B "$root/by_cmake" -G Ninja -DCMAKE_PREFIX_PATH="$root/unpacked/usr" >/dev/null
cmake --build "$root/by_cmake" >/dev/null
"$root/by_cmake/fastkron"
echo "check-deb: $(basename "$package") links and runs"
