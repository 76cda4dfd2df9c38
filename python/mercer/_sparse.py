"""Sparse points of SciPy in the verbs that have no gradients.

A formula serves if it reads points within sums of ``_SUMS`` alone: products of sparse rows give
these by blocks of rows, in float64, and the rest of the formula is computed on them as on points.
Nothing of M x K is stored, nor of M x N but the result.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mercer import _array_likes, _mercer
from mercer.errors import DtypeError

#: Numbers of a block of rows of the matrix at most, and as many as stay in a core's cache.
_BLOCK, _CACHED = 2**21, 2**18
#: Rows that one call of the engine computes as rows of a tile.
_TOGETHER = 8
#: Strips of a symmetric matrix, whose part before their first row is that after it, and their rows.
_STRIPS, _LEAST_STRIP = 8, 128
#: Squares of distances below this part of the squares of norms are sums of squares of differences.
_NEAR = 1e-3
#: Magnitudes whose squares, and those of their differences, float64 has.
_LEAST, _MOST = 1e-130, 1e150
_MASKED = ("x", "z", "x1", "x2", "v", "w")  # operands that may be of NumPy
_NORMS = "a = sqrt(sum({0}x*x)); b = sqrt(sum({0}z*z)); "

#: Kind -> texts of its sum, {0} for nothing or "w*".
_SUMS = {
    "dots": ("sum({0}x*z)",),
    "differences": ("sum({0}square(x - z))", "sum({0}(x - z)^2)"),
    "unit dots": (_NORMS + "sum({0}x/a*(z/b))",),
    "unit differences": (_NORMS + "sum({0}square(x/a - z/b))",),
    "unequal": ("sum({0}(x != z))",),
    "both": ("sum({0}(x != 0 && z != 0))",),
    "one": ("sum({0}((x != 0) != (z != 0)))",),
    "squares of x": ("sum({0}x*x)",),
    "squares of z": ("sum({0}z*z)",),
    "sum of x": ("sum({0}x)",),
    "sum of z": ("sum({0}z)",),
    "counts of x": ("sum({0}(x != 0))",),
    "counts of z": ("sum({0}(z != 0))",),
}
Block = Callable[[slice], np.ndarray]


def is_sparse(*points: Any) -> bool:
    """Whether one is a sparse matrix or array of SciPy."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and any(map(scipy.issparse, points))


@functools.cache
def _known() -> dict[str, tuple[str, str]]:
    """Text of a sum, as formulas print it, -> (kind, weights: "", "w" or "rcp(w)")."""
    found = {}
    for kind, texts in _SUMS.items():
        for text in texts:
            for prefix, weights in (("", ""), ("w*", "w"), ("rcp(w)*", "rcp(w)")):
                if weights == "rcp(w)" and "unit" in kind:
                    continue
                found[_text(_mercer.parse(text.format(prefix)))] = kind, weights
    return found


def _text(formula: Any) -> str:
    return str(_mercer.formula_for(formula, "pairwise", False, {}))


def _sums(text: str) -> Iterator[tuple[int, int]]:
    """Where known sums stand, the outermost of those within each other."""
    place = 0
    while (match := re.compile(r"\bsum\(").search(text, place)) is not None:
        end, depth = match.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        known = text[match.start() : end] in _known()
        if known:
            yield match.start(), end
        place = end if known else match.end()


def _split(verb: str, formula: Any) -> tuple[str, list[tuple[str, str]]]:
    """The formula with <q> for its sum of the number q, and these; refuses one that reads points
    else."""
    text = str(formula)
    found: list[tuple[str, str]] = []
    parts, last = [], 0
    for start, end in _sums(text):
        kind = _known()[text[start:end]]
        if kind not in found:
            found.append(kind)
        parts += [text[last:start], f"<{found.index(kind)}>"]
        last = end
    left = "".join([*parts, text[last:]])
    if not found or re.search(r"\b([xzwij]|row|col)\b", left):
        raise NotImplementedError(
            f"{verb}: of sparse points a formula may read sum(x*z), sum(square(x - z)), the sums "
            "of unit vectors in cosine, sum(x != z) and counts of what is not 0, and sums of one "
            f"point. Received {text}; pass x.toarray()"
        )
    return left, found


