"""Derived formulas on blocks of pairs, one PyTorch operation a step.

The engine computes formulas and first derivatives. A second derivative is a formula with more
features to a point than x, z and w: it is computed here, in blocks of pairs. The engine has the
reductions without such features. Sums of products, as squared differences and inner products have
them, are products of matrices (separable.py); of all others no more than a block of M * N * K
values is ever alive.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mercer import _mercer
from mercer._derived import parsed
from mercer._torch import calls, separable
from mercer._torch.operands import Pairs, Weights, is_tiny_batch, options
from mercer._torch.separable import Separable, Value

# Values (m, n, k) of a block: what a processor's caches hold, and what fills a GPU. Where nothing
# varies along all three, values (m, n).
_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 22}
_PAIRS = {"cpu": 1 << 18, "cuda": 1 << 22}


class Steps(NamedTuple):
    steps: list[tuple[str, tuple[int, ...], float, int, str]]
    is_needed: list[bool]
    last_use: list[int]
    of_state: list[bool]
    by_engine: bool  # reductions that have a text
    has_loop: bool  # over the features, with few values at a time


def _needed(steps: list[tuple], by_engine: bool) -> list[bool]:
    """What is not only within what the engine computes."""
    needed = [False] * len(steps)
    needed[-1] = True
    for number in reversed(range(len(steps))):
        _, arguments, _, _, word = steps[number]
        if needed[number] and not (by_engine and arguments and word):
            for argument in arguments:
                needed[argument] = True
    return needed


@functools.lru_cache(1024)
def _steps(text: str, along: str, wrt: str, by_engine: bool) -> Steps:
    steps = _mercer.steps(parsed(text), list(along), wrt or None)
    needed = _needed(steps, by_engine)
    last_use = list(range(len(steps)))
    of_state: list[bool] = []
    for number, (name, arguments, _, slot, _) in enumerate(steps):
        for argument in arguments if needed[number] else ():
            last_use[argument] = number
        outer = arguments[:slot] if name == "reduce" else arguments  # its states are bound in it
        of_state.append(name in ("state", "incoming") or any(of_state[a] for a in outer))
    # A step of a reduce is evaluated in its loop, from values that must still be there.
    for number, (name, arguments, _, _, _) in enumerate(steps):
        if name != "reduce":
            continue
        open_steps = [a for a in arguments if of_state[a]]
        while open_steps:
            for argument in steps[open_steps.pop()][1]:
                if of_state[argument]:
                    open_steps.append(argument)
                last_use[argument] = max(last_use[argument], number)
    last_use[-1] = len(steps)
    has_loop = any(step[0] == "reduce" and n for step, n in zip(steps, needed, strict=True))
    return Steps(steps, needed, last_use, of_state, by_engine, has_loop)


def _boolean(compare: Any) -> Any:
    return lambda a, b: compare(a, b).to(a.dtype)


def _sign(a: Tensor) -> Tensor:
    return torch.where(torch.isnan(a), a, torch.sign(a))


# The engine's table, and what torch defines otherwise: true is 1, a sign of NaN is NaN.
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    name: getattr(torch, function) for name, _, _, function in _mercer.ops() if function
} | {
    "sign": _sign,
    "<": _boolean(torch.lt),
    "<=": _boolean(torch.le),
    ">": _boolean(torch.gt),
    ">=": _boolean(torch.ge),
    "==": _boolean(torch.eq),
    "!=": _boolean(torch.ne),
    "&": lambda a, b: ((a != 0) & (b != 0)).to(a.dtype),
    "|": lambda a, b: ((a != 0) | (b != 0)).to(a.dtype),
    "not": lambda a: (a == 0).to(a.dtype),
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    "fma": lambda a, b, c: a * b + c,
}


class _Block:
    """The leaves of one block of pairs, as tensors [..., m, n, k].

    `separates`: values of pair and feature stay sums of products while that goes, and what they are
    products of is in float64.
    """

    def __init__(self, pairs: Pairs, rows: slice, columns: slice, separates: bool):
        self.pairs, self.rows, self.columns, self.type = pairs, rows, columns, pairs.type
        self.separates = separates
        self.type_of_features = torch.float64 if separates else pairs.type
        self.device, self.features = pairs.x.device, pairs.x.shape[-1]
        self.parameters = pairs.values()
        self.made_whole = False  # something that varies along rows, columns and features

    def _of_rows(self, points: Tensor) -> Tensor:
        return points[..., self.rows, None, :].to(self.type_of_features)

    def _of_columns(self, points: Tensor) -> Tensor:
        return points[..., None, self.columns, :].to(self.type_of_features)

    def _number(self, value: float) -> Tensor:
        return torch.full((1, 1, 1), value, dtype=self.type, device=self.device)

    def _indices(self, part: slice, offset: int) -> Tensor:
        index = torch.arange(part.start, part.stop, device=self.device) + offset
        return index.to(self.type)

    def _parameter(self, name: str, default: float) -> Tensor:
        value = self.parameters.get(name, default)
        if not isinstance(value, Tensor):
            return self._number(value)
        return value.to(self.device, self.type)[..., None, None, None]

    def _direction(self, index: int) -> Tensor:
        values, target = self.pairs.directions[index], self.pairs.along[index]
        if target == "w":
            return values[..., None, None, :].to(self.type_of_features)
        return self._of_rows(values) if target in "xt" else self._of_columns(values)

    def leaf(self, name: str, value: float, slot: int, word: str) -> Tensor:
        pairs = self.pairs
        match name:
            case "constant":
                return self._number(value)
            case "K":
                return self._number(self.features)
            case "x":
                return self._of_rows(pairs.x)
            case "z":
                return self._of_columns(pairs.columns)
            case "w" if pairs.w is not None:
                return pairs.w.to(self.type_of_features)[..., None, None, :]
            case "direction":
                return self._direction(slot)
            case "row" if pairs.row is not None:
                return pairs.row[..., self.rows, None, None].to(self.type)
            case "col" if pairs.col is not None:
                return pairs.col[..., None, self.columns, None].to(self.type)
            case "i":
                return self._indices(self.rows, pairs.i_offset)[:, None, None]
            case "j":
                return self._indices(self.columns, pairs.j_offset)[None, :, None]
            case _:
                return self._parameter(word, value)

    def evaluate(self, program: Steps) -> Value:
        values: dict[int, Value] = {}
        for number, (name, arguments, value, slot, word) in enumerate(program.steps):
            if program.of_state[number] or not program.is_needed[number]:
                continue
            if arguments and word and program.by_engine:
                values[number] = self._engine(word)
            elif arguments and word and self.separates:
                values[number] = self._whole_reduction(word)
            elif name == "reduce":
                values[number] = self._loop(program, number, values)
            elif arguments:
                values[number] = self._apply(name, [values[a] for a in arguments])
            else:
                values[number] = self.leaf(name, value, slot, word)
            for argument in [a for a in values if program.last_use[a] <= number and a != number]:
                del values[argument]
        return values[len(program.steps) - 1]

    def _engine(self, text: str) -> Tensor:
        pairs = self.pairs.with_formula(text)
        block = pairs._replace(
            x=pairs.x[..., self.rows, :], z=pairs.columns[..., self.columns, :],
            row=None if pairs.row is None else pairs.row[..., self.rows],
            col=None if pairs.col is None else pairs.col[..., self.columns],
            i_offset=pairs.i_offset + self.rows.start, j_offset=pairs.j_offset + self.columns.start,
        )  # fmt: skip
        points = block.x.resolve_neg(), block.columns.resolve_neg()
        return _mercer.unfollowed("pairwise", parsed(text), *points, **options(block)).unsqueeze(-1)

    def _whole_reduction(self, text: str) -> Tensor:
        """Where the engine does not compute: of differences, as products of the two sides would
        leave rounding where points coincide, and a root of what is below 0."""
        near = _Block(self.pairs.with_formula(text), self.rows, self.columns, separates=False)
        return near.whole(near.evaluate(_steps(text, "", "", False)))

    def whole(self, value: Value) -> Tensor:
        if isinstance(value, Separable):
            self.made_whole = True
            value = value.whole()
        return value.to(self.type)

    def _call(self, function: Callable[..., Tensor], arguments: list[Value]) -> Tensor:
        if not self.separates:
            return function(*arguments)
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if len(tensors) == len(arguments) and not separable.is_whole(*tensors):
            return function(*tensors)
        self.made_whole = True
        return function(*map(self.whole, arguments))

    def _combine(self, name: str, a: Value, b: Value) -> Value:
        """A sum, a difference, a product or a quotient."""
        function = _FUNCTIONS[name]
        if isinstance(a, Tensor) and isinstance(b, Tensor) and not separable.is_whole(a, b):
            return function(a, b)

        def make() -> Tensor:
            return function(self.whole(a), self.whole(b))

        if name == "*":
            found = separable.product(a, b, make)
        elif name == "/":
            found = separable.product(a, b.reciprocal(), make) if isinstance(b, Tensor) else None
        else:
            found = separable.total(a, b, 1 if name == "+" else -1, make)
        return self._call(function, [a, b]) if found is None else found

    def _apply(self, name: str, arguments: list[Value]) -> Value:
        if self.separates and name in ("+", "-", "*", "/"):
            return self._combine(name, *arguments)
        if self.separates and name == "fma":
            return self._combine("+", self._combine("*", *arguments[:2]), arguments[2])
        if name == "neg" and isinstance(arguments[0], Separable):
            return self._combine("*", arguments[0], self._number(-1.0))
        if name in _FUNCTIONS:
            return self._call(_FUNCTIONS[name], arguments)
        if name == "sum":
            return self._sum(arguments[0])
        term = self._term(arguments[0])
        if name == "prod":
            return term.prod(-1, keepdim=True)
        if self.features == 0:
            empty = float("inf") if name == "min_over" else -float("inf")
            return term.new_full((*term.shape[:-1], 1), empty)
        if name == "logsumexp":
            return term.logsumexp(-1, keepdim=True)
        return (term.amax if name == "max_over" else term.amin)(-1, keepdim=True)

    def _sum(self, term: Value) -> Tensor:
        if isinstance(term, Separable):
            return separable.over_features(term, self.features).to(self.type)
        if term.shape[-1] == 1:
            return term.to(self.type) * self.features
        return term.sum(-1, keepdim=True).to(self.type)

    def _along_features(self, term: Tensor) -> Tensor:
        return term.expand(*term.shape[:-1], self.features)

    def _term(self, value: Value) -> Tensor:
        """A reduction's terms; as exact as they are, for they are compared with the largest one."""
        return self._along_features(value if isinstance(value, Tensor) else self.whole(value))

    def _loop(self, program: Steps, number: int, values: dict[int, Value]) -> Tensor:
        """A reduce: its combine for one feature after the other, then its finish."""
        _, arguments, associative, slots, _ = program.steps[number]
        terms = [self._term(values[a]) for a in arguments[:slots]]
        combine, identity = arguments[slots : 2 * slots], arguments[2 * slots : 3 * slots]
        state = [values[a] for a in identity]
        if associative and combine == arguments[3 * slots : 4 * slots]:
            terms = self._halved(program, combine, values, terms)
        for k in range(terms[0].shape[-1]):
            incoming = [term[..., k : k + 1] for term in terms]
            state = self._of_state(program, combine, values, state, incoming)
        return self._of_state(program, arguments[-1:], values, state, [])[0]

    def _halved(self, program: Steps, merge: Any, values: Any, terms: list[Tensor]) -> list[Tensor]:
        """Neighbours are merged, all pairs of them at a time, where that makes no large values."""
        shape = torch.broadcast_shapes(*(term.shape for term in terms))
        if math.prod(shape) > _BLOCK[self.device.type] or self.features < 4:
            return terms
        terms = [term.expand(shape) for term in terms]
        while (count := terms[0].shape[-1]) > 1:
            even = count // 2 * 2
            left, right = ([term[..., s:even:2] for term in terms] for s in (0, 1))
            merged = self._of_state(program, merge, values, left, right)
            rest = [term[..., even:] for term in terms]
            whole = [m.expand(left[0].shape) for m in merged]
            terms = [torch.cat(parts, -1) for parts in zip(whole, rest, strict=True)]
        return terms

    def _of_state(
        self, program: Any, wanted: Any, values: Any, state: Any, incoming: Any
    ) -> list[Tensor]:
        known: dict[int, Tensor] = {}

        def value_of(number: int) -> Tensor:
            if not program.of_state[number]:
                return self.whole(values[number])
            if number not in known:
                name, arguments, _, slot, _ = program.steps[number]
                if arguments:
                    known[number] = _FUNCTIONS[name](*[value_of(a) for a in arguments])
                else:
                    known[number] = (state if name == "state" else incoming)[slot]
            return known[number]

        return [value_of(number) for number in wanted]


