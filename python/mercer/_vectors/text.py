"""A formula with vector values, as text: the grammar of formulas, with a free feature.

Operators bind as in docs/reference/grammar.md. Outside of reductions x, z, u and v are vectors, and
brackets take components of anything.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mercer._vectors import matrices
from mercer._vectors.nodes import (
    I_SIDE,
    J_SIDE,
    MOST_LEVELS,
    REDUCTIONS,
    Node,
    applied,
    extract,
    leaves,
    outer,
)  # fmt: skip

__all__ = ["Given", "read"]

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) | (?P<name>[A-Za-z_]\w*)
      | (?P<other>[=!<>]=|&&|\|\||[-+*/^()\[\]:,;=!<>.]))""",
    re.X,
)
#: Infix operators: how strongly they bind, and their operation.
_INFIX = {
    "||": (1, "Or"), "&&": (2, "And"), "<": (3, "LessThan"), "<=": (3, "LessOrEqual"),
    ">": (3, "LessThan"), ">=": (3, "LessOrEqual"), "==": (3, "Equal"), "!=": (3, "NotEqual"),
    "+": (4, "Add"), "-": (4, "Subtract"), "*": (5, "Mult"), "/": (5, "Divide"),
}  # fmt: skip
_COMPARISON = 3
_REFUSED = re.compile(r"\b(reduce|ptx)\s*\(")
_MOST_NODES = 1 << 14
# Sums of more terms are added up in pairs, so that they are not nested deeply.
_MOST_IN_ORDER = 32
_FUNCTIONS = {
    "abs": "Abs", "sign": "Sign", "square": "Square", "sqrt": "Sqrt", "rsqrt": "Rsqrt",
    "rcp": "Inv", "exp": "Exp", "exp2": "Exp2", "expm1": "Expm1", "log": "Log", "log2": "Log2",
    "log1p": "Log1p", "sin": "Sin", "cos": "Cos", "asin": "Asin", "acos": "Acos",
    "atan2": "Atan2", "tanh": "Tanh", "erf": "Erf", "floor": "Floor", "ceil": "Ceil",
    "round": "Round", "where": "Where", "fma": "Fma", "xlogy": "XLogY", "copysign": "Copysign",
}  # fmt: skip
_COUNTS = {"Atan2": 2, "XLogY": 2, "Copysign": 2, "Where": 3, "Fma": 3}
_REDUCTIONS = {
    "sum": "Sum", "max": "Max", "min": "Min", "prod": "Prod", "logsumexp": "LogSumExp",
    "mean": "Sum", "dot": "Sum",
}  # fmt: skip
_CONSTANTS = {"inf": "inf", "nan": "nan", "pi": "3.141592653589793"}


@functools.lru_cache(1024)
def _words(text: str) -> list[tuple[str, str]]:
    """The words of a text, with their kinds; the last kind is "wrong" where it is no text."""
    found: list[tuple[str, str]] = []
    place, text = 0, text.rstrip()
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            return [*found, (text[place:].split()[0], "wrong")]
        kind = token.lastgroup or ""
        found.append((token[kind], kind))
        place = token.end()
    return found


class Given(NamedTuple):
    """What a formula may name."""

    points: Mapping[str, Mapping[str, Any]]  # groups by the side's name: arrays [..., n, D]
    numbers: Mapping[str, tuple[Any, int]]  # row and col: arrays [..., n] and their side
    weights: Any  # w [K], or None
    params: Mapping[str, Any]
    defaults: Mapping[str, Any]  # values that a formula carries
    xp: Any
    array: Callable[[str, Any], Any]  # a parameter as an array of the library
    maps_pairs: bool = True  # whether matrices are applied to both sides of a difference
    is_wide: bool = False  # and that in float64


