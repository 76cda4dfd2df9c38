"""Sparse points of SciPy in the verbs that have no gradients.

A formula serves if it reads points within sums of ``_SUMS`` alone: products of sparse rows give
these by blocks of rows, in float64, and the rest of the formula is computed on them as on points.
Nothing of M x K is stored, nor of M x N but the result.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mercer import _array_likes, _mercer
from mercer.errors import DtypeError

#: Numbers of a block of rows of the matrix.
_BLOCK = 2**21
#: Squares of distances below this part of the squares of norms are sums of squares of differences.
_NEAR = 1e-3
#: Magnitudes whose squares, and those of their differences, float64 has.
_LEAST, _MOST = 1e-130, 1e150
_NORMS = "a = sqrt(sum({0}x*x)); b = sqrt(sum({0}z*z)); "

#: Kind -> texts of its sum, {0} for nothing or "w*".
_SUMS = {
    "dots": ("sum({0}x*z)",),
    "differences": ("sum({0}square(x - z))", "sum({0}(x - z)^2)"),
    "unit dots": (_NORMS + "sum({0}x/a*(z/b))",),
    "unit differences": (_NORMS + "sum({0}square(x/a - z/b))",),
    "unequal": ("sum(x != z)",),
    "both": ("sum(x != 0 && z != 0)",),
    "one": ("sum((x != 0) != (z != 0))",),
    "squares of x": ("sum({0}x*x)",),
    "squares of z": ("sum({0}z*z)",),
    "sum of x": ("sum({0}x)",),
    "sum of z": ("sum({0}z)",),
    "counts of x": ("sum(x != 0)",),
    "counts of z": ("sum(z != 0)",),
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
                if weights and ("{0}" not in text or (weights != "w" and "unit" in kind)):
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
    """The formula on its sums as features of z, and these; refuses one that reads points else."""
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
    chosen = r"sum(z)" if len(found) == 1 else r"sum(where(w == \1, z, 0))"
    return re.sub(r"<(\d+)>", chosen, left), found


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


class _Pairs:
    """Points x and z with weights [K] or None."""

    def __init__(self, x: Any, z: Any, weights: np.ndarray | None) -> None:
        self.x, self.z, self.w = x, z, weights

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
        return np.diff(a.indptr).astype(np.float64)

    def _dots(self) -> Block:
        x, columns = self._weighted(self.x), self.z.T.tocsr()
        return lambda rows: (x[rows] @ columns).toarray()

    def _differences(self) -> Block:
        """x^2 + z^2 - 2 x z, but of near pairs the sum of squares itself."""
        dots, xx, zz = self._dots(), self._squares(self.x), self._squares(self.z)
        sizes = [xx, zz]
        if self.w is not None and (self.w < 0).any():
            both = _Pairs(self.x, self.z, abs(self.w))
            sizes = [both._squares(self.x), both._squares(self.z)]

        def block(rows: slice) -> np.ndarray:
            found = xx[rows, None] + zz - 2 * dots(rows)
            near = np.nonzero(abs(found) <= _NEAR * (sizes[0][rows, None] + sizes[1]))
            self._exactly(found, rows.start, *near)
            return found

        return block

    def _exactly(self, found: np.ndarray, start: int, i: np.ndarray, j: np.ndarray) -> None:
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
        made = _Pairs(scaled[0], scaled[1], self.w).block(kind)
        return lambda rows: made(rows) + none[0][rows, None] + none[1]

    def _marks(self) -> tuple[Any, Any]:
        """1 for what is not 0."""
        marks = [a.copy() for a in (self.x, self.z)]
        for mark in marks:
            mark.data[:] = 1
        return marks[0], marks[1]

    def _both(self) -> Block:
        return _Pairs(*self._marks(), None)._dots()

    def _one(self) -> Block:
        both, nx, nz = self._both(), self._counts(self.x), self._counts(self.z)
        return lambda rows: nx[rows, None] + nz - 2 * both(rows)

    def _unequal(self) -> Block:
        """Nonzeros of both less what is equal: columns are pairs of a column and a value there."""
        from scipy import sparse

        both, one, n = self._both(), self._one(), self.x.nnz
        columns = np.concatenate([self.x.indices, self.z.indices]).astype(np.int64)
        values = np.unique(np.concatenate([self.x.data, self.z.data]), return_inverse=True)[1]
        pairs, names = np.unique(columns * (values.max(initial=0) + 1) + values.ravel(),
                                 return_inverse=True)  # fmt: skip
        marks = [
            sparse.csr_array(
                (np.ones(len(part)), part, a.indptr), shape=(a.shape[0], max(1, len(pairs)))
            )
            for a, part in ((self.x, names.ravel()[:n]), (self.z, names.ravel()[n:]))
        ]
        for mark in marks:
            mark.sort_indices()
        equal = _Pairs(marks[0], marks[1], None)._dots()
        return lambda rows: one(rows) + both(rows) - equal(rows)


class _Matrix:
    """The matrix of a formula on sparse points, by blocks of rows [..., B, N] in float64."""

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
        text, kinds = _split(verb, formula)
        text = re.sub(r"\bK\b", f"{float(features)}", text)
        self.blocks = [_pairs(left, right, w, weights).block(kind) for kind, weights in kinds]
        self.is_sum, self.rest = text == "sum(z)", _mercer.parse(text)
        self.dtype, self.shape = dtype, (left.shape[0], right.shape[0])

    def rows(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows and their sums [B, N, Q]."""
        m, n = self.shape
        step = max(1, _BLOCK // max(1, n * len(self.blocks)))
        for start in range(0, m, step):
            rows = slice(start, min(start + step, m))
            sums = np.empty((rows.stop - start, n, len(self.blocks)))
            for q, block in enumerate(self.blocks):
                sums[..., q] = block(rows)
            yield rows, sums

    def none(self) -> np.ndarray:
        """The sums of no rows."""
        return np.empty((0, self.shape[1], len(self.blocks)))

    def __call__(self, verb: Any, sums: np.ndarray, *more: Any) -> Any:
        """A verb of the rest of the formula: a batch of rows, of one point each."""
        if self.is_sum and verb is _mercer.pairwise:
            return sums[:, None, :, 0]
        b, _, q = sums.shape
        w = np.arange(float(q)) if q > 1 else None
        return verb(self.rest, np.zeros((b, 1, q)), sums, *more, w=w, **self.params)


def _tried(verb: str, f: Any, origin: np.ndarray, w: Any, params: dict[str, Any]) -> Any:
    """The matrix of one point, or the errors of any call."""
    try:
        return _mercer.pairwise(f, origin, origin, w=w, **params)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(str(error).replace("pairwise:", f"{verb}:", 1)) from None


def _pairs(x: Any, z: Any, w: np.ndarray | None, weights: str) -> _Pairs:
    if w is None or not weights:
        return _Pairs(x, z, None)
    return _Pairs(x, z, w if weights == "w" else 1 / w)


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
    _array_likes.refuse_masked(verb, **{name: arguments.get(name) for name in ("v", "w")})
    params = dict(arguments["params"])
    names = ("x1", "x2") if verb == "cdist" else ("x", "z")
    x, z = (arguments[name] for name in names)
    f = arguments.get("f")
    if verb == "cdist":
        f = "minkowski" if arguments["metric"] is None else arguments["metric"]
        params |= {} if arguments["p"] is None else {"p": arguments["p"]}
    matrix = _Matrix(verb, f, x, z, arguments["w"], params)
    if verb == "kernel_product":
        return _product(matrix, arguments["v"])
    if verb == "knn":
        return _neighbours(matrix, arguments["k"])
    if verb == "kernel_reduce":
        return _reduced(matrix, arguments["reduce"])
    made = np.empty((*matrix.batch, *matrix.shape), matrix.dtype)
    with np.errstate(over="ignore"):
        for rows, sums in matrix.rows():
            made[..., rows, :] = matrix(_mercer.pairwise, sums)[..., 0, :]
    return made


def _neighbours(matrix: _Matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    matrix(_mercer.knn, matrix.none(), k)  # checks k
    shape = (*matrix.batch, matrix.shape[0], k)
    values, indices = np.empty(shape, matrix.dtype), np.empty(shape, np.int64)
    with np.errstate(over="ignore"):
        for rows, sums in matrix.rows():
            found = matrix(_mercer.knn, sums, k)
            values[..., rows, :], indices[..., rows, :] = (part[..., 0, :] for part in found)
    return values, indices


def _reduced(matrix: _Matrix, reduce: str) -> np.ndarray:
    matrix(_mercer.kernel_reduce, matrix.none(), reduce)  # checks the reduction
    kind = np.int64 if reduce in ("argmax", "argmin") else matrix.dtype
    made = np.empty((*matrix.batch, matrix.shape[0]), kind)
    with np.errstate(over="ignore"):
        for rows, sums in matrix.rows():
            made[..., rows] = matrix(_mercer.kernel_reduce, sums, reduce)[..., 0]
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
        made[(..., rows, *axes)] = matrix(_mercer.pairwise, sums)[..., 0, :] @ wide
    return made
