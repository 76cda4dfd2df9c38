"""Block-sparse verbs: each interval of rows meets some intervals of columns and no others.

An interval of rows is a call of the verb with the points of its columns, so that work and memory
follow what is kept, every way of the engine serves it, and derivatives are those of the calls.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from mercer import _array_likes, _groups, _libraries, _mercer, _verbs
from mercer._types import Indices

__all__ = ["block_ranges", "cluster_ranges"]

# Options of a verb that its calls by intervals cannot share.
_REFUSED = ("out", "workspace", "device")
# Arguments of which each call has its part.
_BY_BLOCK = ("f", "x", "z", "row", "col", "v", "i_offset", "j_offset")


def _host(array: Any) -> np.ndarray:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array.get() if hasattr(array, "get") else array)


def _intervals(name: str, values: Any, count: int | None) -> np.ndarray:
    """Intervals [C, 2] with 0 <= start <= end <= count."""
    given = _host(values)
    given = given.astype(np.int64) if given.size == 0 else given
    if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
        raise ValueError(
            f"ranges: {name} must be whole numbers of the shape [C, 2]. Received {given.dtype} of "
            f"the shape {given.shape}"
        )
    given = given.astype(np.int64)
    most = np.inf if count is None else count
    wrong = (given[:, 0] < 0) | (given[:, 1] < given[:, 0]) | (given[:, 1] > most)
    if wrong.any():
        limit = "" if count is None else f" <= {count}"
        raise ValueError(
            f"ranges: {name} must have 0 <= start <= end{limit}. Received "
            f"{given[wrong][0].tolist()}"
        )
    return given


def _merged(columns: np.ndarray) -> np.ndarray:
    """Intervals in order, those that touch as one. ValueError where some overlap."""
    kept = columns[columns[:, 1] > columns[:, 0]]
    kept = kept[np.argsort(kept[:, 0], kind="stable")]
    if (kept[1:, 0] < kept[:-1, 1]).any():
        raise ValueError(
            "ranges: intervals that belong together must not overlap. Received ones that do"
        )
    is_first = np.ones(len(kept), bool)
    is_first[1:] = kept[1:, 0] != kept[:-1, 1]
    is_last = np.roll(is_first, -1) if len(kept) else is_first
    return np.stack([kept[is_first, 0], kept[is_last, 1]], 1)


def _blocks(ranges: Any, rows: int, columns: int) -> list[tuple[int, int, np.ndarray]]:
    """Every row once, in order: its interval, and the intervals of the columns that it keeps."""
    if not isinstance(ranges, (list, tuple)) or len(ranges) not in (3, 6):
        raise ValueError(
            "ranges: they are (rows [C, 2], ends [C], columns [S, 2]). Received "
            f"{type(ranges).__name__}"
            + (f" of {len(ranges)}" if isinstance(ranges, (list, tuple)) else "")
        )
    sides, ends, kept = _intervals("rows", ranges[0], rows), _host(ranges[1]), ranges[2]
    kept = _intervals("columns", kept, columns)
    ends = ends.astype(np.int64) if ends.size == 0 else ends
    starts = np.concatenate([[0], ends[:-1]])
    is_right = ends.shape == (len(sides),) and ends.dtype.kind in "iu"
    if not is_right or (ends < starts).any() or (len(ends) and ends[-1] != len(kept)):
        raise ValueError(
            "ranges: ends must be one whole number for each interval of rows, where its intervals "
            f"of columns end, up to the {len(kept)} that there are. Received {ends.tolist()}"
        )
    found, done = [], 0
    nothing = np.zeros((0, 2), np.int64)
    for index in np.lexsort((sides[:, 1], sides[:, 0])):
        first, last = sides[index].tolist()
        if first == last:
            continue
        if first < done:
            raise ValueError(
                "ranges: intervals of rows must not overlap. Received ones that share the row "
                f"{first}"
            )
        if first > done:
            found.append((done, first, nothing))
        found.append((first, last, _merged(kept[starts[index] : ends[index]])))
        done = last
    if done < rows:
        found.append((done, rows, nothing))
    return found


def _taken(array: Any, intervals: np.ndarray, axis: int, xp: Any) -> Any:
    """What lies in the intervals along an axis that is counted from the end."""
    if array is None:
        return None
    rest = (slice(None),) * (-axis - 1)
    if len(intervals) == 0:
        return array[(..., slice(0, 0), *rest)]
    parts = [array[(..., slice(first, last), *rest)] for first, last in intervals.tolist()]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, axis)


def _indices_of(intervals: np.ndarray, found: Any, xp: Any) -> Any:
    """Indices of points among those of the intervals, as indices among all points."""
    if len(intervals) == 1:
        return found + int(intervals[0, 0])
    places = np.concatenate([np.arange(first, last) for first, last in intervals.tolist()])
    if xp.__name__ == "torch":
        return xp.as_tensor(places, device=found.device)[found]
    return xp.asarray(places)[found]


def call(verb: str, arguments: dict[str, Any]) -> Any:
    """kernel_product, kernel_reduce or knn with ranges among its parameters."""
    if _array_likes.is_of_vectors(arguments):
        return getattr(_verbs, verb)(**(_array_likes.read(verb, arguments) or {}))
    given = {name: value for name, value in arguments.items() if name != "params"}
    if _array_likes.is_grouped(given):
        given |= _groups.arguments(verb, given)
    params = dict(arguments["params"])
    ranges = params.pop("ranges")
    for name in _REFUSED:
        if given.pop(name, None) is not None:
            raise NotImplementedError(f"{verb}: {name} is not offered with ranges. Received one")
    own: dict[str, Any] = {name: given.pop(name) for name in _BY_BLOCK if name in given}
    for name in ("x", "z", "row", "col", "v"):
        own[name] = _array_likes.array(own.get(name))
        _array_likes.refuse_masked(verb, **{name: own[name]})
    x, z = own["x"], own["x"] if own["z"] is None else own["z"]
    if getattr(x, "ndim", 0) < 2 or getattr(z, "ndim", 0) < 2:
        shapes = [tuple(getattr(points, "shape", ())) for points in (x, z)]
        raise ValueError(f"{verb}: x and z must have the shape [..., M, K]. Received {shapes}")
    _check_lengths(verb, own, x.shape[-2], z.shape[-2])
    xp, blocks = _libraries.namespace_of(x), _blocks(ranges, x.shape[-2], z.shape[-2])
    weighted = given.get("w") is not None
    f = _mercer.formula_for(own["f"], verb, weighted, params)
    if re.search(r"\bj\b", str(f)) and any(len(kept) > 1 for *_, kept in blocks):
        raise ValueError(
            f"{verb}: a formula must not read j where rows keep several intervals of columns. "
            f"Received {f}"
        )
    least = given.get("k", int(given.get("reduce", "sum") not in ("sum", "logsumexp")))
    parts = [
        _part(verb, f, own, z, block, given | params, xp, least) for block in blocks
    ]  # fmt: skip
    if not parts:
        return getattr(_verbs, verb)(f, x, z, **_values(own, None, xp), **given, **params)
    if verb == "knn":
        return tuple(xp.concatenate(column, -2) for column in zip(*parts, strict=True))
    matrix = verb == "kernel_product" and own["v"].ndim > 1
    return xp.concatenate(parts, -2 if matrix else -1)


def _check_lengths(verb: str, own: dict[str, Any], rows: int, columns: int) -> None:
    """Arrays with something for each point: a part of them would be taken without a word."""
    for name, count in (("row", rows), ("col", columns), ("v", columns)):
        shape = tuple(getattr(own[name], "shape", ()))
        has_columns = name == "v" and len(shape) > 1
        if own[name] is not None and shape[-2 if has_columns else -1 :][:1] != (count,):
            raise ValueError(
                f"{verb}: {name} must have one {'row' if name == 'v' else 'value'} per point "
                f"({count}). Received {shape}"
            )


def _values(own: dict[str, Any], kept: np.ndarray | None, xp: Any) -> dict[str, Any]:
    """v, as far as the verb has one, of the columns that are kept."""
    v = own["v"]
    if v is None:
        return {}
    return {"v": v if kept is None else _taken(v, kept, -1 if v.ndim == 1 else -2, xp)}


def _part(
    verb: str, f: Any, own: dict[str, Any], z: Any, block: tuple[int, int, np.ndarray],
    options: dict[str, Any], xp: Any, least: int,
) -> Any:  # fmt: skip
    first, last, kept = block
    columns = int((kept[:, 1] - kept[:, 0]).sum())
    if columns < least:
        raise ValueError(
            f"{verb}: each row must keep at least {least} column{'s' if least > 1 else ''}. "
            f"Received rows {first} to {last - 1} with {columns}"
        )
    rows = np.array([[first, last]])
    result = getattr(_verbs, verb)(
        f, _taken(own["x"], rows, -2, xp), _taken(z, kept, -2, xp), **_values(own, kept, xp),
        row=_taken(own["row"], rows, -1, xp), col=_taken(own["col"], kept, -1, xp),
        i_offset=own["i_offset"] + first,
        j_offset=own["j_offset"] + (int(kept[0, 0]) if len(kept) else 0), **options,
    )  # fmt: skip
    if verb == "knn":
        return result[0], _indices_of(kept, result[1], xp)
    is_index = str(options.get("reduce", "")).startswith("arg")
    return _indices_of(kept, result, xp) if is_index else result


def cluster_ranges(labels: Any) -> tuple[Indices, Indices]:
    """How points are sorted by clusters, for ``ranges``: (order, intervals).

    labels: whole numbers [M], a cluster for each point. order [M] sorts the points so that those of
    a cluster follow each other, in the order that they had; intervals [C, 2] are where each of the
    C clusters starts and ends then, by ascending labels. Both are NumPy's, of int64; labels may be
    of any library. Raises ValueError for anything but whole numbers [M].

    >>> order, rows = mc.cluster_ranges(labels)
    >>> x = x[order]
    """
    given = _host(labels)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iub"):
        raise ValueError(
            f"cluster_ranges: labels must be whole numbers of the shape [M]. Received "
            f"{given.dtype} of the shape {given.shape}"
        )
    order = np.argsort(given, kind="stable").astype(np.int64)
    starts = np.unique(given[order], return_index=True)[1]
    return order, np.stack([starts, np.append(starts[1:], len(given))[: len(starts)]], 1)


def block_ranges(rows: Any, columns: Any, keep: Any) -> tuple[Indices, Indices, Indices]:
    """The ``ranges`` of a verb from a table of the blocks that are kept.

    rows: intervals [C, 2] of rows, columns: intervals [D, 2] of columns, as ``cluster_ranges`` has
    them; keep: truth values [C, D]. The result is (rows [C, 2], ends [C], columns [S, 2]): the
    columns of interval c of rows are those from ends[c - 1] to ends[c] - 1. Raises ValueError for
    other shapes.

    >>> near = mc.cdist(centres, centres) < reach
    >>> y = mc.kernel_product(f, x, x, v, ranges=mc.block_ranges(rows, rows, near))
    """
    rows, columns = _intervals("rows", rows, None), _intervals("columns", columns, None)
    kept = _host(keep)
    if kept.shape != (len(rows), len(columns)) or kept.dtype.kind != "b":
        raise ValueError(
            f"block_ranges: keep must be truth values of the shape {(len(rows), len(columns))}. "
            f"Received {kept.dtype} of the shape {kept.shape}"
        )
    return rows, np.cumsum(kept.sum(1)), columns[np.nonzero(kept)[1]]