def _side(verb: str, name: str, points: Any) -> Any:
    """A csr_array in float64, sorted and without stored zeros; refuses what squares do not have."""
    from scipy import sparse

    if np.ndim(points) != 2:
        raise ValueError(
            f"{verb}: sparse points have two axes. Received {np.ndim(points)} of {name}"
        )
    if not sparse.issparse(points) and not isinstance(points, np.ndarray):
        raise TypeError(
            f"{verb}: sparse points go with those of NumPy. Received {type(points).__name__} "
            f"as {name}"
        )
    if points.dtype.kind not in "biuf" or points.dtype.itemsize > 8:
        raise DtypeError(f"{verb}: {name} must be real. Received {points.dtype}")
    made = sparse.csr_array(points, copy=True)
    made.sum_duplicates()  # in their dtype, as toarray() adds them
    made.eliminate_zeros()
    if points.dtype.kind in "iu" and max(_ends(made.data)) > 2**53:
        raise ValueError(
            f"{verb}: {name} must have whole numbers of at most 2**53, which float64 has exactly. "
            f"Received one of the size {max(_ends(made.data))}"
        )
    made = made.astype(np.float64)
    sizes = abs(made.data)
    if not ((sizes >= _LEAST) & (sizes <= _MOST)).all():
        raise ValueError(
            f"{verb}: values of sparse points must be 0 or of sizes from {_LEAST} to {_MOST}. "
            f"Received {made.data[~((sizes >= _LEAST) & (sizes <= _MOST))][0]} in {name}"
        )
    return made


def _ends(values: np.ndarray) -> tuple[int, int]:
    """The sizes of the least and of the largest value."""
    return (abs(int(values.min())), abs(int(values.max()))) if values.size else (0, 0)


def _dtype(verb: str, points: list[Any]) -> np.dtype:
    """float32 of float32, float64 of float64 and of whole numbers."""
    kinds = {a.dtype if a.dtype == np.float32 else np.dtype(np.float64) for a in points}
    if len(kinds) > 1:
        raise DtypeError(f"{verb}: points must have one dtype. Received float32 and float64")
    return kinds.pop()


class _Room:
    """Memory for blocks of rows, one after the other: new memory costs more than sums in it."""

    def __init__(self) -> None:
        self._held = np.empty((0, 0))

    def __call__(self, shape: tuple[int, int]) -> np.ndarray:
        if self._held.shape[0] < shape[0] or self._held.shape[1] != shape[1]:
            self._held = np.empty(shape)
        return self._held[: shape[0]]


