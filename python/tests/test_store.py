"""The store: GPU kernels that come with the package serve without a compiler."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys

import mercer as mc
import pytest
from conftest import ROOT, program

TOOL = ROOT / "cmake" / "make_store.py"
NOWHERE = {"MERCER_NVRTC": "/nowhere/libnvrtc.so.13"}
needs_nvrtc = pytest.mark.skipif("NVRTC: none" in mc.info(), reason="needs NVRTC")

FIND = """
import mercer as mc
mc.compile("l1", shapes=[(30000, 10000, 20)], devices=["sm_90a"])
try:
    mc.compile("linf", shapes=[(30000, 10000, 20)], devices=["sm_90a"])
except NotImplementedError as error:
    assert "NVRTC" in str(error), error
print("files in the cache:", mc._mercer.cache_stats()[0])
"""


def run(arguments, environment):
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True
    )


@needs_nvrtc
def test_a_shipped_kernel_needs_no_nvrtc(tmp_path):
    mc._mercer.write_cuda_store(
        str(tmp_path / "store"), "l1", shapes=[(20000, 20000, 24)], devices=["sm_90a"]
    )
    folders = {
        "MERCER_STORE": str(tmp_path / "store"),
        "MERCER_CACHE_DIR": str(tmp_path / "cache"),
    }
    found = run(["-c", FIND], NOWHERE | folders)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "files in the cache: 0\n"


def tool():
    if not TOOL.is_file():
        pytest.skip("no checkout around these tests")
    return program("cmake", "make_store")


def test_every_line_of_the_list_is_right():
    rows, cap = tool().read_list(TOOL.parent / "cuda_store.txt")
    assert cap == 180 << 20
    for (name, *options), (_, _, k, *verbs) in itertools.product(rows["formula"], rows["shape"]):
        mc.compile(
            name,
            shapes=[(8, 8, int(k))],
            dtypes=[words[0] for words in rows["dtype"]],
            layouts=[words[0] for words in rows["layout"]],
            verbs=verbs or [words[0] for words in rows["verb"]],
            **{key: float(value) for key, value in (option.split("=") for option in options)},
        )


def make_store(folder, *arguments, environment=None):
    tool()
    module = pathlib.Path(mc._mercer.__file__).parent
    options = ["--module", str(module), "--folder", str(folder), "--cache", str(folder / "cache")]
    return run([str(TOOL), *options, *arguments], environment or {})


def test_without_nvrtc_no_kernels_are_shipped(tmp_path):
    made = make_store(tmp_path, environment=NOWHERE)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("store: no NVRTC here")
    assert made.stdout.count("\n") == 1


def test_architectures_must_be_listed(tmp_path):
    made = make_store(tmp_path, "--architectures", "sm_70")
    assert made.returncode != 0
    assert "Received ['sm_70']" in made.stderr


@needs_nvrtc
def test_the_cap_holds(tmp_path):
    small = tmp_path / "list.txt"
    small.write_text(
        "cap_megabytes 0\narchitecture sm_80\ndtype float32\nlayout row\n"
        "shape 20000 20000 24\nverb pairwise\nformula cityblock\n"
    )
    made = make_store(tmp_path / "store", "--list", str(small))
    assert made.returncode != 0
    assert "at most 0 MB are shipped" in made.stderr
