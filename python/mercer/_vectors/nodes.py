"""The tree of a formula with vector values: arrays of i, of j and parameters, and operations.

A node has a dimension: 1 is a number for each pair, more a vector. Operations go feature by
feature, so a vector's component is the operation on components (``extract``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mercer._normalized import _constant

__all__ = [
    "MOST_LEVELS", "Keys", "Node", "applied", "extract", "full", "gathered", "has_float64",
    "is_apart", "joined", "leaves", "less_centre", "numeric", "outer", "place_of", "quiet",
    "transposed", "widened",
]  # fmt: skip

#: Arrays of i, of j, and parameters. The numbers are KeOps' categories.
I_SIDE, J_SIDE, PARAMETER = 0, 1, 2

#: Trees are walked by functions that call themselves, of which Python nests a thousand.
MOST_LEVELS = 150

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def quiet(function: FunctionT) -> FunctionT:
    """The function without NumPy's warnings: as in every verb, infinities and NaN are results."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments, **options)

    return call  # type: ignore[return-value]


class Node:
    """An operation on other nodes. Leaves are "array", with an array [..., n, D] or [..., D];
    "number", whose value is a parameter of the formula unless it is whole; "literal", a number as
    it stands in a text; and "index", i or j. An array's features from `first` on are those that it
    has. The value of "Gather" are the components that it takes, as numbers; "Wide" is its
    argument in float64."""

    def __init__(
        self, op: str, arguments: tuple[Node, ...] = (), dim: int = 1, *, value: Any = None,
        category: int = PARAMETER, first: int = 0,
    ):  # fmt: skip
        self.op, self.arguments, self.dim = op, arguments, dim
        self.value, self.category, self.first = value, category, first
        sides = {category} if op in ("array", "index") else set()
        self.sides: frozenset[int] = frozenset(sides.union(*(a.sides for a in arguments)))
        self.size: int = 1 + sum(a.size for a in arguments)  # with what is shared written out
        self.reduces: bool = op in REDUCTIONS or any(a.reduces for a in arguments)
        self.depth: int = 1 + max((a.depth for a in arguments), default=0)
        if self.depth > MOST_LEVELS:
            raise ValueError(
                f"formula: an expression of vectors may be at most {MOST_LEVELS} operations deep. "
                "Received a deeper one"
            )

    def is_of_pairs(self) -> bool:
        return I_SIDE in self.sides and J_SIDE in self.sides


