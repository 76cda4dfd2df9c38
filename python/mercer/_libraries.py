"""Tells the compiled part where foreign libraries may lie: in wheels next to this package."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mercer import _mercer

# NVIDIA's: the wheels of CUDA 13, those of CUDA 12, and what torch's own wheels carry.
FOLDERS = (
    "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cusolver/lib", "nvidia/cublas/lib",
    "nvidia/cusparse/lib", "nvidia/nvjitlink/lib", "torch/lib",
)  # fmt: skip
# LAPACK in packages of Python: OpenBLAS as a wheel of its own, where somebody has installed it,
# with integers of 64 bits or 32; last the copies that NumPy and SciPy compute with.
LAPACK = (
    ("scipy_openblas64/lib/libscipy_openblas64_.so", False),
    ("scipy_openblas32/lib/libscipy_openblas.so", False),
    ("numpy.libs/lib*openblas*.so*", True),
    ("scipy.libs/lib*openblas*.so*", True),
)
# And in the folder of this Python: conda's, and MKL of PyPI.
LAPACK_OF_PREFIX = ("lib/libopenblas.so.0", "lib/libmkl_rt.so.*")
STORE = Path(__file__).parent / "store"


def hand_over() -> None:
    for entry in sys.path:
        for name in FOLDERS:
            folder = Path(entry, name)
            if folder.is_dir():
                _mercer.add_library_folder(str(folder.resolve()))
        for pattern, shared in LAPACK:
            for file in sorted(Path(entry or ".").glob(pattern)):
                _mercer.add_lapack_file(str(file.resolve()), shared)
    for pattern in LAPACK_OF_PREFIX:
        for file in sorted(Path(sys.prefix).glob(pattern)):
            _mercer.add_lapack_file(str(file.resolve()), True)
    if STORE.is_dir():
        _mercer.set_cuda_store(str(STORE))


def shipped_kernels() -> str:
    """What cmake/make_store.py put into the package, as a line."""
    contents = STORE / "contents.txt"
    if contents.is_file():
        return contents.read_text(encoding="utf-8").strip()
    return "none, so the first calls of all formulas compile theirs"


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which torch.compile runs as it is, with all that it calls."""
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **options)
        if not disabled:
            disabled.append(sys.modules["torch"].compiler.disable(function))
        return disabled[0](*arguments, **options)

    return call


def plain(array: Any) -> Any:
    """NumPy's own array in the place of one of a derived class, such as numpy.matrix, whose
    operators mean other things. Masked arrays stay, to be refused."""
    derived = isinstance(array, np.ndarray) and type(array) is not np.ndarray
    return np.asarray(array) if derived and not isinstance(array, np.ma.MaskedArray) else array


def namespace_of(array: Any) -> Any:
    """The module whose functions take this array: numpy, torch, cupy, jax.numpy; also where it is
    of a class that is derived from theirs."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    if jax is not None and isinstance(array, jax.Array):
        return jax.numpy
    return sys.modules[type(array).__module__.partition(".")[0]]
