"""Randomly pivoted Cholesky by blocks, for operators whose rows are not in one place.

Points are drawn in proportion to what is left of the diagonal, some at a time, and a block of them
is gone through by rejection, so that the pivots are as if drawn one after the other (Epperly,
Tropp, Webber, 2024). Blocks are small matrices of float64 in NumPy; the caller has the long ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mercer import _mercer
from mercer.errors import LinAlgError

_VERB = "rpcholesky"


def block_of(block: int | str, rank: int) -> int:
    """How many points are drawn at a time."""
    if block == "auto":
        return min(max(rank // 8, 16), 128)
    if isinstance(block, (bool, str)) or block < 1:
        raise ValueError(f'{_VERB}: block must be positive or "auto". Received {block!r}.')
    return int(block)


def check(rank: int, ridge: float, reads_indices: bool) -> None:
    if rank < 1:
        raise ValueError(f"{_VERB}: rank must be positive. Received {rank}.")
    if not 0 < ridge < np.inf:
        raise ValueError(f"{_VERB}: ridge must be positive and finite. Received {ridge}.")
    if reads_indices:
        raise NotImplementedError(
            f"{_VERB}: is not offered for formulas that read indices. Received one"
        )


class Draws:
    """What is left of the diagonal, and the random numbers; equal wherever they are equal."""

    def __init__(self, diagonal: Any, rounding: float, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.largest = float(diagonal.max(initial=0))
        self.least = rounding * self.largest  # what is below is nothing
        self.tolerance = 1e5 * rounding * self.largest
        self.left = self._checked(diagonal)

    def _checked(self, left: Any) -> Any:
        if not np.isfinite(left).all():
            raise LinAlgError(f"{_VERB}: a must be finite. Received NaN or infinity.")
        if (left < -self.tolerance).any():
            raise LinAlgError(
                f"{_VERB}: a without its ridge must be positive semi-definite. Received one with "
                f"{left.min():.3g} left of its diagonal."
            )
        return np.maximum(left, 0)

    @property
    def is_used_up(self) -> bool:
        return bool(self.left.sum() <= self.least * len(self.left))

    def proposed(self, block: int) -> Any:
        """Points, which may be the same ones."""
        sums = np.cumsum(self.left)
        places = np.searchsorted(sums, self.random.uniform(size=block) * sums[-1], side="right")
        return np.minimum(places, len(sums) - 1)

    def accepted(self, proposed: Any, square: Any, most: int) -> tuple[Any, Any]:
        """Which of them are pivots, and Cholesky's factor of those: of the square [b, b] that is
        left of a between them."""
        least = np.maximum(
            self.random.uniform(size=len(proposed)) * self.left[proposed], self.least
        )
        rest, found = square.copy(), list[int]()
        for i, bound in enumerate(least):
            if len(found) < most and rest[i, i] > bound:
                column = rest[:, i] / np.sqrt(rest[i, i])
                rest -= np.outer(column, column)
                found.append(i)
        chosen = square[np.ix_(found, found)]
        return np.array(found, int), np.linalg.cholesky(chosen) if found else chosen

    def take(self, pivots: Any, left: Any) -> None:
        self.left = self._checked(left)
        self.left[pivots] = 0


def factor(
    draws: Draws, rank: int, block: int, square_of: Callable[[Any], Any],
    columns_of: Callable[[Any], Any],
) -> Any:  # fmt: skip
    """Columns L [n, r] of Cholesky's factor, in NumPy: square_of(points) is the matrix between some
    points, columns_of(points) are its columns."""
    left = draws.left.copy()
    lower = np.zeros((len(left), 0))
    for _ in range(4 * rank + 16):
        if lower.shape[1] >= rank or draws.is_used_up:
            break
        proposed = draws.proposed(block)
        known = lower[proposed]
        square = square_of(proposed) - known @ known.T
        taken, small = draws.accepted(proposed, (square + square.T) / 2, rank - lower.shape[1])
        if len(taken):
            columns = columns_of(proposed[taken]) - lower @ known[taken].T
            fresh = np.linalg.solve(small, columns.T).T
            lower, left = np.concatenate([lower, fresh], 1), left - (fresh**2).sum(1)
            draws.take(proposed[taken], left)
            left = draws.left.copy()
    return lower


def preconditioner(lower: Any, ridge: float, dtype: Any) -> Any:
    """L L^T + ridge of NumPy's arrays."""
    rounding = np.finfo(dtype).eps
    turned, small = np.linalg.qr(lower)
    vectors, roots, _ = np.linalg.svd(small)
    kept = roots**2 > rounding * max(roots.max(initial=0) ** 2, ridge)
    rows = np.ascontiguousarray((turned @ vectors[:, kept]).T, dtype)
    if not kept.any():
        rows = np.zeros((1, len(lower)), dtype)
    values = (roots[kept] ** 2).tolist()
    like = np.zeros((0, 0), dtype)
    return _mercer.restored_preconditioner(
        rows, values, [ridge], 0.0, False, 1 - 32 * float(rounding), like
    )
