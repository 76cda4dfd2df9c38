#!/usr/bin/env python3
"""Checks what make_wheels.py made in dist/, or with --quick what a checkout can check in seconds.

All: the lists of files, notices of licences, tags and symbols; then, for each Python at hand, a
fresh environment with the wheel and one with the sdist, in which tools/smoke_test.py runs without a
compiler on its PATH. Quick (CI): the sdist's files and metadata, and a wheel from a build folder
that is there already, in a fresh environment of this Python.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import pythons
from git_output import git

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE = ROOT / "tools" / "smoke_test.py"
NOTICES = {f"{name}.txt" for name in ("fmt", "xbyak", "xxhash", "nanobind", "llvm", "zig")}
OF_SDIST = (
    "pyproject.toml", "CMakeLists.txt", "PKG-INFO", "README.md", "CHANGELOG.md", "LICENSE",
    "cmake/python.cmake", "cmake/cuda_store.txt", "cmake/module.map", "include/mercer/pairwise.h",
    "src/kernels/cuda/common/prelude.cuh", "python/src/module.cpp", "python/mercer/py.typed",
    "python/mercer/_mercer.pyi", "tools/debian-packages.txt",
)  # fmt: skip
OLDEST_NUMPY = "numpy==1.26.*"
NEVER = re.compile(r"\.(so|pyc|o|gch)$|__pycache__|(^|/)(tests?|build|bench)/")
BENCHMARKS = re.compile(r"mercer/benchmarks/")


def fail(rule: str, received: object) -> None:
    raise SystemExit(f"check_wheels: {rule}. Received {received}.")


def run(*command: object, **options: object) -> str:
    print("+", *command, flush=True)
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.PIPE, text=True, **options
    )
    if done.returncode:
        print(done.stdout)
        raise SystemExit(f"check_wheels: {command[0]} ended with {done.returncode}")
    return done.stdout


def require_notices(names: list[str], place: str) -> None:
    if missing := NOTICES - {name.rsplit("/", 1)[-1] for name in names if "licenses/" in name}:
        fail(f"{place} must have the notices of what is compiled into the module", f"no {missing}")


def check_metadata(text: str) -> None:
    if "openblas" in text.split("\n\n")[0]:
        fail("OpenBLAS's wheels must be no requirement", text.split("\n\n")[0])
    for line in ("Name: mercer", "License-Expression: Apache-2.0", "Requires-Python: >=3.10"):
        if line not in text:
            fail(f"the metadata must say {line}", text.split("\n\n")[0])


def tracked() -> set[str]:
    """Files of the repository; none where it is no checkout of git."""
    return set((git("ls-files", cwd=ROOT) or "").splitlines())


def check_sdist(archive: pathlib.Path) -> None:
    with tarfile.open(archive) as file:
        names = [name.partition("/")[2] for name in file.getnames()]
        root = file.getnames()[0].partition("/")[0]
        check_metadata(file.extractfile(f"{root}/PKG-INFO").read().decode())
    if missing := set(OF_SDIST) - set(names):
        fail("the sdist must have all that a build reads", f"none of {sorted(missing)}")
    if strange := [name for name in names if NEVER.search(name) or BENCHMARKS.search(name)]:
        fail("the sdist must have no tests, benchmarks or built files", strange)
    known = tracked()
    if known and (strange := sorted(set(names) - known - {"PKG-INFO"})):
        fail("the sdist must have files of the repository only", strange)
    require_notices(names, "the sdist")
    print(f"{archive.name}: {len(names)} files, {archive.stat().st_size / 2**20:.1f} MB")


def check_wheel(wheel: pathlib.Path, release: bool) -> None:
    """`release`: made by make_wheels.py and no wheel of a checkout."""
    names = zipfile.ZipFile(wheel).namelist()
    modules = [name for name in names if name.endswith(".so") or ".so." in name]
    first = [name for name in modules if name.startswith("mercer/_mercer.")]
    rest = [name for name in names if name not in modules]
    if len(first) != 1 or (release and len(modules) != 1):
        fail("a wheel must have one module, and a release no library next to it", modules)
    if strange := [name for name in rest if NEVER.search(name)]:
        fail("a wheel must have no tests or sources", strange)
    if release and (strange := [name for name in names if BENCHMARKS.search(name)]):
        fail("a wheel must have no benchmarks", strange)
    metadata = [name for name in names if name.endswith(".dist-info/METADATA")]
    check_metadata(zipfile.ZipFile(wheel).read(metadata[0]).decode())
    require_notices(names, "a wheel")
    if "abi3" in wheel.name and not first[0].endswith(".abi3.so"):
        fail("the module of an abi3 wheel must be named so", first)
    if release and "manylinux_2_28_x86_64" not in wheel.name:
        fail("a wheel must be one of manylinux_2_28", wheel.name)


def check_symbols(wheel: pathlib.Path) -> None:
    """Looks at symbols with auditwheel and abi3audit of this interpreter's environment."""
    told = run(sys.executable, "-m", "auditwheel", "show", wheel)
    if "manylinux_2_" not in told or re.search(r"libstdc\+\+|GLIBCXX|libfmt", told):
        fail("auditwheel must find glibc alone", told)
    print("  " + " ".join(told.split()))
    if "abi3" in wheel.name:
        print(run(sys.executable, "-m", "abi3audit", "--strict", wheel, stderr=subprocess.STDOUT))


