"""A reduction over points of a formula with vector values, as calls of verbs.

Numbers for pairs are one call. Vectors are sums of a number for the pair times vectors of one side,
which is one product with all of these as columns; any other vector is reduced component by
component.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mercer import _verbs
from mercer._normalized import _constant
from mercer._vectors.formulas import MOST_COMPONENTS, Formula, Request, times
from mercer._vectors.nodes import (
    I_SIDE,
    J_SIDE,
    PARAMETER,
    Keys,
    Node,
    extract,
    has_float64,
    is_apart,
    joined,
    leaves,
    less_centre,
    numeric,
    quiet,
    widened,
)  # fmt: skip

__all__ = [
    "Request", "by_components", "narrowed", "nearest", "owned", "product", "reduced", "softmax",
    "summed", "weighted",
]  # fmt: skip


@quiet
def reduced(node: Node, reduce: str, request: Request) -> Any:
    """[..., M]: sum, max, min, argmax, argmin or logsumexp of a number for each pair."""
    formula = Formula(node, request)
    verb: Any = _verbs.kernel_reduce
    return verb(*formula.points(), reduce, **formula.arguments())


@quiet
def product(
    node: Node, v: Any, request: Request, normalize: str | None = None, is_wide: bool = False
) -> Any:
    formula = Formula(node, request, is_wide)
    verb: Any = _verbs.kernel_product
    return verb(*formula.points(), v, normalize=normalize, **formula.arguments())


@quiet
def nearest(node: Node, k: int, request: Request) -> tuple[Any, Any]:
    formula = Formula(node, request)
    return _verbs.knn(*formula.points(), k, **formula.arguments())


def by_components(node: Node, compute: Callable[[Node], Any], xp: Any) -> Any:
    """[..., M, D]: a reduction of each component of a vector."""
    parts = [compute(extract(node, k, 1))[..., None] for k in range(node.dim)]
    return joined(parts, xp)


# A sum over so few features is written as terms. A product with more columns than the second number
# takes longer than one more product, of numbers that read the sum.
_FEW, _MOST_COLUMNS = 8, 128


class Term(NamedTuple):
    """sign * number of the pair * vector of a row * vector of a column; None is 1."""

    sign: int
    pair: Node | None
    row: Any
    col: Any
    apart: int = 0  # how many of its factors are parts of sums of several terms


class _Terms:
    """Vectors as sums of terms."""

    def __init__(self, request: Request, keys: Keys | None = None, *, is_wide: bool = False):
        self.request, self.keys, self.is_wide = request, keys or Keys(), is_wide
        self.wide = None if is_wide else _Terms(request, self.keys, is_wide=True)
        self.values: dict[int, Any] = {}
        self.shifted: dict[int, tuple[Node, ...] | None] = {}

    def value(self, node: Node) -> Any:
        key = self.keys(node)
        if key not in self.values:
            values = numeric(node, self.request.xp, self.request.like)
            is_wide = self.is_wide and values is not None
            self.values[key] = widened(values, self.request.xp) if is_wide else values
        return self.values[key]

    def whole(self, node: Node) -> list[Term] | None:
        """A vector as a sum of terms, all in float64 if one is: what float32 rounds in some of the
        terms alone would not cancel."""
        found = self.of(node)
        return self.wide.of(node) if self.wide and found and self._is_wide(found) else found

    def of(self, node: Node) -> list[Term] | None:
        """A vector as a sum of terms; None where it is none."""
        if not node.is_of_pairs():
            value = self.value(node)
            if value is None:
                return [Term(1, node, None, None)] if node.dim == 1 else None
            is_of_col = self.request.axis in node.sides
            return [Term(1, None, None, value) if is_of_col else Term(1, None, value, None)]
        if node.dim == 1:
            return self._of_number(node) or [Term(1, node, None, None)]
        return self._of_vector(node)

    def _of_vector(self, node: Node) -> list[Term] | None:
        if node.op == "Gather":
            found = self.of(node.arguments[0])
            return None if found is None else [_gathered(term, node.value) for term in found]
        if node.op == "Square":
            node = Node("Mult", node.arguments * 2, node.dim)
        if node.op == "Divide":
            inverse = Node("Inv", node.arguments[1:], node.arguments[1].dim)
            node = Node("Mult", (node.arguments[0], inverse), node.dim)
        if node.op not in ("Add", "Subtract", "Minus", "Mult"):
            return None
        arguments, known = self._centred(node), []
        for argument in arguments or ():
            terms = self.of(argument)
            if terms is None:
                return None
            known.append(terms)
        if not known:
            return None
        if node.op == "Mult":
            return self._products(node.arguments, known)
        first = known[0] if len(known) == 2 else []
        if node.op == "Add":
            return _several(first + known[1])
        return _several(first + [term._replace(sign=-term.sign) for term in known[-1]])

    def _products(self, nodes: Sequence[Node], known: list[list[Term]]) -> list[Term] | None:
        """All products. Numbers of several terms stay numbers where there would be many columns,
        or where too many digits would cancel. None where these would cancel in vectors."""
        found = [_product(a, b) for a in known[0] for b in known[1]]
        is_narrow = sum(_width(term.col) for term in found) <= _MOST_COLUMNS
        if is_narrow and self._keeps_digits(nodes, known):
            return found
        alone = [
            [Term(1, node, None, None)]
            if node.dim == 1 and (len(terms) > 1 or terms[0].apart)
            else terms
            for node, terms in zip(nodes, known, strict=True)
        ]
        found = [_product(a, b) for a in alone[0] for b in alone[1]]
        return found if self._keeps_digits(nodes, alone) else None

    def _keeps_digits(self, nodes: Sequence[Node], known: list[list[Term]]) -> bool:
        """Whether few factors are parts of sums: what cancels in a sum is then left to the product,
        so that each multiplies rounding errors by the spread of the points relative to their
        distance. Float32 points, computed in float64, afford two, a vector and a number."""
        if self.request.separate is not None:
            return True
        first, second = (max(term.apart for term in terms) for terms in known)
        is_wide = "float64" in str(self.request.like.dtype)
        are_alike = (nodes[0].dim == 1) == (nodes[1].dim == 1)
        most = 1 if is_wide or (are_alike and first and second) else 2
        return first + second <= most

    def _of_number(self, node: Node) -> list[Term] | None:
        """A number of the pair as other terms than itself: None where it has none, or where they
        would not be sums of numbers of rows times numbers of columns."""
        if node.op == "Sum":
            return self._of_sum(node.arguments[0])
        if node.op in ("Mult", "Minus"):
            return self._of_vector(node)
        if node.op not in ("Add", "Subtract"):
            return None
        found = self._of_vector(node)
        return found if found and all(term.pair is None for term in found) else None

    def _of_sum(self, node: Node) -> list[Term] | None:
        """A sum over features of a vector in which each product has one factor of both sides."""
        few = node.dim <= _FEW
        if not _is_linear(node) or not (few or _reads_several(node)):
            return None
        terms = self.of(node)
        if terms is None:
            return None
        parts = [part for term in terms for part in _over_features(term, node.dim, few)]
        if few:
            return _several(parts)
        numbers = [self._number_of(part) for part in parts]
        total = numbers[0]
        for number in numbers[1:]:
            total = Node("Add", (total, number))
        # A formula does not have the sum of more components: it cannot be written otherwise.
        apart = max(part.apart for part in parts) if node.dim <= MOST_COMPONENTS else 0
        return [Term(1, total, None, None, apart)]

    def _number_of(self, term: Term) -> Node:
        """A term summed over the features, as a number that a formula can read."""
        xp, request = self.request.xp, self.request
        factors = [] if term.pair is None else [term.pair]
        sides: list[Node] = []
        for values, category in ((term.row, request.rows), (term.col, request.axis)):
            if isinstance(values, (int, float)):
                factors.append(Node("number", value=float(values)))
            elif values is not None:
                shape = (*values.shape[:-2], request.sizes[category], values.shape[-1])
                whole = xp.broadcast_to(values, shape)
                leaf = Node("array", (), shape[-1], value=whole, category=category)
                (factors if leaf.dim == 1 else sides).append(leaf)
        if sides:
            inner = sides[0] if len(sides) == 1 else Node("Mult", tuple(sides), sides[0].dim)
            factors.append(Node("Sum", (inner,)))
        found = factors[0] if factors else Node("literal", value="1")
        for factor in factors[1:]:
            found = Node("Mult", (found, factor))
        return Node("Minus", (found,)) if term.sign < 0 else found

    def _centred(self, node: Node) -> tuple[Node, ...] | None:
        """The arguments; those of a sum or difference of both sides less a centre of one, so that
        they are not larger than points lie apart. None where they must not be taken apart."""
        if not is_apart(node):
            return node.arguments
        if self.request.separate is False:
            return None
        key = self.keys(node)
        if key not in self.shifted:
            self.shifted[key] = self._less_centre(node)
        return self.shifted[key]

    def _less_centre(self, node: Node) -> tuple[Node, ...] | None:
        values, xp = self.value(node.arguments[1]), self.request.xp
        if values is None or self.value(node.arguments[0]) is None:
            return None if self.request.separate is None else node.arguments
        if self.request.separate is None and "float64" not in str(self.request.like.dtype):
            if not has_float64(xp):
                return None
            wide = tuple(Node("Wide", (part,), part.dim) for part in node.arguments)
            node, values = Node(node.op, wide, node.dim), widened(values, xp)
        return less_centre(node, values, xp)

    def pair_key(self, pair: Node | None) -> tuple[int, ...]:
        """A key that products of the same numbers share, in any order."""
        waiting, found = [pair] if pair is not None else [], []
        while waiting:
            one = waiting.pop()
            if one.op == "Mult" and one.dim == 1:
                waiting.extend(one.arguments)
            else:
                found.append(self.keys(one))
        return tuple(sorted(found))

    def sums(self, parts: list[list[Term]], normalize: str | None = None) -> list[Any]:
        """[..., M, D] of each part. Terms of one number of the pair are columns of one product."""
        groups: dict[tuple[int, ...], list[tuple[int, Term]]] = {}
        for number, part in enumerate(parts):
            for term in part:
                groups.setdefault(self.pair_key(term.pair), []).append((number, term))
        totals: list[Any] = [None] * len(parts)
        for group in groups.values():
            found = self._columns([term for _, term in group], normalize)
            for (number, term), sums in zip(group, found, strict=True):
                sums = sums if term.row is None else sums * term.row
                sums = sums if term.sign > 0 else -sums
                totals[number] = sums if totals[number] is None else totals[number] + sums
        return totals

    def _is_wide(self, group: list[Term]) -> bool:
        """Whether float32 points are computed in float64 for what was taken apart."""
        kind, pairs = self.request.like.dtype, [term.pair for term in group if term.pair]
        arrays = [one.value for pair in pairs for one in leaves(pair) if one.op == "array"]
        arrays += [side for term in group for side in (term.row, term.col)]
        return any(getattr(array, "dtype", kind) != kind for array in arrays)

    def _columns(self, group: list[Term], normalize: str | None) -> list[Any]:
        """The sums of the group's number of the pair times each of its vectors of columns."""
        xp, request = self.request.xp, self.request
        pair, given = group[0].pair, [term.col for term in group]
        size, distinct = request.sizes[request.axis], {id(c): c for c in given}
        one = _ones(request) if any(c is None for c in given) else None
        arrays: list[Any] = [one if c is None else c for c in distinct.values()]
        arrays = [xp.broadcast_to(c, (*c.shape[:-2], size, c.shape[-1])) for c in arrays]
        rows = request.sizes[request.rows]
        is_alone = pair is None and normalize is None and request.ranges is None
        if is_alone:  # one row is the sum for all
            sizes = (1, size) if request.axis == 1 else (size, 1)
            request = request._replace(sizes=sizes)
        number = pair or Node("literal", value="1")
        is_wide = self._is_wide(group)
        arrays = [widened(array, xp) for array in arrays] if is_wide else arrays
        whole = product(number, joined(arrays, xp), request, normalize, is_wide)
        if is_alone:
            whole = xp.broadcast_to(whole, (*whole.shape[:-2], rows, whole.shape[-1]))
        found, start = {}, 0
        for key, array in zip(distinct, arrays, strict=True):
            found[key] = whole[..., start : start + array.shape[-1]]
            start += array.shape[-1]
        return [found[id(c)] for c in given]


