"""Derived formulas on blocks of pairs, one operation of JAX a step.

The engine computes formulas and first derivatives. A second derivative is a formula with more
features to a point than x, z and w: it is computed here, some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from mercer._derived import steps

if TYPE_CHECKING:
    from mercer._jax_pairs import Pairs

# Values (m, n, k) of the rows that are made at once.
_BLOCK = 1 << 20
_FULL = jax.lax.Precision.HIGHEST


def _boolean(compare: Callable) -> Callable:
    return lambda a, b: compare(a, b).astype(a.dtype)


_FUNCTIONS: dict[str, Callable] = {
    "neg": jnp.negative, "abs": jnp.abs, "sign": jnp.sign, "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt, "rcp": lambda a: 1 / a, "exp": jnp.exp, "exp2": jnp.exp2,
    "expm1": jnp.expm1, "log": jnp.log, "log2": jnp.log2, "log1p": jnp.log1p, "sin": jnp.sin,
    "cos": jnp.cos, "asin": jnp.arcsin, "acos": jnp.arccos, "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf, "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round,
    "+": jnp.add, "-": jnp.subtract, "*": jnp.multiply, "/": jnp.divide, "min": jnp.minimum,
    "max": jnp.maximum, "pow": jnp.power, "xlogy": jax.scipy.special.xlogy, "atan2": jnp.arctan2,
    "copysign": jnp.copysign, "<": _boolean(jnp.less), "<=": _boolean(jnp.less_equal),
    ">": _boolean(jnp.greater), ">=": _boolean(jnp.greater_equal), "==": _boolean(jnp.equal),
    "!=": _boolean(jnp.not_equal),
    "&": lambda a, b: ((a != 0) & (b != 0)).astype(a.dtype),
    "|": lambda a, b: ((a != 0) | (b != 0)).astype(a.dtype),
    "not": lambda a: (a == 0).astype(a.dtype),
    "where": lambda c, a, b: jnp.where(c != 0, a, b),
    "fma": lambda a, b, c: a * b + c,
}  # fmt: skip


def evaluate(
    kind: str, pairs: Pairs, wrt: str, matrices: Mapping[str, Any], shape: Sequence[int]
) -> Any:
    """A primitive of ``_jax_pairs`` with directions, whose result has this shape."""
    program = steps(pairs.f, pairs.along, wrt)
    by_row, fixed = _operands(pairs)
    if "amplitude" in matrices:
        by_row["amplitude"] = jnp.moveaxis(matrices["amplitude"], -2, 0)
    batch = shape[: -3 if kind == "field" and wrt != "w" else -2]
    n, k = pairs.columns.shape[-2], pairs.arrays["x"].shape[-1]

    def one(row: Mapping[str, Any]) -> Any:
        values = _Row(pairs, {**fixed, **row}).evaluate(program)
        if kind == "pairwise":
            return jnp.broadcast_to(values[..., 0, :, 0], (*batch, n))
        if kind == "product":
            values = jnp.broadcast_to(values[..., 0, :, 0], (*values.shape[:-3], n))
            found = jnp.einsum("...n,...ne->...e", values, matrices["v"], precision=_FULL)
            return jnp.broadcast_to(found, (*batch, found.shape[-1]))
        values = jnp.broadcast_to(values[..., 0, :, :], (*values.shape[:-3], n, k))
        weights = matrices["coef"]
        if "amplitude" in row:
            weights = weights * row["amplitude"][..., None, :]
        found = jnp.einsum("...on,...nk->...ok", weights, values, precision=_FULL)
        return jnp.broadcast_to(found, (*batch, *found.shape[-2:]))

    rows = max(1, min(by_row["x"].shape[0], _BLOCK // max(1, n * k * math.prod(batch))))
    found = jax.lax.map(one, by_row, batch_size=rows)  # the rows first
    if kind == "field":
        return found.sum(0) if wrt == "w" else jnp.moveaxis(found, 0, -2)
    return jnp.moveaxis(found, 0, -2)


def _operands(pairs: Pairs) -> tuple[dict[str, Any], dict[str, Any]]:
    """What varies with the row, its axis first, and the rest; both by the names of the leaves."""
    arrays, dtype = pairs.arrays, pairs.type
    by_row = {
        "x": jnp.moveaxis(arrays["x"].astype(dtype), -2, 0),
        "i": (jnp.arange(arrays["x"].shape[-2]) + pairs.i_offset).astype(dtype),
    }
    fixed = {"z": pairs.columns.astype(dtype)[..., None, :, :]}
    if "row" in arrays:
        by_row["row"] = jnp.moveaxis(arrays["row"].astype(dtype), -1, 0)
    if "col" in arrays:
        fixed["col"] = arrays["col"].astype(dtype)[..., None, :, None]
    if "w" in arrays:
        fixed["w"] = arrays["w"].astype(dtype)
    for name, array in arrays.items():
        if name.startswith("p:"):
            fixed[name] = array.astype(dtype)[..., None, None, None]
    fixed |= {f"p:{name}": jnp.asarray(value, dtype) for name, value in pairs.numbers}
    for index, (direction, target) in enumerate(zip(pairs.directions, pairs.along, strict=True)):
        if target in "xt":
            by_row[f"d{index}"] = jnp.moveaxis(direction, -2, 0)
        elif target == "w":
            fixed[f"d{index}"] = direction[..., None, None, :]
        else:
            fixed[f"d{index}"] = direction[..., None, :, :]
    return by_row, fixed


class _Row:
    """The leaves of one row of pairs, as arrays [..., 1, n, k]."""

    def __init__(self, pairs: Pairs, leaves: Mapping[str, Any]):
        self.pairs, self.leaves, self.dtype = pairs, leaves, pairs.type
        self.features = pairs.arrays["x"].shape[-1]

    def _leaf(self, name: str, value: float, slot: int, word: str) -> Any:
        match name:
            case "constant":
                return jnp.asarray(value, self.dtype)
            case "K":
                return jnp.asarray(self.features, self.dtype)
            case "x":
                return self.leaves["x"][..., None, None, :]
            case "direction":
                found = self.leaves[f"d{slot}"]
                of_row = self.pairs.along[slot] in "xt"
                return found[..., None, None, :] if of_row else found
            case "row":
                return self.leaves["row"][..., None, None, None]
            case "i":
                return self.leaves["i"]
            case "j":
                count = self.pairs.columns.shape[-2]
                return (jnp.arange(count) + self.pairs.j_offset).astype(self.dtype)[:, None]
            case "param":
                found = self.leaves.get(f"p:{word}")
                return jnp.asarray(value, self.dtype) if found is None else found
            case _:
                return self.leaves[name]

    def evaluate(self, program: Sequence[tuple]) -> Any:
        """The last step, with at least three axes."""
        of_state = _of_state(program)
        values: list[Any] = [None] * len(program)
        for number, (name, arguments, value, slot, word) in enumerate(program):
            if of_state[number]:
                continue
            if name == "reduce":
                values[number] = self._loop(program, of_state, number, values)
            elif arguments:
                values[number] = self._apply(name, [values[a] for a in arguments])
            else:
                values[number] = self._leaf(name, value, slot, word)
        return _with_axes(values[-1])

    def _apply(self, name: str, arguments: list[Any]) -> Any:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name](*arguments)
        term = self._term(arguments[0])
        if name == "sum":
            return term.sum(-1, keepdims=True)
        if name == "prod":
            return term.prod(-1, keepdims=True)
        if self.features == 0:
            empty = jnp.inf if name == "min_over" else -jnp.inf
            return jnp.full((*term.shape[:-1], 1), empty, self.dtype)
        if name == "logsumexp":
            return jax.nn.logsumexp(term, -1, keepdims=True)
        return (term.max if name == "max_over" else term.min)(-1, keepdims=True)

    def _term(self, value: Any) -> Any:
        value = _with_axes(value)
        return jnp.broadcast_to(value, (*value.shape[:-1], self.features))

    def _loop(
        self, program: Sequence[tuple], of_state: list[bool], number: int, values: list[Any]
    ) -> Any:
        """A reduce: its combine for one feature after the other, then its finish."""
        _, arguments, _, slots, _ = program[number]
        terms = [self._term(values[a]) for a in arguments[:slots]]
        combine, identity = arguments[slots : 2 * slots], arguments[2 * slots : 3 * slots]

        def state_of(wanted: Sequence[int], state: Sequence[Any], incoming: Sequence[Any]) -> list:
            known: dict[int, Any] = {}

            def value_of(step: int) -> Any:
                if not of_state[step]:
                    return values[step]
                if step not in known:
                    name, inputs, _, slot, _ = program[step]
                    if inputs:
                        known[step] = _FUNCTIONS[name](*[value_of(a) for a in inputs])
                    else:
                        known[step] = (state if name == "state" else incoming)[slot]
                return known[step]

            return [value_of(step) for step in wanted]

        def step(k: Any, state: Sequence[Any]) -> list[Any]:
            incoming = [jax.lax.dynamic_slice_in_dim(t, k, 1, -1) for t in terms]
            found = state_of(combine, state, incoming)
            return [jnp.broadcast_to(f, s.shape) for f, s in zip(found, state, strict=True)]

        shape = jnp.broadcast_shapes(*((*t.shape[:-1], 1) for t in terms))
        count = self.pairs.columns.shape[-2]
        shape = jnp.broadcast_shapes(shape, (1, count, 1))
        state = [jnp.broadcast_to(values[a], shape).astype(self.dtype) for a in identity]
        state = jax.lax.fori_loop(0, self.features, step, state)
        return state_of(arguments[-1:], state, [])[0]


def _with_axes(value: Any) -> Any:
    return jnp.expand_dims(value, tuple(range(3 - value.ndim))) if value.ndim < 3 else value


def _of_state(program: Sequence[tuple]) -> list[bool]:
    """What is a function of the state of a reduce, and has a value within its loop alone."""
    found: list[bool] = []
    for name, arguments, _, slot, _ in program:
        outer = arguments[:slot] if name == "reduce" else arguments
        found.append(name in ("state", "incoming") or any(found[a] for a in outer))
    return found
