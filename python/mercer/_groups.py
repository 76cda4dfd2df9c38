"""Points of several arrays, and features by number: a formula of groups becomes one of x and z.

Each reduction reads a range of features of each side, its slot. The slots lie one after the other
in the features of new points, w numbers them, and a reduction takes its own: sum(t) becomes
sum(where(w == 3, t, 0)). Features outside of reductions are numbers of a point: row and col, and
beyond these sums over one feature, which the engine computes once a point.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mercer import _array_likes, _libraries, _mercer
from mercer.errors import DtypeError

#: The verbs that take them.
VERBS = (
    "pairwise", "kernel_matrix", "kernel_product", "kernel_reduce", "knn", "edges", "edge_product",
    "edge_reduce", "radius_neighbors", "kernel_gradient",
)  # fmt: skip
# What a reduction gives for no features, which is what other slots give to it.
_IDENTITIES = {
    "sum": "0", "prod": "1", "max": "-inf", "min": "inf", "logsumexp": "-inf", "mean": "0"
}  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?:(?P<leaf>[xz](?:\s*\.\s*(?P<group>[A-Za-z_]\w*))?
          (?:\s*\[\s*(?P<first>\d*)\s*(?P<colon>:)?\s*(?P<last>\d*)\s*\])?(?!\w))
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<name>[A-Za-z_]\w*) | (?P<quoted>"[^"]*") | (?P<other>[=!<>]=|&&|\|\||\S))""",
    re.X,
)
_MOST_NODES = 1 << 16


class Leaf(NamedTuple):
    """Features first to last - 1 of a group; the group of points without names is ""."""

    group: str
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first


class Plan(NamedTuple):
    """A formula of x, z, w, row and col, and what these are made of."""

    formula: Any
    slots: tuple[tuple[Leaf | None, Leaf | None], ...]
    row: Leaf | None
    col: Leaf | None
    reads_w: bool  # the numbers of the slots


class _Read(NamedTuple):
    side: str
    leaf: Leaf


class _Call(NamedTuple):
    name: str
    arguments: list[list[Any]]


class _Text:
    """A text as nested lists: tokens, features that it reads, calls, and lists in parentheses."""

    def __init__(self, text: str, sizes: dict[str, dict[str, int]]):
        self.text, self.sizes, self.place = text, sizes, 0
        self.tokens = self._tokens()
        self.bound: dict[str, list[Any]] = {}
        self.weights: dict[int, int] = {}
        self.body = self._statements()

    def error(self, rule: str) -> ValueError:
        return ValueError(f"formula: {rule}. Received:\n  {self.text}")

    def _tokens(self) -> list[re.Match[str]]:
        found = list(_TOKEN.finditer(self.text.rstrip()))
        if any(a.end() != b.start() for a, b in itertools.pairwise(found)):
            raise self.error("it must be text of the grammar")
        return found

    def _leaf(self, token: re.Match[str]) -> _Read:
        written, side = token["leaf"], token["leaf"][0]
        group, known = token["group"] or "", self.sizes[side]
        if group not in known:
            names = ", ".join(f"{side}.{name}" for name in known) or "none"
            what = f"{side} has the groups {names}" if "" not in known else f"{side} has no groups"
            raise self.error(f"{what}, so that {written!r} names nothing")
        count = known[group]
        first, last = 0, count
        if token["colon"] or token["first"]:
            first = int(token["first"] or 0)
            last = int(token["last"] or count) if token["colon"] else first + 1
        if not first <= last <= count:
            raise self.error(f"{written!r} must lie within the {count} features")
        return _Read(side, Leaf(group, first, last))

    def _statements(self) -> list[Any]:
        """The last statement, with the bindings before it written out."""
        while True:
            start = self.place
            names = [t.group().strip() for t in self.tokens[start : start + 2]]
            is_binding = len(names) == 2 and names[1] == "="
            if is_binding:
                self.place += 2
            nodes = self._list(";")
            has_end = self.tokens[self.place - 1].group().strip() == ";" if nodes else False
            if not nodes or is_binding != has_end:
                raise self.error("it must be bindings 'name = expression;' and an expression")
            if self._weight(nodes) > _MOST_NODES:
                raise self.error("it is too large with its bindings written out")
            if not is_binding:
                return nodes
            self.bound[names[0]] = nodes

    def _weight(self, nodes: list[Any]) -> int:
        """The number of words with bindings written out; a binding is counted once."""
        known = self.weights.get(id(nodes))
        if known is None:
            known = len(nodes)
            for node in nodes:
                parts = node.arguments if isinstance(node, _Call) else [node]
                known += sum(self._weight(part) for part in parts if isinstance(part, list))
            self.weights[id(nodes)] = known
        return known

    def _list(self, *ends: str) -> list[Any]:
        """Nodes up to one of these tokens, which is passed over, or to the end."""
        nodes: list[Any] = []
        while self.place < len(self.tokens):
            token = self.tokens[self.place]
            self.place += 1
            word = token.group().strip()
            if word in ends:
                return nodes
            if token["leaf"] and word not in ("x[k]", "z[k]"):
                nodes.append(self._leaf(token))
            elif word == "(":
                nodes.append(self._list(")"))
            elif token["name"]:
                nodes.append(self._named(word))
            else:
                nodes.append(word)
        if ")" in ends:
            raise self.error("a '(' must be closed")
        return nodes

    def _named(self, name: str) -> Any:
        follows = self.tokens[self.place].group().strip() if self.place < len(self.tokens) else ""
        if follows != "(":
            if name == "K":
                raise self.error("'K' means nothing where features have groups; write the number")
            return self.bound.get(name, name)
        if name in ("reduce", "ptx"):
            raise self.error(f"'{name}' is not offered where features have groups")
        self.place += 1
        if name == "param":
            rest = [token.group() for token in self.tokens[self.place :]]
            length = next((n for n, word in enumerate(rest, 1) if word.strip() == ")"), None)
            if length is None:
                raise self.error("a '(' must be closed")
            self.place += length
            return f"param({''.join(rest[:length])}"
        arguments: list[list[Any]] = [[]]
        while True:
            arguments[-1] = self._list(")", ",")
            if self.tokens[self.place - 1].group().strip() == ")":
                return _Call(name, arguments)
            arguments.append([])