def _several(terms: list[Term]) -> list[Term]:
    """The terms of a sum, which may cancel."""
    if len(terms) == 1:
        return terms
    return [term._replace(apart=max(term.apart, 1)) for term in terms]


def _is_linear(node: Node) -> bool:
    """Whether products have one factor of both sides at most, so that squares of differences, which
    cancel when they are multiplied out, stay as they are."""
    if not node.is_of_pairs() or node.dim == 1:
        return True
    if node.op in ("Mult", "Divide"):
        vectors = [a for a in node.arguments if a.is_of_pairs() and a.dim > 1]
        return len(vectors) <= 1 and all(map(_is_linear, vectors))
    return node.op in ("Add", "Subtract", "Minus", "Gather") and all(
        map(_is_linear, node.arguments)
    )


def _reads_several(node: Node) -> bool:
    """Whether a reduction of this reads several vectors of one side, or of parameters."""
    found: dict[int, set[tuple[int, int]]] = {I_SIDE: set(), J_SIDE: set(), PARAMETER: set()}
    for one in leaves(node):
        if one.op == "array" and one.dim > 1:
            found[one.category].add((id(one.value), one.first))
    return any(len(vectors) > 1 for vectors in found.values())


def _width(side: Any) -> int:
    return side.shape[-1] if getattr(side, "ndim", 0) else 1


