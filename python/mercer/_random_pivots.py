"""Randomly pivoted Cholesky by blocks, for operators whose rows are not in one place.

Points are drawn in proportion to what is left of the diagonal, some at a time, and a block of them
is gone through by rejection, so that the pivots are as if drawn one after the other (Epperly,
Tropp, Webber, 2024). Blocks are small matrices of float64 in NumPy; the caller has the long ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
        rest, found = square.copy(), []
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
