"""Listed pairs: a formula at pairs of indices, and sums and extrema of its values by rows.

The engine computes batches. A listed pair is an item of one point a side or, where points have few
features, a place on the diagonal of a square of pairs; either way in blocks, so that gathered
points take little memory.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from mercer import _array_likes, _groups, _libraries, _mercer, _verbs
from mercer._types import ArrayT, FormulaLike, Parameter
from mercer._vectors import numbers
from mercer.errors import DtypeError

__all__ = ["csr_rows", "edge_product", "edge_reduce", "edges"]

# Numbers of gathered points that a block has on each side.
_BLOCK = 1 << 20
# Up to so many features a square of pairs takes less time than as many items of one pair.
_FEW, _SIDE = 24, 16
_REDUCTIONS = ("sum", "mean", "max", "min", "logsumexp")


def module_of(x: Any, verb: str) -> Any:
    """numpy or torch. NotImplementedError for arrays of other libraries."""
    xp = _libraries.namespace_of(x) if hasattr(x, "dtype") else None
    if xp is None or xp.__name__ not in ("numpy", "torch"):
        raise NotImplementedError(
            f"{verb}: it is offered for arrays of NumPy and PyTorch. Received {type(x)}"
        )
    return xp


def is_torch(xp: Any) -> bool:
    return xp.__name__ == "torch"


def is_followed(*tensors: Any) -> bool:
    """Whether PyTorch records what is computed of these, or transforms it."""
    torch = sys.modules["torch"]
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(getattr(t, "requires_grad", False) for t in tensors)


def _indices(verb: str, name: str, values: Any, count: int, x: Any, xp: Any) -> Any:
    """Whole numbers [nnz] from 0 to count - 1, in x's library and on its device."""
    _array_likes.refuse_masked(verb, **{name: values})
    if is_torch(xp):
        given = xp.as_tensor(values, device=x.device)
        is_whole = not (given.is_floating_point() or given.is_complex() or given.dtype == xp.bool)
    else:
        given = np.asarray(values)
        is_whole = given.dtype.kind in "iu"
        is_whole = is_whole or given.size == 0
    if not is_whole or given.ndim != 1:
        raise ValueError(
            f"{verb}: {name} must hold whole numbers of the shape [nnz]. Received "
            f"{given.dtype} of the shape {tuple(given.shape)}"
        )
    given = given.to(xp.int64) if is_torch(xp) else given.astype(np.int64, copy=False)
    if given.shape[0] and not (is_torch(xp) and is_followed()):
        least, most = int(given.min()), int(given.max())
        if least < 0 or most >= count:
            raise ValueError(
                f"{verb}: {name} must be from 0 to {count - 1}, which points there are. Received "
                f"{least if least < 0 else most}"
            )
    return given


def _checked_params(verb: str, f: Any, params: dict[str, Any]) -> None:
    for name, value in params.items():
        shape = np.shape(value) if isinstance(value, (list, tuple)) else getattr(value, "shape", ())
        if any(length != 1 for length in shape):
            raise ValueError(
                f"{verb}: the parameter {name} must be one number. Received the shape "
                f"{tuple(shape)}"
            )
    if re.search(r"\b[ij]\b", str(f)):
        raise ValueError(f"{verb}: a formula must not read i or j. Received {f}")