def _over_features(term: Term, count: int, few: bool) -> list[Term]:
    """The sum over features of a term, as terms; products of two vectors stay if there are many."""
    wide = [_width(side) > 1 for side in (term.row, term.col)]
    if all(wide):
        if not few:
            return [term]
        return [
            term._replace(row=term.row[..., k : k + 1], col=term.col[..., k : k + 1])
            for k in range(count)
        ]
    if wide[0]:
        return [term._replace(row=term.row.sum(-1)[..., None])]
    if wide[1]:
        return [term._replace(col=term.col.sum(-1)[..., None])]
    return [term._replace(row=float(count) if term.row is None else count * term.row)]


def _product(a: Term, b: Term) -> Term:
    return Term(
        a.sign * b.sign,
        times(a.pair, b.pair),
        _both(a.row, b.row),
        _both(a.col, b.col),
        a.apart + b.apart,
    )


def _both(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a * b


def _gathered(term: Term, components: tuple[int, ...]) -> Term:
    row, col = (
        side[..., list(components)] if getattr(side, "ndim", 0) and side.shape[-1] > 1 else side
        for side in (term.row, term.col)
    )
    return term._replace(row=row, col=col)


def _ones(request: Request) -> Any:
    if request.xp.__name__ == "torch":
        return request.like.new_ones(1, 1)
    return request.xp.ones((1, 1), dtype=request.like.dtype)


def owned(values: Any, xp: Any) -> Any:
    """An array in memory of its own, which a broadcast one has not."""
    if xp is np:
        return values if values.flags.writeable else values.copy()
    return values.contiguous() if xp.__name__ == "torch" else values


def narrowed(total: Any, request: Request) -> Any:
    """A sum in the type of the points."""
    if total.dtype == request.like.dtype:
        return total
    kind = request.like.dtype
    return total.to(kind) if request.xp.__name__ == "torch" else total.astype(kind)


def _parts(node: Node) -> list[Node]:
    """The vectors that a concatenation joins."""
    return [p for a in node.arguments for p in _parts(a)] if node.op == "Concat" else [node]


@quiet
def summed(*nodes: Node, request: Request) -> list[Any]:
    """[..., M, D] of each vector: its sum over the columns. Products are shared by all vectors."""
    terms, xp = _Terms(request), request.xp
    whole = [_parts(node) for node in nodes]
    flat = [part for parts in whole for part in parts]
    found: dict[int, Any] = {}
    separable: list[tuple[int, list[Term]]] = []
    for place, part in enumerate(flat):
        known = terms.whole(part)
        if known is None:
            found[place] = by_components(part, lambda one: reduced(one, "sum", request), xp)
        elif part.dim == 1 and len(flat) == len(known) == 1 and known[0].pair is not None:
            found[place] = reduced(part, "sum", request)[..., None]
        else:
            separable.append((place, known))
    sums = terms.sums([known for _, known in separable])
    for (place, _), total in zip(separable, sums, strict=True):
        count = flat[place].dim
        total = narrowed(total, request)
        is_whole = total.shape[-1] == count
        found[place] = total if is_whole else xp.broadcast_to(total, (*total.shape[:-1], count))
    results, place = [], 0
    for parts in whole:
        results.append(owned(joined([found[place + k] for k in range(len(parts))], xp), xp))
        place += len(parts)
    return results


def softmax(node: Node, weight: Node, request: Request) -> Any:
    """[..., M, D]: the sum of a weight times the softmax of a number for each pair."""
    return weighted(weight, node, "softmax", request)


@quiet
def weighted(node: Node, weight: Node, normalize: str, request: Request) -> Any:
    """[..., M, D]: the mean of a vector with weights for each pair, or with their softmax."""
    terms = _Terms(request)
    known = [terms.whole(part) for part in _parts(node)]
    if all(part is not None and all(t.pair is None for t in part) for part in known):
        alone = [[t._replace(pair=weight) for t in part or []] for part in known]
        means = [narrowed(mean, request) for mean in terms.sums(alone, normalize)]
        return joined(means, request.xp)
    if normalize == "softmax":
        shift = _constant(reduced(weight, "logsumexp", request))[..., None]
        row = Node("array", (), 1, value=shift, category=request.rows)
        weight = Node("Exp", (Node("Subtract", (weight, row)),))
    parts = tuple(Node("Mult", (weight, part), part.dim) for part in _parts(node))
    vectors = parts[0] if len(parts) == 1 else Node("Concat", parts, node.dim)
    sums, whole = summed(vectors, weight, request=request)
    return sums / whole
