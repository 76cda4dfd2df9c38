"""The verbs on arrays of Dask: lazily, a block of pairs at a time, on any of Dask's schedulers.

>>> import dask.array as da
>>> from mercer import dask as md
>>> x = da.from_zarr("points.zarr")                                 # more than the memory holds
>>> values, indices = md.knn("cityblock", x, z, 10)                 # nothing is computed yet
>>> y = md.kernel_product(mc.gauss(), x, z, v, bandwidth=2.0).compute()

Points are arrays [rows, K] of Dask, in chunks of whole rows, of NumPy's or CuPy's arrays. Arrays of
NumPy and CuPy, memory maps, datasets of h5py and arrays of Zarr are taken as they are and divided
here, in blocks of at most Dask's ``array.chunk-size``. A block of work is a chunk of x with a chunk
of z, read when it is computed; parts over z are merged by a tree. Results are those of the verb on
one array: rows to the bit (but on CPUs for matrices of more than 32 features, whose last bits
depend on the sizes of a call, and for sums of absolute differences, on its points), sums over
several chunks of z to rounding. Errors of the call are raised at
once, before anything is computed.

Not offered are batches, and the options out, workspace, normalize, ranges and progress: Dask has
bars of its own.
``mercer.options`` around a call goes with its tasks; what was set for a process stays there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise ImportError(
        "mercer.dask: the package dask, with its arrays, must be installed; write "
        f"pip install 'mercer[dask]'. Received {error}"
    ) from error

import numpy as np
from dask.layers import ArraySliceDep

import mercer
from mercer import _dask_blocks, _dask_inputs, _mercer, _random_pivots
from mercer._array_likes import computing_type
from mercer._dask_inputs import like
from mercer._derived import leaves
from mercer._libraries import namespace_of
from mercer.errors import DtypeError

if TYPE_CHECKING:
    from mercer._types import FormulaLike, Parameter

__all__ = [
    "KernelOperator", "cdist", "kernel_gradient", "kernel_matrix", "kernel_product",
    "kernel_reduce", "knn", "pairwise",
]  # fmt: skip

# Metrics with an argument that is by default made of all points.
_OF_ALL_POINTS = {"seuclidean": "V", "mahalanobis": "VI"}
_NOT_OFFERED = ("out", "workspace", "progress", "normalize", "ranges")
_ARITY = 8  # parts that a node of a tree merges
_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "logsumexp")


class _Pairs:
    """The points of a call with what belongs to them, checked, and the blocks of its verb."""

    def __init__(
        self, verb: str, x: Any, z: Any, params: dict[str, Any], *, row: Any = None,
        col: Any = None, w: Any = None, offsets: tuple[int, int] | None = None,
        most_rows: int | None = None, names: tuple[str, str] = ("x", "z"),
    ) -> None:  # fmt: skip
        self.verb, self.offsets, self.w = verb, offsets, w
        for name in _NOT_OFFERED:
            if name in params:
                raise NotImplementedError(
                    f"{verb}: {name} is not offered for arrays of Dask. Received one"
                )
        for name, value in [("w", w), *params.items()]:
            if isinstance(value, da.Array):
                raise ValueError(
                    f"{verb}: {name} must be in memory; write {name}.compute(). "
                    f"Received an array of Dask, {value.dtype} {list(value.shape)}"
                )
        self.x = _dask_inputs.known_points(verb, names[0], x, most_rows)
        self.same = z is None
        self.z = self.x if z is None else _dask_inputs.known_points(verb, names[1], z, most_rows)
        if self.x.shape[1] != self.z.shape[1]:
            raise ValueError(
                f"{verb}: {names[0]} and {names[1]} must have the same number of features. "
                f"Received {list(self.x.shape)} and {list(self.z.shape)}"
            )
        if self.x.dtype != self.z.dtype:
            raise DtypeError(
                f"{verb}: {names[0]} and {names[1]} must have one dtype. "
                f"Received {self.x.dtype} and {self.z.dtype}"
            )
        self.names = names if z is not None else (names[0], names[0])
        self.row = self.values("row", row, "x", 0, (1,))
        self.col = self.values("col", col, "z", 0, (1,))
        self.params = params
        self.computing = computing_type(self.x.dtype)
        if isinstance(w, (list, tuple)):  # which would make its chunks' values float64
            self.w = np.asarray(w, self.computing)

    def values(self, name: str, a: Any, side: str, axis: int, dims: Sequence[int]) -> Any:
        whose = (self.names[0], self.x) if side == "x" else (self.names[1], self.z)
        return _dask_inputs.values_of(self.verb, name, a, whose, axis, dims)

    def formula(self, f: FormulaLike) -> Any:
        """The formula with its carried arrays and choosing options taken to their places."""
        return _mercer.formula_for(f, self.verb, self.w is not None, self.params)

    def parts(
        self, head: Sequence[Any], out: str, kind: str,
        operands: dict[str, tuple[Any, str]] | None = None, tail: Sequence[Any] = (),
    ) -> tuple[da.Array, str]:  # fmt: skip
        """The parts of all blocks, with the axes `out`, n and k.

        Every axis of an operand is an axis of the parts, and no operand is there twice: on these
        terms Dask makes one task of reading a chunk and computing with it.
        """
        given = {"row": (self.row, "m"), "col": (self.col, "n"), **(operands or {})}
        given = {name: pair for name, pair in given.items() if pair[0] is not None}
        options = dict(self.params) if self.w is None else {"w": self.w, **self.params}
        block = _dask_blocks.Block(
            self.verb, head, tail, tuple(given), options, kind=kind, offsets=self.offsets,
            same=self.same, dtype=self.x.dtype, alone=_count(self.z) == 1,
        )  # fmt: skip
        self.rehearse(block, given, len(out))
        x, z = (_dask_inputs.read_again(a, side) for side, a in (("x", self.x), ("z", self.z)))
        places = [ArraySliceDep((array.chunks[0],)) for array in (x, z)]
        arrays = [
            item
            for name, (array, index) in given.items()
            for item in (_dask_inputs.read_again(array, name), index)
        ]
        axes = "".join(dict.fromkeys(out + "nk"))
        return da.blockwise(
            block, axes, places[0], "m", places[1], "n", x, "mk", z, "nk", *arrays,
            adjust_chunks={axis: 1 for axis in "nk" if axis not in out}, align_arrays=False,
            concatenate=None, dtype=self.computing, token=self.verb,
            meta=like(self.x, (0,) * len(axes), self.computing),
        ), axes  # fmt: skip

    def matrix(self, head: Sequence[Any]) -> da.Array:
        """All pairs; rows of x are divided where a block would be larger than Dask's chunks."""
        widest = max(1, *self.z.chunks[0])
        most = max(1, _dask_inputs.block_bytes() // (widest * self.computing.itemsize))
        self.x, self.row = _dask_inputs.split_rows(self.x, self.row, most)
        parts, axes = self.parts(head, "mn", "pairwise")
        return da.blockwise(
            _dask_blocks.only, "mn", parts, axes, dtype=self.computing, token=self.verb,
            meta=like(self.x, (0, 0), self.computing),
        )  # fmt: skip

    def folded(
        self, head: Sequence[Any], out: str, kind: str, *, dtype: Any = None, k: int | None = None,
        operands: dict[str, tuple[Any, str]] | None = None, tail: Sequence[Any] = (),
    ) -> da.Array:  # fmt: skip
        """The parts along n, merged by a tree."""
        parts, axes = self.parts(head, out, kind, operands, tail)
        dtype = self.computing if dtype is None else dtype
        merge = functools.partial(_dask_blocks.merged, kind=kind, k=k)
        finish = functools.partial(_dask_blocks.finished, kind=kind, k=k, dtype=dtype)
        along = {axes.index(axis): _ARITY for axis in "nk" if axis not in out}
        return da.reduction(
            parts, chunk=_dask_blocks.unchanged, combine=merge, aggregate=finish,
            axis=tuple(along), split_every=along, concatenate=False, dtype=dtype, name=self.verb,
            meta=like(self.x, (0,) * len(out), dtype),
        )  # fmt: skip

    def rehearse(self, block: Any, given: dict[str, tuple[Any, str]], ndim: int) -> None:
        """One call of no rows and one point: it refuses what the verb refuses."""
        counts = {"m": 0, "n": 1}
        features = self.x.shape[1]
        x, z = (like(array, (rows, features), array.dtype)
                for array, rows in ((self.x, 0), (self.z, 1)))  # fmt: skip
        samples = [
            like(array, [counts.get(axis, array.shape[at]) for at, axis in enumerate(index)],
                 array.dtype)
            for array, index in given.values()
        ]  # fmt: skip
        found = block.part(x, z, 0, block.options_of(0, 0, samples))
        for array in found if isinstance(found, tuple) else (found,):
            if array is not None and array.ndim != (2 if block.kind == "knn" else ndim):
                raise NotImplementedError(
                    f"{self.verb}: parameters must be numbers or arrays of one number, since "
                    f"batches are not offered for arrays of Dask. Received a batch "
                    f"{list(array.shape[: array.ndim - ndim])}"
                )


def _count(array: da.Array) -> int:
    """Chunks that have rows."""
    return sum(rows > 0 for rows in array.chunks[0])


def _square(dtype: Any) -> int:
    """Rows of the blocks of a matrix, both ways, where Mercer chooses them."""
    return max(1, math.isqrt(_dask_inputs.block_bytes() // np.dtype(dtype).itemsize))


def _pairwise(verb: str, f: FormulaLike, x: Any, z: Any, options: dict[str, Any]) -> da.Array:
    shared, params = _shared(options)
    pairs = _Pairs(verb, x, z, params, most_rows=_square(np.float32), **shared)
    return pairs.matrix((pairs.formula(f),))


def _shared(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of all verbs, and the parameters of the formula."""
    params = dict(options)
    shared: dict[str, Any] = {
        name: params.pop(name) for name in ("row", "col", "w") if name in params
    }
    offsets = [params.pop(name, 0) for name in ("i_offset", "j_offset")]
    return {**shared, "offsets": (offsets[0], offsets[1])}, params


def pairwise(f: FormulaLike, x: Any, z: Any = None, **options: Parameter) -> da.Array:
    """The formula on all pairs of points, an array [M, N] of Dask of the computing dtype.

    x: [M, K]; z: [N, K], or None for the same points. Options: row [M], col [N], in the chunks of
    their points, w [K], i_offset, j_offset, and parameters of the formula, numbers or arrays of one
    number in memory. Blocks are chunks of x with chunks of z; where such a block would be larger
    than Dask's ``array.chunk-size``, the rows of x are divided.

    Raises at once what mercer.pairwise raises: ValueError, DtypeError, NotImplementedError; also
    ValueError for chunks of unknown sizes, of parts of the features, and of row and col that are
    not those of their points.

    >>> k = md.pairwise("exp(-sum(abs(x-z))/h)", da.from_array(x, chunks=(1000, -1)), z, h=2.0)
    >>> k.to_zarr("kernel.zarr")
    """
    return _pairwise("pairwise", f, x, z, options)


def kernel_matrix(f: FormulaLike, x: Any, z: Any = None, **options: Parameter) -> da.Array:
    """The kernel matrix [M, N] = f(x_m, z_n). Arguments, dtypes and errors: those of pairwise.

    >>> k = md.kernel_matrix(mc.gauss(), x, bandwidth=2.0)
    """
    return _pairwise("kernel_matrix", f, x, z, options)


def cdist(
    x1: Any, x2: Any = None, p: float | None = None, *, metric: FormulaLike | None = None,
    w: Any = None, **params: Parameter,
) -> da.Array:  # fmt: skip
    """Distances [M, N] of all pairs: mercer.cdist by blocks.

    x1: [M, K]; x2: [N, K], or None for the same points. p, metric, w and parameters: those of
    mercer.cdist. V of "seuclidean" and VI of "mahalanobis" must be given, since a block does not
    know the other points. Errors: those of pairwise.

    >>> d = md.cdist(x, z, p=1)
    """
    missing = _OF_ALL_POINTS.get(metric) if isinstance(metric, str) else None
    if missing is not None and params.get(missing) is None:
        raise ValueError(
            f"cdist: {missing} must be given for points in chunks. Received {metric!r} without it"
        )
    if metric is not None and not isinstance(metric, str):
        metric = mercer.kernel(metric)
    pairs = _Pairs(
        "cdist", x1, x2, dict(params), w=w, most_rows=_square(np.float32), names=("x1", "x2")
    )
    pairs.params = {"p": p, "metric": metric, **pairs.params}
    return pairs.matrix(())


def kernel_product(f: FormulaLike, x: Any, z: Any, v: Any, **options: Parameter) -> da.Array:
    """A kernel matrix times v, without the matrix: an array [M, E] of Dask, or [M] for v [N].

    v: [N, E] or [N], in the chunks of z along its points, of a dtype that mercer.kernel_product
    takes. Sums over the chunks of z are added in float64. The other arguments and errors: those of
    pairwise.

    >>> y = md.kernel_product(mc.gauss(), x, z, v, bandwidth=2.0).compute()
    """
    shared, params = _shared(options)
    pairs = _Pairs("kernel_product", x, z, params, **shared)
    v = _needed("kernel_product", "v", v, pairs, 0)
    index = "ne"[: v.ndim]
    return pairs.folded((pairs.formula(f),), "m" + index[1:], "sum", operands={"v": (v, index)})


def kernel_gradient(f: FormulaLike, x: Any, z: Any, coef: Any, **options: Parameter) -> da.Array:
    """A weighted sum of gradients by x: an array [O, M, K] of Dask, or [M, K] for coef [N].

    coef: [O, N] or [N], in the chunks of z along its points, of a dtype that
    mercer.kernel_gradient takes. Sums over the chunks of z are added in float64. The other
    arguments and errors: those of pairwise.

    >>> g = md.kernel_gradient("exp(-sum((x-z)^2))", x, z, coef)
    """
    shared, params = _shared(options)
    pairs = _Pairs("kernel_gradient", x, z, params, **shared)
    coef = _needed("kernel_gradient", "coef", coef, pairs, -1)
    index = "on"[-coef.ndim :]
    out = index[:-1] + "mk"
    return pairs.folded((pairs.formula(f),), out, "sum", operands={"coef": (coef, index)})


def _needed(verb: str, name: str, a: Any, pairs: _Pairs, axis: int) -> da.Array:
    if a is None:
        raise TypeError(f"{verb}: {name} must be an array. Received None")
    return pairs.values(name, a, "z", axis, (1, 2))


def kernel_reduce(f: FormulaLike, x: Any, z: Any, reduce: str, **options: Parameter) -> da.Array:
    """A reduction over the points of z: an array [M] of Dask; int64 for "argmax" and "argmin".

    reduce: "sum", "max", "min", "argmax", "argmin" or "logsumexp". NaN wins, ties go to the smaller
    index, whatever the chunks. Over several chunks of z "argmax" and "argmin" look at each pair
    twice. No points in z: "sum" gives 0, "logsumexp" -inf, the others raise ValueError. The other
    arguments and errors: those of pairwise.

    >>> log_density = md.kernel_reduce("-sum(square(x-z))", x, z, "logsumexp")
    """
    verb = "kernel_reduce"
    shared, params = _shared(options)
    pairs = _Pairs(verb, x, z, params, **shared)
    if reduce not in _REDUCTIONS:
        raise ValueError(
            f"{verb}: reduce must be one of {', '.join(_REDUCTIONS)}. Received {reduce!r}"
        )
    if pairs.z.shape[0] == 0 and reduce not in ("sum", "logsumexp"):
        raise ValueError(f"{verb}: {reduce} needs points in {pairs.names[1]}. Received 0")
    dtype = np.dtype("int64") if reduce.startswith("arg") else pairs.computing
    return pairs.folded((pairs.formula(f),), "m", reduce, dtype=dtype, tail=(reduce,))


def knn(f: FormulaLike, x: Any, z: Any, k: int, **options: Parameter) -> tuple[da.Array, da.Array]:
    """The k nearest points: (values, indices), both [M, k], of the k smallest f(x_m, z_n) over n.

    Ascending; ties by index; NaN last, whatever the chunks. Indices are int64, those of all of z.
    Compute both at once, ``dask.compute(values, indices)``: each alone takes all of the work. The
    other arguments and errors: those of pairwise.

    >>> values, indices = dask.compute(*md.knn("cityblock", queries, points, 10))
    """
    shared, params = _shared(options)
    pairs = _Pairs("knn", x, z, params, **shared)
    count = pairs.z.shape[0]
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(f"knn: k must be a whole number. Received {k!r}")
    if not 1 <= k <= count:
        raise ValueError(
            f"knn: k must be from 1 to the number of points of z ({count}). Received {k}."
        )
    found = pairs.folded((pairs.formula(f),), "m", "knn", k=int(k), tail=(int(k),))
    values, indices = (
        da.blockwise(
            _dask_blocks.picked, "mk", found, "m", which=which, new_axes={"k": int(k)},
            dtype=dtype, meta=like(pairs.x, (0, 0), dtype),
        )
        for which, dtype in enumerate((pairs.computing, np.dtype("int64")))
    )  # fmt: skip
    return values, indices


class KernelOperator:
    """The symmetric matrix f(x_m, x_n) + ridge (m = n) of points in chunks, known by its products.

    What mercer.linalg.KernelOperator makes of an array of Dask, for ``mercer.linalg.cg``,
    ``nystrom``, ``rpcholesky`` and ``eigh_top``: their products are kernel_product by blocks, on
    the scheduler that is in force, and their vectors, of n numbers, are arrays of NumPy in memory.

    f, ridge, weights, w, row, col and parameters: those of mercer.linalg.KernelOperator; ridges and
    weights of points are in memory, row and col as in pairwise. x: [n, K] of float32 or float64, as
    in pairwise. Everything is checked here. ``operator @ v`` multiplies an array of NumPy;
    ``operator.diagonal()`` is one, [n].

    >>> operator = md.KernelOperator(mc.gauss(), x, ridge=0.1, bandwidth=2.0)
    >>> alpha = mc.linalg.cg(operator, y)
    """

    def __init__(
        self, f: FormulaLike, x: Any, *, ridge: Any = 0.0, weights: Any = None, w: Any = None,
        row: Any = None, col: Any = None, **params: Parameter,
    ) -> None:  # fmt: skip
        verb = "KernelOperator"
        pairs = _Pairs(verb, x, None, dict(params), row=row, col=col, w=w)
        same = row is col or (isinstance(row, np.ndarray) and np.array_equal(row, col))
        if not same:
            raise ValueError(
                f"{verb}: row and col must be one array, since the matrix is symmetric. "
                f"Received {type(row)} and {type(col)}"
            )
        self.f = mercer.kernel(f) if callable(f) else f
        self.shape, self.dtype = (pairs.x.shape[0],) * 2, pairs.x.dtype
        one = None if row is None else like(pairs.x, (1,), pairs.row.dtype)
        mercer.linalg.KernelOperator(
            self.f, like(pairs.x, (1, pairs.x.shape[1]), pairs.x.dtype), w=w, row=one, col=one,
            **params,
        )  # fmt: skip
        self._ridges = self._points("ridge", ridge)
        self._weights = None if weights is None else self._points("weights", weights)
        self.x, self.row, self.col, self.w, self.params = pairs.x, row, col, w, params
        self._row = pairs.row
        self.ridge = float(self._ridges.min(initial=np.inf)) if self._ridges.size else 0.0

    def _points(self, name: str, values: Any) -> Any:
        """Numbers of points as a column, or a number as a matrix of one."""
        column = np.asarray(values, self.dtype)
        if column.ndim and column.shape != self.shape[:1]:
            raise ValueError(
                f"KernelOperator: {name} must have shape {self.shape[:1]}. Received {column.shape}."
            )
        if not (np.isfinite(column) & (column >= 0)).all():
            raise ValueError(
                f"KernelOperator: {name} must be from 0 on and finite. Received {values}."
            )
        return column.reshape(-1, 1)

    def __matmul__(self, v: Any) -> Any:
        v = np.asarray(v)
        if v.ndim not in (1, 2) or v.shape[0] != self.shape[0] or v.dtype != self.dtype:
            raise ValueError(
                f"KernelOperator: v must be {self.dtype} of the shape [n, k] or [n], n = "
                f"{self.shape[0]}. Received {v.dtype} {v.shape}."
            )
        product = self._mercer_multiply(v.reshape(v.shape[0], -1))
        return product.reshape(v.shape)

    def diagonal(self) -> Any:
        """f(x_i, x_i), weighted, with the ridges: [n], an array of NumPy. Reads every chunk once.

        NotImplementedError for a formula that reads i or j.
        """
        given = {"row": self.row, "col": self.col}
        sides = [
            column[:, None]
            for name, a in given.items()
            if (column := _dask_inputs.values_of("KernelOperator", name, a, ("x", self.x), 0, (1,)))
            is not None
        ]
        options = {**self.params, **({} if self.w is None else {"w": self.w})}
        if not self.shape[0]:
            return np.empty(0, self.dtype)
        blocks = da.map_blocks(
            functools.partial(_diagonal, self.f, options), self.x, *sides,
            dtype=self.dtype, meta=np.empty((0, 1), self.dtype), chunks=(self.x.chunks[0], (1,)),
        )  # fmt: skip
        found = blocks.compute()
        scaled = found if self._weights is None else self._weights * found
        return (scaled + self._ridges)[:, 0]

    def _mercer_multiply(self, columns: Any) -> Any:
        """The product with columns [n, k] of NumPy."""
        if self._weights is None:
            return self._multiply(columns) + self._ridges * columns
        roots = np.sqrt(self._weights)
        return roots * self._multiply(roots * columns) + self._ridges * columns

    def _mercer_rpcholesky(
        self, rank: int, *, ridge: float | None = None, block: int | str = "auto", seed: int = 0
    ) -> Any:
        """mercer.linalg.rpcholesky: its blocks of rows are columns by chunks, in memory."""
        ridge = self.ridge if ridge is None else float(ridge)
        text = str(_mercer.formula_for(self.f, "pairwise", self.w is not None, dict(self.params)))
        _random_pivots.check(rank, ridge, not leaves(text).isdisjoint("ij"))
        size = _random_pivots.block_of(block, rank)
        draws = _random_pivots.Draws(self._diagonal(), float(np.finfo(self.dtype).eps), seed)
        rank = min(rank, self.shape[0])
        lower = _random_pivots.factor(draws, rank, size, self._square, self._columns)
        return _random_pivots.preconditioner(lower, ridge, self.dtype)

    def _sides(self, row: Any, col: Any) -> dict[str, Any]:
        sides = {"row": row, "col": col, "w": self.w}
        return {name: value for name, value in sides.items() if value is not None} | self.params

    def _some(self, places: Any) -> tuple[Any, Any, Any]:
        """Some points, their numbers of row, and the roots of their weights or None."""
        row = None if self.row is None else self.row[places]
        points, row = dask.compute(self.x[places], row)
        roots = None if self._weights is None else np.sqrt(self._weights)
        if roots is not None:
            roots = np.broadcast_to(roots, (self.shape[0], 1))[places]
        return points, row, roots

    def _square(self, places: Any) -> Any:
        """The matrix of some points, without ridges, in NumPy's float64."""
        points, row, roots = self._some(places)
        found = mercer.pairwise(self.f, points, **self._sides(row, row))
        found = np.asarray(_moved(found, np.empty(0)), np.float64)
        return found if roots is None else roots * found * roots.T

    def _columns(self, places: Any) -> Any:
        points, row, roots = self._some(places)
        found = pairwise(self.f, self.x, points, **self._sides(self.row, row))
        if type(self.x._meta) is not np.ndarray:
            found = found.map_blocks(_moved, np.empty((0, 0), self.dtype), dtype=found.dtype)
        found = found.compute().astype(np.float64)
        if roots is None or self._weights is None:
            return found
        return np.sqrt(self._weights) * found * roots.T

    def _diagonal(self) -> Any:
        row = () if self.row is None else (self._row, "m")
        found = da.blockwise(
            _diagonal_of, "m", self.x, "mk", *row, concatenate=True, dtype=np.dtype("float64"),
            meta=np.empty(0), f=self.f, options={"w": self.w, **self.params},
        ).compute()  # fmt: skip
        return found if self._weights is None else found * np.broadcast_to(
            self._weights[:, 0], found.shape)  # fmt: skip

    def _multiply(self, columns: Any) -> Any:
        """The product with the kernel matrix, without ridge and weights."""
        rows = (self.x.chunks[0], columns.shape[1:])
        v = da.from_array(columns, chunks=rows, name=False)
        own = type(self.x._meta)
        if own is not np.ndarray:  # blocks of a device
            v = v.map_blocks(_moved, like(self.x, (0, 0), self.dtype), dtype=v.dtype)
        sides = {"row": self.row, "col": self.col, "w": self.w}
        sides = {name: value for name, value in sides.items() if value is not None}
        product = kernel_product(self.f, self.x, None, v, **sides, **self.params)
        if own is not np.ndarray:
            product = product.map_blocks(_moved, np.empty((0, 0), self.dtype), dtype=v.dtype)
        return product.compute()


def _diagonal(f: Any, options: dict[str, Any], x: Any, *sides: Any) -> Any:
    """A column of the formula's values at the points of a chunk and themselves."""
    named = {name: side[:, 0] for name, side in zip(("row", "col"), sides, strict=False)}
    if not x.shape[0]:
        return np.empty((0, 1), x.dtype)
    values = mercer.linalg.KernelOperator(f, x, **named, **options).diagonal()
    return _moved(values, np.empty(0))[:, None]


def _moved(block: Any, wanted: Any) -> Any:
    """The block as an array of NumPy, or of the library of `wanted`."""
    if isinstance(wanted, np.ndarray):
        return block if isinstance(block, np.ndarray) else block.get()
    return namespace_of(wanted).asarray(block)


def _diagonal_of(x: Any, row: Any = None, *, f: Any, options: dict[str, Any]) -> Any:
    """The diagonal of a block of points."""
    operator = mercer.linalg.KernelOperator(f, x, row=row, col=row, **options)
    return np.asarray(_moved(operator.diagonal(), np.empty(0)), np.float64)
