"""Operators of other libraries, as objects that multiply; and a KernelOperator as one of theirs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mercer._mercer import Expr


class Multiplier:
    """What compiled code asks of an operator that is not its own: the order, an array that stands
    for those of its products, and a method that multiplies columns [n, k]."""

    ridge = 0.0

    def __init__(self, order: int, like: Any, multiply: Callable[[Any], Any]) -> None:
        self.shape, self.dtype = (order, order), like.dtype
        self._mercer_like, self._mercer_multiply = like, multiply


def adapted(verb: str, a: Any, b: Any) -> Multiplier | None:
    """The operator of an object that is no array; None for what is no operator either."""
    if hasattr(type(a), "matvec") or hasattr(type(a), "_matmul"):
        return Multiplier(_order(verb, a), _like(a), _product(a))
    if not callable(a) or isinstance(a, Expr):  # a kernel, which is called with points
        return None
    if b is None:
        raise TypeError(
            f"{verb}: a function must say its shape and dtype; write "
            f"scipy.sparse.linalg.LinearOperator((n, n), a, dtype=...). Received {type(a)}"
        )
    if getattr(b, "ndim", 0) not in (1, 2):
        raise ValueError(
            f"{verb}: b must have the shape [n, k] or [n]. Received {getattr(b, 'shape', type(b))}"
        )
    return Multiplier(b.shape[0], b, a)


def _order(verb: str, a: Any) -> int:
    shape = tuple(a.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{verb}: a must have the shape [n, n]. Received {shape}.")
    return int(shape[0])


def _like(a: Any) -> Any:
    """An empty array of the library, dtype and device that the operator multiplies."""
    if hasattr(a, "device") and hasattr(type(a), "_matmul"):
        import torch

        return torch.empty((0, 0), dtype=a.dtype, device=a.device)
    library: Any = np
    if type(a).__module__.startswith("cupyx"):
        library = sys.modules["cupy"]
    return library.empty((0, 0), dtype=a.dtype)


def _product(a: Any) -> Callable[[Any], Any]:
    if hasattr(a, "matmat"):
        return a.matmat
    return a.matmul if hasattr(a, "matmul") else lambda columns: a @ columns


def empty_on(library: str, device: int, dtype: str) -> Any:
    """An array [0] of "torch" or "cupy" on a CUDA device."""
    if library == "torch":
        import torch

        return torch.empty(0, dtype=getattr(torch, dtype), device=f"cuda:{device}")
    import cupy

    with cupy.cuda.Device(device):
        return cupy.empty(0, dtype)


def add_ridges(rows: Any, indices: list[int], ridge: Any) -> None:
    """Adds the ridges of these points to their rows [rows, n], or to one row [n]."""
    if not indices:
        return
    places = (list(range(len(indices))), indices)
    matrix = rows if rows.ndim == 2 else rows[None]
    matrix[places] = matrix[places] + (ridge if isinstance(ridge, float) else ridge[indices])


def to_linear_operator(operator: Any) -> Any:
    """The KernelOperator as an operator of the package linear_operator, of PyTorch's tensors."""
    from linear_operator import LinearOperator

    class MercerLinearOperator(LinearOperator):
        def __init__(self, points: Any, operator: Any) -> None:
            super().__init__(points, operator=operator)
            self._operator = operator

        def _matmul(self, rhs: Any) -> Any:
            return self._operator @ rhs

        def _size(self) -> Any:
            import torch

            return torch.Size(self._operator.shape)

        def _transpose_nonbatch(self) -> Any:
            return self

        def _diagonal(self) -> Any:
            return self._operator.diagonal()

    return MercerLinearOperator(operator.points, operator)
