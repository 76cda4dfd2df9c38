"""Binary trees of half-spaces: rows are split until few are left together, points find leaves.

A split sends a point left where its projection onto a direction is at most a number. A temperature
T > 0 softens that: the left side's share is the logistic function of (number - projection) /
(T scale), with the projections' interquartile range for the scale, and a leaf's share the product
along its path (xRFM's way; Beaglehole, Holzmüller, Radhakrishnan, Belkin, "xRFM: accurate,
scalable, and interpretable feature learning models for tabular data", 2025).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mercer.models._arrays import Space, host

#: What temperatures are tried: 0 is that of hard splits.
TEMPERATURES = (0.0, *np.geomspace(0.025, 4.5, 20))
_KEPT, _MOST = 0.99, 12  # of a point's shares, and leaves at most
_BLOCK = 2**22  # numbers of a table of points by leaves at a time
_DIRECTIONS = 16  # that are tried for a gap at most


@dataclass(frozen=True)
class Split:
    direction: np.ndarray  # [d]
    point: float
    scale: float


@dataclass(frozen=True)
class Tree:
    """Splits in an order where each comes before those below it."""

    splits: list[Split]
    children: list[tuple[int, int]]  # left and right: a split's number, or ~ a leaf's

    @property
    def n_leaves(self) -> int:
        return len(self.splits) + 1

    def routes(self, x: Any, temperature: float,
               space: Space) -> list[tuple[np.ndarray, np.ndarray]]:  # fmt: skip
        """(row numbers of x [m, d], their shares) for each leaf; a row's shares sum to 1."""
        directions = space.array(np.stack([split.direction for split in self.splits], 1))
        step = max(1, _BLOCK // self.n_leaves)
        found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(self.n_leaves)]
        for start in range(0, x.shape[0], step):
            projections = host(x[start : start + step] @ directions).astype(np.float64)
            table = self.shares(projections, temperature)
            for leaf, column in zip(found, table.T, strict=True):
                rows = np.flatnonzero(column)
                leaf.append((rows + start, column[rows]))
        return [(np.concatenate(rows), np.concatenate(shares)) for rows, shares in
                (zip(*leaf, strict=True) for leaf in found)]  # fmt: skip

    def shares(self, projections: np.ndarray, temperature: float) -> np.ndarray:
        """[m, leaves] for projections [m, splits], the small ones cut off."""
        reach = np.zeros((len(self.splits), len(projections)))
        leaves = np.empty((self.n_leaves, len(projections)))
        for i, (split, children) in enumerate(zip(self.splits, self.children, strict=True)):
            for child, share in zip(children, _sides(split, projections[:, i], temperature),
                                    strict=True):  # fmt: skip
                (reach if child >= 0 else leaves)[max(child, ~child)] = reach[i] + share
        table = np.exp(leaves.T)
        return table if temperature == 0 else _largest(table)


def _sides(split: Split, projections: np.ndarray, temperature: float) -> tuple[Any, Any]:
    """Logarithms of the shares of left and right."""
    beyond = projections - split.point
    if temperature == 0:
        with np.errstate(divide="ignore"):
            return np.log(beyond <= 0), np.log(beyond > 0)
    z = beyond / (temperature * split.scale)
    return -np.logaddexp(0, z), -np.logaddexp(0, -z)


def _largest(table: np.ndarray) -> np.ndarray:
    """The largest shares of each row that together have ``_KEPT`` of it, made to sum to 1."""
    table = table / table.sum(1, keepdims=True)
    order = np.argsort(-table, axis=1, kind="stable")
    ordered = np.take_along_axis(table, order, 1)
    kept = np.cumsum(ordered, 1) - ordered < _KEPT
    kept[:, _MOST:] = False
    mask = np.empty_like(kept)
    np.put_along_axis(mask, order, kept, 1)
    table = np.where(mask, table, 0)
    return table / table.sum(1, keepdims=True)


