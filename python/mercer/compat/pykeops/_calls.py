"""A reduction of a lazy formula over i or j: one formula of Mercer and a call of a verb.

Numbers for pairs are one call. Vectors are sums of a number for the pair times vectors of one side,
which is one product with all of these as columns; any other vector is reduced component by
component.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mercer as mc
from mercer.compat.pykeops._nodes import (
    I_SIDE,
    J_SIDE,
    OPERATIONS,
    PARAMETER,
    REDUCTIONS,
    Node,
    extract,
    numeric,
)  # fmt: skip

__all__ = [
    "Request",
    "by_components",
    "nearest",
    "operator",
    "product",
    "reduced",
    "softmax",
    "summed",
]


class Request(NamedTuple):
    """Over what a formula is reduced: axis 0 are the points i, 1 the points j."""

    axis: int
    sizes: tuple[int, int]
    like: Any  # an array of the library, dtype and device
    xp: Any
    ranges: tuple[Any, ...] | None = None

    @property
    def rows(self) -> int:
        """The category of what stays."""
        return 1 - self.axis


class Formula:
    """The text of a number for each pair, with the points, weights and parameters of a verb."""

    def __init__(self, node: Node, request: Request):
        self.request, self.node = request, node
        self.names: dict[tuple[int, int], str] = {}
        self.sides: dict[int, dict[str, Any]] = {I_SIDE: {}, J_SIDE: {}}
        self.params: dict[str, Any] = {}
        self.weights: Any = None
        self.text = self._text(node)
        for category in (I_SIDE, J_SIDE):
            if not self.sides[category]:
                self.sides[category]["none"] = self._nothing(category)

    def _nothing(self, category: int) -> Any:
        size = self.request.sizes[category]
        if self.request.xp.__name__ == "torch":
            return self.request.like.new_zeros(size, 1)
        return self.request.xp.zeros((size, 1), dtype=self.request.like.dtype)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that verbs have in common."""
        options = dict(self.params)
        if self.weights is not None:
            options["w"] = self.weights
        if self.request.ranges is not None:
            first = 0 if self.request.axis == 1 else 3
            options["ranges"] = tuple(self.request.ranges[first : first + 3])
        return options

    def points(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        return self.text, self.sides[self.request.rows], self.sides[self.request.axis]

    def _text(self, node: Node) -> str:
        if node.op == "number":
            return self._number(node.value)
        if node.op == "array":
            return self._array(node)
        if node.op in REDUCTIONS:
            return self._reduction(node.op, node.arguments[0])
        if node.op == "Concat":
            raise NotImplementedError(
                "pykeops: Concat is offered where its parts are summed, reduced or taken apart. "
                "Received one inside of another operation"
            )
        if node.dim > 1 and node.sides <= {PARAMETER}:
            return self._weights(numeric(node, self.request.xp, self.request.like))
        return OPERATIONS[node.op].text.format(*map(self._text, node.arguments))

    def _number(self, value: float) -> str:
        if isinstance(value, int):
            return str(value) if value >= 0 else f"({value})"
        return self._parameter(value)

    def _parameter(self, value: Any) -> str:
        name = f"p{len(self.params)}"
        self.params[name] = value
        return name

    def _array(self, node: Node) -> str:
        if node.category == PARAMETER:
            if node.dim == 1:
                return self._parameter(node.value[..., node.first])
            return self._weights(numeric(node, self.request.xp, self.request.like))
        side = "x" if node.category == self.request.rows else "z"
        key = (id(node.value), node.category)
        name = self.names.setdefault(key, f"v{len(self.names)}")
        self.sides[node.category][name] = node.value
        if node.dim == node.value.shape[-1]:
            return f"{side}.{name}"
        return f"{side}.{name}[{node.first}:{node.first + node.dim}]"

    def _weights(self, values: Any) -> str:
        if values is None or any(length != 1 for length in values.shape[:-1]):
            raise NotImplementedError(
                "pykeops: vectors of parameters are offered without batches. Received a batch"
            )
        values = values.reshape(-1)
        known = self.weights
        if known is not None and (known.shape != values.shape or not bool((known == values).all())):
            raise NotImplementedError(
                "pykeops: a formula may read one vector of parameters. Received several"
            )
        self.weights = values
        return "w"

    def _reduction(self, name: str, node: Node) -> str:
        """A reduction over the features. Numbers of the pair go out of sums."""
        if node.dim == 1:
            return self._text(node)
        function, joined = REDUCTIONS[name]
        if node.op == "Concat":
            parts = [self._reduction(name, part) for part in node.arguments]
            text = parts[0]
            for part in parts[1:]:
                text = joined.format(text, part)
            return text
        if name == "Sum" and node.reduces:
            apart = self._sum_apart(node)
            if apart is not None:
                return apart
        return f"{function}({self._text(node)})"

    def _sum_apart(self, node: Node) -> str | None:
        """The sum of such terms as sums of their own, times numbers of the pair."""
        arguments = node.arguments
        if node.op in ("Add", "Subtract") and all(a.dim > 1 for a in arguments):
            sums = [self._reduction("Sum", argument) for argument in arguments]
            return OPERATIONS[node.op].text.format(*sums)
        number, vector = _apart(node)
        if number is None:
            return None
        return f"({self._text(number)} * {self._reduction('Sum', vector)})"


def _apart(node: Node) -> tuple[Node | None, Node]:
    """A vector as a number, if there is one, times another vector."""
    found = [_apart(a) if a.dim > 1 else (a, Node("number", value=1)) for a in node.arguments]
    if node.op in ("Minus", "Square", "Abs"):
        number, vector = found[0]
        rest = Node(node.op, (vector,), vector.dim) if vector.dim > 1 else vector
        if node.op == "Minus" or number is None:
            return number, rest
        return Node(node.op, (number,)), rest
    if node.op not in ("Mult", "Divide"):
        return None, node
    (first, one), (second, other) = found
    if second is not None and node.op == "Divide":
        second = Node("Inv", (second,))
    if one.dim == 1 or other.dim == 1:
        if node.op == "Divide" and one.dim == 1:
            return _times(first, second), Node("Inv", (other,), other.dim)
        return _times(first, second), other if one.dim == 1 else one
    return _times(first, second), Node(node.op, (one, other), node.dim)


def reduced(node: Node, reduce: str, request: Request) -> Any:
    """[..., M]: sum, max, min, argmax, argmin or logsumexp of a number for each pair."""
    formula = Formula(node, request)
    verb: Any = mc.kernel_reduce
    return verb(*formula.points(), reduce, **formula.arguments())


def product(node: Node, v: Any, request: Request, normalize: str | None = None) -> Any:
    formula = Formula(node, request)
    verb: Any = mc.kernel_product
    return verb(*formula.points(), v, normalize=normalize, **formula.arguments())


def nearest(node: Node, k: int, request: Request) -> tuple[Any, Any]:
    formula = Formula(node, request)
    return mc.knn(*formula.points(), k, **formula.arguments())


def by_components(node: Node, compute: Callable[[Node], Any], xp: Any) -> Any:
    """[..., M, D]: a reduction of each component of a vector."""
    parts = [compute(extract(node, k, 1))[..., None] for k in range(node.dim)]
    return parts[0] if len(parts) == 1 else xp.concatenate(parts, -1)


class Term(NamedTuple):
    """sign * number of the pair * vector of a row * vector of a column; None is 1."""

    sign: int
    pair: Node | None
    row: Node | None
    col: Node | None


def _times(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return b if a is None else a
    return Node("Mult", (a, b), max(a.dim, b.dim))


def _terms(node: Node, request: Request) -> list[Term] | None:
    """A vector as a sum of terms; None where it is none."""
    if not node.is_of_pairs():
        is_of_col = request.axis in node.sides
        return [Term(1, None, None, node) if is_of_col else Term(1, None, node, None)]
    if node.dim == 1:
        return [Term(1, node, None, None)]
    found = [_terms(argument, request) for argument in _centred(node, request)]
    known = [terms for terms in found if terms is not None]
    if len(known) < len(found):
        return None
    if node.op == "Add":
        return known[0] + known[1]
    if node.op in ("Subtract", "Minus"):
        return known[0] * (node.op == "Subtract") + [
            term._replace(sign=-term.sign) for term in known[-1]
        ]
    if node.op == "Square":
        known, node = known * 2, Node("Mult", node.arguments * 2, node.dim)
    if node.op == "Divide":
        inverse = Node("Inv", (node.arguments[1],), node.arguments[1].dim)
        divisors = _terms(inverse, request)
        if divisors is None:
            return None
        known, node = [known[0], divisors], Node("Mult", node.arguments, node.dim)
    if node.op != "Mult":
        return None
    return [
        Term(a.sign * b.sign, _times(a.pair, b.pair), _times(a.row, b.row), _times(a.col, b.col))
        for a in known[0] for b in known[1]
    ]  # fmt: skip


def _centred(node: Node, request: Request) -> tuple[Node, ...]:
    """The arguments; those of a difference of both sides less a centre of one, so that the parts of
    the sum are not larger than points lie apart."""
    first, second = node.arguments[0], node.arguments[-1]
    sides = {first.sides & {I_SIDE, J_SIDE}, second.sides & {I_SIDE, J_SIDE}}
    is_apart = sides == {frozenset([I_SIDE]), frozenset([J_SIDE])}
    if node.op != "Subtract" or not is_apart or first.dim != second.dim:
        return node.arguments
    values = numeric(second, request.xp, request.like)
    if values is None:
        return node.arguments
    values = values.detach() if hasattr(values, "detach") else values
    points = values.reshape(-1, second.dim)
    centre = points.sum(0) / max(points.shape[0], 1)
    centre = request.xp.nan_to_num(centre, nan=0.0, posinf=0.0, neginf=0.0)
    shift = Node("array", (), second.dim, value=centre)
    return tuple(Node("Subtract", (part, shift), part.dim) for part in (first, second))


def _factor(node: Node | None, request: Request) -> Any:
    return None if node is None else numeric(node, request.xp, request.like)


def _sum_of_terms(terms: list[Term], request: Request, normalize: str | None) -> Any:
    """Terms of one number of the pair are columns of one product."""
    xp, total = request.xp, None
    groups: dict[int, list[Term]] = {}
    for term in terms:
        groups.setdefault(id(term.pair), []).append(term)
    for group in groups.values():
        pair = group[0].pair or Node("number", value=1)
        columns = [_factor(term.col, request) for term in group]
        size = request.sizes[request.axis]
        one = numeric(Node("array", (), 1, value=_ones(request)), xp, request.like)
        given = [one if c is None else c for c in columns]
        given = [xp.broadcast_to(c, (*c.shape[:-2], size, c.shape[-1])) for c in given]
        found = product(pair, _joined(given, xp), request, normalize)
        start = 0
        for term, column in zip(group, given, strict=True):
            part = found[..., start : start + column.shape[-1]]
            start += column.shape[-1]
            row = _factor(term.row, request)
            part = part if row is None else part * row
            part = part if term.sign > 0 else -part
            total = part if total is None else total + part
    return total


def _ones(request: Request) -> Any:
    if request.xp.__name__ == "torch":
        return request.like.new_ones(1)
    return request.xp.ones(1, dtype=request.like.dtype)


def _joined(columns: list[Any], xp: Any) -> Any:
    if len(columns) == 1:
        return columns[0]
    batch = np.broadcast_shapes(*(tuple(c.shape[:-2]) for c in columns))
    return xp.concatenate([xp.broadcast_to(c, (*batch, *c.shape[-2:])) for c in columns], -1)


def _is_known(terms: list[Term], request: Request) -> bool:
    sides = [side for term in terms for side in (term.row, term.col) if side is not None]
    return all(_factor(side, request) is not None for side in sides)


def summed(node: Node, request: Request) -> Any:
    """[..., M, D]: the sum over the columns."""
    if node.dim == 1:
        return reduced(node, "sum", request)[..., None]
    if node.op == "Concat":
        return request.xp.concatenate([summed(a, request) for a in node.arguments], -1)
    terms = _terms(node, request)
    if terms is not None and _is_known(terms, request):
        return _sum_of_terms(terms, request, None)
    return by_components(node, lambda part: reduced(part, "sum", request), request.xp)


def softmax(node: Node, weight: Node, request: Request) -> Any:
    """[..., M, D]: the sum of a weight times the softmax of a number for each pair."""
    terms = _terms(weight, request)
    if terms is None or any(term.pair is not None for term in terms):
        raise NotImplementedError(
            "pykeops: the weight of a softmax must be a vector of j, or sums and products of such "
            "and vectors of i. Received one of the pair"
        )
    return _sum_of_terms([t._replace(pair=node) for t in terms], request, "softmax")


def operator(node: Node, request: Request, alpha: float) -> Any:
    """K + alpha as mercer.linalg.KernelOperator, of a K of the same points on both sides."""
    formula = Formula(node, request)
    text, x, z = formula.points()
    pairs = list(zip(x.items(), z.items(), strict=False))
    is_same = len(x) == len(z) == 1 and pairs[0][0][1].shape == pairs[0][1][1].shape
    if not is_same or request.ranges is not None or request.axis != 1:
        raise NotImplementedError(
            "solve: it is offered for formulas of one variable of i and one of j, of the same "
            "points, without ranges. Received others"
        )
    (x_name, points), (z_name, others) = pairs[0]
    if not bool((points == others).all()):
        raise ValueError("solve: i and j must be the same points. Received others")
    if points.shape[-1] == 1:
        text = text.replace(f"x.{x_name}", "sum(x)").replace(f"z.{z_name}", "sum(z)")
    text = text.replace(f"x.{x_name}", "x").replace(f"z.{z_name}", "z")
    if "[" in text:
        raise NotImplementedError("solve: components are not offered. Received a formula of some")
    options = formula.arguments()
    return mc.linalg.KernelOperator(text, points, ridge=alpha, **options)
