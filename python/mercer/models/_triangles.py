"""Inverses and squares of lower triangular matrices by products, which devices make at full speed.

A triangular solve there waits for one block of rows after the other, however many columns it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mercer as mc
from mercer.models._arrays import Space
from mercer.models._solve import add_diagonal

#: Rows at most of a triangle that is solved; of a block that is multiplied at a time.
LEAF, PANEL = 512, 2048


def triangular_inverse(lower: Any, space: Space) -> Any:
    """L^-1 in the memory of L [n, n], with zeros above the diagonal, where L may hold anything.

    By halves: the inverse of [[A, 0], [B, C]] is [[A^-1, 0], [-C^-1 (B A^-1), C^-1]].
    """
    unit = space.zeros(LEAF, LEAF)
    add_diagonal(unit, 1.0)
    _invert(lower, unit)
    return lower


def _invert(a: Any, unit: Any) -> None:
    n = a.shape[0]
    if n <= LEAF:
        a[:] = mc.linalg.solve_triangular(a, unit[:n, :n])
        return
    half = -(-n // LEAF) // 2 * LEAF
    first, last, below = a[:half, :half], a[half:, half:], a[half:, :half]
    _invert(first, unit)
    _invert(last, unit)
    a[:half, half:] = 0
    for own in _panels(half):  # no block of columns reads one to the left of it
        below[:, own] = below[:, own.start :] @ first[own.start :, own]
    for own in reversed(_panels(n - half)):  # no block of rows reads one below it
        below[own] = -(last[own, : own.stop] @ below[: own.stop])


def divided_by(lower: Any, space: Space, by_products: bool) -> Callable[[Any, bool], Any]:
    """L^-1 v, or L^-T v where the second argument says so, for many calls.

    by_products: with an explicit inverse, in the memory of L. What it leaves of v is of the order
    of L's condition, 1e-10 of v where a kernel matrix is singular but for rounding.
    """
    if not by_products:
        return lambda v, transposed: mc.linalg.solve_triangular(lower, v, transposed=transposed)
    inverse = triangular_inverse(lower, space)
    return lambda v, transposed: (inverse.T if transposed else inverse) @ v


def transposed_times_self(lower: Any, out: Any) -> Any:
    """L^T L [n, n] in out, which may be L itself: no block of rows reads one above it.

    L has zeros above the diagonal.
    """
    for own in _panels(lower.shape[0]):
        out[own, : own.stop] = lower[own.start :, own].T @ lower[own.start :, : own.stop]
        out[: own.start, own] = out[own, : own.start].T
    return out


def _panels(n: int) -> list[slice]:
    return [slice(start, min(start + PANEL, n)) for start in range(0, n, PANEL)]