def _blocks(pairs: Pairs, program: Steps, is_whole: bool) -> Iterator[tuple[slice, slice]]:
    m, n = pairs.x.shape[-2], pairs.columns.shape[-2]
    values = _BLOCK[pairs.x.device.type] * (16 if program.has_loop else 1)
    each = max(1, pairs.batch().numel() * pairs.x.shape[-1])
    if not is_whole:
        values, each = _PAIRS[pairs.x.device.type], max(1, pairs.batch().numel())
    each = values // each
    columns = max(1, min(n, each))
    rows = max(1, each // columns)
    for first in range(0, m, rows):
        for start in range(0, n, columns):
            yield slice(first, min(first + rows, m)), slice(start, min(start + columns, n))


@functools.lru_cache(1024)
def _known_whole(text: str, along: str, wrt: str, shape: tuple) -> list[bool]:
    return []  # of whether something whole is made, one value as soon as that is known


def _makes_whole(pairs: Pairs, wrt: str) -> bool:
    """Whether anything varies along rows, columns and features, as two of each tell."""
    m, n, k = pairs.x.shape[-2], pairs.columns.shape[-2], pairs.x.shape[-1]
    known = _known_whole(pairs.f, pairs.along, wrt, (min(m, 2), min(n, 2), min(k, 2)))
    if not known:
        block = _Block(pairs, slice(0, min(m, 2)), slice(0, min(n, 2)), separates=True)
        values = block.evaluate(_steps(pairs.f, pairs.along, wrt, not is_tiny_batch(pairs)))
        known.append(separable.terms_of(values) is None or block.made_whole)
    return known[0]


def _evaluated(pairs: Pairs, wrt: str) -> Iterator[tuple[slice, slice, Value, _Block]]:
    """The derived formula on blocks. Blocks of whole values are too small for the engine."""
    is_whole = _makes_whole(pairs, wrt)
    program = _steps(pairs.f, pairs.along, wrt, not is_whole and not is_tiny_batch(pairs))
    for rows, columns in _blocks(pairs, program, is_whole):
        block = _Block(pairs, rows, columns, separates=not is_whole)
        yield rows, columns, block.evaluate(program), block


def matrix(pairs: Pairs, out: Tensor) -> Tensor:
    """out[..., m, n] = the derived formula."""
    for rows, columns, values, block in _evaluated(pairs, ""):
        out[..., rows, columns] = block.whole(values)[..., 0]
    return out


def product(pairs: Pairs, v: Tensor, out: Tensor) -> Tensor:
    """out[..., m, e] = the sum over n of the derived formula times v[..., n, e], in float64."""
    out.zero_()
    for rows, columns, values, block in _evaluated(pairs, ""):
        matrix = block.whole(values)[..., 0]
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        matrix = matrix.expand(*matrix.shape[:-2], *shape)
        part = matrix.double() @ v[..., columns, :].double()
        out[..., rows, :] += part.to(pairs.type)
    return out


def field(pairs: Pairs, wrt: str, weights: Weights, out: Tensor) -> Tensor:
    """out[..., m, k] = the sum over n of weight * d f(x_m, z_n) / d target[m, k]."""
    out.zero_()
    for rows, columns, values, block in _evaluated(pairs, wrt):
        part = weights.rows(rows.start, rows.stop).swapped()
        part = part.rows(columns.start, columns.stop).swapped()
        weight = calls.matrix(part)
        weight = None if weight is None else weight.to(pairs.type)
        m, n = rows.stop - rows.start, columns.stop - columns.start
        terms = separable.terms_of(values)
        if terms is not None:
            out[..., rows, :] += separable.over_columns(terms, weight, m, n).to(pairs.type)
            continue
        values = block.whole(values)
        if weight is not None:
            values = weight[..., None] * values
        out[..., rows, :] += values.expand(*values.shape[:-3], m, n, values.shape[-1]).sum(-2)
    return out
