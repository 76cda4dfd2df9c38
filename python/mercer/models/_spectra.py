"""The top of a centred or normalised kernel matrix, by products where few pairs are asked for."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import mercer as mc
from mercer._progress import between
from mercer.models._arrays import Space, host
from mercer.models._kernels import FittedKernel
from mercer.models._memory import free
from mercer.models._products import is_shared, operator

_TOLERANCES = {"float64": 1e-12, "float32": 2e-6}


def by_products_pay(k: int, n: int) -> bool:
    """Whether k of n eigenpairs take less by products than by a factorisation."""
    return n >= 200 and k <= n // 20


def without_diagonal(kernel: FittedKernel) -> FittedKernel:
    """The kernel, and 0 for a point and itself."""
    assert kernel.formula is not None
    formula = mc.where(mc.i != mc.j, kernel.formula, 0.0)
    return FittedKernel(mc.kernel(formula), kernel.params, kernel.bandwidth)


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
    products = by_products_pay(k, n) if by_products is None else by_products and k < n
    products = products or is_shared(x)
    with between(0, 0.1, "means", is_one_call=True):
        means = space.array(kernel.product(x, x, space.zeros(n) + 1 / n))
    shift = means - means.sum() / (2 * n)
    if kernel.formula is None:
        matrix = space.array(x - shift - shift[:, None])
    else:
        centred = mc.kernel(kernel.formula - mc.row - mc.col)
        matrix = operator(centred, x, row=shift, col=shift, **kernel.params)
    with between(0.1, 1, f"{k} eigenpairs"):
        values, vectors = _top(matrix, k, products, tol, seed, space)
    order = space.index(np.arange(k)[::-1].copy())
    return host(values)[::-1].copy(), vectors[:, order], means


def normalised_top(
    kernel: FittedKernel, x: Any, k: int, space: Space, *, tol: float = 0, seed: int = 0
) -> tuple[Any, Any]:
    """(vectors [n, k] of the k largest eigenvalues of D^(-1/2) K D^(-1/2), descending, roots [n]
    of D), where K has the diagonal 0 and D is the diagonal of its row sums; 1 for sums of 0.

    Raises ValueError for negative sums.
    """
    n = x.shape[0]
    if kernel.precomputed:
        matrix = space.array(x + 0)
        matrix.reshape(-1)[:: n + 1] = 0
        sums = matrix.sum(0)
    else:
        off = without_diagonal(kernel)
        with between(0, 0.1, "row sums", is_one_call=True):
            sums = space.array(off.product(x, x, space.zeros(n) + 1))
    if float(sums.min()) < 0:
        raise ValueError("affinities: their sums over the other points must not be negative")
    if float(sums.min()) == 0:
        warnings.warn(
            "Graph is not fully connected, spectral embedding may not work as expected.",
            stacklevel=6,
        )
    sums = space.array(sums + (sums == 0))
    roots, products = space.xp.sqrt(sums), by_products_pay(k, n) or is_shared(x)
    if kernel.precomputed:
        matrix = matrix / roots / roots[:, None]
    else:
        matrix = operator(off.formula, x, weights=1 / sums, **off.params)
    with between(0.1, 1, f"{k} eigenpairs"):
        vectors = _top(matrix, k, products, tol, seed, space)[1]
    return vectors[:, space.index(np.arange(k)[::-1].copy())], roots


def _top(a: Any, k: int, products: bool, tol: float, seed: int, space: Space) -> tuple[Any, Any]:
    """(values [k], vectors [n, k]) of the largest eigenvalues of a matrix or operator, ascending.

    Where products do not meet the tolerance, as among eigenvalues that nearly agree, the matrix is
    factored, if there is memory for it. LinAlgError, or MemoryError, where there is none.
    """
    tol = tol or _TOLERANCES[space.dtype]
    n = a.shape[0]
    if products:
        found, missed = mc.linalg.eigh_top(a, k, tol=tol, seed=seed, check=False)
        if not missed:
            return found
        if not isinstance(a, mc.linalg.KernelOperator) and not hasattr(a, "reshape"):
            raise mc.LinAlgError(
                f"{missed} of {k} eigenpairs miss the tolerance {tol:g} by products. A larger tol "
                "or kernel width helps"
            )
    needed, available = 2 * n * n * np.dtype(space.dtype).itemsize, free(space)
    if needed > available and products:
        raise mc.LinAlgError(
            f"{missed} of {k} eigenpairs miss the tolerance {tol:g} by products, and a matrix of "
            f"{n} points does not fit into memory. A larger tol or kernel width helps"
        )
    if needed > available:
        raise MemoryError(
            f"a factorisation of {n} points needs {needed / 2**30:.3g} GiB, where "
            f"{available / 2**30:.3g} GiB are free. Up to {n // 20} components store no matrix"
        )
    matrix = a.rows(slice(None)) if isinstance(a, mc.linalg.KernelOperator) else a
    return mc.linalg.eigh(matrix, overwrite_a=True, subset_by_index=(n - k, n - 1))


def flipped(vectors: Any) -> Any:
    """Columns with the sign that makes their entry of the largest magnitude positive."""
    values = host(vectors)
    largest = values[np.abs(values).argmax(0), np.arange(values.shape[1])]
    return values * np.where(largest < 0, -1, 1).astype(values.dtype)
