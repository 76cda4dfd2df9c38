"""What a solver found, looked at once more: products with random vectors, O(n^2) in all.

Libraries of this field have returned wrong eigenvectors and reported success; sums of eigenvalues
do not show that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mercer.errors import LinAlgError
from mercer.linalg.distributed._matrix import host, is_finite

if TYPE_CHECKING:
    from mercer.linalg.distributed._matrix import Matrix

__all__ = ["SolutionCheck", "finite_lower", "looked_at", "lower_product"]

_COLUMNS, _PROBES, _SLACK = 256, 2, 100


def finite_lower(a: Matrix) -> bool:
    """Whether the lower triangle of this process's shards has no NaN and no infinity."""
    return all(
        is_finite(part) if mask is None else bool((_finite(part) | ~mask).all())
        for _, _, part, mask in _lower(a)
    )


def lower_product(a: Matrix, v: np.ndarray) -> np.ndarray:
    """a v of the symmetric matrix whose lower triangle a holds, on every rank, in float64."""
    result = np.zeros(v.shape)
    for rows, cols, part, mask in _lower(a):
        below = None if mask is None else rows[:, None] > cols
        result[rows] += _times(part, v[cols], mask)
        result[cols] += _times(part, v[rows], below, transposed=True)
    return a.grid.board.total(result)


def product(a: Matrix, v: np.ndarray, transposed: bool = False) -> np.ndarray:
    """a v or a^T v on every rank, in float64."""
    result = np.zeros((a.shape[1 if transposed else 0], v.shape[1]))
    for rows, cols, part in _strips(a):
        to, of = (cols, rows) if transposed else (rows, cols)
        result[to] += _times(part, v[of], transposed=transposed)
    return a.grid.board.total(result)


def _times(
    part: Any, v: np.ndarray, mask: np.ndarray | None = None, transposed: bool = False
) -> Any:
    """(part * mask) v or its transpose times v in float64, where the part lies."""
    if hasattr(part, "isfinite"):
        values = part.double()
        values = values if mask is None else values * _there(mask, part)
        return host((values.mT if transposed else values) @ _there(v, part))
    values = part.astype(np.float64)
    values = values if mask is None else values * mask
    return (values.T if transposed else values) @ v


def _there(array: np.ndarray, part: Any) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(part.device)


def looked_at(a: Matrix, w: np.ndarray, v: Matrix) -> None:
    """Raises LinAlgError unless a v = v w and v^T v = 1 to the precision of LAPACK."""
    n, k = v.shape
    s = np.random.default_rng(0).standard_normal((k, _PROBES))
    vs = product(v, s)
    norm = a_norm(a) or 1.0
    residual = np.abs(lower_product(a, vs) - product(v, w[:, None] * s)).max(initial=0.0) / norm
    defect = np.abs(product(v, vs, transposed=True) - s).max(initial=0.0)
    limit = _SLACK * max(n, 10) * np.finfo(v.dtype).eps * float(np.linalg.norm(s))
    if not max(residual, defect) <= limit:
        raise LinAlgError(
            "eigh: the library's eigenvectors fail their check. Received a residual of "
            f"{residual:.1e} of the matrix and a defect of orthogonality of {defect:.1e}, where "
            f"{limit:.1e} is allowed."
        )


class SolutionCheck:
    """Whether a library solved a x = b, by products with random columns of b and x."""

    def __init__(self, verb: str, a: Matrix, b: Matrix) -> None:
        self._verb, self._a = verb, a
        self._s = np.random.default_rng(0).standard_normal((b.shape[1], _PROBES))
        self._right = product(b, self._s)

    def of(self, x: Matrix) -> None:
        """Raises LinAlgError unless the residual is that of a stable solver."""
        a, found = self._a, product(x, self._s)
        times = lower_product if self._verb == "solve_cholesky" else product
        norm = a_norm(a) if self._verb == "solve_cholesky" else _row_norm(a)
        residual = np.abs(times(a, found) - self._right).max(initial=0.0)
        scale = norm * np.abs(found).max(initial=0.0) + np.abs(self._right).max(initial=0.0)
        limit = _SLACK * max(a.shape[0], 10) * np.finfo(a.dtype).eps * scale
        if not residual <= limit:
            raise LinAlgError(
                f"{self._verb}: the library's solution fails its check. Received a residual of "
                f"{residual:.1e}, where {limit:.1e} is allowed."
            )


def _row_norm(a: Matrix) -> float:
    """The largest sum of magnitudes of a row."""
    sums = np.zeros((a.shape[0], 1))
    for rows, cols, part in _strips(a):
        sums[rows] += _times(abs(part), np.ones((len(cols), 1)))
    return float(a.grid.board.total(sums).max(initial=0.0))


def a_norm(a: Matrix) -> float:
    """The largest sum of magnitudes of a row of the symmetric matrix."""
    sums, ones = np.zeros((a.shape[0], 1)), np.ones((a.shape[0], 1))
    for rows, cols, part, mask in _lower(a):
        below = None if mask is None else rows[:, None] > cols
        sums[rows] += _times(abs(part), ones[cols], mask)
        sums[cols] += _times(abs(part), ones[rows], below, transposed=True)
    return float(a.grid.board.total(sums).max(initial=0.0))


def _lower(a: Matrix) -> Any:
    """(rows, columns, values, mask) of the lower triangle; no mask where all values count."""
    for rows, cols, part in _strips(a):
        first, past = np.searchsorted(rows, (cols[0], cols[-1] + 1))
        if past < len(rows):
            yield rows[past:], cols, part[past:], None
        if first < past:
            between = rows[first:past]
            yield between, cols, part[first:past], between[:, None] >= cols


def _strips(a: Matrix) -> Any:
    """(rows, columns, values) of this process's shards, some columns at a time."""
    for place, shard in zip(a.grid.places, a.shards, strict=True):
        rows, cols = a.layout.of(place)
        for start in range(0, len(cols) if len(rows) else 0, _COLUMNS):
            stop = min(start + _COLUMNS, len(cols))
            yield rows, cols[start:stop], shard[:, start:stop]


def _finite(part: Any) -> np.ndarray:
    return host(part.isfinite()) if hasattr(part, "isfinite") else np.isfinite(part)