def grow(x: Any, order: np.ndarray, limit: int, directions: Callable[[np.ndarray], np.ndarray],
         space: Space, overlap: float = 0.0) -> tuple[Tree, list[np.ndarray]]:  # fmt: skip
    """(the tree, row numbers of each leaf, at most ``limit``) for rows ``order`` of x [n, d].

    directions(rows): [d, c], the first one first. Rows keep the order that they are given in.
    overlap: that of ``cut``.
    """
    splits: list[Split] = []
    children: list[tuple[int, int]] = []
    leaves: list[np.ndarray] = []

    def visit(rows: np.ndarray) -> int:
        if len(rows) <= limit:
            leaves.append(rows)
            return ~(len(leaves) - 1)
        made, left, right = cut(x, rows, directions(rows), space, overlap)
        here = len(splits)
        splits.append(made)
        children.append((0, 0))
        children[here] = (visit(rows[left]), visit(rows[right]))
        return here

    visit(order)
    return Tree(splits, children), leaves


def cut(x: Any, rows: np.ndarray, directions: np.ndarray, space: Space,
        overlap: float = 0.0) -> tuple[Split, np.ndarray, np.ndarray]:  # fmt: skip
    """A split of these rows near their median, and masks of those on its left and on its right.

    It lies in a gap between projections, the one nearest to the median. A direction without one in
    the middle half gives way to the next; without any, rows of one projection are on both sides.
    overlap: the part of the rows on either side, next to the split, that both masks have, up to a
    gap within the middle half.
    """
    n = len(rows)
    first: Any = None
    low = max(1, n // 4)
    for direction in directions.T[:_DIRECTIONS]:
        p = _projections(x, rows, direction, space)
        order = np.argsort(p, kind="stable")
        values = p[order]
        equal = 8 * float(np.finfo(space.dtype).eps) * max(abs(values[0]), abs(values[-1]))
        gaps = np.flatnonzero(values[low : n - low + 1] - values[low - 1 : n - low] > equal) + low
        first = first or (direction, values, order)
        if len(gaps):
            at = int(gaps[np.argmin(abs(gaps - n / 2))])
            near = gaps[abs(gaps - at) <= round(overlap * n)]
            return _at(direction, values, order, at, (int(near[0]), int(near[-1])))
    direction, values, order = first
    return _at(direction, values, order, n // 2, (n // 2, n // 2))


def _projections(x: Any, rows: np.ndarray, direction: np.ndarray, space: Space) -> np.ndarray:
    step, column = max(1, _BLOCK // len(direction)), space.array(direction)
    blocks = (space.index(rows[i : i + step]) for i in range(0, len(rows), step))
    return np.concatenate([host(x[block] @ column).astype(np.float64) for block in blocks])


def _at(direction: np.ndarray, values: np.ndarray, order: np.ndarray, at: int,
        shared: tuple[int, int]) -> tuple[Split, np.ndarray, np.ndarray]:  # fmt: skip
    """A split at a place in the order; shared: the places between which rows are on both sides."""
    left, right = np.zeros(len(order), bool), np.ones(len(order), bool)
    left[order[: shared[1]]] = True
    right[order[: shared[0]]] = False
    quarters = np.quantile(values, [0.25, 0.75])
    spreads = (quarters[1] - quarters[0], values[at] - values[at - 1], values[-1] - values[0], 1.0)
    scale = next(spread for spread in spreads if spread > 0)
    split = Split(np.asarray(direction), (values[at - 1] + values[at]) / 2, float(scale))
    return split, left, right


def best_temperature(tree: Tree, x: np.ndarray, table: np.ndarray, y: np.ndarray,
                     weights: np.ndarray | None) -> float:  # fmt: skip
    """That of the least squared error for y [m, k] at x, from what leaves say, [leaves, m, k]."""
    projections = np.asarray(x, np.float64) @ np.stack([s.direction for s in tree.splits], 1)
    errors = []
    for temperature in TEMPERATURES:
        shares = tree.shares(projections, temperature)
        rest = (np.einsum("ml,lmk->mk", shares, table) - y) ** 2
        errors.append(np.average(rest.sum(1), weights=weights))
    return float(TEMPERATURES[int(np.argmin(errors))])