def _is_reduction(node: Any) -> bool:
    if not isinstance(node, _Call) or node.name not in _IDENTITIES:
        return False
    return node.name not in ("max", "min") or len(node.arguments) == 1


def _walk(nodes: list[Any], enters: Callable[[Any], bool]) -> Iterator[Any]:
    """All nodes, with those inside of calls that it enters."""
    for node in nodes:
        yield node
        if isinstance(node, list):
            yield from _walk(node, enters)
        elif isinstance(node, _Call) and enters(node):
            for argument in node.arguments:
                yield from _walk(argument, enters)


def _reads(nodes: list[Any]) -> list[_Read]:
    """Features that are read, but for those in reductions within."""
    found = _walk(nodes, lambda call: not _is_reduction(call))
    return [node for node in found if isinstance(node, _Read)]


class _Translation:
    def __init__(self, text: _Text, has_row: bool):
        self.text, self.has_row = text, has_row
        self.pairs: list[tuple[Leaf | None, Leaf | None]] = []  # slots of reductions
        self.numbers: dict[str, list[Leaf]] = {"x": [], "z": []}
        every = list(_walk(text.body, lambda call: True))
        self.words = {node for node in every if isinstance(node, str)}
        for node in every:
            if _is_reduction(node):
                self._note_reduction(node)
        for side, leaf in _reads(text.body):
            self._note_number(side, leaf)
        self._choose_sides()
        self._fill_slots()

    def _note_number(self, side: str, leaf: Leaf) -> None:
        if leaf.size != 1:
            raise self.text.error(
                f"{_written(side, leaf)} has {leaf.size} features and must be in a reduction"
            )
        if leaf not in self.numbers[side]:
            self.numbers[side].append(leaf)

    def _note_reduction(self, call: _Call) -> None:
        reads = _reads(call.arguments[0])
        if not reads:
            raise self.text.error(f"a reduction must read features; '{call.name}' reads none")
        for side, leaf in reads:
            if leaf.size == 1:
                self._note_number(side, leaf)
        slot = self._slot(call)
        if slot is not None and slot not in self.pairs:
            self.pairs.append(slot)

    def _slot(self, call: _Call) -> tuple[Leaf | None, Leaf | None] | None:
        """The features that a reduction goes over; None where each is a number of its point."""
        sides: dict[str, Any] = {"x": None, "z": None}
        for side, leaf in _reads(call.arguments[0]):
            if leaf.size == 1:
                continue
            known = sides[side] or leaf
            other = sides["z" if side == "x" else "x"]
            if known != leaf or (other is not None and other.size != leaf.size):
                raise self.text.error(
                    f"a reduction goes over one group of each side, of equal numbers of features; "
                    f"'{call.name}' reads {_written(side, leaf)} and "
                    + (_written(side, known) if known != leaf else str(other.size) + " others")
                )
            sides[side] = leaf
        found = (sides["x"], sides["z"])
        return None if found == (None, None) else found

    def _choose_sides(self) -> None:
        """Numbers that go as row and col; of a group on both sides, if there is one."""
        x, z = self.numbers["x"], self.numbers["z"]
        first = next((leaf for leaf in x if leaf in z), None)
        self.row = (
            None if "row" in self.words or not self.has_row else first or (x[0] if x else None)
        )
        self.col = None if "col" in self.words else first or (z[0] if z else None)

    def _fill_slots(self) -> None:
        """Slots of one side join one of both, or take the like features of the other side."""
        both = [slot for slot in self.pairs if None not in slot]
        numbers = {
            "x": [leaf for leaf in self.numbers["x"] if leaf != self.row],
            "z": [leaf for leaf in self.numbers["z"] if leaf != self.col],
        }
        lone = [slot for slot in self.pairs if None in slot]
        lone += [(leaf, None) for leaf in numbers["x"]] + [(None, leaf) for leaf in numbers["z"]]
        for x, z in lone:
            if any(x in (None, a) and z in (None, b) for a, b in both):
                continue
            leaf: Any = x or z
            has_both = all(
                self.text.sizes[side].get(leaf.group, -1) >= leaf.last for side in ("x", "z")
            )
            both.append((leaf, leaf) if has_both else (x, z))
        self.slots = both
        self.reads_w = len(both) > 1
        if self.reads_w and "w" in self.words:
            raise self.text.error(
                "weights w are offered where all reductions go over the same features"
            )

    def _number_of(self, x: Leaf | None, z: Leaf | None) -> int:
        return next(
            number for number, (a, b) in enumerate(self.slots) if x in (None, a) and z in (None, b)
        )

    def written(self, nodes: list[Any], is_inside: bool = False) -> str:
        return " ".join(self._node(node, is_inside) for node in nodes)

    def _node(self, node: Any, is_inside: bool) -> str:
        if isinstance(node, str):
            return node
        if isinstance(node, list):
            return f"({self.written(node, is_inside)})"
        if isinstance(node, _Read):
            if is_inside and node.leaf.size != 1:
                return node.side
            return self._point_number(*node)
        if _is_reduction(node):
            return self._reduction(node)
        parts = [self.written(argument, is_inside) for argument in node.arguments]
        return f"{node.name}({', '.join(parts)})"

    def _point_number(self, side: str, leaf: Leaf) -> str:
        if leaf == (self.row if side == "x" else self.col):
            return "row" if side == "x" else "col"
        slot = self._number_of(*((leaf, None) if side == "x" else (None, leaf)))
        return self._masked("sum", side, slot, 1)

    def _reduction(self, call: _Call) -> str:
        slot = self._slot(call)
        body = self.written(call.arguments[0], True)
        if slot is None:  # one feature, so that the reduction is its term
            return f"({body})"
        leaf: Any = slot[0] or slot[1]
        return self._masked(call.name, body, self._number_of(*slot), leaf.size)

    def _masked(self, name: str, body: str, slot: int, count: int) -> str:
        if not self.reads_w:
            return f"{name}({body})"
        text = f"where(w == {slot}, {body}, {_IDENTITIES[name]})"
        return f"(sum({text})/{count})" if name == "mean" else f"{name}({text})"


