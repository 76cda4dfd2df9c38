"""Reductions over points of formulas with vector values: ``kernel_sum``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer import _array_likes, _groups, _libraries
from mercer._mercer import Expr
from mercer._types import ArrayT, Parameter
from mercer._vectors import sums, text
from mercer._vectors.formulas import Request
from mercer._vectors.nodes import I_SIDE, J_SIDE, Node, applied
from mercer.errors import DtypeError

__all__ = ["kernel_sum"]

_WEIGHTED = ("mean", "var", "softmax")
_BY_COMPONENTS = ("max", "min", "argmax", "argmin", "logsumexp")
_REDUCTIONS = ("sum", *_WEIGHTED, *_BY_COMPONENTS)
_NUMBERS = (
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float32", "float64",
)  # fmt: skip


def _sides(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Arrays [..., n, D] of x, z, u and v by the names of their groups."""
    found = {}
    for side in ("x", "z", "u", "v"):
        points = given["x"] if side == "z" and given["z"] is None else given[side]
        if points is None:
            continue
        groups = _groups._groups("kernel_sum", side, points)
        least = 2 if side in "xz" and "" in groups else 1
        for name, array in groups.items():
            if getattr(array, "ndim", 0) < least or not hasattr(array, "dtype"):
                written = f"{side}[{name!r}]" if name else side
                shapes = "[..., n, D]" if least == 2 else "[..., n, D] or [n]"
                raise ValueError(
                    f"kernel_sum: {written} must be an array of the shape {shapes}. Received "
                    f"{tuple(getattr(array, 'shape', ()))} of {type(array).__name__}"
                )
        found[side] = {n: a[:, None] if a.ndim == 1 else a for n, a in groups.items()}
    return found


