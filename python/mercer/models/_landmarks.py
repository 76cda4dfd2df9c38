"""Landmarks by randomly pivoted Cholesky: points drawn by what the ones before left unexplained."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer._progress import current
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel

_BLOCK = 64


def rpcholesky_landmarks(
    kernel: FittedKernel, x: Any, count: int, rng: np.random.RandomState, space: Space
) -> np.ndarray:
    """``count`` different rows of x [n, d], or of a kernel matrix x [n, n], in int64.

    Pivots have the law of one draw after another, each proportional to the diagonal of K - F F^T:
    a block is drawn by the diagonal before it, and a pivot of it accepted with the share that the
    block's earlier ones left of its diagonal. Points that add nothing are drawn uniformly.
    Source: Epperly, Tropp & Webber, Embrace rejection, 2024.
    """
    n = x.shape[0]
    left = np.maximum(host(kernel.diagonal(x)).astype(np.float64), 0)
    start, factor, chosen = left.sum(), np.empty((count, n)), np.empty(0, np.int64)
    floor = n * np.finfo(np.float64).eps
    bar = current()
    while len(chosen) < count and left.sum() > floor * start:
        if bar is not None:
            bar.step(len(chosen) / count, f"{len(chosen)} of {count} landmarks")
        drawn = rng.choice(n, _BLOCK, p=left / left.sum())
        known = factor[: len(chosen)]
        block = _rows(kernel, x, drawn, space)[:, drawn] - known[:, drawn].T @ known[:, drawn]
        kept = drawn[_accepted(block, left[drawn], rng)][: count - len(chosen)]
        if not len(kept):  # rounding is all that these have left
            left[drawn] = 0
            continue
        new = _rows(kernel, x, kept, space) - known[:, kept].T @ known
        root = np.linalg.cholesky(new[:, kept])
        new = np.linalg.solve(root, new)
        factor[len(chosen) : len(chosen) + len(kept)] = new
        left = np.maximum(left - np.square(new).sum(0), 0)
        chosen = np.concatenate([chosen, kept])
        left[chosen] = 0
    rest = np.setdiff1d(np.arange(n), chosen)
    return np.concatenate([chosen, rng.permutation(rest)[: count - len(chosen)]])


def _rows(kernel: FittedKernel, x: Any, rows: np.ndarray, space: Space) -> np.ndarray:
    """Rows [k, n] of the kernel matrix on the host."""
    picked = space.array(x[space.index(rows)])
    return host(picked if kernel.precomputed else kernel.matrix(picked, x)).astype(np.float64)


def _accepted(block: np.ndarray, before: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Which of the drawn points stay; block: their residual matrix, overwritten."""
    floor = 1e-10 * before  # below it a duplicate in all but rounding
    kept = []
    for i in range(len(block)):
        if block[i, i] > floor[i] and rng.uniform() * before[i] < block[i, i]:
            kept.append(i)
            column = block[i:, i] / np.sqrt(block[i, i])
            block[i:, i:] -= np.outer(column, column)
    return np.array(kept, np.int64)
