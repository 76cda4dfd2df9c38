"""kermac.linalg on Mercer: batches of linear systems and eigenvalues, with cuSOLVER's infos."""

from __future__ import annotations

from typing import Any

import torch

from mercer import linalg
from mercer.compat._calls import Majorness, check_tensors
from mercer.compat.kermac._common import FillMode, tensor_stats

__all__ = ["FillMode", "eigh", "solve_cholesky", "solve_lu"]


def solve_cholesky(
    a: torch.Tensor,
    b: torch.Tensor,
    fill_mode: FillMode = FillMode.LOWER,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_errors: bool = False,
    debug: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, factor_infos, solve_infos) with x a = b, a symmetric positive definite.

    a: ``[L, N, N]``, b: ``[L, C, N]`` by rows, float32, of one device; a batch of one may lack its
    axis. fill_mode counts by columns: LOWER reads the upper triangle of a[l]. overwrite_b: x takes
    the place of b. Infos: int32 ``[L]``; 0, the order of the first leading minor that is not
    positive definite, or -1 for NaN. The call does not wait for a device, unless check_errors: then
    infos that are not 0 raise ValueError. TypeError for dtypes, ValueError for shapes and layouts.
    """
    _check_system(a, b)
    x = _place(b, overwrite_b)
    _, infos = linalg.solve_cholesky(
        a, b.mT, lower=fill_mode is FillMode.UPPER, overwrite_a=overwrite_a, check=False,
        **x[1],
    )  # fmt: skip
    return x[0], *_infos(infos, check_errors)


def solve_lu(
    a: torch.Tensor,
    b: torch.Tensor,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    check_errors: bool = False,
    debug: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, factor_infos, solve_infos) with x a = b, for any a that is not singular.

    An info is the zero pivot, from 1. The rest: solve_cholesky.
    """
    _check_system(a, b)
    x = _place(b, overwrite_b)
    _, infos = linalg.solve_lu(a.mT, b.mT, overwrite_a=overwrite_a, check=False, **x[1])
    return x[0], *_infos(infos, check_errors)


def eigh(
    a: torch.Tensor,
    fill_mode: FillMode = FillMode.LOWER,
    overwrite_a: bool = False,
    check_errors: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(w, v, infos): eigenvalues ``[L, N]``, ascending, and eigenvectors in the columns of v.

    a: ``[L, N, N]``, symmetric, float32; fill_mode as in solve_cholesky. infos: int32 ``[L]``; how
    many eigenvalues did not converge, or -1 for NaN.
    """
    check_tensors({"a": a})
    _check_square(a)
    if a.ndim != 3:
        raise ValueError(f"a must have shape (L, N, N), got {tuple(a.shape)}")
    (w, v), infos = linalg.eigh(
        a, lower=fill_mode is FillMode.UPPER, overwrite_a=overwrite_a, check=False
    )
    return w, v, _checked([("info", infos.to(torch.int32))], check_errors)[0]


def _check_square(a: torch.Tensor) -> tuple[int, int]:
    length, rows, columns = tensor_stats(a).shape
    if rows != columns:
        raise ValueError(f"a must have shape (L, N, N), got {tuple(a.shape)}")
    return length, rows


def _fit(a: Any, b: Any) -> bool:
    """Whether a batch of matrices and one of b by rows fit: such ones pass every check."""
    if type(a) is not torch.Tensor or type(b) is not torch.Tensor or a.device != b.device:
        return False
    if a.ndim != 3 or b.ndim != 3 or a.dtype is not torch.float32 or b.dtype is not torch.float32:
        return False
    (length, n, columns), (length_of_b, _, n_of_b) = a.shape, b.shape
    if n != columns or n != n_of_b or length != length_of_b:
        return False
    (*_, row, column), (*_, row_of_b, column_of_b) = a.stride(), b.stride()
    return column == column_of_b == 1 and row >= n and row_of_b >= n


def _check_system(a: Any, b: Any) -> None:
    if _fit(a, b):
        return
    check_tensors({"a": a, "b": b})
    length, n = _check_square(a)
    stats = tensor_stats(b)
    if stats.num_batches != length or stats.shape[2] != n:
        raise ValueError(f"b must have shape (L={length}, C, N={n}), got {tuple(b.shape)}")
    if stats.majorness is Majorness.COL_MAJOR:
        raise ValueError("b must have stride 1 in its last dimension")


def _place(b: torch.Tensor, overwrite: bool) -> tuple[torch.Tensor, dict[str, Any]]:
    """Where the solution goes, and the words for it."""
    if overwrite:
        return b, {"overwrite_b": True}
    x = torch.empty_like(b, memory_format=torch.contiguous_format)
    return x, {"out": x.mT}


def _infos(infos: torch.Tensor, check_errors: bool) -> list[torch.Tensor]:
    factor = infos if infos.ndim == 1 else infos.reshape(-1)
    factor = factor if factor.dtype is torch.int32 else factor.to(torch.int32)
    named = [("factor_info", factor), ("solve_info", torch.zeros_like(factor))]
    return _checked(named, check_errors)


def _checked(named: list[tuple[str, torch.Tensor]], check_errors: bool) -> list[torch.Tensor]:
    if check_errors:
        wrong = [
            (name, item, info)
            for name, infos in named
            for item, info in enumerate(infos.tolist())
            if info != 0
        ]
        if wrong:
            raise ValueError(f"Non-zero items found: {wrong}")
    return [infos for _, infos in named]