class Operation(NamedTuple):
    """How an operation is written in a formula, and what it is of arrays."""

    text: str
    of_arrays: Callable[..., Any] | None = None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _alike(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The operation on arrays in the place of arrays and numbers, which PyTorch does not mix."""

    def call(xp: Any, *values: Any) -> Any:
        some = next(value for value in values if not _is_number(value))[..., :1, :1]
        return compute(xp, *(xp.full_like(some, v) if _is_number(v) else v for v in values))

    return call


def _clip(xp: Any, value: Any, low: Any, high: Any) -> Any:
    return xp.where(value < low, low, xp.where(value > high, high, value))


def _one(name: str) -> Callable[..., Any]:
    return lambda xp, a: getattr(xp, name)(a)


#: KeOps' operations that go feature by feature, by its names.
KEOPS = {
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
    "Atan2": Operation("atan2({}, {})", _alike(lambda xp, a, b: xp.arctan2(a, b))),
    "SinXDivX": Operation("where({0} == 0, 1, sin({0})/{0})"),
    "Abs": Operation("abs({})", lambda xp, a: abs(a)),
    "Sign": Operation("sign({})", lambda xp, a: xp.where(a == a, xp.sign(a), a)),
    "Step": Operation(
        "where({} < 0, 0, 1)", lambda xp, a: xp.where(a < 0, xp.zeros_like(a), xp.ones_like(a))
    ),
    "ReLU": Operation("max({}, 0)", lambda xp, a: xp.where(a < 0, xp.zeros_like(a), a)),
    "Sqrt": Operation("sqrt({})", _one("sqrt")),
    "Rsqrt": Operation("rsqrt({})", lambda xp, a: 1 / xp.sqrt(a)),
    "Inv": Operation("(1 / {})", lambda xp, a: 1 / a),
    "Clamp": Operation("min(max({}, {}), {})", _alike(_clip)),
    "IfElse": Operation(
        "where({} >= 0, {}, {})", _alike(lambda xp, c, a, b: xp.where(c >= 0, a, b))
    ),
    "Mod": Operation(
        "({0} - {1}*floor(({0} - {2})/{1}))",
        lambda xp, a, n, offset: a - n * xp.floor((a - offset) / n),
    ),
    "Equal": Operation("({} == {})"),
    "NotEqual": Operation("({} != {})"),
    "LessThan": Operation("({} < {})"),
    "LessOrEqual": Operation("({} <= {})"),
}
#: All operations that go feature by feature: KeOps' and others of Mercer's language.
OPERATIONS = KEOPS | {
    "And": Operation("({} && {})"),
    "Or": Operation("({} || {})"),
    "Not": Operation("(!{})"),
    "Where": Operation("where({}, {}, {})", _alike(lambda xp, c, a, b: xp.where(c != 0, a, b))),
    "Larger": Operation("max({}, {})", _alike(lambda xp, a, b: xp.maximum(a, b))),
    "Smaller": Operation("min({}, {})", _alike(lambda xp, a, b: xp.minimum(a, b))),
    "Exp2": Operation("exp2({})", _one("exp2")),
    "Expm1": Operation("expm1({})", _one("expm1")),
    "Log2": Operation("log2({})", _one("log2")),
    "Log1p": Operation("log1p({})", _one("log1p")),
    "Tanh": Operation("tanh({})", _one("tanh")),
    "Erf": Operation("erf({})"),
    "Floor": Operation("floor({})", _one("floor")),
    "Ceil": Operation("ceil({})", _one("ceil")),
    "Round": Operation("round({})", _one("round")),
    "Copysign": Operation("copysign({}, {})"),
    "XLogY": Operation("xlogy({}, {})"),
    "Fma": Operation("fma({}, {}, {})"),
}
#: Reductions over the features, and how their values of two parts are joined.
REDUCTIONS = {
    "Sum": ("sum", "({} + {})"), "Max": ("max", "max({}, {})"), "Min": ("min", "min({}, {})"),
    "Prod": ("prod", "({} * {})"), "LogSumExp": ("logsumexp", ""),
}  # fmt: skip


def leaves(node: Node) -> Iterator[Node]:
    if not node.arguments:
        yield node
    for argument in node.arguments:
        yield from leaves(argument)


def applied(name: str, nodes: Sequence[Node], dim: int) -> Node:
    """The operation; of a concatenation it is the concatenation of what it is of the parts."""
    joined = next((node for node in nodes if node.op == "Concat"), None)
    if joined is None or name not in OPERATIONS:
        return Node(name, tuple(nodes), dim)
    parts, start = [], 0
    for part in joined.arguments:
        taken = [n if n.dim == 1 else extract(n, start, part.dim) for n in nodes]
        parts.append(applied(name, taken, part.dim))
        start += part.dim
    return Node("Concat", tuple(parts), dim)


class Keys:
    """A number for each node: the same for nodes of the same operations on the same arrays."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[Node, int]] = {}
        self.numbers: dict[Any, int] = {}

    def __call__(self, node: Node) -> int:
        if id(node) not in self.known:
            value = id(node.value) if node.op in ("array", "number") else node.value
            parts = tuple(map(self, node.arguments))
            key = (node.op, parts, node.dim, value, node.category, node.first)
            self.known[id(node)] = (node, self.numbers.setdefault(key, len(self.numbers)))
        return self.known[id(node)][1]


def gathered(node: Node, components: Sequence[int]) -> Node:
    """Some components of a vector, in any order, also several times."""
    if node.op == "Gather":
        return gathered(node.arguments[0], [node.value[k] for k in components])
    if len(components) == 1:
        return extract(node, components[0], 1)
    return Node("Gather", (node,), len(components), value=tuple(components))


def outer(first: Node, second: Node) -> Node:
    """All products of components, by rows."""
    if first.dim == 1 or second.dim == 1:
        return applied("Mult", (first, second), max(first.dim, second.dim))
    rows = gathered(first, [k for k in range(first.dim) for _ in range(second.dim)])
    columns = gathered(second, list(range(second.dim)) * first.dim)
    return applied("Mult", (rows, columns), first.dim * second.dim)


def place_of(name: str, node: Node) -> Node:
    """The component that is largest ("Larger") or smallest, the first of equals."""
    best, place = extract(node, 0, 1), Node("literal", value="0")
    for k in range(1, node.dim):
        one = extract(node, k, 1)
        sides = (best, one) if name == "Larger" else (one, best)
        is_better, here = Node("LessThan", sides), Node("literal", value=str(k))
        best, place = Node(name, (best, one)), Node("Where", (is_better, here, place))
    return place


def _rebuilt(node: Node, arguments: tuple[Node, ...], dim: int) -> Node:
    return Node(node.op, arguments, dim, value=node.value)


def less_centre(node: Node, values: Any, xp: Any) -> tuple[Node, Node]:
    """The arguments of a sum or difference of both sides, with a centre of the second argument,
    which has these values, taken out: not larger than points lie apart. It is the mean of the
    values that are numbers."""
    first, second = node.arguments
    points = _constant(values)
    nothing, is_finite = xp.zeros_like(points), xp.isfinite(points)
    count = xp.where(is_finite, xp.ones_like(points), nothing).sum(-2)
    centre = xp.where(is_finite, points, nothing).sum(-2) / (count + (count == 0))
    centre = xp.nan_to_num(centre, nan=0.0, posinf=0.0, neginf=0.0)
    shift = Node("array", (), second.dim, value=centre)
    return Node(node.op, (first, shift), node.dim), Node("Subtract", (second, shift), second.dim)


def is_apart(node: Node) -> bool:
    """Whether it is a sum or difference of one side and the other."""
    if node.op not in ("Add", "Subtract"):
        return False
    sides = {argument.sides & {I_SIDE, J_SIDE} for argument in node.arguments}
    return sides == {frozenset([I_SIDE]), frozenset([J_SIDE])}


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
    if node.op == "Gather":
        return gathered(node.arguments[0], node.value[first : first + dim])
    taken = (a if a.dim == 1 else extract(a, first, dim) for a in node.arguments)
    return _rebuilt(node, tuple(taken), dim)


def joined(arrays: Sequence[Any], xp: Any) -> Any:
    """Vectors one after the other. All other axes are broadcast."""
    if len(arrays) == 1:
        return arrays[0]
    shape = np.broadcast_shapes(*(tuple(array.shape[:-1]) for array in arrays))
    return xp.concatenate([xp.broadcast_to(a, (*shape, a.shape[-1])) for a in arrays], -1)


def full(number: float, xp: Any, like: Any) -> Any:
    if xp.__name__ == "torch":
        return like.new_full((1, 1), number)
    return xp.full((1, 1), number, dtype=like.dtype)


def has_float64(xp: Any) -> bool:
    """JAX may have none."""
    return xp.__name__ != "jax.numpy" or bool(xp.zeros(0).dtype == np.float64)


def widened(values: Any, xp: Any) -> Any:
    """An array in float64; a number as it is."""
    if _is_number(values):
        return values
    return values.double() if xp.__name__ == "torch" else values.astype(xp.float64)


def transposed(node: Node) -> Node:
    """i and j in each other's places."""
    if node.op == "array":
        category = {I_SIDE: J_SIDE, J_SIDE: I_SIDE}.get(node.category, PARAMETER)
        return Node("array", (), node.dim, value=node.value, category=category, first=node.first)
    return _rebuilt(node, tuple(map(transposed, node.arguments)), node.dim)


def numeric(node: Node, xp: Any, like: Any) -> Any:
    """The values [..., n, D] of a node of one side, or [..., 1, D] of parameters, in the library
    and dtype of an array. None where an operation is known in formulas alone."""
    if node.op in ("number", "literal"):
        return float(node.value) if node.op == "literal" else node.value
    if node.op == "array":
        values = node.value[..., node.first : node.first + node.dim]
        return values[..., None, :] if node.category == PARAMETER else values
    if node.op == "index":
        return None
    found = [numeric(argument, xp, like) for argument in node.arguments]
    if any(value is None for value in found):
        return None
    if node.op == "Concat":
        found = [full(v, xp, like) if _is_number(v) else v for v in found]
        return joined(found, xp)
    if node.op == "Gather":
        return found[0][..., list(node.value)]
    if node.op == "Wide":
        return widened(found[0], xp)
    if node.op in REDUCTIONS:
        name = {"Sum": "sum", "Max": "amax", "Min": "amin", "Prod": "prod"}.get(node.op)
        if name is None:
            return None
        return getattr(xp, name)(found[0], -1)[..., None]
    of_arrays = OPERATIONS[node.op].of_arrays
    if of_arrays is None:
        return None
    if all(map(_is_number, found)):
        return float(of_arrays(np, *(np.full((1, 1), float(v)) for v in found)).item())
    return of_arrays(xp, *found)