def _written(side: str, leaf: Leaf) -> str:
    name = f"{side}.{leaf.group}" if leaf.group else side
    return f"{name}[{leaf.first}:{leaf.last}]"


@functools.lru_cache(1024)
def plan(
    text: str, x: tuple[tuple[str, int], ...], z: tuple[tuple[str, int], ...], has_row: bool = True
) -> Plan:  # fmt: skip
    """The formula of one array a side for a text of groups with these numbers of features.

    Without `has_row` no number of x becomes `row`."""
    if any(text.strip() in (entry["name"], *entry["aliases"]) for entry in _mercer.zoo_rows()):
        raise ValueError(
            "formula: a metric or kernel by its name has no groups; write its formula of them, as "
            f'"sum((x.place - z.place)^2)". Received {text!r}'
        )
    found = _Translation(_Text(text, {"x": dict(x), "z": dict(z)}), has_row)
    formula = _mercer.parse(found.written(found.text.body))
    return Plan(formula, tuple(found.slots), found.row, found.col, found.reads_w)


def _groups(verb: str, name: str, points: Any) -> dict[str, Any]:
    """Arrays [..., M, K] by name. One [M] is a feature."""
    if not isinstance(points, Mapping):
        array = _array_likes.array(points)
        _array_likes.refuse_masked(verb, **{name: array})
        return {"": array}
    groups = {str(group): _array_likes.array(array) for group, array in points.items()}
    _array_likes.refuse_masked(verb, **{f"{name}[{group!r}]": a for group, a in groups.items()})
    for group, array in groups.items():
        if getattr(array, "ndim", 0) < 1:
            raise ValueError(
                f"{verb}: {name}[{group!r}] must be an array [..., M, K] or [M]. Received "
                f"{type(array).__name__}"
            )
    return {group: a[:, None] if a.ndim == 1 else a for group, a in groups.items()}


