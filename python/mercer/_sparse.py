"""Sparse points of SciPy in the verbs that have no gradients.

A formula serves if it reads points within sums of ``_SUMS`` alone: products of sparse rows give
these by blocks of rows, in float64, and the rest of the formula is computed on them as on points.
Nothing of M x K is stored, nor of M x N but the result.
"""

from __future__ import annotations

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
#: Features without values are left out where there are more than a number and a multiple of values.
_FEW, _SPARE = 2**16, 4
#: Squares of distances below this part of the squares of norms are sums of squares of differences.
_NEAR = 1e-3
#: Magnitudes whose squares, and those of their differences, float64 has.
_LEAST, _MOST = 1e-130, 1e150
#: Values of z for each of x, and pairs for each value of z, from which on x and z change places.
_MORE = 4
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
Block = Callable[[slice, int, np.ndarray | None], np.ndarray]


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
    if _is_plain(points):
        made = sparse.csr_array(points)
        made.has_canonical_format = True
        return made.astype(np.float64, copy=False)
    made = points
    if hasattr(points, "check_format"):  # of columns or rows that are compressed
        made = type(points)(points)  # which shares the arrays
        try:
            made.check_format(full_check=True)
        except ValueError as error:
            raise ValueError(
                f"{verb}: indptr and indices of {name} must be those of its shape. Received {error}"
            ) from None
    made = sparse.csr_array(made)
    if not (made.has_canonical_format and made.data.all()):
        made = made.copy()
        made.sum_duplicates()  # in their dtype, as toarray() adds them
        made.eliminate_zeros()
    if points.dtype.kind in "iu" and max(_ends(made.data)) > 2**53:
        raise ValueError(
            f"{verb}: {name} must have whole numbers of at most 2**53, which float64 has exactly. "
            f"Received one of the size {max(_ends(made.data))}"
        )
    made = made.astype(np.float64, copy=False)
    sizes = abs(made.data)
    if not ((sizes >= _LEAST) & (sizes <= _MOST)).all():
        raise ValueError(
            f"{verb}: values of sparse points must be 0 or of sizes from {_LEAST} to {_MOST}. "
            f"Received {made.data[~((sizes >= _LEAST) & (sizes <= _MOST))][0]} in {name}"
        )
    return made


