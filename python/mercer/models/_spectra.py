"""The top of a centred kernel matrix, by products where few eigenpairs are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel

_TOLERANCES = {"float64": 1e-12, "float32": 2e-6}


def by_products_pay(k: int, n: int) -> bool:
    """Whether k of n eigenpairs take less by products than by a factorisation."""
    return n >= 200 and k <= n // 20


def centred_top(
    kernel: FittedKernel,
    x: Any,
    k: int,
    space: Space,
    *,
    tol: float = 0,
    by_products: bool | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, Any, Any]:
    """The k largest eigenvalues of H K H, descending, on the host, their vectors [n, k], and the
    means of K's rows [n]; H takes the mean away."""
    n = x.shape[0]
    if by_products is None:
        by_products = by_products_pay(k, n)
    matrix = kernel.matrix(x)
    means = matrix.sum(0) / n
    matrix -= means
    matrix -= (means - means.sum() / n)[:, None]
    if by_products and k < n:
        values, vectors = mc.linalg.eigh_top(
            matrix, k, tol=tol or _TOLERANCES[space.dtype], seed=seed
        )
    else:
        values, vectors = mc.linalg.eigh(matrix, overwrite_a=True, subset_by_index=(n - k, n - 1))
    order = space.index(np.arange(k)[::-1].copy())
    return host(values)[::-1].copy(), vectors[:, order], means


def normalised_top(
    kernel: FittedKernel, x: Any, k: int, space: Space, *, tol: float = 0, seed: int = 0
) -> tuple[Any, Any]:
    """(vectors [n, k] of the k largest eigenvalues of D^(-1/2) K D^(-1/2), descending, roots [n]
    of D), where K has the diagonal 0 and D is the diagonal of its row sums; 1 for sums of 0."""
    n = x.shape[0]
    matrix = kernel.matrix(x)
    matrix.reshape(-1)[:: n + 1] = 0
    roots = space.xp.sqrt(matrix.sum(0))
    roots = space.array(roots + (roots == 0))
    matrix /= roots
    matrix /= roots[:, None]
    if by_products_pay(k, n):
        vectors = mc.linalg.eigh_top(matrix, k, tol=tol or _TOLERANCES[space.dtype], seed=seed)[1]
    else:
        vectors = mc.linalg.eigh(matrix, overwrite_a=True, subset_by_index=(n - k, n - 1))[1]
    return vectors[:, space.index(np.arange(k)[::-1].copy())], roots


def flipped(vectors: Any) -> Any:
    """Columns with the sign that makes their entry of the largest magnitude positive."""
    values = host(vectors)
    largest = values[np.abs(values).argmax(0), np.arange(values.shape[1])]
    return values * np.where(largest < 0, -1, 1).astype(values.dtype)
