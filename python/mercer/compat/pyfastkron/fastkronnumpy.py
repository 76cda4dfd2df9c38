"""pyfastkron.fastkronnumpy on Mercer."""

from __future__ import annotations

import numpy as np

from mercer.compat.pyfastkron import _products

__all__ = ["gekmm", "gemkm"]

_WIDE = (np.float32, np.float64)
_SHORT = dict.fromkeys(
    map(np.dtype, ("int8", "uint8", "int16", "uint16")), (np.ndarray.astype, np.int32)
)


def gemkm(
    x: np.ndarray,
    fs: list[np.ndarray],
    alpha: float = 1.0,
    beta: float = 0.0,
    y: np.ndarray | None = None,
) -> np.ndarray:
    """alpha x (F1 (x) ... (x) FN) + beta y.

    x: ``[..., M, P1 ... PN]`` or a vector, fs: ``[..., P_i, Q_i]``, y: what broadcasts to the
    result ``[..., M, Q1 ... QN]``. Leading axes of x and the factors broadcast; factors share
    theirs. A vector of float32 or float64 is a matrix of one row; a factor with one axis is a
    column. Any strides. In other dtypes than float32 and float64 (float16 and whole numbers) alpha
    and beta round the result one after the other. Raises ValueError for types, dtypes and shapes.
    """
    _products.check(np.ndarray, "ndarray", x, fs, list, beta, y)
    if x.ndim == 1 and x.dtype in _WIDE:
        x = x[None]
    z = _products.gemkm(x, fs, alpha, beta, y, x.dtype in _WIDE, _SHORT.get(x.dtype))
    return z if x.ndim > 1 else z.squeeze()


def gekmm(
    fs: list[np.ndarray],
    x: np.ndarray,
    alpha: float = 1.0,
    beta: float = 0.0,
    y: np.ndarray | None = None,
) -> np.ndarray:
    """alpha (F1 (x) ... (x) FN) x + beta y.

    x: ``[..., P1 ... PN, M]`` or a vector, which is a matrix of one column, fs:
    ``[..., Q_i, P_i]``; the result is ``[..., Q1 ... QN, M]``. The rest: gemkm.
    """
    _products.check(np.ndarray, "ndarray", x, fs, list, beta, y)
    if x.ndim == 1 and x.dtype in _WIDE:
        x = x[:, None]
    z = _products.gekmm(fs, x, alpha, beta, y, x.dtype in _WIDE, _SHORT.get(x.dtype))
    return z if x.ndim > 1 else z.squeeze()
