"""Fixtures, and the reference for results: NumPy in float64, by the definition."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import pathlib
import sys

import numpy as np
import pytest
from hypothesis import settings

# JAX would take most of a GPU's memory at its start, from PyTorch and CuPy in this process too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Most tests call once, which is to be the kernel of later calls.
os.environ.setdefault("MERCER_QUICK_COMPILE", "0")
# What is read before it is written is NaN.
os.environ.setdefault("MERCER_POISON", "1")

settings.register_profile("mercer", deadline=None, derandomize=True)
settings.load_profile("mercer")

LIBRARIES = ["numpy", "torch"]
ROOT = pathlib.Path(__file__).resolve().parents[2]


def program(folder, name):
    """A script of the checkout as a module; it imports its neighbours as if it ran itself."""
    path = ROOT / folder / f"{name}.py"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"script_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def one_thread():
    """Small programs take many times as long where the threads of several processes meet."""
    from mercer.benchmarks.timing import one_thread

    with one_thread():
        yield


@pytest.fixture(params=LIBRARIES)
def library(request):
    """The module whose arrays a test uses: numpy, then torch."""
    return pytest.importorskip(request.param)


def rest_long(values, *kept):
    """Parameters of a test: make test has those that are kept, make test-all has all."""
    assert set(kept) <= set(values)
    long = pytest.mark.long
    return [each if each in kept else pytest.param(each, marks=long) for each in values]


def spread(rows, columns, of=3):
    """Pairs of parameters: make test has one in `of`, among them every row and column."""
    assert min(len(rows), len(columns)) > 0
    long = pytest.mark.long
    return [
        pytest.param(row, column, marks=[long] if (i + j) % of else [])
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]


def in_threads(work, count=8):
    """Results of work(), called by several threads at once."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(work) for _ in range(count)]]


def to_library(library, array):
    """The array's values, strides and all, as an array of the library."""
    return array if library is np else library.from_numpy(array)


def to_numpy(array):
    return np.asarray(array)


def differences(x, z):
    """x[..., m, 1, k] - z[..., 1, n, k] in float64."""
    return x[..., :, None, :].astype(np.float64) - z[..., None, :, :].astype(np.float64)


def minkowski(x, z, p, w=None):
    """(sum w |x - z|^p)^(1/p) by the definition."""
    gaps = np.abs(differences(x, z))
    if np.isinf(p):
        return gaps.max(-1, initial=0)
    weights = 1.0 if w is None else w
    if p == 0:
        return (weights * (gaps != 0)).sum(-1)
    return (weights * gaps**p).sum(-1) ** (1 / p)


def assert_close(result, expected, tolerance=1e-5):
    """Relative to the value, and to 1 near zero; NaN and infinities in the same places."""
    np.testing.assert_allclose(to_numpy(result).astype(np.float64), expected, tolerance, tolerance)


@pytest.fixture
def cuda():
    """PyTorch, where it sees a CUDA device."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """PyTorch's device of a test; without a GPU that of CUDA is a skip."""
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch.device(request.param)


@pytest.fixture
def draw(device):
    """Normal float32 values of a shape on the device of the test."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator).to(device)
