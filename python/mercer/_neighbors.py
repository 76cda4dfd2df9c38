"""Graphs of neighbours as sparse matrices by rows (CSR): within a radius, or the k nearest."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer import _array_likes, _edges, _groups, _verbs
from mercer._types import ArrayT, FormulaLike, Parameter
from mercer._vectors import numbers

__all__ = ["knn_graph", "radius_neighbors"]

# Pairs whose values are stored at a time.
_BLOCK = 1 << 22


def radius_neighbors(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None,
    radius: float,
    *,
    row: ArrayT | None = None,
    col: ArrayT | None = None,
    w: ArrayT | None = None,
    **params: Parameter,
) -> tuple[Any, Any, ArrayT]:
    """All pairs whose value is at most the radius, as CSR: (indptr, indices, values).

    x: [M, K]; z: [N, K], or None for x itself, whose points then find themselves too. indptr
    [M + 1] and indices [nnz] are int64, indices of a row ascend; values [nnz] have the computing
    dtype and are those of ``pairwise``. Exact for any formula; all pairs are computed, and those of
    some rows are stored at a time. NaN is no neighbour. Arrays of NumPy and PyTorch; tensors that
    autograd follows have values that it follows. Errors: those of ``pairwise``; ValueError for
    points with leading axes and for a radius that is no number.

    >>> indptr, indices, d = mc.radius_neighbors("euclidean", atoms, None, 4.5)
    """
    given: dict[str, Any] = {"f": f, "x": x, "z": z, "row": row, "col": col, "w": w}
    given, params = numbers.separated("radius_neighbors", given, params)
    if _array_likes.is_grouped(given):
        given = _groups.arguments("radius_neighbors", given)
    f, x, z, row, col, w = (given[name] for name in ("f", "x", "z", "row", "col", "w"))
    points: Any = _array_likes.points("radius_neighbors", *((x,) if z is None else (x, z)))
    first, columns = points[0], points[-1]
    xp = _edges.module_of(first, "radius_neighbors")
    if first.ndim != 2 or not isinstance(radius, (int, float, np.floating, np.integer)):
        raise ValueError(
            "radius_neighbors: x must have the shape [M, K] and radius must be a number. Received "
            f"{tuple(first.shape)} and {radius!r}"
        )
    step = max(1, _BLOCK // max(columns.shape[0], 1))
    options: dict[str, Any] = {**params, "col": col, "w": w}
    if options.pop("out", None) is not None:
        raise NotImplementedError("radius_neighbors: out is not offered. Received one")
    own: Any = row
    counts: Any = []
    indices: Any = []
    values: Any = []
    for start in range(0, max(first.shape[0], 1), step):
        part = None if row is None else own[start : start + step]
        rows = first[start : start + step]
        block = _verbs.pairwise(f, rows, columns, row=part, i_offset=start, **options)
        if block.ndim != 2:
            raise ValueError(
                "radius_neighbors: points, row, col, w and parameters must have no leading axes. "
                f"Received ones that make values of the shape {tuple(block.shape)}"
            )
        near = block <= radius
        counts.append(near.sum(-1))
        indices.append(xp.nonzero(near, **_AS_TUPLE.get(xp.__name__, {}))[1])
        values.append(block[near])
    counts, indices, values = (xp.concatenate(parts) for parts in (counts, indices, values))
    return _pointers(counts, xp), indices, values


_AS_TUPLE: dict[str, dict[str, bool]] = {"torch": {"as_tuple": True}}


def _pointers(counts: Any, xp: Any) -> Any:
    if _edges.is_torch(xp):
        return xp.nn.functional.pad(counts.cumsum(0), (1, 0))
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def knn_graph(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None,
    k: int,
    **options: Any,
) -> tuple[Any, Any, ArrayT]:
    """The k nearest points of each point, as CSR: (indptr, indices, values).

    x: [M, K]; z: [N, K], or None for x itself, whose points then find themselves first. indptr
    [M + 1] and indices [M k] are int64; the entries of a row ascend by value, ties by index. The
    options, parameters and errors are those of ``knn``; ValueError for points with leading axes.

    >>> a = scipy.sparse.csr_matrix(mc.knn_graph("euclidean", x, None, 8)[::-1], (n, n))
    """
    found: Any = _verbs.knn(f, x, z, k, **options)
    values, indices = found
    if values.ndim != 2:
        raise ValueError(
            f"knn_graph: x must have the shape [M, K]. Received neighbours of the shape "
            f"{tuple(values.shape)}"
        )
    xp = _edges.module_of(values, "knn_graph")
    rows = values.shape[0]
    if _edges.is_torch(xp):
        indptr = xp.arange(rows + 1, device=values.device) * k
    else:
        indptr = np.arange(rows + 1, dtype=np.int64) * k
    return indptr, indices.reshape(-1), values.reshape(-1)