def try_package(python: str, package: pathlib.Path, *others: str) -> None:
    """Installs it into a fresh environment, whose programs alone the smoke test sees."""
    with tempfile.TemporaryDirectory(prefix="mercer-check-") as folder:
        own = pathlib.Path(folder, "env")
        run(python, "-m", "venv", own)
        run(own / "bin/python", "-m", "pip", "install", "-q", package, *others)
        alone = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH",)}
        alone |= {"PATH": str(own / "bin"), "MERCER_CACHE_DIR": folder}
        print(run(own / "bin/python", SMOKE, cwd=folder, env=alone), end="")


def check_quickly(settings: list[str]) -> None:
    """`settings`: of the build in whose folder the wheel is made."""
    with tempfile.TemporaryDirectory(prefix="mercer-check-") as folder:
        code = "import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))"
        run(sys.executable, "-c", code, folder, cwd=ROOT)
        check_sdist(next(pathlib.Path(folder).glob("*.tar.gz")))
        options = [f"--config-settings={setting}" for setting in settings]
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps",
            "-w", folder, *options, ROOT)  # fmt: skip
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        check_wheel(wheel, release=False)
        try_package(sys.executable, wheel)


def fits(wheel: pathlib.Path, version: str) -> bool:
    tag, minor = wheel.name.split("-")[2], int(version.partition(".")[2])
    return tag == f"cp3{minor}" or ("abi3" in wheel.name and minor >= int(tag[3:]))


def check_release(dist: pathlib.Path, versions: list[str] | None) -> None:
    (sdist,) = dist.glob("mercer-*.tar.gz")
    wheels = sorted(dist.glob("mercer-*.whl"))
    check_sdist(sdist)
    for wheel in wheels:
        check_wheel(wheel, release=True)
        check_symbols(wheel)
    found = pythons.supported()
    tried = []
    for version, python in found.items():
        for wheel in wheels:
            if fits(wheel, version):
                try_package(python, wheel)
                if version == min(found, key=pythons.VERSIONS.index):
                    try_package(python, wheel, OLDEST_NUMPY)
                tried.append(f"{version}: {wheel.name}")
        if versions is None or version in versions:
            try_package(python, sdist)
            tried.append(f"{version}: {sdist.name}")
    print("\n".join(["All is well with", *tried]))
    if missing := [version for version in pythons.VERSIONS if version not in found]:
        print(f"Not tried, since these are not at hand: Python {', '.join(missing)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "dist")
    parser.add_argument(
        "--sdist-on", metavar="VERSION", nargs="*", help="Pythons that build the sdist (all)"
    )
    parser.add_argument("--quick", metavar="SETTING", nargs="*", help="settings of the build")
    options = parser.parse_args()
    if options.quick is not None:
        check_quickly(options.quick)
    else:
        check_release(options.dist, options.sdist_on)
    return 0


if __name__ == "__main__":
    sys.exit(main())
