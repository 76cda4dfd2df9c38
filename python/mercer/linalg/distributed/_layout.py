"""Which elements of a matrix lie where: block-cyclic layouts over a grid of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Layout", "grid_shape"]


@dataclass(frozen=True)
class Layout:
    """Blocks of ``block`` elements of a matrix of ``shape``, dealt out in turn over ``grid``.

    The first block lies on the rank ``source``. A block as large as the matrix lies on it alone.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    grid: tuple[int, int]
    source: tuple[int, int] = (0, 0)

    def indices(self, axis: int, place: int) -> np.ndarray:
        """The rows (axis 0) or columns of the ranks at ``place`` of that axis, ascending."""
        every = np.arange(self.shape[axis])
        turn = every // self.block[axis] + self.source[axis]
        return every[turn % self.grid[axis] == place]

    def of(self, rank: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of a rank."""
        return self.indices(0, rank[0]), self.indices(1, rank[1])

    def local_shape(self, rank: tuple[int, int]) -> tuple[int, int]:
        rows, cols = self.of(rank)
        return len(rows), len(cols)


def grid_shape(size: int) -> tuple[int, int]:
    """The factors (p, q) of size that are nearest to each other, p <= q."""
    p = next(p for p in range(int(size**0.5), 0, -1) if size % p == 0)
    return p, size // p