class _Reader:
    def __init__(self, text: str, verb: str, given: Given):
        self.text, self.verb, self.given = text, verb, given
        self.place, self.level, self.read_params = 0, 0, set[str]()
        self.features: dict[int, Any] = {}  # arrays and nodes of features, by their id
        self.bound: dict[str, Node] = {}
        self.made: dict[tuple[str, str], Node] = {}
        self.products = matrices.Known(given.is_wide)
        refused = _REFUSED.search(text)
        if refused is not None:
            raise self.error(f"{refused[1]!r} is not offered in formulas with vector values")
        self.words = _words(text)
        if self.words and self.words[-1][1] == "wrong":
            raise self.error(f"{self.words[-1][0]!r} is not text of a formula")

    def error(self, rule: str) -> ValueError:
        return ValueError(f"{self.verb}: {rule}. Received:\n  {self.text}")

    # Tokens --------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        place = self.place + ahead
        return self.words[place][0] if place < len(self.words) else ""

    def _kind(self) -> str:
        return self.words[self.place][1] if self.place < len(self.words) else ""

    def _next(self) -> str:
        word = self._peek()
        self.place += 1
        return word

    def _expect(self, word: str) -> None:
        found = self._next()
        if found != word:
            there = repr(found) if found else "the end"
            raise self.error(f"{word!r} must stand where {there} is")

    # Expressions ---------------------------------------------------------------------------------

    def whole(self) -> Node:
        while self._peek(1) == "=":
            if self._kind() != "name":
                raise self.error("bindings are 'name = expression;'")
            name = self._next()
            self._next()
            self.bound[name] = self._checked(self._expression())
            self._expect(";")
        node = self._expression()
        if self._kind():
            raise self.error(f"{self._peek()!r} follows a finished formula")
        return self._checked(node)

    def _checked(self, node: Node) -> Node:
        if node.size > _MOST_NODES:
            raise self.error("it is too large with its bindings written out")
        return node

    def _expression(self, least: int = 0) -> Node:
        left, terms = self._prefix(), list[tuple[str, Node]]()
        while self._peek() in _INFIX:
            word = self._peek()
            strength, name = _INFIX[word]
            if strength <= least:
                break
            self._next()
            right = self._expression(strength)
            if strength == _COMPARISON and _INFIX.get(self._peek(), (0,))[0] == _COMPARISON:
                raise self.error("comparisons do not chain: write a < b && b < c")
            if word in "+-":
                terms.append((word, right))
                continue
            left, terms = self._added(left, terms), []
            sides = (right, left) if word in (">", ">=") else (left, right)
            left = self._applied(word, name, *sides)
        return self._added(left, terms)

    def _added(self, first: Node, terms: list[tuple[str, Node]]) -> Node:
        """A number or vector with others added or subtracted."""
        if len(terms) <= _MOST_IN_ORDER:
            for word, term in terms:
                first = self._applied(word, _INFIX[word][1], first, term)
            return first
        every = [("+", first), *terms]
        while len(every) > 1:
            ends = every[len(every) // 2 * 2 :]
            pairs = zip(every[::2], every[1::2], strict=False)
            every = [(sign, self._pair(sign, a, other, b)) for (sign, a), (other, b) in pairs]
            every += ends
        return every[0][1]

    def _pair(self, sign: str, first: Node, other: str, second: Node) -> Node:
        """Two terms with signs, less the sign of the first."""
        word = "+" if sign == other else "-"
        return self._applied(word, _INFIX[word][1], first, second)

    def _prefix(self) -> Node:
        self.level += 1
        if self.level > MOST_LEVELS:
            raise self.error(f"at most {MOST_LEVELS} levels may be nested")
        found = self._signed()
        self.level -= 1
        return found

    def _signed(self) -> Node:
        word = self._peek()
        if word == "-":
            self._next()
            if self._kind() == "number" and self._peek(1) != "^":
                return Node("literal", value=f"-{self._next()}")
            return self._applied("-", "Minus", self._prefix())
        if word == "!":
            self._next()
            return self._applied("!", "Not", self._prefix())
        base = self._postfix()
        if self._peek() != "^":
            return base
        self._next()
        exponent = self._prefix()
        if exponent.op == "literal" and exponent.value == "2":
            return self._applied("^", "Square", base)
        return self._applied("^", "Powf", base, exponent)

    def _postfix(self) -> Node:
        node = self._primary()
        while self._peek() == "[":
            node = self._components(node)
        return node

    def _components(self, node: Node) -> Node:
        start = self.place
        self._next()
        first = self._number()
        last = None
        if self._peek() == ":":
            self._next()
            last = self._number()
            first, last = first or 0, node.dim if last is None else last
        self._expect("]")
        written = "".join(self._peek(k - self.place) for k in range(start, self.place))
        if first is None:
            raise self.error(f"{written!r} must have a number")
        last = first + 1 if last is None else last
        if not 0 <= first < last <= node.dim:
            raise self.error(f"{written!r} must lie within the {node.dim} features")
        return extract(node, first, last - first)

    def _number(self) -> int | None:
        return int(self._next()) if self._peek().isdecimal() else None

    def _primary(self) -> Node:
        kind, word = self._kind(), self._next()
        if not kind:
            raise self.error("an expression must stand where the end is")
        if kind == "number":
            return Node("literal", value=word)
        if word == "(":
            node = self._expression()
            self._expect(")")
            return node
        if kind != "name":
            raise self.error(f"an expression must stand where {word!r} is")
        return self._call(word) if self._peek() == "(" else self._named(word)

    # Names ---------------------------------------------------------------------------------------

    def _named(self, name: str) -> Node:
        if name in self.bound:
            return self.bound[name]
        if name in _CONSTANTS:
            return Node("literal", value=_CONSTANTS[name])
        if name in ("x", "z", "u", "v"):
            return self._point(name)
        if name in ("i", "j"):
            return Node("index", value=name, category=I_SIDE if name == "i" else J_SIDE)
        if name in ("row", "col"):
            self._skip_index("m" if name == "row" else "n")
            return self._leaf(name, "", lambda: self._point_number(name))
        if name == "w":
            self._skip_index("k")
            return self._leaf(name, "", self._weights)
        if name == "K":
            groups = self.given.points["x"]
            if len(groups) != 1:
                raise self.error("'K' means nothing where features have groups; write the number")
            return Node("literal", value=str(next(iter(groups.values())).shape[-1]))
        return self._parameter(name, 0)

    def _skip_index(self, index: str) -> None:
        if (self._peek(), self._peek(1), self._peek(2)) == ("[", index, "]"):
            self.place += 3

    def _leaf(self, kind: str, name: str, make: Callable[[], Node]) -> Node:
        """One node for all that read the same."""
        key = (kind, name)
        if key not in self.made:
            self.made[key] = node = make()
            if kind in ("x", "z", "u", "v", "w", "parameter1"):
                self.features[id(node.value)] = node.value
        return self.made[key]

    def _point(self, side: str) -> Node:
        groups, group = self.given.points.get(side), ""
        if groups is None:
            raise self.error(f"{side!r} must be given where the formula reads it")
        if self._peek() == ".":
            self._next()
            group = self._next()
        if group not in groups:
            names = ", ".join(f"{side}.{name}" for name in groups)
            what = f"{side} has no groups" if "" in groups else f"{side} has the groups {names}"
            raise self.error(f"{what}, so that {f'{side}.{group}'.rstrip('.')!r} names nothing")
        self._skip_index("k")
        category = J_SIDE if side in "zv" else I_SIDE
        array = groups[group]
        if array.shape[-1] == 0:
            raise self.error(f"{side!r} must have features. Its shape is {tuple(array.shape)}")
        return self._leaf(
            side, group, lambda: Node("array", (), array.shape[-1], value=array, category=category)
        )

    def _point_number(self, name: str) -> Node:
        if name not in self.given.numbers:
            raise self.error(f"{name!r} must be given where the formula reads it")
        array, category = self.given.numbers[name]
        return Node("array", (), 1, value=array[..., None], category=category)

    def _weights(self) -> Node:
        weights = self.given.weights
        if weights is None:
            raise self.error("'w' must be given where the formula reads it")
        return Node("array", (), weights.shape[-1], value=weights)

    def _value(self, name: str) -> Any:
        self.read_params.add(name)
        for known in (self.given.params, self.given.defaults):
            if known.get(name) is not None:
                return known[name]
        raise self.error(f"the parameter {name!r} must be given")

    def _parameter(self, name: str, axes: int) -> Node:
        """A number, or with axes a vector or a matrix by rows."""

        def make() -> Node:
            value = self._value(name)
            if axes == 0 and isinstance(value, (int, float)):
                return Node("number", value=float(value))
            array = self.given.array(name, value)
            if axes == 0:
                return Node("array", (), 1, value=array[..., None])
            if array.ndim < axes or 0 in array.shape[-axes:]:
                raise self.error(
                    f"the parameter {name!r} must have {axes} axes of features, after those of "
                    f"batches. Its shape is {tuple(array.shape)}"
                )
            if axes == 1:
                return Node("array", (), array.shape[-1], value=array)
            flat = array.reshape(*array.shape[:-2], array.shape[-2] * array.shape[-1])
            return Node("array", (), flat.shape[-1], value=flat)

        return self._leaf("parameter" + str(axes), name, make)

    # Functions -----------------------------------------------------------------------------------

    def _applied(self, written: str, name: str, *nodes: Node) -> Node:
        dims = sorted({node.dim for node in nodes} - {1})
        if len(dims) > 1:
            raise self.error(
                f"{written!r} takes vectors of equal numbers of features, or numbers; there are "
                f"{' and '.join(map(str, dims))}"
            )
        return applied(name, nodes, max(dims, default=1))

    def _parameter_name(self) -> str:
        name = self._next()
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise self.error(f"the name of a parameter must stand where {name!r} is")
        return name

    def _call(self, name: str) -> Node:
        self._expect("(")
        if name in ("param", "vector"):
            return self._declared(name)
        if name == "matvec":
            matrix = self._parameter(self._parameter_name(), 2)
            self._expect(",")
        arguments = [self._expression()]
        while self._peek() == ",":
            self._next()
            arguments.append(self._expression())
        self._expect(")")
        if name == "matvec":
            return self._mapped(matrix, arguments)
        if name in ("concat", "outer", "dot"):
            return self._small(name, arguments)
        if name in _REDUCTIONS and (len(arguments) == 1 or name not in ("max", "min")):
            self._count(name, arguments, 1)
            found = self._reduced(name, arguments[0])
            if name != "mean":
                return found
            return Node("Divide", (found, Node("literal", value=str(arguments[0].dim))))
        if name in ("max", "min"):
            found = arguments[0]
            for other in arguments[1:]:
                found = self._applied(name, "Larger" if name == "max" else "Smaller", found, other)
            return found
        if name not in _FUNCTIONS:
            raise self.error(f"{name!r} is not offered in formulas with vector values")
        operation = _FUNCTIONS[name]
        self._count(name, arguments, _COUNTS.get(operation, 1))
        return self._applied(name, operation, *arguments)

    def _count(self, name: str, arguments: list[Node], count: int) -> None:
        if len(arguments) != count:
            raise self.error(f"{name!r} takes {count} argument{'s' if count > 1 else ''}")

    def _declared(self, kind: str) -> Node:
        name = self._parameter_name()
        if kind == "param" and self._peek() == ",":
            self._next()
            sign = self._next() if self._peek() == "-" else ""
            if self.given.params.get(name) is None and self.given.defaults.get(name) is None:
                self._expect_number()
                self.read_params.add(name)
                value = float(sign + self._next())
                self._expect(")")
                return self._leaf("parameter0", name, lambda: Node("number", value=value))
            self._next()
        self._expect(")")
        return self._parameter(name, 0 if kind == "param" else 1)

    def _expect_number(self) -> None:
        if self._kind() != "number":
            raise self.error("the default of a parameter must be a number")

    def _small(self, name: str, arguments: list[Node]) -> Node:
        if name == "concat":
            parts = [
                part for node in arguments
                for part in (node.arguments if node.op == "Concat" else (node,))
            ]  # fmt: skip
            if len(parts) == 1:
                return parts[0]
            return Node("Concat", tuple(parts), sum(part.dim for part in parts))
        self._count(name, arguments, 2)
        first, second = arguments
        if name == "dot":
            return self._reduced(name, self._applied(name, "Mult", first, second))
        return outer(first, second)

    def _reduced(self, name: str, node: Node) -> Node:
        """A reduction over the features. One feature is its own reduction."""
        if node.dim > 1:
            return Node(_REDUCTIONS[name], (node,))
        if not self._reads_features(node):
            raise self.error(f"a reduction must read features; {name!r} reads none")
        return node

    def _reads_features(self, node: Node) -> bool:
        """Whether it reads any outside of reductions."""
        if id(node) in self.features or id(node.value) in self.features:
            return True
        return node.op not in REDUCTIONS and any(map(self._reads_features, node.arguments))

    def _mapped(self, matrix: Node, arguments: list[Node]) -> Node:
        self._count("matvec", [matrix, *arguments], 2)
        vector = arguments[0]
        rows, rest = divmod(matrix.dim, vector.dim)
        if rest or self._columns(matrix) != vector.dim:
            raise self.error(
                f"'matvec' takes a matrix with as many columns as the vector has features; there "
                f"are {self._columns(matrix)} and {vector.dim}"
            )
        like = next(iter(self.given.points["x"].values()))
        found = None
        if self.given.maps_pairs or not vector.is_of_pairs():
            found = matrices.mapped(vector, matrix, False, self.given.xp, like, self.products)
        if found is not None:
            known = {id(node.value) for node in self.made.values()}
            arrays = (leaf.value for leaf in leaves(found) if leaf.op == "array")
            self.features |= {id(array): array for array in arrays if id(array) not in known}
            return found
        parts = []
        for row in range(rows):
            entries = extract(matrix, row * vector.dim, vector.dim)
            product = Node("Mult", (entries, vector), vector.dim)
            parts.append(product if vector.dim == 1 else Node("Sum", (product,)))
        self.features |= {id(part): part for part in parts}
        return parts[0] if rows == 1 else Node("Concat", tuple(parts), rows)

    def _columns(self, matrix: Node) -> int:
        name = next(n for (kind, n), node in self.made.items()
                    if kind == "parameter2" and node is matrix)  # fmt: skip
        return int(self.given.array(name, self._value(name)).shape[-1])


def read(text: str, verb: str, given: Given) -> tuple[Node, set[str]]:
    """The node of a formula, and the parameters that it reads."""
    reader = _Reader(text, verb, given)
    return reader.whole(), reader.read_params