def _is_plain(points: Any) -> bool:
    """Whether a matrix of compressed rows may be taken as it is: one pass instead of one a rule."""
    if getattr(points, "format", "") != "csr" or points.data.dtype.kind != "f":
        return False
    if not points.dtype.isnative or points.dtype.itemsize < 4:
        return False
    parts = points.indptr, points.indices, points.data
    if len(points.indptr) != points.shape[0] + 1 or any(part.ndim != 1 for part in parts):
        return False
    return _mercer.are_plain_rows(parts, points.shape[1], _LEAST, _MOST)


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
    """Points x and z with weights [K] or None; z None: the same points."""

    def __init__(self, x: Any, z: Any, weights: np.ndarray | None) -> None:
        self.x, self.z, self.w = x, z, weights

    def block(self, kind: str) -> Block:
        """What makes a kind of sums for rows of x and for z from a point on: [B, N], [B, 1] or
        [1, N]; it may write them to the array that it is given."""
        if kind.startswith("unit "):  # points that are 0 give NaN, as dense ones
            return getattr(self, f"_{kind.removeprefix('unit ')}")(unit=True)
        if kind == "roots":
            return self._differences(root=True)
        name, _, of = kind.partition(" of ")
        if of:
            points = self.x if of == "x" or self.z is None else self.z
            found = getattr(_Pairs, f"_{name.removesuffix('s')}s")(self, points)
            if of == "x":
                return lambda rows, first, out: found[rows, None]
            return lambda rows, first, out: found[None, first:]
        return getattr(self, f"_{kind}")()

    def _weighted(self, a: Any) -> Any:
        return a if self.w is None else a.multiply(self.w).tocsr()

    def _sums(self, a: Any) -> np.ndarray:
        return self._weighted(a).sum(axis=1)

    def _squares(self, a: Any) -> np.ndarray:
        return self._weighted(a.multiply(a).tocsr()).sum(axis=1)

    def _counts(self, a: Any) -> np.ndarray:
        return self._sums(_marked(a))

    def _of_both(self, what: Callable[[Any], Any]) -> tuple[Any, Any]:
        """What a function makes of x and of z; one object where they are the same."""
        found = what(self.x)
        return found, found if self.z is None else what(self.z)

    def _engine(self, unit: bool = False) -> _mercer.SparsePairs:
        sides = [self.x] if self.z is None else [self.x, self.z]
        for a in sides:
            a.sum_duplicates()  # sorts what is not
        columns, w, features = [a.indices for a in sides], self.w, self.x.shape[1]
        if features > _FEW + _SPARE * sum(a.nnz for a in sides):
            names, found = np.unique(np.concatenate(columns), return_inverse=True)
            columns, features = np.split(found.ravel(), [self.x.nnz])[: len(sides)], len(names)
            w = None if w is None else w[names]
        made = [(a.indptr, c, a.data) for a, c in zip(sides, columns, strict=True)]
        return _mercer.SparsePairs(made[0], None if self.z is None else made[1], features, w, unit)

    def _made(self, sums: Callable[[int, int, np.ndarray], None]) -> Block:
        """Sums of the engine, into memory that the next block takes unless it is given."""
        room, n = _Room(), (self.x if self.z is None else self.z).shape[0]

        def block(rows: slice, first: int, out: np.ndarray | None) -> np.ndarray:
            made = room((rows.stop - rows.start, n - first)) if out is None else out
            sums(rows.start, first, made)
            return made

        return block

    def _dots(self, unit: bool = False) -> Block:
        return self._made(self._engine(unit).dots)

    def _differences(self, unit: bool = False, root: bool = False) -> Block:
        """x^2 + z^2 - 2 x z, but of near pairs the sum of squares itself; or square roots."""
        engine = self._engine(unit)
        return self._made(lambda row, first, out: engine.squares(row, first, _NEAR, out, root))

    def _marks(self) -> _Pairs:
        """1 for what is not 0."""
        return _Pairs(_marked(self.x), None if self.z is None else _marked(self.z), self.w)

    def _both(self) -> Block:
        return self._marks()._dots()

    def _one(self) -> Block:
        """Without weights all are whole numbers, which cancel exactly."""
        if self.w is not None:
            return self._marks()._differences()
        both, (nx, nz) = self._both(), self._of_both(self._counts)
        return lambda rows, first, out: nx[rows, None] + nz[first:] - 2 * both(rows, first, None)

    def _unequal(self) -> Block:
        """Values are marks of their own: two where both points have other values than 0."""
        values = self._values()
        if self.w is not None:
            one, two = self._one(), values._differences()
            return lambda rows, first, out: (one(rows, first, None) + two(rows, first, None)) / 2
        both, equal, (nx, nz) = self._both(), values._dots(), self._of_both(self._counts)
        return lambda rows, first, out: (
            nx[rows, None] + nz[first:] - both(rows, first, None) - equal(rows, first, None)
        )

    def _values(self) -> _Pairs:
        """Marks whose columns are pairs of a column and a value there."""
        from scipy import sparse

        sides = [self.x] if self.z is None else [self.x, self.z]
        columns = np.concatenate([a.indices for a in sides]).astype(np.int64)
        values = np.unique(np.concatenate([a.data for a in sides]), return_inverse=True)[1]
        count = int(values.max(initial=0)) + 1
        pairs, names = np.unique(columns * count + values.ravel(), return_inverse=True)
        marks = [
            sparse.csr_array(
                (np.ones(len(part)), part, a.indptr), shape=(a.shape[0], max(1, len(pairs)))
            )
            for a, part in zip(sides, np.split(names.ravel(), [self.x.nnz]), strict=False)
        ]
        for mark in marks:
            mark.sort_indices()
        weights = None
        if self.w is not None:
            weights = np.ones(1) if not len(pairs) else self.w[pairs // count]
        return _Pairs(marks[0], None if self.z is None else marks[1], weights)


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

    def __init__(
        self,
        verb: str,
        f: Any,
        x: Any,
        z: Any,
        w: Any,
        params: dict[str, Any],
        *,
        turn: bool = False,
    ) -> None:
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
        # What is wrong with the formula or a parameter is said as of any other points; few features
        # serve, because no sum that sparse points have is wrong for some numbers of these alone.
        few = np.zeros((1, min(features, 16)))
        self.batch = _tried(verb, f, few, None if w is None else w[:16], given).shape[:-2]
        formula = _mercer.formula_for(f, verb, w is not None, given)
        left_over = {n: v for n, v in given.items() if n in formula.parameters}
        self.params = {n: v[..., None] if v.ndim else v for n, v in left_over.items()}
        text, kinds = _split(verb, formula if w is None else _without_total(formula, w))
        text = re.sub(r"\bK\b", f"{float(features)}", text)
        if w is not None:
            for weights in sorted({weights for _, weights in kinds if weights}):
                _refuse_factors(verb, (left, right), w, weights)
        self.is_turned = turn and _is_less_turned(left, right)
        if self.is_turned:
            left, right = right, left
            kinds = [(_turned(kind), weights) for kind, weights in kinds]
        if text == "sqrt(<0>)" and kinds[0][0] == "differences":  # which the engine computes too
            text, kinds = "<0>", [("roots", kinds[0][1])]
        self.shape = left.shape[0], right.shape[0]
        self.is_symmetric = right is left and formula.symmetric
        self.is_sum, self.rest = text == "<0>", tuple(_chosen(text, len(kinds)))
        self.dtype = dtype
        self.blocks = [
            _pairs(left, None if right is left else right, w, weights).block(kind)
            for kind, weights in kinds
        ]

    def rows(self, *, half: bool = False) -> Iterator[tuple[slice, int]]:
        """Some rows, and the first of their columns: 0, or of the upper half their first row."""
        first, m = 0, self.shape[0]
        while first < m:
            each = max(1, (self.shape[1] - half * first) * len(self.blocks))
            step = max(1, _CACHED // each, min(_TOGETHER, _BLOCK // each))
            step -= step % _TOGETHER if step > _TOGETHER else 0
            yield slice(first, min(first + step, m)), first if half else 0
            first += step

    def sums(self, rows: slice, first: int = 0) -> np.ndarray:
        """[G, Q, R, N] of G R rows or a few less, and of the columns from the first on."""
        count, n = rows.stop - rows.start, self.shape[1] - first
        r = min(_TOGETHER, count)
        if len(self.blocks) == 1 and count % r == 0:
            found = np.broadcast_to(self.blocks[0](rows, first, None), (count, n))
            return found.reshape(count // r, 1, r, n)
        whole, rest = divmod(count, r)
        sums = np.zeros((whole + (rest > 0), len(self.blocks), r, n))
        for q, block in enumerate(self.blocks):
            found = np.broadcast_to(block(rows, first, None), (count, n))
            sums[:whole, q] = found[: whole * r].reshape(whole, r, n)
            if rest:
                sums[whole, q, :rest] = found[whole * r :]
        return sums

    def write(self, rows: slice, first: int, out: np.ndarray) -> None:
        """The values [..., B, N] of rows, from a column on."""
        to = out if out.dtype == np.float64 and out.ndim == 2 and not self.is_turned else None
        if self.is_sum:
            found = self.blocks[0](rows, first, to)
            if found is not to:
                out[...] = found
            return
        sums = self.sums(rows, first)
        g, _, r, n = sums.shape
        if to is not None and g * r == len(to):
            self(_mercer.pairwise, sums, out=to.reshape(g, r, n))
        else:
            out[...] = self(_mercer.pairwise, sums)[..., : out.shape[-2], :]

    def none(self) -> np.ndarray:
        """The sums of no rows."""
        return np.empty((0, len(self.blocks), 1, self.shape[1]))

    def __call__(self, verb: Any, sums: np.ndarray, *more: Any, **options: Any) -> Any:
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
        found = verb(rest, x, z, *more, w=w, **self.params, **options)
        of_rows = len(self.batch)

        def joined(a: np.ndarray) -> np.ndarray:
            return a.reshape(*a.shape[:of_rows], g * r, *a.shape[of_rows + 2 :])

        return tuple(map(joined, found)) if isinstance(found, tuple) else joined(found)


def _is_less_turned(x: Any, z: Any) -> bool:
    """Whether few points of x and many of z take less time as those of z and x: the engine sorts
    the values of its second points by features, which costs some times what reading them does,
    and a block is transposed into the result."""
    return z.nnz > _MORE * x.nnz and _MORE * z.nnz > x.shape[0] * z.shape[0]


def _turned(kind: str) -> str:
    """The sum of z and x that is this one of x and z."""
    name, _, of = kind.partition(" of ")
    return f"{name} of {'z' if of == 'x' else 'x'}" if of else kind


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


def _pairs(x: Any, z: Any, w: np.ndarray | None, weights: str) -> _Pairs:
    return _Pairs(x, z, None if w is None or not weights else _factors(w, weights))


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
    is_matrix = verb in ("pairwise", "cdist", "kernel_matrix")
    matrix = _Matrix(verb, f, x, z, w, params, turn=is_matrix)
    if verb == "kernel_product":
        return _product(matrix, arguments["v"])
    if verb == "knn":
        return _neighbours(matrix, arguments["k"])
    if verb == "kernel_reduce":
        return _reduced(matrix, arguments["reduce"])
    m, n = matrix.shape
    made = np.empty((*matrix.batch, *((n, m) if matrix.is_turned else (m, n))), matrix.dtype)
    if matrix.is_turned:
        with np.errstate(over="ignore"):
            for rows, _ in matrix.rows():
                matrix.write(rows, 0, made[..., rows].swapaxes(-1, -2))
        return made
    with np.errstate(over="ignore"):
        for rows, first in matrix.rows(half=matrix.is_symmetric):
            matrix.write(rows, first, made[..., rows, first:])
            for one in made.reshape(-1, *matrix.shape) if matrix.is_symmetric else ():
                _mercer.mirror_rows(one, rows.start, rows.stop)
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
        for rows, _ in matrix.rows():
            found = matrix(_mercer.knn, matrix.sums(rows), k)
            count = rows.stop - rows.start
            values[..., rows, :], indices[..., rows, :] = (part[..., :count, :] for part in found)
    return values, indices


def _reduced(matrix: _Matrix, reduce: str) -> np.ndarray:
    matrix(_mercer.kernel_reduce, matrix.none(), reduce)  # checks the reduction
    kind = np.int64 if reduce in ("argmax", "argmin") else matrix.dtype
    made = np.empty((*matrix.batch, matrix.shape[0]), kind)
    with np.errstate(over="ignore"):
        for rows, _ in matrix.rows():
            found = matrix(_mercer.kernel_reduce, matrix.sums(rows), reduce)
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
    for rows, _ in matrix.rows():
        values = matrix(_mercer.pairwise, matrix.sums(rows))[..., : rows.stop - rows.start, :]
        made[(..., rows, *axes)] = values @ wide
    return made
