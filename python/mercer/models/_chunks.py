"""Estimators on arrays of Dask: points in chunks, vectors of n numbers in NumPy's memory.

A model that was fitted to points in memory answers for each chunk of X alone. One whose fitted
points are in chunks has ``_parts(x)``, what the pairs of x and these give; its methods then take a
block of that in the place of points.
"""

from __future__ import annotations

import copy
import itertools
import operator
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np
from sklearn.utils.validation import assert_all_finite, check_is_fitted

from mercer import _dask_inputs
from mercer.models._spread import Ready, kind_of


def points_of(name: str, X: Any) -> da.Array:
    """Points [n, d] in chunks of whole rows, of known sizes."""
    return _dask_inputs.known_points(name, "X", X)


def refuse_infinite(X: da.Array, name: str) -> None:
    """scikit-learn's error, for a pass over the chunks."""
    if X.dtype.kind != "f" or bool(da.isfinite(X).all()):
        return
    spoilt = np.nan if bool(da.isnan(X).any()) else np.inf
    assert_all_finite(np.array([spoilt], X.dtype), input_name="X", estimator_name=name)


def finite(X: da.Array, name: str) -> da.Array:
    """X, whose chunks are looked at when they are computed."""
    return X.map_blocks(_finite, name, dtype=X.dtype, meta=X._meta)


def _finite(block: Any, name: str) -> Any:
    if isinstance(block, np.ndarray):
        assert_all_finite(block, input_name="X", estimator_name=name)
    return block


def answered(model: Any, method: Callable[..., Any], X: Any, rest: dict[str, Any]) -> Any:
    """The method's answers for X: lazily for an array of Dask."""
    check_is_fitted(model)
    if X is None:
        raise NotImplementedError(
            f"{type(model).__name__}.{method.__name__}: X must be points, where those that were "
            "fitted are in chunks. Received None"
        )
    model = copy.copy(model)  # a later fit does not change what is computed later
    if not vars(model).get("_in_chunks"):
        _require_whole_rows(model, X)
        return _by_blocks(method, model, [X], rest, _plain)
    from mercer.models._arrays import host, validate

    data = validate(model, X, reset=False, space=model._space, chunks=True)
    parts = model._parts(data.x, **rest)
    if kind_of(X) == "dask":
        return _by_blocks(method, model, parts, rest, Ready)
    ready = Ready(*map(host, da.compute(*parts)))
    found = method(model, ready, **rest)
    return tuple(map(data.like, found)) if isinstance(found, tuple) else data.like(found)


def gradient_sums(f: Any, x: da.Array, left: Any, right: Any) -> np.ndarray:
    """sum over i of x_i times the gradient by x_i, a task for each pair of chunks: [d].

    Pairs with one chunk after the other, so that no chunk is held for long.
    """
    import dask

    from mercer.models._ranks import gradient_of_rows

    @dask.delayed(pure=False)
    def sums(rows: Any, others: Any, own: Any, every: Any) -> Any:
        by_rows = gradient_of_rows(f, rows, others, own, every)
        return (rows * by_rows).sum(0, dtype=np.float64)

    ends = np.cumsum((0, *x.chunks[0]))
    spans = [slice(*pair) for pair in itertools.pairwise(ends) if pair[1] > pair[0]]
    blocks = [x.blocks[i].to_delayed().ravel()[0] for i, n in enumerate(x.chunks[0]) if n]
    sides = [(left[span], right[span]) for span in spans]
    total = np.zeros(x.shape[1])
    for rows, own in zip(blocks, sides, strict=True):
        pairs = zip(blocks, sides, strict=True)
        parts = dask.compute(*(sums(rows, others, own, every) for others, every in pairs))
        total += np.sum(parts, axis=0)
    return total


def _require_whole_rows(model: Any, X: da.Array) -> None:
    name = type(model).__name__
    if X.ndim != 2:
        raise ValueError(f"{name}: X must have the shape [m, d]. Received {list(X.shape)}")
    if len(X.chunks[1]) > 1:
        raise ValueError(
            f"{name}: X must have all features of a point in one chunk; write "
            f"X.rechunk({{1: -1}}). Received chunks {X.chunks}"
        )


def _plain(block: Any) -> Any:
    return block


class _Call:
    """The method on a block, or on one row where the block has none."""

    def __init__(self, method: str, model: Any, rest: dict, take: Any, empty: Sequence) -> None:
        self.method, self.model, self.rest, self.take = method, model, rest, take
        self.empty = empty

    def __call__(self, *blocks: Any) -> Any:
        method = getattr(self.model, self.method)
        if blocks[0].shape[0]:
            return method(self.take(*blocks), **self.rest)
        found = method(self.take(*self.empty), **self.rest)
        if isinstance(found, (tuple, list)):
            return type(found)(part[:0] for part in found)
        return found[:0]


def _by_blocks(method: Any, model: Any, arrays: Sequence[da.Array], rest: dict, take: Any) -> Any:
    """Answers for rows of arrays [m, ...] that have the same chunks of rows."""
    empty = [  # whole numbers are indices of points
        (np.zeros_like if a.dtype.kind == "i" else np.ones_like)(
            a._meta, shape=(1, *a.shape[1:]), dtype=a.dtype
        )
        for a in arrays
    ]  # fmt: skip
    call = _Call(method.__name__, model, rest, take, empty)
    sample = call(*empty)
    name, rows = f"{method.__name__}-{uuid.uuid4().hex}", "m"
    sides = [item for i, a in enumerate(arrays) for item in (a, (rows, f"k{i}")[: a.ndim])]
    found = da.blockwise(
        call, (rows,), *sides, dtype=object, meta=np.empty(0, object), name=name,
        concatenate=True, align_arrays=False,
    )  # fmt: skip
    if not isinstance(sample, (tuple, list)):
        return _picked(found, None, sample)
    return type(sample)(_picked(found, i, part) for i, part in enumerate(sample))


def _picked(found: da.Array, place: int | None, sample: Any) -> da.Array:
    """One of the answers, as an array like its sample [1, ...]."""
    more = {i: (width,) for i, width in enumerate(sample.shape[1:], 1)}
    pick = _itself if place is None else operator.itemgetter(place)
    return da.map_blocks(
        pick, found, dtype=sample.dtype, meta=sample[:0], new_axis=list(more) or None,
        chunks=(found.chunks[0], *more.values()),
    )  # fmt: skip


def _itself(answer: Any) -> Any:
    return answer