def _common(verb: str, arrays: list[Any], xp: Any) -> list[Any]:
    """The arrays in one dtype that has all of their numbers: a computing type where they differ."""
    if len({array.dtype for array in arrays}) <= 1:
        return arrays
    arrays = (
        [a.astype(np.uint8) if a.dtype == np.dtype(bool) else a for a in arrays]
        if xp is np
        else arrays
    )
    for number, array in enumerate(arrays):
        if str(array.dtype).rpartition(".")[2] in _array_likes.POINT_TYPES:
            continue
        if xp is not np or array.dtype.kind not in "iu":
            raise DtypeError(
                f"{verb}: groups must have dtypes that points may have. Received {array.dtype}"
            )
        arrays[number] = _array_likes.widened(verb, "a group", array)
    wide = max((_array_likes.computing_type(a.dtype) for a in arrays), key=lambda d: d.itemsize)
    return [_cast(array, getattr(xp, wide.name), xp) for array in arrays]


def _cast(array: Any, kind: Any, xp: Any) -> Any:
    return array.to(kind) if xp.__name__ == "torch" else array.astype(kind)


def _joined(arrays: list[Any], xp: Any) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    batch = np.broadcast_shapes(*(tuple(array.shape[:-2]) for array in arrays))
    arrays = [
        array if tuple(array.shape[:-2]) == batch
        else xp.broadcast_to(array, (*batch, *array.shape[-2:])) for array in arrays
    ]  # fmt: skip
    return xp.concatenate(arrays, -1)


class _Side:
    """The groups of a side, as points in the order of the slots."""

    def __init__(self, verb: str, name: str, points: Any):
        self.name, self.groups = name, _groups(verb, name, points)
        shapes = {group: tuple(array.shape) for group, array in self.groups.items()}
        if not shapes or any(len(shape) < 2 for shape in shapes.values()):
            raise ValueError(
                f"{verb}: {name} must have groups of the shapes [..., M, K]. Received {shapes}"
            )
        if len({shape[-2] for shape in shapes.values()}) > 1:
            raise ValueError(
                f"{verb}: the groups of {name} must have the same number of points. "
                f"Received {shapes}"
            )
        self.some = next(iter(self.groups.values()))

    def sizes(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, int(array.shape[-1])) for name, array in self.groups.items())

    def _features(self, leaf: Leaf) -> Any:
        array = self.groups[leaf.group]
        is_whole = leaf.first == 0 and leaf.last == array.shape[-1]
        return array if is_whole else array[..., leaf.first : leaf.last]

    def points(self, leaves: list[Any], others: list[Any], kind: Any, xp: Any) -> Any:
        parts = [
            self._features(leaf) if leaf is not None else _zeros(self.some, other.size, kind, xp)
            for leaf, other in zip(leaves, others, strict=True)
        ]
        return _joined(parts, xp) if parts else _zeros(self.some, 0, kind, xp)

    def number(self, leaf: Leaf) -> Any:
        """A number for each point."""
        return self._features(leaf)[..., 0]


def _cast_groups(verb: str, sides: list[tuple[_Side, list[Any]]], xp: Any) -> Any:
    """Casts the groups that are read, of both sides, to one dtype, which is the result."""
    used = {
        (side.name, leaf.group): side
        for side, leaves in sides
        for leaf in leaves
        if leaf is not None
    }
    arrays = _common(verb, [side.groups[group] for (_, group), side in used.items()], xp)
    for ((_, group), side), array in zip(used.items(), arrays, strict=True):
        side.groups[group] = array
    return arrays[0].dtype if arrays else sides[0][0].some.dtype


