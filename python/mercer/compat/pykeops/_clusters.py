"""KeOps' helpers for block-sparse reductions, for arrays of NumPy or PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import mercer as mc

__all__ = [
    "cluster_ranges", "cluster_ranges_centroids", "from_matrix", "grid_cluster", "sort_clusters",
    "swap_axes",
]  # fmt: skip


def _host(array: Any) -> np.ndarray:
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)


def _like(values: Any, like: Any) -> Any:
    """An array of NumPy in the library of another and where it lies."""
    if not hasattr(like, "detach"):
        return values
    import torch

    return torch.as_tensor(np.ascontiguousarray(values), device=like.device)


def grid_cluster(x: Any, size: Any) -> Any:
    """Labels [M] from 0 on of the cells of a grid, of edge `size`, that points [M, D] lie in."""
    points = _host(x)
    cells = np.floor((points - points.min(0, keepdims=True)) / _host(size)).astype(np.int64)
    labels = np.unique(cells, axis=0, return_inverse=True)[1].reshape(-1)
    return _like(labels.astype(np.int32), x)


def sort_clusters(x: Any, lab: Any) -> tuple[Any, Any]:
    """An array, or each of a tuple of arrays, and the labels, sorted by label."""
    order = mc.cluster_ranges(lab)[0]
    arrays = x if isinstance(x, (tuple, list)) else (x,)
    taken = tuple(array[_like(order, array)] for array in arrays)
    return (taken if isinstance(x, (tuple, list)) else taken[0]), lab[_like(order, lab)]


def cluster_ranges(lab: Any, Nlab: Any = None) -> Any:
    """Where each cluster starts and ends among sorted points: [C, 2]."""
    counts = np.bincount(_host(lab)) if Nlab is None else _host(Nlab)
    ends = np.cumsum(counts)
    return _like(np.stack([ends - counts, ends], 1).astype(np.int32), lab)


def cluster_ranges_centroids(
    x: Any, lab: Any, weights: Any = None, min_weight: float = 1e-9
) -> tuple[Any, Any, Any]:
    """The intervals of clusters [C, 2], their weighted centroids [C, D] and weights [C].

    `lab` are labels from 0 on; points need not be sorted, but the intervals are of sorted ones."""
    labels, points = _host(lab).astype(np.int64), _host(x)
    counts = np.bincount(labels)
    shares = np.ones(len(labels)) if weights is None else _host(weights).reshape(-1)
    totals = np.maximum(np.bincount(labels, shares, len(counts)), min_weight)
    centroids = np.stack(
        [np.bincount(labels, shares * points[:, k], len(counts)) for k in range(points.shape[1])],
        -1,
    )
    centroids = (centroids / totals[:, None]).astype(points.dtype)
    kept = counts if weights is None else totals
    return cluster_ranges(lab), _like(centroids, x), _like(kept.astype(points.dtype), x)


def from_matrix(ranges_i: Any, ranges_j: Any, keep: Any) -> tuple[Any, ...]:
    """The six arrays of a block-sparse reduction, of a table [C, D] of blocks that are kept."""
    table = _host(keep).astype(bool)
    rows, columns = _host(ranges_i), _host(ranges_j)
    first = mc.block_ranges(rows, columns, table)
    second = mc.block_ranges(columns, rows, table.T)
    return tuple(_like(a.astype(np.int32), ranges_i) for a in (*first, *second))


def swap_axes(ranges: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """The ranges of the transposed reduction."""
    return None if ranges is None else (*ranges[3:], *ranges[:3])