class _Inputs:
    """The checked arguments of a call, in one library and one dtype."""

    def __init__(self, given: dict[str, Any]):
        self.points = _sides(given)
        self.numbers = {
            name: (_array_likes.array(given[name]), side)
            for name, side in (("row", I_SIDE), ("col", J_SIDE))
            if given[name] is not None
        }
        _array_likes.refuse_masked("kernel_sum", **{n: a for n, (a, _) in self.numbers.items()})
        self.weights = None if given["w"] is None else _array_likes.array(given["w"])
        self.params = given["params"]
        first = next(iter(self.points["x"].values()), None)
        if first is None:
            raise ValueError("kernel_sum: x must have groups. Received none")
        self.xp = _libraries.namespace_of(first)
        if self.xp.__name__ not in ("numpy", "torch", "jax.numpy", "cupy"):
            raise NotImplementedError(
                "kernel_sum: it is offered for arrays of NumPy, PyTorch, JAX and CuPy. Received "
                f"{type(first).__module__}.{type(first).__name__}"
            )
        self._check_library(first)
        self._cast()
        self.like = next(iter(self.points["x"].values()))
        self.sizes = self._count(("x", "u"), "row", "M"), self._count(("z", "v"), "col", "N")
        self._check_batches()

    def _named(self) -> dict[str, Any]:
        named = {
            f"{side}[{name!r}]" if name else side: array
            for side, groups in self.points.items()
            for name, array in groups.items()
        }
        named |= {name: array for name, (array, _) in self.numbers.items()}
        return named if self.weights is None else named | {"w": self.weights}

    def _check_library(self, first: Any) -> None:
        for name, array in self._named().items():
            if not hasattr(array, "dtype") or _libraries.namespace_of(array) is not self.xp:
                raise ValueError(
                    f"kernel_sum: {name} must be an array of the library of x. Received "
                    f"{type(array).__module__}.{type(array).__name__}"
                )
            kind = str(array.dtype).rpartition(".")[2]
            if kind not in _NUMBERS:
                raise DtypeError(
                    f"kernel_sum: {name} must hold real numbers of at most 64 bits. Received "
                    f"{array.dtype}"
                )
            place, here = getattr(array, "device", None), getattr(first, "device", None)
            if self.xp.__name__ == "torch" and place != here:
                raise ValueError(
                    f"kernel_sum: {name} must be on the device of x, {here}. Received {place}"
                )

    def _cast(self) -> None:
        """All arrays in one type that holds the numbers of all."""
        kinds = [_array_likes.computing_type(array.dtype) for array in self._named().values()]
        self.dtype = getattr(self.xp, max(kinds, key=lambda kind: kind.itemsize).name)
        for groups in self.points.values():
            groups.update({name: self._in_type(name, array) for name, array in groups.items()})
        self.numbers = {n: (self._in_type(n, a), side) for n, (a, side) in self.numbers.items()}
        if self.weights is not None:
            self.weights = self._in_type("w", self.weights)
            if self.weights.ndim != 1:
                raise ValueError(
                    f"kernel_sum: w must have the shape [K]. Received {tuple(self.weights.shape)}"
                )

    def _in_type(self, name: str, array: Any) -> Any:
        if self.xp.__name__ == "torch":
            return array.to(self.dtype)
        if self.xp is np and array.dtype.kind in "iu":
            array = _array_likes.widened("kernel_sum", name, array)
        if self.xp.__name__ == "jax.numpy" and self.dtype == np.float64 and not self._has_float64():
            raise DtypeError(
                f"kernel_sum: {name} of {array.dtype} is computed in float64, which JAX has with "
                "jax_enable_x64 alone; give float32. Received JAX without it"
            )
        return array.astype(self.dtype) if array.dtype != self.dtype else array

    def _has_float64(self) -> bool:
        return self.xp.zeros(0).dtype == np.float64

    def _count(self, sides: tuple[str, str], number: str, letter: str) -> int:
        """The number of points of a side, which all of its arrays share."""
        shapes = {
            f"{side}.{name}" if name else side: tuple(array.shape)
            for side in sides
            for name, array in self.points.get(side, {}).items()
        }
        counts = {shape[-2] for shape in shapes.values()}
        if number in self.numbers:
            shapes[number] = tuple(self.numbers[number][0].shape)
            if len(shapes[number]) < 1:
                raise ValueError(f"kernel_sum: {number} must have the shape [..., {letter}]")
            counts.add(shapes[number][-1])
        if len(counts) > 1:
            raise ValueError(
                f"kernel_sum: {', '.join(shapes)} must have the same number {letter} of points. "
                f"Received {shapes}"
            )
        return counts.pop()

    def _check_batches(self) -> None:
        named = self._named()
        shapes = {
            name: tuple(array.shape[: -1 if name in ("row", "col") else -2])
            for name, array in named.items()
            if name != "w"
        }
        try:
            np.broadcast_shapes(*shapes.values())
        except ValueError:
            raise ValueError(
                "kernel_sum: batch axes, those before [n, D], must broadcast. Received "
                f"{ {name: tuple(named[name].shape) for name in shapes} }"
            ) from None

    def array(self, name: str, value: Any) -> Any:
        """A parameter as an array of the library."""
        value = _array_likes.array(value)
        _array_likes.refuse_masked("kernel_sum", **{name: value})
        kind = str(getattr(value, "dtype", "float64")).rpartition(".")[2]
        if kind not in _NUMBERS:
            raise DtypeError(
                f"kernel_sum: the parameter {name} must hold real numbers. Received {value!r}"
            )
        if self.xp.__name__ == "torch":
            return self.xp.as_tensor(value, dtype=self.dtype, device=self.like.device)
        return self.xp.asarray(value, dtype=self.dtype)

    def node(self, f: Any) -> tuple[Node, set[str]]:
        if not isinstance(f, (str, Expr)):
            raise ValueError(
                "kernel_sum: a formula must be a text or an expression of symbols. Received "
                f"{type(f).__name__}"
            )
        defaults = {} if isinstance(f, str) else dict(f.parameters)
        given = text.Given(
            self.points, self.numbers, self.weights, self.params, defaults, self.xp, self.array
        )
        return text.read(str(f), "kernel_sum", given)


