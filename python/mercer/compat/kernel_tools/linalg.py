"""kernel_tools.linalg on Mercer: eigenvalues and LU of float32 and float64 tensors.

Tensors may be on the CPU as well as on a CUDA device, where the functions wait for their results.
``verbose=True`` prints the bytes of scratch memory.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

import mercer as mc
from mercer import linalg
from mercer.linalg import distributed

__all__ = [
    "cusolver_batched_eigh", "cusolver_batched_eigh_workspace_requirements", "cusolver_eigh",
    "cusolver_eigh_workspace_requirements", "cusolver_getrf",
    "cusolver_getrf_workspace_requirements", "cusolver_getrs", "cusolver_mg_eigh",
    "cusolver_mg_eigh_workspace_requirements",
]  # fmt: skip
# Rows of a block where several devices share a matrix: the fastest of 64, 128 and 256 elsewhere.
_SHARE = 128


def cusolver_eigh(
    a: torch.Tensor,
    overwrite_a: bool = False,
    subset_by_index: tuple[int, int] | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    verbose: bool = False,
) -> Any:
    """(w, v), or w with eigvals_only: eigenvalues, ascending, and eigenvectors in the columns of v.

    a: symmetric ``[N, N]``, of which the triangle that ``lower`` names is read; overwrite_a lends
    its memory. subset_by_index: the first and the last eigenvalue wanted, from 0; w and v keep no
    more memory than theirs. Raises ValueError for shapes, dtypes and ranges, and where eigenvalues
    do not converge or a holds NaN.
    """
    _check(a, 2, "a")
    return _eigh("syevdx", a, lower, overwrite_a, eigvals_only, subset_by_index, verbose)


def cusolver_batched_eigh(
    a: torch.Tensor,
    overwrite_a: bool = False,
    lower: bool = True,
    eigvals_only: bool = False,
    verbose: bool = False,
) -> Any:
    """cusolver_eigh of matrices a ``[B, N, N]``: w is ``[B, N]``, v ``[B, N, N]``."""
    _check(a, 3, "batched a")
    return _eigh("syev_batched", a, lower, overwrite_a, eigvals_only, None, verbose)


def cusolver_mg_eigh(
    a: torch.Tensor, overwrite_a: bool = False, max_num_devices: int = 16, verbose: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(w, v) of a symmetric matrix on the CPU; the results are there too.

    Where there are several CUDA devices, and cuSOLVERMp is installed, at most max_num_devices of
    them share a matrix of 128 rows a device or more, by mercer.linalg.distributed; otherwise, and
    with a warning where they fail, one computes, or the CPU where there is none. overwrite_a: the
    eigenvectors go to the rows of a. The rest: cusolver_eigh.
    """
    if a.device.type != "cpu":
        raise ValueError(f"a must be on the CPU. Received {a.device}")
    _check(a, 2, "a")
    grid = _grid(min(max_num_devices, _gpu_count(), a.shape[0] // _SHARE))
    found = None if grid is None else _eigh_shared(grid, a, verbose)
    if found is None:
        there = a.to(_device(), copy=True)
        found = _eigh("mgSyevd", there, True, True, False, None, verbose)
    w, v = found
    rows = v.mT.to("cpu")
    return w.to("cpu"), (a.copy_(rows) if overwrite_a else rows).mT


def cusolver_getrf(
    a: torch.Tensor, overwrite_a: bool = False, verbose: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(lu, ipiv): the factors of cusolver_getrs, as cuSOLVER has them.

    a: ``[M, N]``. cuSOLVER reads by columns, so a matrix that lies by rows has its transpose
    factored, and lu lies as a does; overwrite_a: lu is a. ipiv: int64 ``[min(M, N)]``; row i
    changed places with row ipiv[i], both from 1. Raises ValueError for shapes and dtypes, and for a
    zero pivot, as of a singular matrix; RuntimeError where neither rows nor columns have
    neighbouring elements.
    """
    _check_axes(a, 2, "a")
    view = _by_columns(a, "a")
    _announce(verbose, "lu_factor", view)
    (lu, pivots), info = linalg.lu_factor(view, overwrite_a=overwrite_a, check=False)
    _check_info("getrf", info)
    if overwrite_a:
        return a, pivots + 1
    return (lu if view is a else lu.mT), pivots + 1


def cusolver_getrs(
    a: torch.Tensor,
    ipiv: torch.Tensor,
    targets: torch.Tensor,
    overwrite_targets: bool = False,
    verbose: bool = False,
) -> torch.Tensor:
    """x ``[R, N]`` with x a = targets (a x' = targets' for an a that lay by columns).

    a, ipiv: of cusolver_getrf. targets: ``[R, N]``; overwrite_targets: x takes their place.
    """
    _check(a, 2, "a")
    n = a.shape[0]
    if targets.ndim != 2 or targets.shape[1] != n:
        raise ValueError(f"targets must be [R, N], N = {n}. Received {tuple(targets.shape)}")
    factors = _by_columns(a, "a"), ipiv - 1
    _announce(verbose, "lu_solve", factors, targets.mT)
    if overwrite_targets:
        linalg.lu_solve(factors, targets.mT, overwrite_b=True)
        return targets
    x = torch.empty_like(targets, memory_format=torch.contiguous_format)
    linalg.lu_solve(factors, targets.mT, out=x.mT)
    return x


def cusolver_eigh_workspace_requirements(N: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of scratch memory of cusolver_eigh on the device and on the host."""
    return _workspace("eigh", dtype, N, N), 0


def cusolver_batched_eigh_workspace_requirements(
    N: int, batch_size: int, dtype: torch.dtype
) -> tuple[int, int]:
    """Bytes of scratch memory of cusolver_batched_eigh on the device and on the host."""
    return _workspace("eigh", dtype, batch_size, N, N), 0


def cusolver_getrf_workspace_requirements(M: int, N: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of scratch memory of cusolver_getrf of ``[M, N]`` by columns on the device and on the
    host."""
    _check_dtype(dtype)
    by_columns = torch.empty((N, M), dtype=dtype, device="meta").mT
    return mc.workspace_size("lu_factor", by_columns, device=_device()), 0


def cusolver_mg_eigh_workspace_requirements(
    N: int, dtype: torch.dtype, num_devices: int | None = None, verbose: bool = False
) -> int:
    """Bytes of scratch memory of cusolver_mg_eigh where one device computes."""
    return _workspace("eigh", dtype, N, N)


def _gpu_count() -> int:
    return torch.cuda.device_count()


@functools.cache
def _grid(count: int) -> Any:
    """The grid of so many devices, kept for later calls; None where one has to do."""
    if count < 2:
        return None
    try:
        return distributed.Grid(devices=range(count))
    except (ImportError, mc.DeviceError) as error:
        warnings.warn(f"cusolver_mg_eigh: one device computes. {error}", stacklevel=3)
        return None


def _eigh_shared(
    grid: Any, a: torch.Tensor, verbose: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """None where the devices fail, or their result its check: one device then says what it is."""
    if verbose:
        print(f"(mercer.compat.kernel_tools) eigh: on {grid}")
    try:
        w, v = distributed.eigh(distributed.scatter(grid, a.detach(), block=_SHARE))
        return w, v.gather()
    except (mc.LinAlgError, mc.DeviceError) as error:
        warnings.warn(f"cusolver_mg_eigh: one device computes. {error}", stacklevel=3)
        return None


def _eigh(
    name: str, a: torch.Tensor, lower: bool, overwrite_a: bool, eigvals_only: bool, subset: Any,
    verbose: bool,
) -> Any:  # fmt: skip
    words: dict[str, Any] = {
        "lower": lower, "eigvals_only": eigvals_only, "overwrite_a": overwrite_a,
    }  # fmt: skip
    if subset is not None:
        first, last = words["subset_by_index"] = tuple(map(int, subset))
        if not 0 <= first <= last < a.shape[-1]:
            raise ValueError(
                f"subset_by_index must be (first, last), 0 <= first <= last < N = {a.shape[-1]}. "
                f"Received {(first, last)}"
            )
    _announce(verbose, "eigh", a, **words)
    result, info = linalg.eigh(a, **words, check=False)
    _check_info(name, info)
    return result


def _check(a: torch.Tensor, axes: int, name: str) -> None:
    _check_axes(a, axes, name)
    if a.shape[-1] != a.shape[-2]:
        raise ValueError(f"{name} must be square. Received {tuple(a.shape)}")


def _check_axes(a: torch.Tensor, axes: int, name: str) -> None:
    if a.ndim != axes:
        raise ValueError(f"{name} must have {axes} axes. Received {tuple(a.shape)}")
    _check_dtype(a.dtype)


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be float32 or float64. Received {dtype}")


def _check_info(name: str, info: torch.Tensor) -> None:
    if info.any():
        raise ValueError(f"info of {name} is not equal to 0: {info.tolist()}")


def _by_columns(a: torch.Tensor, name: str) -> torch.Tensor:
    """What cuSOLVER reads in the memory of a."""
    if a.stride(1) == 1:
        return a.mT
    if a.stride(0) != 1:
        raise RuntimeError(f"one stride of {name} must be 1. Received {a.stride()}")
    return a


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _workspace(verb: str, dtype: torch.dtype, *shape: int) -> int:
    _check_dtype(dtype)
    return mc.workspace_size(verb, (shape, dtype), device=_device())


def _announce(verbose: bool, verb: str, *arguments: Any, **words: Any) -> None:
    if verbose:
        size = mc.workspace_size(verb, *arguments, **words)
        print(f"(mercer.compat.kernel_tools) {verb}: {size} bytes of scratch memory")
