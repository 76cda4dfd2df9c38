"""Derived formulas on blocks of pairs, one PyTorch operation a step.

The engine computes formulas and first derivatives. A second derivative is a formula with more
features to a point than x, z and w: it is computed here, in blocks of pairs, so that no more than a
block of M * N * K values is ever alive.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from mercer import _mercer
from mercer._torch.operands import Pairs, Weights, parsed

# Values (m, n, k) of a block: what a processor's caches hold, and what fills a GPU.
_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 22}


class Steps(NamedTuple):
    steps: list[tuple[str, tuple[int, ...], float, int, str]]
    last_use: list[int]
    of_state: list[bool]
    has_loop: bool  # over the features, with few values at a time


@functools.lru_cache(1024)
def _steps(text: str, along: str, wrt: str) -> Steps:
    steps = _mercer.steps(parsed(text), list(along), wrt or None)
    last_use = list(range(len(steps)))
    of_state: list[bool] = []
    for number, (name, arguments, _, slot, _) in enumerate(steps):
        for argument in arguments:
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
    return Steps(steps, last_use, of_state, any(name == "reduce" for name, *_ in steps))


def _boolean(compare):
    return lambda a, b: compare(a, b).to(a.dtype)


def _sign(a: Tensor) -> Tensor:
    return torch.where(torch.isnan(a), a, torch.sign(a))


_FUNCTIONS = {
    "neg": torch.neg, "abs": torch.abs, "sign": _sign, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "rcp": torch.reciprocal, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos,
    "asin": torch.asin, "acos": torch.acos, "tanh": torch.tanh, "erf": torch.erf,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div, "min": torch.minimum,
    "max": torch.maximum, "pow": torch.pow, "xlogy": torch.xlogy, "atan2": torch.atan2,
    "copysign": torch.copysign, "<": _boolean(torch.lt), "<=": _boolean(torch.le),
    ">": _boolean(torch.gt), ">=": _boolean(torch.ge), "==": _boolean(torch.eq),
    "!=": _boolean(torch.ne),
    "&": lambda a, b: ((a != 0) & (b != 0)).to(a.dtype),
    "|": lambda a, b: ((a != 0) | (b != 0)).to(a.dtype),
    "not": lambda a: (a == 0).to(a.dtype),
    "where": lambda c, a, b: torch.where(c != 0, a, b),
    "fma": lambda a, b, c: a * b + c,
}  # fmt: skip


class _Block:
    """The leaves of one block of pairs, as tensors [..., m, n, k]."""

    def __init__(self, pairs: Pairs, rows: slice, columns: slice):
        self.pairs, self.rows, self.columns, self.type = pairs, rows, columns, pairs.type
        self.device, self.features = pairs.x.device, pairs.x.shape[-1]
        self.parameters = pairs.values()

    def _of_rows(self, points: Tensor) -> Tensor:
        return points[..., self.rows, None, :].to(self.type)

    def _of_columns(self, points: Tensor) -> Tensor:
        return points[..., None, self.columns, :].to(self.type)

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
            return values[..., None, None, :].to(self.type)
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
            case "w":
                return pairs.w.to(self.type)[..., None, None, :]
            case "direction":
                return self._direction(slot)
            case "row":
                return pairs.row[..., self.rows, None, None].to(self.type)
            case "col":
                return pairs.col[..., None, self.columns, None].to(self.type)
            case "i":
                return self._indices(self.rows, pairs.i_offset)[:, None, None]
            case "j":
                return self._indices(self.columns, pairs.j_offset)[None, :, None]
            case _:
                return self._parameter(word, value)

    def evaluate(self, program: Steps) -> Tensor:
        values: dict[int, Tensor] = {}
        for number, (name, arguments, value, slot, word) in enumerate(program.steps):
            if program.of_state[number]:
                continue
            if name == "reduce":
                values[number] = self._loop(program, number, values)
            elif arguments:
                values[number] = self._apply(name, [values[a] for a in arguments])
            else:
                values[number] = self.leaf(name, value, slot, word)
            for argument in [a for a in values if program.last_use[a] <= number and a != number]:
                del values[argument]
        return values[len(program.steps) - 1]

    def _apply(self, name: str, arguments: list[Tensor]) -> Tensor:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*arguments)
        term = self._along_features(arguments[0])
        if name == "sum":
            return term.sum(-1, keepdim=True)
        if name == "prod":
            return term.prod(-1, keepdim=True)
        if self.features == 0:
            empty = float("inf") if name == "min_over" else -float("inf")
            return term.new_full((*term.shape[:-1], 1), empty)
        if name == "logsumexp":
            return term.logsumexp(-1, keepdim=True)
        return (term.amax if name == "max_over" else term.amin)(-1, keepdim=True)

    def _along_features(self, term: Tensor) -> Tensor:
        return term.expand(*term.shape[:-1], self.features)

    def _loop(self, program: Steps, number: int, values: dict[int, Tensor]) -> Tensor:
        """A reduce: its combine for one feature after the other, then its finish."""
        _, arguments, _, slots, _ = program.steps[number]
        terms = [self._along_features(values[a]) for a in arguments[:slots]]
        combine, identity = arguments[slots : 2 * slots], arguments[2 * slots : 3 * slots]
        state = [values[a] for a in identity]
        for k in range(self.features):
            incoming = [term[..., k : k + 1] for term in terms]
            state = self._of_state(program, combine, values, state, incoming)
        return self._of_state(program, arguments[-1:], values, state, [])[0]

    def _of_state(self, program, wanted, values, state, incoming) -> list[Tensor]:
        known: dict[int, Tensor] = {}

        def value_of(number: int) -> Tensor:
            if not program.of_state[number]:
                return values[number]
            if number not in known:
                name, arguments, _, slot, _ = program.steps[number]
                if arguments:
                    known[number] = _FUNCTIONS[name](*[value_of(a) for a in arguments])
                else:
                    known[number] = (state if name == "state" else incoming)[slot]
            return known[number]

        return [value_of(number) for number in wanted]


def _blocks(pairs: Pairs, program: Steps) -> Iterator[tuple[slice, slice]]:
    m, n = pairs.x.shape[-2], pairs.columns.shape[-2]
    values = _BLOCK[pairs.x.device.type] * (16 if program.has_loop else 1)
    each = values // max(1, pairs.batch().numel() * pairs.x.shape[-1])
    columns = max(1, min(n, each))
    rows = max(1, each // columns)
    for first in range(0, m, rows):
        for start in range(0, n, columns):
            yield slice(first, min(first + rows, m)), slice(start, min(start + columns, n))


def matrix(pairs: Pairs, out: Tensor) -> Tensor:
    """out[..., m, n] = the derived formula."""
    program = _steps(pairs.f, pairs.along, "")
    for rows, columns in _blocks(pairs, program):
        out[..., rows, columns] = _Block(pairs, rows, columns).evaluate(program)[..., 0]
    return out


def product(pairs: Pairs, v: Tensor, out: Tensor) -> Tensor:
    """out[..., m, e] = the sum over n of the derived formula times v[..., n, e]."""
    program = _steps(pairs.f, pairs.along, "")
    out.zero_()
    for rows, columns in _blocks(pairs, program):
        values = _Block(pairs, rows, columns).evaluate(program)[..., 0]
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        values = values.expand(*values.shape[:-2], *shape)
        out[..., rows, :] += values @ v[..., columns, :].to(pairs.type)
    return out


def field(pairs: Pairs, wrt: str, weights: Weights, out: Tensor) -> Tensor:
    """out[..., m, k] = the sum over n of weight * d f(x_m, z_n) / d target[m, k]."""
    program = _steps(pairs.f, pairs.along, wrt)
    out.zero_()
    for rows, columns in _blocks(pairs, program):
        values = _Block(pairs, rows, columns).evaluate(program)
        part = weights.rows(rows.start, rows.stop).swapped()
        part = part.rows(columns.start, columns.stop).swapped()
        weight = part.matrix()
        weight = values.new_ones(1, 1, 1) if weight is None else weight.to(pairs.type)[..., None]
        m, n = rows.stop - rows.start, columns.stop - columns.start
        values = values.expand(*values.shape[:-3], m, n, values.shape[-1])
        out[..., rows, :] += (weight * values).sum(-2)
    return out
