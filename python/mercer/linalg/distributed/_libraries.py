"""Finds the libraries of this module; one that is missing is an error with the command to run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from mercer.errors import DeviceError

__all__ = ["cusolvermp", "elpa", "mpi", "nccl", "openblas", "scalapack"]

_SCALAPACK = ("libscalapack-openmpi.so.2.2", "libscalapack-openmpi.so.2.1", "libscalapack.so")
_ELPA = ("libelpa.so.19", "libelpa.so.17", "libelpa.so")
_NCCL_AT_LEAST, _CUSOLVERMP_AT_LEAST = (2, 29, 2), (0, 9, 1)


@functools.cache
def mpi() -> Any:
    """mpi4py.MPI, of Open MPI: ScaLAPACK's communicators must be of the MPI it was built for."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            "mercer.linalg.distributed needs mpi4py and Open MPI for ranks. Run: apt-get install "
            "openmpi-bin libopenmpi-dev libscalapack-openmpi2.2 && pip install mpi4py. "
            f"Received: {error}"
        ) from error
    version = MPI.Get_library_version()
    if "Open MPI" not in version:
        raise ImportError(
            "mercer.linalg.distributed needs mpi4py on Open MPI, which Debian's ScaLAPACK is built "
            "for. Run: apt-get install openmpi-bin libopenmpi-dev, and start the program with its "
            f"mpirun. Received {version.splitlines()[0]}"
        )
    return MPI


@functools.cache
def scalapack() -> ctypes.CDLL:
    mpi()
    found = _first(os.environ.get("MERCER_SCALAPACK"), _SCALAPACK)
    if found is None:
        raise ImportError(
            "mercer.linalg.distributed needs ScaLAPACK for Open MPI. Run: apt-get install "
            "libscalapack-openmpi2.2, or set MERCER_SCALAPACK to the file of the library."
        )
    return found


@functools.cache
def elpa() -> ctypes.CDLL | None:
    """ELPA, or None: it is faster for eigenvectors of float64, and never needed."""
    mpi()
    name = os.environ.get("MERCER_ELPA")
    return None if name == "off" else _first(name, _ELPA)


@functools.cache
def openblas() -> ctypes.CDLL | None:
    """The OpenBLAS below ScaLAPACK, whose number of threads can be set."""
    found = _first(None, ("libopenblas.so.0",))
    return found if found is not None and hasattr(found, "openblas_set_num_threads") else None


@functools.cache
def nccl() -> ctypes.CDLL:
    """NCCL: the one of this process where there is one, as PyTorch brings it, else the wheel's.

    A second one next to it would get the communicators of the first, since cuSOLVERMp is linked to
    whichever came first.
    """
    found = _loaded("libnccl.so.2") or _first(
        os.environ.get("MERCER_NCCL"), ("libnccl.so.2",), "nvidia/nccl/lib"
    )
    if found is None:
        raise ImportError(
            "mercer.linalg.distributed needs NCCL for GPUs. Run: pip install nvidia-nccl-cu13"
        )
    return check_nccl(found)


def _loaded(name: str) -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
    return None


def check_nccl(found: Any) -> Any:
    version = ctypes.c_int()
    found.ncclGetVersion(ctypes.byref(version))
    code = version.value
    received = (code // 10000, code // 100 % 100, code % 100)
    if received < _NCCL_AT_LEAST:
        raise ImportError(
            f"mercer.linalg.distributed needs NCCL {_text(_NCCL_AT_LEAST)} or newer, which "
            "cuSOLVERMp calls. Run: pip install -U nvidia-nccl-cu13, or start the program with "
            "LD_PRELOAD naming a newer libnccl.so.2, where PyTorch asks for an older one. Received "
            f"{_text(received)}"
        )
    return found


@functools.cache
def cusolvermp() -> ctypes.CDLL:
    """cuSOLVERMp, by its absolute path: an older one of another folder has the same soname."""
    nccl()
    if os.environ.get("NCCL_NVLS_ENABLE") == "0":  # cuBLASMp has a switch of its own for multicast
        os.environ.setdefault("CUBLASMP_DISABLE_MULTICAST", "1")
    for name in ("libcublas.so.13", "libcublasLt.so.13", "libcusolver.so.12", "libcudart.so.13"):
        _first(None, (name,), "nvidia/cu13/lib")
    _first(None, ("libcublasmp.so.0",), "nvidia/cublasmp/cu13/lib")
    found = _first(os.environ.get("MERCER_CUSOLVERMP"), ("libcusolverMp.so.0",), "nvidia/cu13/lib")
    if found is None:
        raise ImportError(
            "mercer.linalg.distributed needs cuSOLVERMp for GPUs. Run: pip install "
            "nvidia-cusolvermp-cu13, or set MERCER_CUSOLVERMP to the file of the library."
        )
    return found


def check_cusolvermp(code: int) -> None:
    """Refuses versions whose results were wrong for large problems without a word."""
    scale = 10000 if code >= 10000 else 1000
    received = (code // scale, code % scale // 100, code % 100)
    if received < _CUSOLVERMP_AT_LEAST:
        raise DeviceError(
            f"mercer.linalg.distributed needs cuSOLVERMp {_text(_CUSOLVERMP_AT_LEAST)} or newer: "
            "older ones give wrong eigenvectors of large matrices without an error. Run: pip "
            f"install -U nvidia-cusolvermp-cu13. Received {_text(received)}"
        )


def _first(named: str | None, names: tuple[str, ...], folder: str = "") -> ctypes.CDLL | None:
    """The library of that path alone; else the first in a wheel's folder, then in the system's."""
    if named:
        return ctypes.CDLL(named, mode=ctypes.RTLD_GLOBAL)
    wheels = [Path(entry or ".", folder, name) for entry in sys.path for name in names if folder]
    candidates = [*(str(path.resolve()) for path in wheels if path.is_file()), *names]
    for candidate in candidates:
        try:
            return ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