class _Pairs:
    """The checked arguments of a call."""

    def __init__(
        self, verb: str, f: Any, x: Any, z: Any, rows: Any, cols: Any, options: dict[str, Any]
    ):
        self.row, self.col, self.w = (_array_likes.array(options[n]) for n in ("row", "col", "w"))
        self.params = dict(options["params"])
        given = {"f": f, "x": x, "z": z, "row": self.row, "col": self.col, "w": self.w}
        given, self.params = numbers.separated(verb, given, self.params)
        if _array_likes.is_grouped(given):
            f, x, z, self.row, self.col, self.w = _groups.arguments(verb, given).values()
        x, z = _array_likes.points(verb, x, z) if z is not None else (
            *_array_likes.points(verb, x), None
        )  # fmt: skip
        self.verb, self.x, self.z = verb, x, x if z is None else z
        self.xp = module_of(x, verb)
        self.f = _mercer.formula_for(f, "pairwise", self.w is not None, self.params)
        _checked_params(verb, self.f, self.params)
        for points in (self.x, self.z):
            if getattr(points, "ndim", 0) != 2:
                raise ValueError(
                    f"{verb}: x and z must have the shapes [M, K] and [N, K]. Received "
                    f"{' and '.join(str(tuple(getattr(p, 'shape', ()))) for p in (self.x, self.z))}"
                )
        # No pairs of these, for all that a verb checks.
        _verbs.pairwise(
            self.f, self.x[:0], self.z[:0], row=None if self.row is None else self.row[:0],
            col=None if self.col is None else self.col[:0], w=self.w, **self.params,
        )  # fmt: skip
        self.rows = _indices(verb, "rows", rows, self.x.shape[0], self.x, self.xp)
        self.cols = _indices(verb, "cols", cols, self.z.shape[0], self.x, self.xp)
        if self.rows.shape != self.cols.shape:
            raise ValueError(
                f"{verb}: rows and cols must have the same length. Received "
                f"{self.rows.shape[0]} and {self.cols.shape[0]}"
            )
        for name, side in (("row", self.x), ("col", self.z)):
            given = getattr(self, name)
            if given is not None and tuple(given.shape) != (side.shape[0],):
                raise ValueError(
                    f"{verb}: {name} must have the shape {(side.shape[0],)}. Received "
                    f"{tuple(given.shape)}"
                )

    def is_followed(self) -> bool:
        """Whether derivatives of the pairs are recorded."""
        arrays = (self.x, self.z, self.row, self.col, self.w, *self.params.values())
        carried = self.f.parameters.values()
        return is_torch(self.xp) and is_followed(*arrays, *carried)

    def blocks(self) -> list[slice]:
        """Pairs whose points are gathered at once: all of them where they are recorded."""
        count, features = self.rows.shape[0], max(self.x.shape[1], 1)
        step = max(count, 1) if self.is_followed() else max(_SIDE, _BLOCK // features)
        step -= step % _SIDE if step < count else 0
        return [slice(first, first + step) for first in range(0, max(count, 1), step)]

    def all_values(self) -> Any:
        parts = [self.values(part) for part in self.blocks()]
        return parts[0] if len(parts) == 1 else self.xp.concatenate(parts)

    def values(self, part: slice) -> Any:
        """The formula at some of the pairs."""
        rows, cols = self.rows[part], self.cols[part]
        count = rows.shape[0]
        # Gradients take pairs alone: 0 times what is NaN at any other pair would be NaN.
        is_square = self.x.shape[1] <= _FEW and not self.is_followed() and not self._is_cuda()
        whole = count - count % _SIDE if is_square else 0
        parts = [
            self._gathered(rows[first:last], cols[first:last], side)
            for first, last, side in ((0, whole, _SIDE), (whole, count, 1))
            if first < last or last == count == 0
        ]
        return parts[0] if len(parts) == 1 else self.xp.concatenate(parts)

    def _is_cuda(self) -> bool:
        return is_torch(self.xp) and self.x.is_cuda

    def _gathered(self, rows: Any, cols: Any, side: int) -> Any:
        items = rows.shape[0] // side
        x, z = (
            points[index].reshape(items, side, points.shape[1])
            for points, index in ((self.x, rows), (self.z, cols))
        )
        row, col = (
            None if given is None else given[index].reshape(items, side)
            for given, index in ((self.row, rows), (self.col, cols))
        )
        return self._squares(x, z, row, col).diagonal(0, -2, -1).reshape(-1)

    def _squares(self, x: Any, z: Any, row: Any, col: Any) -> Any:
        if not self._is_cuda():
            return _verbs.pairwise(self.f, x, z, row=row, col=col, w=self.w, **self.params)
        from mercer import _torch  # whose operator launches once for all items

        arrays = {"row": row, "col": col, "w": self.w}
        params = {n: v for n, v in self.f.parameters.items() if v is not None} | self.params
        settings = {"i_offset": 0, "j_offset": 0}
        return _torch.call("pairwise", "pairwise", str(self.f), x, z, arrays, settings, params)


def edges(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None,
    rows: Any,
    cols: Any,
    *,
    row: ArrayT | None = None,
    col: ArrayT | None = None,
    w: ArrayT | None = None,
    **params: Parameter,
) -> ArrayT:
    """The formula at listed pairs: out[e] = f(x[rows[e]], z[cols[e]]).

    x: [M, K]; z: [N, K], or None for x itself; rows, cols: whole numbers [nnz], in any order, pairs
    may repeat. The result is [nnz] of the computing dtype. row [M], col [N], w [K] and parameters
    as in ``pairwise``; each parameter is one number. Arrays of NumPy and PyTorch, which
    differentiates the values by points and parameters to any order. Raises ValueError for indices
    that no point has, for other shapes, and for formulas that read i or j; otherwise what
    ``pairwise`` raises.

    >>> d = mc.edges("euclidean", atoms, None, bonds[:, 0], bonds[:, 1])
    """
    options = {"row": row, "col": col, "w": w, "params": params}
    return _Pairs("edges", f, x, z, rows, cols, options).all_values()


def edge_product(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None,
    rows: Any,
    cols: Any,
    v: ArrayT,
    *,
    row: ArrayT | None = None,
    col: ArrayT | None = None,
    w: ArrayT | None = None,
    **params: Parameter,
) -> ArrayT:
    """The product of the sparse matrix of listed pairs with v.

    out[m] is the sum of f(x_m, z_n) v[n] over the pairs (m, n) of the list. v: [N] or [N, E]; the
    result is [M] or [M, E] of the computing dtype, 0 for rows without pairs; its sums are in
    float64. Pairs that repeat count as often. Other arguments and errors: those of ``edges``. On
    CUDA the last bits of sums may differ from run to run.
    """
    options = {"row": row, "col": col, "w": w, "params": params}
    pairs = _Pairs("edge_product", f, x, z, rows, cols, options)
    xp, count = pairs.xp, pairs.z.shape[0]
    factors: Any = _array_likes.array(v)
    _array_likes.refuse_masked("edge_product", v=factors)
    is_right = module_of(factors, "edge_product") is xp and factors.ndim in (1, 2)
    if not is_right or factors.shape[0] != count:
        raise ValueError(
            f"edge_product: v must be an array of {xp.__name__} of the shape [{count}] or "
            f"[{count}, E]. Received {tuple(factors.shape)} of {type(factors)}"
        )
    is_real = not factors.is_complex() if is_torch(xp) else factors.dtype.kind in "biuf"
    if not is_real:
        raise DtypeError(f"edge_product: v must be real. Received {factors.dtype}")
    total: Any = None
    kind: Any = None
    for part in pairs.blocks():
        values, taken = pairs.values(part), _wide(factors[pairs.cols[part]], xp)
        kind, values = values.dtype, _wide(values, xp)
        terms = values * taken if factors.ndim == 1 else values[:, None] * taken
        added = _added(terms, pairs.rows[part], pairs.x.shape[0], xp)
        total = added if total is None else total + added
    return total.to(kind) if is_torch(xp) else total.astype(kind, copy=False)


def _wide(values: Any, xp: Any) -> Any:
    return values.double() if is_torch(xp) else values.astype(np.float64, copy=False)


def _added(terms: Any, rows: Any, count: int, xp: Any) -> Any:
    """Sums [count, ...] of the terms of each row."""
    if is_torch(xp):
        return terms.new_zeros(count, *terms.shape[1:]).index_add(0, rows, terms)
    if terms.ndim == 1:
        return np.bincount(rows, terms, count)
    columns = [np.bincount(rows, terms[:, e], count) for e in range(terms.shape[1])]
    return np.stack(columns, -1) if columns else np.zeros((count, 0))


def edge_reduce(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None,
    rows: Any,
    cols: Any,
    reduce: str,
    *,
    row: ArrayT | None = None,
    col: ArrayT | None = None,
    w: ArrayT | None = None,
    **params: Parameter,
) -> ArrayT:
    """A reduction of the listed pairs of each row: [M] of the computing dtype.

    reduce: "sum", "mean", "max", "min" or "logsumexp". Rows without pairs have 0, NaN, -inf, inf
    and -inf. NaN wins in maxima and minima, whose derivative is shared evenly at ties. Other
    arguments and errors: those of ``edges``; ValueError for other reductions.
    """
    if reduce not in _REDUCTIONS:
        raise ValueError(
            f"edge_reduce: reduce must be one of {', '.join(_REDUCTIONS)}. Received {reduce!r}"
        )
    options = {"row": row, "col": col, "w": w, "params": params}
    pairs = _Pairs("edge_reduce", f, x, z, rows, cols, options)
    values = pairs.all_values()
    xp, count, rows = pairs.xp, pairs.x.shape[0], pairs.rows
    kind, values = values.dtype, _wide(values, xp)
    if reduce in ("max", "min"):
        out = _extreme(values, rows, count, reduce, xp)
    elif reduce == "logsumexp":
        out = _logsumexp(values, rows, count, xp)
    else:
        out = _added(values, rows, count, xp)
        if reduce == "mean":
            with np.errstate(invalid="ignore"):
                out = out / _added(xp.ones_like(values), rows, count, xp)
    return out.to(kind) if is_torch(xp) else out.astype(kind, copy=False)


def _extreme(values: Any, rows: Any, count: int, reduce: str, xp: Any) -> Any:
    start = -np.inf if reduce == "max" else np.inf
    if is_torch(xp):
        return values.new_full((count,), start).scatter_reduce(0, rows, values, f"a{reduce}")
    out = np.full(count, start)
    with np.errstate(invalid="ignore"):
        (np.maximum if reduce == "max" else np.minimum).at(out, rows, values)
    return out


def _logsumexp(values: Any, rows: Any, count: int, xp: Any) -> Any:
    known = values.detach() if is_torch(xp) else values
    largest = _extreme(known, rows, count, "max", xp)
    shift = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return xp.log(_added(xp.exp(values - shift[rows]), rows, count, xp)) + shift


def csr_rows(indptr: Any) -> Any:
    """The row of each entry of a CSR matrix: rows [nnz] of its pointers indptr [M + 1].

    indptr starts with 0 and never decreases; entries indptr[m] to indptr[m + 1] - 1 are of row m.
    NumPy and PyTorch; the result is of int64. Raises ValueError for anything else.

    >>> values = mc.edges("gauss", x, z, mc.csr_rows(a.indptr), a.indices)
    """
    indptr = _array_likes.array(indptr)
    _array_likes.refuse_masked("csr_rows", indptr=indptr)
    xp = module_of(indptr, "csr_rows")
    if indptr.ndim != 1 or indptr.shape[0] < 1 or "int" not in str(indptr.dtype):
        raise ValueError(
            f"csr_rows: indptr must hold whole numbers of the shape [M + 1]. Received "
            f"{indptr.dtype} of the shape {tuple(indptr.shape)}"
        )
    indptr = indptr.long() if is_torch(xp) else indptr.astype(np.int64)
    counts = indptr[1:] - indptr[:-1]
    if int(indptr[0]) != 0 or bool((counts < 0).any()):
        raise ValueError(
            "csr_rows: indptr must start with 0 and never decrease. Received one that does not"
        )
    if is_torch(xp):
        return xp.repeat_interleave(counts)
    return np.repeat(np.arange(counts.shape[0]), counts)