def kernel_sum(
    f: str | Expr,
    x: ArrayT,
    z: ArrayT | None,
    *,
    v: ArrayT | None = None,
    u: ArrayT | None = None,
    reduce: str = "sum",
    weight: str | Expr | None = None,
    row: ArrayT | None = None,
    col: ArrayT | None = None,
    w: ArrayT | None = None,
    i_offset: int = 0,
    j_offset: int = 0,
    ranges: Any = None,
    separate: bool | None = None,
    **params: Parameter,
) -> ArrayT:
    """A reduction over the points of z of a formula with vector values, without a matrix.

        out[..., m, d] = reduce over n of f(x_m, z_n, u_m, v_n)[d]

    f: a text, or an expression of symbols, in which x, z, u and v outside of reductions are vectors
    and operations go component by component; numbers of the pair, such as
    ``exp(-sum((x-z)^2)/h)``, multiply whole vectors. ``concat(a, b, ...)``, ``outer(a, b)`` (by
    rows), ``dot(a, b)``, ``t[0]``, ``t[1:3]``, ``vector(p)`` and ``matvec(p, t)``, of parameters
    that are a vector [D] or a matrix [D, K], are words of such formulas alone.

    x: [..., M, K]; z: [..., N, L], or None for x itself. u and v are values of the points of x and
    of z, [..., M, D] and [..., N, E], or [M] and [N] for a number each. Each may be a mapping of
    arrays, which the formula reads as ``v.name``. All are of one library, NumPy, PyTorch or JAX,
    and are computed in float32, or in float64 where an array is float64, int32 or wider. row
    [..., M], col [..., N], w [K], i, j, ranges and parameters as in ``kernel_product``. The result
    is [..., M, D], also for D = 1.

    reduce: "sum"; "mean"; "var", the mean of squared deviations from the mean; "max", "min",
    "argmax", "argmin" and "logsumexp" of each component; "softmax", the mean with the weights
    exp(weight) of each row. weight, a formula of a number for each pair, weighs "mean" and "var"
    as well.

    separate: a sum of numbers of the pair times vectors of one side is one product for each such
    number. Differences, as ``x-z``, are taken apart for that: by default in float64, so that
    float32 keeps its digits, and in JAX without float64 not at all; with True in the type of the
    points, with an error relative to their spread; with False never. What is not taken apart, or
    cannot be, as ``tanh(x-z)``, is one call for each component.

    PyTorch and JAX differentiate all but indices, to any order. Raises ValueError for inputs that a
    formula reads and that are missing, for shapes that do not match and for other reductions.

    >>> force = mc.kernel_sum("v * (x - z) / (sum((x - z)^2) + s)^1.5", x, z, v=mass, s=1e-3)
    """
    if reduce not in _REDUCTIONS:
        raise ValueError(
            f"kernel_sum: reduce must be one of {', '.join(_REDUCTIONS)}. Received {reduce!r}"
        )
    if weight is None and reduce == "softmax":
        raise ValueError("kernel_sum: weight must be given with reduce='softmax'. Received None")
    if weight is not None and reduce not in _WEIGHTED:
        raise ValueError(
            f"kernel_sum: weight is offered with {', '.join(_WEIGHTED)}. Received {weight!r} with "
            f"reduce={reduce!r}"
        )
    given = {"x": x, "z": z, "u": u, "v": v, "row": row, "col": col, "w": w, "params": params}
    inputs = _Inputs(given)
    node, read = inputs.node(f)
    weighs = None
    if weight is not None:
        weighs, others = inputs.node(weight)
        read = read | others
        if weighs.dim != 1:
            raise ValueError(
                f"kernel_sum: weight must be a number for each pair. Received {weight}, a vector "
                f"of {weighs.dim}"
            )
    if separate not in (None, True, False):
        raise ValueError(f"kernel_sum: separate must be True, False or None. Received {separate!r}")
    unread = sorted(params.keys() - read)
    if unread:
        raise ValueError(
            f"kernel_sum: the formula must read each parameter. Received {', '.join(unread)} for "
            f"{f}"
        )
    options = (("i_offset", i_offset), ("j_offset", j_offset))
    request = Request(
        1, inputs.sizes, inputs.like, inputs.xp, ranges, "kernel_sum", options, separate
    )
    try:
        with np.errstate(all="ignore"):  # infinities and NaN come without a word, as in every verb
            return _computed(node, reduce, weighs, request)
    except _array_likes.REFUSED as error:
        known = ("kernel_product:", "kernel_reduce:", "ranges:")
        if not str(error).startswith(known[:2]):
            raise
        raise type(error)("kernel_sum:" + str(error).partition(":")[2]) from None


def _computed(node: Node, reduce: str, weight: Node | None, request: Request) -> Any:
    if reduce in _BY_COMPONENTS:
        return sums.by_components(node, lambda one: sums.reduced(one, reduce, request), request.xp)
    if reduce == "sum":
        return sums.summed(node, request=request)[0]
    if weight is None:
        mean = _over_count(sums.summed(node, request=request)[0], request)
    else:
        kind = "softmax" if reduce == "softmax" else "sum"
        mean = sums.weighted(node, weight, kind, request)
    if reduce != "var":
        return mean
    known = Node("array", (), node.dim, value=mean, category=request.rows)
    square = applied("Square", [applied("Subtract", [node, known], node.dim)], node.dim)
    if weight is not None:
        square = applied("Mult", [weight, square], node.dim)
    total = sums.by_components(square, lambda one: sums.reduced(one, "sum", request), request.xp)
    if weight is None:
        return _over_count(total, request)
    return total / sums.reduced(weight, "sum", request)[..., None]


def _over_count(total: Any, request: Request) -> Any:
    """Divided by the number of columns of each row."""
    count: Any = float(request.sizes[1])
    if request.ranges is not None:
        count = sums.reduced(Node("literal", value="1"), "sum", request)[..., None]
    return total / count
