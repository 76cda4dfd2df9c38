"""Products with kernel matrices of points in memory, in chunks, or shared by ranks.

Under a team of ranks (`_ranks`) every rank takes some of the rows; of arrays of Dask products are
lazy, operators are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import mercer as mc
from mercer.models import _ranks
from mercer.models._arrays import host
from mercer.models._spread import kind_of


def kernel_product(f: Any, x: Any, z: Any, v: Any, **options: Any) -> Any:
    """The matrix of x [m, d] and z [n, d], x where None, times v: [m, k] for [n, k]."""
    if "dask" in (kind_of(x), kind_of(z)):
        from mercer import dask

        return dask.kernel_product(f, x, z, v, **options)
    team = _ranks.current()
    if team is None:
        return mc.kernel_product(f, x, z, v, **options)
    return team.product(f, x, z, v, **options)


def knn(f: Any, x: Any, z: Any, k: int, **options: Any) -> tuple[Any, Any]:
    """(distances, indices) [m, k] of the nearest points z [n, d] of x [m, d]."""
    if "dask" in (kind_of(x), kind_of(z)):
        from mercer import dask

        return dask.knn(f, x, z, k, **options)
    return mc.knn(f, x, z, k=k, **options)


def logsumexp(f: Any, x: Any, z: Any, **options: Any) -> Any:
    """log sum_n exp(f(x_m, z_n)), [m], of points of which some are in chunks."""
    from mercer import dask

    return dask.kernel_reduce(f, x, z, "logsumexp", **options)


def operator(f: Any, x: Any, **options: Any) -> Any:
    """The KernelOperator of points x [n, d], whose products the ranks of a team share."""
    team = _ranks.current()
    whole = mc.linalg.KernelOperator(f, x, **options)
    return whole if team is None else _ranks.Shared(team, whole, f, x, **options)


def gradient_sums(f: Any, x: Any, left: Any, right: Any, space: Any) -> np.ndarray:
    """sum over i of x_i times the gradient by x_i of sum_ij f(x_i, x_j) left_i . right_j: [d]."""
    if kind_of(x) == "dask":
        from mercer.models import _chunks

        return _chunks.gradient_sums(f, x, left, right)
    team = _ranks.current()
    if team is None:
        by_x = mc.parameter_gradient(f, x, weights=(left, right), by="x")["x"]
    else:
        by_x = team.gradient(f, x, left, right)
    return np.asarray(host(space.of("float64").array(x * by_x).sum(0)))


def is_shared(x: Any) -> bool:
    """Whether products with x alone are offered: the matrix would be in one memory."""
    return kind_of(x) == "dask" or _ranks.current() is not None
