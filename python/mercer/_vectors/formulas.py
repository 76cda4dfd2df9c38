"""The text of a number for each pair, with its points as groups, its weights and parameters.

A reduction over features reads one vector of each side at most. Others are written component by
component, where each is a number of its point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mercer import _groups
from mercer._vectors.nodes import (
    I_SIDE,
    J_SIDE,
    OPERATIONS,
    PARAMETER,
    REDUCTIONS,
    Keys,
    Node,
    extract,
    numeric,
    widened,
)  # fmt: skip

__all__ = ["MOST_COMPONENTS", "Formula", "Request", "times"]

# A text of more components would take long to compile.
MOST_COMPONENTS = 64


class Request(NamedTuple):
    """Over what a formula is reduced: axis 0 are the points i, 1 the points j."""

    axis: int
    sizes: tuple[int, int]
    like: Any  # an array of the library, dtype and device
    xp: Any
    ranges: tuple[Any, ...] | None = None
    verb: str = "pykeops"  # who speaks in errors
    options: tuple[tuple[str, Any], ...] = ()  # for each call
    separate: bool | None = None  # whether differences are taken apart; None: in float64

    @property
    def rows(self) -> int:
        """The category of what stays."""
        return 1 - self.axis


class Formula:
    """The text of a number for each pair, with the points, weights and parameters of a verb."""

    weights: Any

    def __init__(
        self, node: Node, request: Request, is_wide: bool = False, *, shares_names: bool = False
    ):  # fmt: skip
        self.request, self.node, self.shares_names = request, node, shares_names
        self.weights: Any = None
        self._write(has_weights=True)
        if self.weights is not None and not self._takes_weights():
            self._write(has_weights=False)
        for category in (I_SIDE, J_SIDE):
            if not self.sides[category]:
                self.sides[category]["none"] = self._nothing(category)
        points = [array for side in self.sides.values() for array in side.values()]
        if is_wide or any(array.dtype != request.like.dtype for array in points):
            self._widen()

    def _widen(self) -> None:
        """Takes float64."""
        for points in (*self.sides.values(), self.params):
            for name, value in points.items():
                points[name] = widened(value, self.request.xp)
        if self.weights is not None:
            self.weights = widened(self.weights, self.request.xp)

    def _write(self, has_weights: bool) -> None:
        """The text; without weights, vectors of parameters are taken component by component."""
        self.has_weights = has_weights
        self.names: dict[tuple[int, int], str] = {}
        self.sides: dict[int, dict[str, Any]] = {I_SIDE: {}, J_SIDE: {}}
        self.params: dict[str, Any] = {}
        self.entries: dict[tuple[int, int], str] = {}
        self.weights = None
        self.weights_key, self.keys = -1, Keys()
        self.text = self._text(self.node)

    def _takes_weights(self) -> bool:
        """Whether all reductions go over the same features, as those of formulas with w do."""
        sizes = [
            tuple((name, int(array.shape[-1])) for name, array in points.items())
            for points in self.points()[1:]
        ]
        try:
            _groups.plan(self.text, *sizes)
        except ValueError:
            return False
        return True

    def _nothing(self, category: int) -> Any:
        size = self.request.sizes[category]
        if self.request.xp.__name__ == "torch":
            return self.request.like.new_zeros(size, 1)
        return self.request.xp.zeros((size, 1), dtype=self.request.like.dtype)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that verbs have in common."""
        options = dict(self.request.options) | self.params
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
        if node.op in ("literal", "index"):
            return f"({node.value})" if node.value[0] == "-" else node.value
        if node.op in REDUCTIONS and node.sides <= {PARAMETER}:
            value = numeric(node, self.request.xp, self.request.like)
            if value is not None:
                return self._parameter(value[..., 0, 0])
        if node.op in REDUCTIONS:
            return self._reduction(node.op, node.arguments[0])
        if node.op == "Concat":
            raise NotImplementedError(
                f"{self.request.verb}: Concat is offered where its parts are summed, reduced or "
                "taken apart. Received one inside of another operation"
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
                entry = (id(node.value), node.first)
                if entry not in self.entries:
                    self.entries[entry] = self._parameter(node.value[..., node.first])
                return self.entries[entry]
            return self._weights(numeric(node, self.request.xp, self.request.like))
        side = "x" if node.category == self.request.rows else "z"
        key = (id(node.value), 0 if self.shares_names else node.category)
        name = self.names.setdefault(key, f"v{len(self.names)}")
        self.sides[node.category][name] = node.value
        if node.dim == node.value.shape[-1]:
            return f"{side}.{name}"
        return f"{side}.{name}[{node.first}:{node.first + node.dim}]"

    def _weights(self, values: Any) -> str:
        self.weights = values.reshape(-1)
        return "w"

    def _are_weights(self, node: Node) -> bool:
        """Whether a vector of parameters can be w: all that the formula reads are one."""
        values = numeric(node, self.request.xp, self.request.like)
        if not self.has_weights or values is None or any(n != 1 for n in values.shape[:-1]):
            return False
        if self.weights is None:
            self.weights_key = self.keys(node)
        if self.weights is None or self.weights_key == self.keys(node):
            return True
        is_traced = self.request.xp.__name__ == "jax.numpy"  # such values cannot be compared
        return not is_traced and _is_same(self.weights, values.reshape(-1))

    def _reduction(self, name: str, node: Node) -> str:
        """A reduction over the features. Numbers of the pair go out of sums."""
        if node.dim == 1:
            return self._text(node)
        function, joined = REDUCTIONS[name]
        if node.op == "Concat" and joined:
            parts = [self._reduction(name, part) for part in node.arguments]
            return _folded(joined, parts)
        if name == "Sum" and node.reduces:
            apart = self._sum_apart(node)
            if apart is not None:
                return apart
        if self._is_one_reduction(node):
            return f"{function}({self._text(node)})"
        if not joined or node.dim > MOST_COMPONENTS:
            raise NotImplementedError(
                f"{self.request.verb}: a reduction over features of several vectors of one side, "
                f"of several of parameters, or of one of parameters with numbers of points, is "
                f"offered for sums, products, maxima and minima of {MOST_COMPONENTS} features at "
                f"most. Received '{function}' over {node.dim}"
            )
        return _folded(joined, [self._text(extract(node, k, 1)) for k in range(node.dim)])

    def _is_one_reduction(self, node: Node) -> bool:
        """Whether the language has it: it reads one vector of each side, and one of parameters."""
        read: dict[int, set[tuple[int, int]]] = {I_SIDE: set(), J_SIDE: set()}
        waiting, parameters = [node], 0
        while waiting:
            one = waiting.pop()
            if one.op in REDUCTIONS:
                if one.is_of_pairs():
                    return False
                continue
            if one.op in ("Gather", "Concat"):
                return False
            if one.dim > 1 and one.sides <= {PARAMETER}:
                parameters += 1
                if not self._are_weights(one):
                    return False
                continue
            if one.op == "array" and one.dim > 1:
                read[one.category].add((id(one.value), one.first))
            waiting.extend(one.arguments)
        counts = [len(vectors) for vectors in read.values()]
        return parameters <= 1 and max(counts) == 1

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


def _is_same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool((a == b).all())


def _folded(joined: str, parts: list[str]) -> str:
    """One text of several, in pairs, so that it is not nested deeply."""
    while len(parts) > 1:
        ends = parts[len(parts) // 2 * 2 :]
        parts = [joined.format(*parts[k : k + 2]) for k in range(0, len(parts) - 1, 2)] + ends
    return parts[0]


def times(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None:
        return b if a is None else a
    return Node("Mult", (a, b), max(a.dim, b.dim))


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
            return times(first, second), Node("Inv", (other,), other.dim)
        return times(first, second), other if one.dim == 1 else one
    return times(first, second), Node(node.op, (one, other), node.dim)