class _Pairs:
    """Points x and z with weights [K] or None. same: points of one number are the same point."""

    def __init__(self, x: Any, z: Any, weights: np.ndarray | None, same: bool) -> None:
        self.x, self.z, self.w, self.same = x, z, weights, same

    def block(self, kind: str) -> Block:
        """What makes a kind of sums for rows of x: [B, N], [B, 1] or [1, N]."""
        if kind.startswith("unit "):
            return self._unit(kind.removeprefix("unit "))
        name, _, of = kind.partition(" of ")
        if of:
            found = getattr(_Pairs, f"_{name.removesuffix('s')}s")(self, getattr(self, of))
            return (lambda rows: found[rows, None]) if of == "x" else lambda rows: found[None]
        return getattr(self, f"_{kind}")()

    def _weighted(self, a: Any) -> Any:
        return a if self.w is None else a.multiply(self.w).tocsr()

    def _sums(self, a: Any) -> np.ndarray:
        return self._weighted(a).sum(axis=1)

    def _squares(self, a: Any) -> np.ndarray:
        return self._weighted(a.multiply(a).tocsr()).sum(axis=1)

    def _counts(self, a: Any) -> np.ndarray:
        return self._sums(_marked(a))

    def _dots(self, factor: float = 1.0) -> Block:
        x, columns, room = self._weighted(self.x) * factor, self.z.T.tocsr(), _Room()

        def block(rows: slice) -> np.ndarray:
            found = x[rows] @ columns
            return found.toarray(out=room(found.shape))

        return block

    def _differences(self) -> Block:
        """x^2 + z^2 - 2 x z, but of near pairs the sum of squares itself."""
        dots, xx, zz = self._dots(-2.0), self._squares(self.x), self._squares(self.z)
        signed: tuple[np.ndarray, np.ndarray] | None = None
        if self.w is not None and (self.w < 0).any():
            sizes = _Pairs(self.x, self.z, abs(self.w), self.same)
            signed = sizes._squares(self.x), sizes._squares(self.z)

        of_x, of_z = (xx, zz) if signed is None else signed
        most, room = of_z.max(initial=0), _Room()

        def block(rows: slice) -> np.ndarray:
            found = dots(rows)
            found += np.add(xx[rows, None], zz, out=room(found.shape))
            low = found if signed is None else abs(found)
            some = np.flatnonzero(low <= _NEAR * (of_x[rows, None] + most))
            i, j = np.divmod(some, max(1, found.shape[1]))
            near = low[i, j] <= _NEAR * (of_x[rows][i] + of_z[j])
            self._exactly(found, rows.start, i[near], j[near])
            return found

        return block

    def _exactly(self, found: np.ndarray, start: int, i: np.ndarray, j: np.ndarray) -> None:
        if self.same:
            same = start + i == j
            found[i[same], j[same]] = 0
            i, j = i[~same], j[~same]
        each = 2 + sum(a.nnz // max(1, a.shape[0]) for a in (self.x, self.z))
        step = max(1, _BLOCK // each)
        for first in range(0, len(i), step):
            some = slice(first, first + step)
            gaps = self.x[start + i[some]] - self.z[j[some]]
            found[i[some], j[some]] = self._squares(gaps.tocsr())

    def _unit(self, kind: str) -> Block:
        """The block of points divided by their norms; points that are 0 give NaN, as dense ones."""
        norms = [self._squares(a) ** 0.5 for a in (self.x, self.z)]
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = [a.multiply(1 / n[:, None]).tocsr() for a, n in
                      zip((self.x, self.z), norms, strict=True)]  # fmt: skip
        none = [np.where(n > 0, 0.0, np.nan) for n in norms]
        made = _Pairs(scaled[0], scaled[1], self.w, self.same).block(kind)
        return lambda rows: made(rows) + none[0][rows, None] + none[1]

    def _marks(self) -> _Pairs:
        """1 for what is not 0."""
        return _Pairs(_marked(self.x), _marked(self.z), self.w, self.same)

    def _both(self) -> Block:
        return self._marks()._dots()

    def _one(self) -> Block:
        """Without weights all are whole numbers, which cancel exactly."""
        if self.w is not None:
            return self._marks()._differences()
        both, nx, nz = self._both(), self._counts(self.x), self._counts(self.z)
        return lambda rows: nx[rows, None] + nz - 2 * both(rows)

    def _unequal(self) -> Block:
        """By values as marks of their own: two where both points have other values than 0."""
        values = self._values()
        if self.w is not None:
            one, two = self._one(), values._differences()
            return lambda rows: (one(rows) + two(rows)) / 2
        both, equal = self._both(), values._dots()
        nx, nz = self._counts(self.x), self._counts(self.z)
        return lambda rows: nx[rows, None] + nz - both(rows) - equal(rows)

    def _values(self) -> _Pairs:
        """Marks whose columns are pairs of a column and a value there."""
        from scipy import sparse

        n = self.x.nnz
        columns = np.concatenate([self.x.indices, self.z.indices]).astype(np.int64)
        values = np.unique(np.concatenate([self.x.data, self.z.data]), return_inverse=True)[1]
        count = int(values.max(initial=0)) + 1
        pairs, names = np.unique(columns * count + values.ravel(), return_inverse=True)
        marks = [
            sparse.csr_array(
                (np.ones(len(part)), part, a.indptr), shape=(a.shape[0], max(1, len(pairs)))
            )
            for a, part in ((self.x, names.ravel()[:n]), (self.z, names.ravel()[n:]))
        ]
        for mark in marks:
            mark.sort_indices()
        weights = None
        if self.w is not None:
            weights = np.ones(1) if not len(pairs) else self.w[pairs // count]
        return _Pairs(marks[0], marks[1], weights, self.same)


def _marked(a: Any) -> Any:
    mark = a.copy()
    mark.data[:] = 1
    return mark


class _Matrix:
    """The matrix of a formula on sparse points, by blocks of rows [..., B, N] in float64.

    The engine has no operand for a value of a pair. The sums of R rows become features of z, one
    for each row and sum, and the points of x are unit vectors that choose a row: a call computes
    tiles of R rows, which is five times as fast as calls of one point each.
    """

    def __init__(self, verb: str, f: Any, x: Any, z: Any, w: Any, params: dict[str, Any]) -> None:
        left = _side(verb, "x", x)
        right = left if z is None else _side(verb, "z", z)
        dtype = _dtype(verb, [x] if z is None else [x, z])
        features = left.shape[1]
        if right.shape[1] != features:
            raise ValueError(
                f"{verb}: x and z must have as many features. Received {features} and "
                f"{right.shape[1]}"
            )
        w = _weights(verb, w, features)
        given: dict[str, Any] = {n: np.asarray(value, np.float64) for n, value in params.items()}
        # What is wrong with the formula or a parameter is said as of any other points.
        self.batch = _tried(verb, f, np.zeros((1, features)), w, given).shape[:-2]
        formula = _mercer.formula_for(f, verb, w is not None, given)
        left_over = {n: v for n, v in given.items() if n in formula.parameters}
        self.params = {n: v[..., None] if v.ndim else v for n, v in left_over.items()}
        text, kinds = _split(verb, formula if w is None else _without_total(formula, w))
        text = re.sub(r"\bK\b", f"{float(features)}", text)
        if w is not None:
            for weights in sorted({weights for _, weights in kinds if weights}):
                _refuse_factors(verb, (left, right), w, weights)
        self._points, self._kinds, self._w = (left, right), kinds, w
        self._is_one = right is left
        self.is_symmetric = self._is_one and formula.symmetric
        self.is_sum, self.rest = text == "<0>", tuple(_chosen(text, len(kinds)))
        self.dtype = dtype
        self._take(left, right)

    def _take(self, left: Any, right: Any) -> None:
        self.shape = left.shape[0], right.shape[0]
        self.blocks = [
            _pairs(left, right, self._w, weights, self._is_one).block(kind)
            for kind, weights in self._kinds
        ]

    def strips(self) -> Iterator[tuple[slice, _Matrix]]:
        """Rows, and their values from the column of their first number on: of a matrix that is not
        symmetric all rows at once."""
        m = self.shape[0]
        step = max(_LEAST_STRIP, -(-m // _STRIPS)) if self.is_symmetric else max(m, 1)
        if step >= m:
            yield slice(0, m), self
            return
        points = self._points[0]
        for start in range(0, m, step):
            strip = copy.copy(self)
            strip._take(points[start : start + step], points[start:])
            yield slice(start, min(start + step, m)), strip

    def rows(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows and their sums [G, Q, R, N], G R of them or a few less."""
        m, each = self.shape[0], max(1, self.shape[1] * len(self.blocks))
        step = max(1, _CACHED // each, min(_TOGETHER, _BLOCK // each))
        step -= step % _TOGETHER if step > _TOGETHER else 0
        for start in range(0, m, step):
            rows = slice(start, min(start + step, m))
            yield rows, self._sums(rows)

    def _sums(self, rows: slice) -> np.ndarray:
        count, n = rows.stop - rows.start, self.shape[1]
        r = min(_TOGETHER, count)
        if len(self.blocks) == 1 and count % r == 0:
            return np.broadcast_to(self.blocks[0](rows), (count, n)).reshape(count // r, 1, r, n)
        whole, rest = divmod(count, r)
        sums = np.zeros((whole + (rest > 0), len(self.blocks), r, n))
        for q, block in enumerate(self.blocks):
            found = np.broadcast_to(block(rows), (count, n))
            sums[:whole, q] = found[: whole * r].reshape(whole, r, n)
            if rest:
                sums[whole, q, :rest] = found[whole * r :]
        return sums

    def none(self) -> np.ndarray:
        """The sums of no rows."""
        return np.empty((0, len(self.blocks), 1, self.shape[1]))

    def __call__(self, verb: Any, sums: np.ndarray, *more: Any) -> Any:
        """A verb of the rest of the formula: [..., G R, ...], or a tuple of such."""
        g, q, r, n = sums.shape
        if self.is_sum and verb is _mercer.pairwise:
            return sums.reshape(g * r, n)
        z = sums.transpose(0, 3, 1, 2).reshape(g, n, q * r)
        x = np.broadcast_to(np.tile(np.eye(r), q), (g, r, q * r))
        w = np.repeat(np.arange(float(q)), r) if q > 1 else None
        plain, careful = self.rest
        with np.errstate(over="ignore", invalid="ignore"):
            rest = plain if np.isfinite(sums.sum()) else careful
        found = verb(rest, x, z, *more, w=w, **self.params)
        of_rows = len(self.batch)

        def joined(a: np.ndarray) -> np.ndarray:
            return a.reshape(*a.shape[:of_rows], g * r, *a.shape[of_rows + 2 :])

        return tuple(map(joined, found)) if isinstance(found, tuple) else joined(found)


def _tried(verb: str, f: Any, origin: np.ndarray, w: Any, params: dict[str, Any]) -> Any:
    """The matrix of one point, or the errors of any call."""
    try:
        return _mercer.pairwise(f, origin, origin, w=w, **params)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(str(error).replace("pairwise:", f"{verb}:", 1)) from None


def _without_total(formula: Any, w: np.ndarray) -> str:
    """The text with the number that sum(w) is."""
    return re.sub(r"\bsum\(w\)", f"({math.fsum(w)!r})", str(formula))


def _chosen(text: str, sums: int) -> Iterator[Any]:
    """The formula on sums as features of z of which x chooses; first for finite ones."""
    for one in ("x*z", "where(x != 0, z, 0)"):
        value = f"sum({one})" if sums == 1 else rf"sum(where(w == \1, {one}, 0))"
        yield _mercer.parse(re.sub(r"<(\d+)>", value, text))


def _factors(w: np.ndarray, weights: str) -> np.ndarray:
    """What the formula multiplies features by: w, or 1/w."""
    with np.errstate(divide="ignore", over="ignore"):
        return w if weights == "w" else 1 / w


def _refuse_factors(verb: str, points: Iterable[Any], w: np.ndarray, weights: str) -> None:
    """Infinite factors, which make NaN of features that no point stores, and factors with which
    the square of a value leaves the range."""
    factors = abs(_factors(w, weights))
    if not np.isfinite(factors).all():
        raise ValueError(
            f"{verb}: of sparse points a formula must not divide by weights of 0. Received "
            f"{w[~np.isfinite(factors)][0]} as weight {np.flatnonzero(~np.isfinite(factors))[0]}"
        )
    with np.errstate(over="ignore", under="ignore"):
        for a in points:
            own = factors[a.indices]
            sizes = own * a.data * a.data
            wrong = (own != 0) & ~((sizes >= _LEAST**2 / 2) & (sizes <= _MOST**2 * 2))
            if wrong.any():
                raise ValueError(
                    f"{verb}: weights times squares of values of sparse points must be 0 or of "
                    f"sizes from {_LEAST**2:.0e} to {_MOST**2:.0e}. Received {sizes[wrong][0]}"
                )


def _pairs(x: Any, z: Any, w: np.ndarray | None, weights: str, same: bool) -> _Pairs:
    if w is None or not weights:
        return _Pairs(x, z, None, same)
    return _Pairs(x, z, _factors(w, weights), same)


def _weights(verb: str, w: Any, features: int) -> np.ndarray | None:
    if w is None:
        return None
    made = np.asarray(w, np.float64)
    if made.shape != (features,) or not np.isfinite(made).all():
        raise ValueError(
            f"{verb}: w must be {features} finite numbers for sparse points. Received the shape "
            f"{made.shape}"
        )
    return made


def _refuse_options(verb: str, arguments: dict[str, Any]) -> None:
    names = ("out", "row", "col", "workspace", "device", "normalize", "i_offset", "j_offset")
    for name in names:
        value = arguments.get(name)
        if value is not None and not (isinstance(value, int) and value == 0):
            raise NotImplementedError(
                f"{verb}: {name}= is not offered for sparse points. Received {type(value).__name__}"
            )


def call(verb: str, arguments: dict[str, Any]) -> Any:
    """The verb on its arguments by name; NumPy's arrays."""
    try:
        return _call(verb, arguments)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise error from None  # not from the refusal of dense points


def _call(verb: str, arguments: dict[str, Any]) -> Any:
    _refuse_options(verb, arguments)
    _array_likes.refuse_masked(verb, **{name: arguments.get(name) for name in _MASKED})
    params = dict(arguments["params"])
    names = ("x1", "x2") if verb == "cdist" else ("x", "z")
    x, z = (arguments[name] for name in names)
    f, w = arguments.get("f"), arguments["w"]
    if verb == "cdist":
        f = "minkowski" if arguments["metric"] is None else arguments["metric"]
        if isinstance(arguments["p"], str):
            raise TypeError(
                f"{verb}: p must be a number; the name of a metric goes by keyword (metric=). "
                f"Received {arguments['p']!r}"
            )
        params |= {} if arguments["p"] is None else {"p": arguments["p"]}
        w = _variances(verb, w, params) if f == "seuclidean" else w
    matrix = _Matrix(verb, f, x, z, w, params)
    if verb == "kernel_product":
        return _product(matrix, arguments["v"])
    if verb == "knn":
        return _neighbours(matrix, arguments["k"])
    if verb == "kernel_reduce":
        return _reduced(matrix, arguments["reduce"])
    made = np.empty((*matrix.batch, *matrix.shape), matrix.dtype)
    with np.errstate(over="ignore"):
        for strip, part in matrix.strips():
            values = made[..., strip, strip.start :]
            for rows, sums in part.rows():
                found = part(_mercer.pairwise, sums)
                values[..., rows, :] = found[..., : rows.stop - rows.start, :]
            for first in range(strip.stop, matrix.shape[1] if matrix.is_symmetric else 0, 256):
                some = slice(first, first + 256)  # transposed where they stay in a cache
                made[..., some, strip] = made[..., strip, some].swapaxes(-1, -2)
    return made


def _variances(verb: str, w: Any, params: dict[str, Any]) -> Any:
    """Those of seuclidean, which the formula has as weights."""
    if w is not None:
        raise ValueError(f"{verb}: seuclidean takes no weights w. Received w")
    variances = params.pop("V", None)
    if variances is None:
        raise NotImplementedError(
            f"{verb}: of sparse points, seuclidean must be given the variances V. Received none"
        )
    return variances


def _neighbours(matrix: _Matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    matrix(_mercer.knn, matrix.none(), k)  # checks k
    shape = (*matrix.batch, matrix.shape[0], k)
    values, indices = np.empty(shape, matrix.dtype), np.empty(shape, np.int64)
    with np.errstate(over="ignore"):
        for rows, sums in matrix.rows():
            found = matrix(_mercer.knn, sums, k)
            count = rows.stop - rows.start
            values[..., rows, :], indices[..., rows, :] = (part[..., :count, :] for part in found)
    return values, indices


def _reduced(matrix: _Matrix, reduce: str) -> np.ndarray:
    matrix(_mercer.kernel_reduce, matrix.none(), reduce)  # checks the reduction
    kind = np.int64 if reduce in ("argmax", "argmin") else matrix.dtype
    made = np.empty((*matrix.batch, matrix.shape[0]), kind)
    with np.errstate(over="ignore"):
        for rows, sums in matrix.rows():
            found = matrix(_mercer.kernel_reduce, sums, reduce)
            made[..., rows] = found[..., : rows.stop - rows.start]
    return made


def _product(matrix: _Matrix, v: Any) -> np.ndarray:
    v = np.asarray(v)
    if v.dtype.kind not in "biuf" or v.ndim not in (1, 2) or v.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"kernel_product: v must be real, of the shape ({matrix.shape[1]},) or "
            f"({matrix.shape[1]}, E). Received {v.dtype} of {v.shape}"
        )
    wide = v.astype(np.float64)
    made = np.empty((*matrix.batch, matrix.shape[0], *v.shape[1:]), matrix.dtype)
    axes = (slice(None),) * (v.ndim - 1)
    for rows, sums in matrix.rows():
        values = matrix(_mercer.pairwise, sums)[..., : rows.stop - rows.start, :]
        made[(..., rows, *axes)] = values @ wide
    return made
