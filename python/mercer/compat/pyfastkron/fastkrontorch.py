"""pyfastkron.fastkrontorch on Mercer: tensors of the CPU and of CUDA devices, with autograd."""

from __future__ import annotations

from typing import Any

import torch

from mercer.compat.pyfastkron import _products

__all__ = ["KMM", "MKM", "gekmm", "gemkm"]

_WIDE = (torch.float32, torch.float64)
_SHORT = dict.fromkeys((torch.int8, torch.uint8, torch.int16), (torch.Tensor.to, torch.int32))


def gemkm(
    x: torch.Tensor,
    fs: list[torch.Tensor] | tuple[torch.Tensor, ...],
    alpha: float = 1.0,
    beta: float = 0.0,
    y: torch.Tensor | None = None,
) -> torch.Tensor:
    """alpha x (F1 (x) ... (x) FN) + beta y, with gradients by every tensor.

    x: ``[..., M, P1 ... PN]`` or a vector, fs: ``[..., P_i, Q_i]``, y: what broadcasts to the
    result ``[..., M, Q1 ... QN]``. Leading axes of x and the factors broadcast; factors share
    theirs. A vector's result has no axes of length 1; a factor with one axis is a column.
    Transposed tensors are read where they lie. In other dtypes than float32 and float64 (float16,
    bfloat16 and whole numbers) alpha and beta round the result one after the other.

    Raises ValueError for types, dtypes and shapes, RuntimeError for tensors of several devices.
    """
    _check(x, fs, beta, y)
    z = _products.gemkm(x, fs, alpha, beta, y, x.dtype in _WIDE, _SHORT.get(x.dtype))
    return z if x.ndim > 1 else z.squeeze()


def gekmm(
    fs: list[torch.Tensor] | tuple[torch.Tensor, ...],
    x: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
    y: torch.Tensor | None = None,
) -> torch.Tensor:
    """alpha (F1 (x) ... (x) FN) x + beta y.

    x: ``[..., P1 ... PN, M]`` or a vector, fs: ``[..., Q_i, P_i]``; the result is
    ``[..., Q1 ... QN, M]``. The rest: gemkm.
    """
    _check(x, fs, beta, y)
    z = _products.gekmm(fs, x, alpha, beta, y, x.dtype in _WIDE, _SHORT.get(x.dtype))
    return z if x.ndim > 1 else z.squeeze()


class MKM:
    """``MKM.apply(x, *fs)`` is ``gemkm(x, fs)``."""

    @staticmethod
    def apply(x: torch.Tensor, *fs: torch.Tensor) -> torch.Tensor:
        return gemkm(x, fs)


class KMM:
    """``KMM.apply(x, *fs)`` is ``gekmm(fs, x)``."""

    @staticmethod
    def apply(x: torch.Tensor, *fs: torch.Tensor) -> torch.Tensor:
        return gekmm(fs, x)


def _check(x: Any, fs: Any, beta: float, y: Any) -> None:
    _products.check(torch.Tensor, "Tensor", x, fs, (list, tuple), beta, y)
    device = x.device
    for tensor in fs if y is None else (*fs, y):
        if tensor.device != device:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found "
                f"{x.device} and {tensor.device}"
            )
