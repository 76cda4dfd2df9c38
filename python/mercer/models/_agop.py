"""The average gradient outer product of a kernel expansion, and metrics made of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel

_BLOCK = 2**24  # numbers of stored gradients at a time


def outer_products(kernel: FittedKernel, rows: Any, points: Any, coef: Any, space: Space, *,
                   weights: Any = None, center: bool = False) -> np.ndarray:  # fmt: skip
    """sum_i w_i g_i g_i^T over the gradients g_i at ``rows`` [m, d] of all functions coef [n, k].

    Points and rows are as the formula sees them. center: the gradients' mean is taken away first.
    """
    assert kernel.formula is not None  # what has gradients is no precomputed matrix
    columns = space.array(coef.T)
    if weights is None and not center:
        z = None if rows is points else points
        found = mc.kernel_agop(kernel.formula, rows, z, columns, **kernel.params)
        return np.asarray(host(found), np.float64)
    wide, d = space.of("float64"), rows.shape[1]
    total, sums, count = wide.zeros(d, d), wide.zeros(d), 0.0
    step = max(1, _BLOCK // (d * columns.shape[0]))
    for start in range(0, rows.shape[0], step):
        block = rows[start : start + step]
        g = mc.kernel_gradient(kernel.formula, block, points, columns, **kernel.params)
        w = space.zeros(block.shape[0]) + 1 if weights is None else weights[start : start + step]
        weighted = g * w[None, :, None]
        total += wide.array(space.xp.einsum("omk,oml->kl", weighted, g))
        sums += wide.array(weighted.sum(0).sum(0))
        count += float(wide.array(w).sum()) * columns.shape[0]
    if center:
        total -= sums[:, None] * sums / count
    return np.asarray(host(total), np.float64)


def metric_root(products: np.ndarray, root: np.ndarray, groups: np.ndarray,
                power: float) -> np.ndarray | None:  # fmt: skip
    """What points are multiplied with next: (M / max M)^power, M = S G S of the root S so far.

    products: G [d, d] of gradients by mapped points. root: S [d, d], or its diagonal [d], and the
    result is alike. Between different groups of features M is 0. None where all of M is.
    """
    m = products * root[:, None] * root if root.ndim == 1 else root @ products @ root
    m = np.diag(m).copy() if root.ndim == 1 else m * (groups[:, None] == groups)
    top = m.max()
    if not top > 0:
        return None
    m = m / top
    if m.ndim == 1:
        return np.maximum(m, 0) ** power
    values, vectors = np.linalg.eigh((m + m.T) / 2)
    values = np.where(values > values[-1] * len(m) * 1e-15, values, 0)
    return (vectors * values**power) @ vectors.T