def _zeros(like: Any, features: int, kind: Any, xp: Any) -> Any:
    shape = (*like.shape[:-1], features)
    if xp.__name__ == "torch":
        return like.new_zeros(shape, dtype=kind)
    return xp.zeros(shape, dtype=kind)


def arguments(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    """f, x, z, row, col and w of a verb, in the place of those with groups."""
    f = next((given[name] for name in ("f", "metric", "phi") if name in given), None)
    if verb not in VERBS:
        raise NotImplementedError(
            f"{verb}: points by name and features by number are offered by {', '.join(VERBS)}. "
            f"Received {f}"
        )
    if not isinstance(f, str):
        raise ValueError(
            f'{verb}: a formula of groups must be a text, as "sum((x.place - z.place)^2)". '
            f"Received {type(f).__name__}"
        )
    z = given["z"]
    if z is not None and isinstance(z, Mapping) != isinstance(given["x"], Mapping):
        raise ValueError(
            f"{verb}: x and z must both have groups, or none. Received "
            f"{type(given['x']).__name__} and {type(z).__name__}"
        )
    x_side = _Side(verb, "x", given["x"])
    z_side = x_side if z is None else _Side(verb, "z", z)
    # Softmax weights read row themselves, and gradients are by features.
    has_row = given.get("normalize") != "softmax" and verb != "kernel_gradient"
    found = plan(f, x_side.sizes(), z_side.sizes(), has_row)
    xp = _libraries.namespace_of(x_side.some)
    x_leaves, z_leaves = ([slot[side] for slot in found.slots] for side in (0, 1))
    read = [(x_side, [*x_leaves, found.row]), (z_side, [*z_leaves, found.col])]
    kind = _cast_groups(verb, read, xp)
    x = x_side.points(x_leaves, z_leaves, kind, xp)
    is_same = z is None and x_leaves == z_leaves
    result = {"f": found.formula, "x": x}
    result["z"] = None if is_same else z_side.points(z_leaves, x_leaves, kind, xp)
    for name, side, leaf in (("row", x_side, found.row), ("col", z_side, found.col)):
        if leaf is not None and given.get(name) is not None:
            raise ValueError(
                f"{verb}: {name} must not be given where the formula does not read it. Received {f}"
            )
        result[name] = given.get(name) if leaf is None else side.number(leaf)
    result["w"] = given.get("w")
    if found.reads_w:
        if result["w"] is not None:
            raise ValueError(
                f"{verb}: weights w are offered where all reductions go over the same features. "
                f"Received {f}"
            )
        result["w"] = _numbers_of_slots(found.slots, x, xp)
    return result


def _numbers_of_slots(slots: tuple, like: Any, xp: Any) -> Any:
    """The number of its slot for each feature."""
    kind = _array_likes.computing_type(like.dtype)
    numbers = np.repeat(np.arange(len(slots)), [(x or z).size for x, z in slots]).astype(kind)
    if xp.__name__ == "torch":
        return xp.as_tensor(numbers, device=like.device)
    return numbers if xp is np else xp.asarray(numbers)


def gradient(verb: Any, given: dict[str, Any]) -> Any:
    """kernel_gradient: [..., O, M, K] for each group of x, by name, or an array for one array."""
    points, z = given["x"], given["z"]
    options = {name: value for name, value in given.items() if name != "params"}
    options |= given["params"]
    if options.pop("out", None) is not None:
        raise NotImplementedError("kernel_gradient: out is not offered with groups. Received one")
    side = _Side("kernel_gradient", "x", points)
    z_side = side if z is None else _Side("kernel_gradient", "z", z)
    translated = arguments("kernel_gradient", given)
    slots = plan(given["f"], side.sizes(), z_side.sizes(), False).slots
    whole, sizes = verb(**options | translated), dict(side.sizes())
    xp = _libraries.namespace_of(whole)
    found = {name: [_zeros(whole, count, whole.dtype, xp)] for name, count in sizes.items()}
    start = 0
    for x, other in slots:
        leaf = x or other
        assert leaf is not None  # a slot has a side
        part = whole[..., start : start + leaf.size]
        start += leaf.size
        if x is not None:
            around = (x.first, sizes[x.group] - x.last)
            before, after = (_zeros(whole, count, whole.dtype, xp) for count in around)
            found[x.group].append(xp.concatenate([before, part, after], -1))
    result = {name: sum(parts[1:], parts[0]) for name, parts in found.items()}
    return result if isinstance(points, Mapping) else result[""]
