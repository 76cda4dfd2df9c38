"""Reductions over points of formulas with vector values: ``kernel_sum``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mercer import _array_likes, _libraries
from mercer._types import ArrayT, FormulaLike, Parameter
from mercer._vectors import sums
from mercer._vectors.formulas import Request
from mercer._vectors.inputs import Inputs
from mercer._vectors.nodes import Node, applied, quiet

__all__ = ["kernel_sum"]

_WEIGHTED = ("mean", "var", "softmax")
_BY_COMPONENTS = ("max", "min", "argmax", "argmin", "logsumexp")
_REDUCTIONS = ("sum", *_WEIGHTED, *_BY_COMPONENTS)


def kernel_sum(
    f: FormulaLike,
    x: ArrayT,
    z: ArrayT | None,
    *,
    v: ArrayT | None = None,
    u: ArrayT | None = None,
    reduce: str = "sum",
    weight: FormulaLike | None = None,
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

    f: a text, an expression of symbols, or a function of them, in which x, z, u and v outside of
    reductions are vectors and operations go component by component; numbers of the pair, such as
    ``exp(-sum((x-z)^2)/h)``, multiply whole vectors. ``concat(a, b, ...)``, ``outer(a, b)`` (by
    rows), ``dot(a, b)``, ``t[0]``, ``t[1:3]``, ``vector(p)`` and ``matvec(p, t)``, of parameters
    that are a vector [D] or a matrix [D, K], are words of texts.

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
    number. Differences, as ``x-z``, are taken apart for that: by default one of each product, in
    float64, so that float32 keeps its digits, and in JAX without float64 none; with True all, in
    the type of the points, with an error relative to their spread; with False none. What is not
    taken apart, or cannot be, as ``tanh(x-z)``, is one call for each component.

    PyTorch and JAX differentiate all but indices, to any order. Raises ValueError for inputs that a
    formula reads and that are missing, for shapes that do not match and for other reductions.

    >>> force = mc.kernel_sum("v * (x - z) / (sum((x - z)^2) + s)^1.5", x, z, v=mass, s=1e-3)
    """
    _check(reduce, weight, separate)
    given = {"x": x, "z": z, "u": u, "v": v, "row": row, "col": col, "w": w, "params": params}
    options = (("i_offset", i_offset), ("j_offset", j_offset))
    return _reduced(f, reduce, weight, given, options, ranges, separate)


def _check(reduce: Any, weight: Any, separate: Any) -> None:
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
    if separate is not None and not isinstance(separate, (bool, np.bool_)):
        raise ValueError(f"kernel_sum: separate must be True, False or None. Received {separate!r}")


@_libraries.untraced
@quiet
def _reduced(
    f: Any, reduce: str, weight: Any, given: dict[str, Any], options: Any, ranges: Any,
    separate: bool | None,
) -> Any:  # fmt: skip
    separate = None if separate is None else bool(separate)  # it may be one of NumPy's
    inputs = Inputs("kernel_sum", given, separate)
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
    inputs.check_read(read, f)
    request = Request(
        1, inputs.sizes, inputs.like, inputs.xp, ranges, "kernel_sum", options, separate
    )
    try:
        found = _computed(node, reduce, weighs, request)
        if reduce not in ("argmax", "argmin"):
            found = sums.narrowed(found, request)
        return _owned(found, inputs.batch, inputs.xp)
    except _array_likes.REFUSED as error:
        verb, _, rule = str(error).partition(":")
        if verb not in ("kernel_product", "kernel_reduce"):
            raise
        raise type(error)(f"kernel_sum:{rule}") from None


def _owned(found: Any, batch: tuple[int, ...], xp: Any) -> Any:
    """The result with the batch axes of all inputs, in memory of its own."""
    shape = (*np.broadcast_shapes(batch, tuple(found.shape[:-2])), *found.shape[-2:])
    found = found if tuple(found.shape) == shape else xp.broadcast_to(found, shape)
    return sums.owned(found, xp)


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
