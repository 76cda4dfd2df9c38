"""mercer.compile: the calls it was asked for find their plans."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import mercer as mc
import numpy as np
import pytest

torch = pytest.importorskip("torch")
TEXT = "exp(-sum(abs(x-z)^p)/h)"
SIZES = {"shapes": [(4, 4, 4)]}


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32"), torch.float32])
def test_calls_find_their_plans(dtype):
    mc.clear_plans()
    mc.compile(
        TEXT, shapes=[(40, 30, 7), (2, 40, 30, 7)], dtypes=[dtype], layouts=["row", "column"],
        verbs=["pairwise", "kernel_gradient"], p=1.3,
    )  # fmt: skip
    plans = mc.plan_count()
    assert plans > 0
    x, z = np.ones((2, 40, 7), "f"), np.ones((30, 7), "f")
    mc.pairwise(TEXT, x, z, p=1.3, h=2.0)
    mc.pairwise(TEXT, x[0], z, p=1.3, h=3.0, out=np.empty((30, 40), "f").T)
    mc.kernel_gradient(TEXT, x, z, np.ones(30, "f"), p=1.3, h=2.0)
    assert mc.plan_count() == plans


def test_an_exponent_that_will_be_an_array():
    mc.clear_plans()
    mc.compile(TEXT, shapes=[(40, 30, 7)])
    plans = mc.plan_count()
    x = np.ones((40, 7), "f")
    mc.pairwise(TEXT, x, p=np.array([1.0, 1.3]), h=2.0)
    assert mc.plan_count() == plans


FOR_A_GENERATION = """
import sys
import mercer as mc
mc.compile("sum(abs(x-z)) + 0.125", shapes=[(4096, 4096, 20)], devices=[sys.argv[1]],
           verbs=["pairwise", "kernel_product"])
print(mc._mercer.cache_stats()[0])
"""
BY_AN_OLD_COMPILER = """
import sys
import mercer as mc
assert "NVRTC: 12.0 " in mc.info(), mc.info()
options = {"devices": sys.argv[1:]}
mc.compile("exp(-sum(square(x-z))/b)", shapes=[(8192, 8192, 256)], **options)
mc.compile("exp(-sum(square(x-z))/b)", shapes=[(50000, 50000, 64)], verbs=["kernel_product"],
           columns=16, **options)
mc.compile("sum(abs(x-z))", shapes=[(4096, 4096, 1024)], verbs=["pairwise", "kernel_gradient"],
           **options)
print(mc._mercer.cache_stats()[0])
"""


def files_in_cache(folder, *arguments, script=FOR_A_GENERATION, **environment):
    """How many there are after a process compiled for an architecture."""
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"MERCER_CACHE_DIR": str(folder)} | environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.mark.skipif("NVRTC: none" in mc.info(), reason="needs NVRTC")
def test_an_architecture_needs_no_gpu_and_the_second_time_no_compiler(tmp_path):
    files = files_in_cache(tmp_path, "sm_90a")
    assert files >= 5  # two tiles, packing, parameters, merging
    again = files_in_cache(tmp_path, "sm_90a", MERCER_NVRTC="/nowhere/libnvrtc.so.13")
    assert again == files


def library_of_cuda_12():
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations if spec else []:
        library = pathlib.Path(folder) / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
        if library.exists():
            return library
    return None


@pytest.mark.skipif(library_of_cuda_12() is None, reason="needs nvidia-cuda-nvrtc-cu12")
@pytest.mark.long
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_compilers_of_cuda_12(tmp_path, architecture):
    """Tensor cores by warps and by warpgroups, mixed pipes, fields."""
    files = files_in_cache(
        tmp_path, architecture, script=BY_AN_OLD_COMPILER, MERCER_NVRTC=str(library_of_cuda_12())
    )
    assert files >= 20


def test_architectures_that_are_too_old():
    with pytest.raises(NotImplementedError, match=r"at least sm_80\. Received sm_75"):
        mc.compile("l1", **(SIZES | {"devices": ["sm_75"]}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"devices": ["gpu"]},
            r"devices must be .* architectures such as .sm_90a.\. Received .gpu",
        ),
        ({"devices": [0.5]}, "devices must be"),
        ({"layouts": ["col"]}, "a layout must be"),
        ({"layouts": [("row", "row")]}, "triples of them, of x, z and out"),
        ({"dtypes": "float32"}, "dtypes must be a list"),
        ({"dtypes": ["int16"]}, "dtypes must be float16"),
        ({"shapes": [(1, 2)]}, "shapes must be tuples"),
        ({"shapes": [(1, 2, -3)]}, "shapes must not be negative"),
        ({"verbs": ["knm"]}, "verbs must be some of pairwise"),
        ({"q": 1.0}, 'the formula has no parameter "q"'),
    ],
)
def test_rules(options, words):
    with pytest.raises(ValueError, match=words):
        mc.compile("l1", **(SIZES | options))


def test_folds():
    rng = np.random.default_rng(0)
    x, z, coef = (rng.random(shape, np.float32) for shape in ((40, 5), (30, 5), (2, 30)))
    phi = "reduce(coef*(x-z), 0.25*a + t, 0)"
    mc.compile(phi, shapes=[(40, 30, 5)], verbs=["gradient_field"], columns=2, combine="reduce")
    before = mc.plan_count()
    mc.gradient_field(phi, x, z, None, coef, combine="reduce")
    assert mc.plan_count() == before
    with pytest.raises(ValueError, match="gradient_field takes a field"):
        mc.compile("abs(x-z)", shapes=[(40, 30, 5)], combine="max")


def test_fields():
    mc.compile("x-z", shapes=[(40, 30, 5)], verbs=["gradient_field"], columns=2)
    rule = "gradient_field takes a field.* Received pairwise with a field"
    with pytest.raises(ValueError, match=rule):
        mc.compile("x-z", shapes=[(40, 30, 5)], verbs=["gradient_field", "pairwise"])
