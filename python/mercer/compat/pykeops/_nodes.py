"""The tree of a lazy formula: variables of i, of j and parameters, and operations on them.

A node has a dimension: 1 is a number for each pair, more a vector. Operations go feature by
feature, as KeOps' do, so a vector's component is the operation on components (``extract``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["Node", "extract", "leaves", "numeric", "transposed"]

#: The categories of KeOps: variables of i, of j, and parameters.
I_SIDE, J_SIDE, PARAMETER = 0, 1, 2


class Node:
    """An operation on other nodes. Leaves are "array", with an array [..., n, D] or [..., D], and
    "number"; an array's features from `first` on are those that it has."""

    def __init__(
        self, op: str, arguments: tuple[Node, ...] = (), dim: int = 1, *, value: Any = None,
        category: int = PARAMETER, first: int = 0,
    ):  # fmt: skip
        self.op, self.arguments, self.dim = op, arguments, dim
        self.value, self.category, self.first = value, category, first
        sides = {category} if op == "array" else set()
        self.sides: frozenset[int] = frozenset(sides.union(*(a.sides for a in arguments)))
        self.reduces: bool = op in REDUCTIONS or any(a.reduces for a in arguments)

    def is_of_pairs(self) -> bool:
        return I_SIDE in self.sides and J_SIDE in self.sides


class Operation(NamedTuple):
    """How an operation is written in a formula, and what it is of arrays."""

    text: str
    of_arrays: Callable[..., Any] | None = None


def _clip(xp: Any, value: Any, low: Any, high: Any) -> Any:
    return xp.where(value < low, low + 0 * value, xp.where(value > high, high + 0 * value, value))


def _one(name: str) -> Callable[..., Any]:
    return lambda xp, a: getattr(xp, name)(a)


#: Operations that go feature by feature, by KeOps' names.
OPERATIONS = {
    "Add": Operation("({} + {})", lambda xp, a, b: a + b),
    "Subtract": Operation("({} - {})", lambda xp, a, b: a - b),
    "Mult": Operation("({} * {})", lambda xp, a, b: a * b),
    "Divide": Operation("({} / {})", lambda xp, a, b: a / b),
    "Powf": Operation("({} ^ {})", lambda xp, a, b: a**b),
    "Minus": Operation("(-{})", lambda xp, a: -a),
    "Square": Operation("square({})", lambda xp, a: a * a),
    "Exp": Operation("exp({})", _one("exp")),
    "Log": Operation("log({})", _one("log")),
    "XLogX": Operation("xlogy({0}, {0})"),
    "Sin": Operation("sin({})", _one("sin")),
    "Cos": Operation("cos({})", _one("cos")),
    "Asin": Operation("asin({})", _one("arcsin")),
    "Acos": Operation("acos({})", _one("arccos")),
    "Atan": Operation("atan2({}, 1)", _one("arctan")),
    "Atan2": Operation("atan2({}, {})", lambda xp, a, b: xp.arctan2(a, b)),
    "SinXDivX": Operation("where({0} == 0, 1, sin({0})/{0})"),
    "Abs": Operation("abs({})", lambda xp, a: abs(a)),
    "Sign": Operation("sign({})", _one("sign")),
    "Step": Operation("where({} < 0, 0, 1)", lambda xp, a: xp.where(a < 0, 0 * a, 0 * a + 1)),
    "ReLU": Operation("max({}, 0)", lambda xp, a: xp.where(a < 0, 0 * a, a)),
    "Sqrt": Operation("sqrt({})", _one("sqrt")),
    "Rsqrt": Operation("rsqrt({})", lambda xp, a: 1 / xp.sqrt(a)),
    "Inv": Operation("(1 / {})", lambda xp, a: 1 / a),
    "Clamp": Operation("min(max({}, {}), {})", _clip),
    "IfElse": Operation("where({} >= 0, {}, {})", lambda xp, c, a, b: xp.where(c >= 0, a, b)),
    "Mod": Operation(
        "({0} - {1}*floor(({0} - {2})/{1}))",
        lambda xp, a, n, offset: a - n * xp.floor((a - offset) / n),
    ),
    "Equal": Operation("({} == {})"),
    "NotEqual": Operation("({} != {})"),
    "LessThan": Operation("({} < {})"),
    "LessOrEqual": Operation("({} <= {})"),
}
#: Reductions over the features, and how their values of two parts are joined.
REDUCTIONS = {"Sum": ("sum", "({} + {})"), "Max": ("max", "max({}, {})"),
              "Min": ("min", "min({}, {})")}  # fmt: skip


def leaves(node: Node) -> Iterator[Node]:
    if not node.arguments:
        yield node
    for argument in node.arguments:
        yield from leaves(argument)


def _rebuilt(node: Node, arguments: tuple[Node, ...], dim: int) -> Node:
    return Node(node.op, arguments, dim, value=node.value)


def extract(node: Node, first: int, dim: int) -> Node:
    """Components first to first + dim - 1 of a vector."""
    if node.dim == dim and first == 0:
        return node
    if node.op == "array":
        return Node(
            "array", (), dim, value=node.value, category=node.category, first=node.first + first
        )
    if node.op == "Concat":
        parts, start = [], 0
        for argument in node.arguments:
            low, high = max(first, start), min(first + dim, start + argument.dim)
            if low < high:
                parts.append(extract(argument, low - start, high - low))
            start += argument.dim
        return parts[0] if len(parts) == 1 else Node("Concat", tuple(parts), dim)
    taken = (a if a.dim == 1 else extract(a, first, dim) for a in node.arguments)
    return _rebuilt(node, tuple(taken), dim)


def transposed(node: Node) -> Node:
    """i and j in each other's places."""
    if node.op == "array":
        category = {I_SIDE: J_SIDE, J_SIDE: I_SIDE}.get(node.category, PARAMETER)
        return Node("array", (), node.dim, value=node.value, category=category, first=node.first)
    return _rebuilt(node, tuple(map(transposed, node.arguments)), node.dim)


def numeric(node: Node, xp: Any, like: Any) -> Any:
    """The values [..., n, D] of a node of one side, or [..., 1, D] of parameters, in the library
    and dtype of an array. None where an operation is known in formulas alone."""
    if node.op == "number":
        return node.value
    if node.op == "array":
        values = node.value[..., node.first : node.first + node.dim]
        return values[..., None, :] if node.category == PARAMETER else values
    found = [numeric(argument, xp, like) for argument in node.arguments]
    if any(value is None for value in found):
        return None
    if node.op == "Concat":
        size = max((value.shape[-2] for value in found), default=1)
        return xp.concatenate(
            [xp.broadcast_to(v, (*v.shape[:-2], size, v.shape[-1])) for v in found], -1
        )
    if node.op in REDUCTIONS:
        name = {"Sum": "sum", "Max": "amax", "Min": "amin"}[node.op]
        return getattr(xp, name)(found[0], -1)[..., None]
    of_arrays = OPERATIONS[node.op].of_arrays
    if of_arrays is None or all(isinstance(value, (int, float)) for value in found):
        return None
    return of_arrays(xp, *found)
