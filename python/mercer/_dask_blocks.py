"""The tasks of mercer.dask: a call of a verb on a block of pairs, and how parts over z are merged.

A part is what a block of z gives for a block of x: an array, or (values, indices), or None where
the block has no points. Parts are merged in the order of z, in float64 where they are added.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.tokenize import normalize_token

import mercer
from mercer import _dask_inputs, _mercer

__all__ = ["FINISH", "MERGE", "Block", "finished", "merged", "picked", "unchanged"]

# Reductions that have no value of no points.
_NEEDS_POINTS = frozenset(("max", "min", "argmax", "argmin", "knn"))


def only(block: Any) -> Any:
    """The one block along an axis that is not divided."""
    while isinstance(block, list):
        (block,) = block
    return block


def _taken(block: Any) -> Any:
    """The block; what came over a network may begin at an odd address, and is copied."""
    block = only(block)
    return block.copy() if isinstance(block, np.ndarray) and not block.flags.aligned else block


class Block:
    """A call of a verb on a block of x and a block of z, with their places in the whole."""

    def __init__(
        self,
        verb: str,
        head: Sequence[Any],
        tail: Sequence[Any],
        arrays: Sequence[str],
        options: dict[str, Any],
        *,
        kind: str,
        offsets: tuple[int, int] | None,
        same: bool,
        dtype: Any,
        alone: bool = False,
    ) -> None:
        self.verb, self.head, self.tail, self.arrays = verb, tuple(head), tuple(tail), tuple(arrays)
        self.options, self.kind, self.offsets, self.same = options, kind, offsets, same
        self.dtype, self.alone = dtype, alone
        self.settings = _mercer.settings_text()

    def __dask_tokenize__(self) -> Any:
        return (
            self.verb, self.head, self.tail, self.arrays, sorted(self.options.items()), self.kind,
            self.offsets, self.same, str(self.dtype), self.alone, self.settings,
        )  # fmt: skip

    def __call__(self, rows: Any, columns: Any, x: Any, z: Any, *arrays: Any) -> Any:
        rows, columns = only(rows)[0], only(columns)[0]
        x, z = _taken(x), _taken(z)
        for name, block, own in (("x", x, rows), ("z", z, columns)):
            shape = (own.stop - own.start, block.shape[-1])
            _dask_inputs.require_rows(self.verb, name, block, shape, self.dtype)
            _dask_inputs.require_file(self.verb, name, block)
        if z.shape[0] == 0 and self.kind in _NEEDS_POINTS:
            return None
        if self.same and rows == columns:
            z = None
        with _settings(self.settings):
            return self.part(
                x, z, columns.start, self.options_of(rows.start, columns.start, arrays)
            )

    def options_of(self, row: int, column: int, arrays: Sequence[Any]) -> dict[str, Any]:
        """Options of a block that begins with this row and column."""
        options = dict(self.options, **dict(zip(self.arrays, map(_taken, arrays), strict=True)))
        if self.offsets is not None:
            options["i_offset"] = self.offsets[0] + row
            options["j_offset"] = self.offsets[1] + column
        return options

    def part(self, x: Any, z: Any, first: int, options: dict[str, Any]) -> Any:
        """The verb's own arguments: operands v and coef go by their places."""
        call = functools.partial(getattr(mercer, self.verb), *self.head, x, z)
        operands = [options.pop(name) for name in ("v", "coef") if name in options]
        if self.kind == "knn":
            count = (x if z is None else z).shape[0]
            values, indices = call(min(self.tail[0], count), **options)
            return values, indices + first
        if self.kind in ("argmax", "argmin"):
            indices = call(self.kind, **options) + first
            # Where there is nothing to merge with, the values are not asked for.
            return None if self.alone else call(self.kind[3:], **options), indices
        return call(*operands, *self.tail, **options)


def _settings(text: str) -> Any:
    words = text.split()
    given: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    if "threads" in given:
        given["threads"] = int(given["threads"])
    return mercer.options(**given)


@normalize_token.register(_mercer.Expr)
@normalize_token.register(_mercer.Kernel)
def _token_of(formula: Any) -> Any:
    return "mercer.Expr", formula.__reduce__()[1]


# ---- Merging. -----------------------------------------------------------------------------------


def _flat(parts: Any) -> list[Any]:
    if isinstance(parts, list):
        return [part for inner in parts for part in _flat(inner)]
    return [] if parts is None else [parts]


def _sum(a: Any, b: Any) -> Any:
    return a.astype(np.float64) + b


def _logsumexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)); CuPy's own logaddexp makes NaN of two infinities."""
    a = a.astype(np.float64)
    top = np.maximum(a, b)
    shift = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(a - shift) + np.exp(b - shift)) + shift


def _replaces(candidate: Any, best: Any, better: Callable[[Any, Any], Any]) -> Any:
    """NaN wins, and the first of equal values stays."""
    return better(candidate, best) | (np.isnan(candidate) & ~np.isnan(best))


def _extreme(a: Any, b: Any, better: Callable[[Any, Any], Any]) -> Any:
    return np.where(_replaces(b, a, better), b, a)


def _place(a: Any, b: Any, better: Callable[[Any, Any], Any]) -> Any:
    wins = _replaces(b[0], a[0], better)
    return tuple(np.where(wins, other, own) for own, other in zip(a, b, strict=True))


def _nearest(parts: list[Any], k: int) -> Any:
    """The first k of all: ascending, NaN last, ties by index, since parts come in its order."""
    values, indices = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    order = np.argsort(values, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(values, order, 1), np.take_along_axis(indices, order, 1)


def _folded(step: Callable[..., Any], **options: Any) -> Callable[[list[Any], Any], Any]:
    return lambda parts, k: functools.reduce(functools.partial(step, **options), parts)


MERGE: dict[str, Callable[[list[Any], Any], Any]] = {
    "sum": _folded(_sum),
    "logsumexp": _folded(_logsumexp),
    "max": _folded(_extreme, better=operator.gt),
    "min": _folded(_extreme, better=operator.lt),
    "argmax": _folded(_place, better=operator.gt),
    "argmin": _folded(_place, better=operator.lt),
    "knn": lambda parts, k: _nearest(parts, k) if len(parts) > 1 else parts[0],
}

# What merged parts become where that is not the part itself.
FINISH: dict[str, Callable[[Any], Any]] = {
    "argmax": operator.itemgetter(1),
    "argmin": operator.itemgetter(1),
    "knn": lambda part: part,
}


def merged(parts: Any, *, kind: str, k: int | None, **reduction: Any) -> Any:
    """A node of the tree; parts of blocks without points are left out."""
    if "computing_meta" in reduction:  # Dask asks for an array like the result, by an empty one
        return parts
    found = _flat(parts)
    with np.errstate(all="ignore"):
        return MERGE[kind](found, k) if found else None


def finished(parts: Any, *, kind: str, k: int | None, dtype: Any, **reduction: Any) -> Any:
    """The root of the tree."""
    part = merged(parts, kind=kind, k=k, **reduction)
    if kind in FINISH and "computing_meta" not in reduction:
        return FINISH[kind](part)
    with np.errstate(over="ignore"):
        return part.astype(dtype, copy=False)


def unchanged(part: Any, **reduction: Any) -> Any:
    """What a reduction of Dask's does to a block before it merges."""
    return part


def picked(pair: Any, which: int) -> Any:
    return only(pair)[which]
