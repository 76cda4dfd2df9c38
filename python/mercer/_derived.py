"""Formulas made of formulas, by their texts: what the derivatives for PyTorch and JAX share."""

from __future__ import annotations

import functools

from mercer import _mercer

# The target of a derivative when the sides are swapped. t is the multiplier of a field: its formula
# is sum(t * phi), with t[m, k] a row's; s is the same with the values of a column, s[n, k].
SWAPPED = {"x": "z", "z": "x", "w": "w", "t": "s", "s": "t"}


@functools.lru_cache(4096)
def parsed(text: str) -> _mercer.Expr:
    return _mercer.parse(text)


@functools.lru_cache(4096)
def derivative(text: str, variable: str) -> str:
    """The derivative by row, col, or a parameter ("p:name"), which is a formula again."""
    symbols = {"row": _mercer.row, "col": _mercer.col}
    target = symbols[variable] if variable in symbols else _mercer.param(variable[2:])
    return str(_mercer.differentiate(parsed(text), target))


@functools.lru_cache(4096)
def field_of(text: str, target: str) -> str:
    """The derivative by x or w at the free feature."""
    return str(_mercer.differentiate(parsed(text), target))


@functools.lru_cache(4096)
def swapped_text(text: str) -> str:
    return str(_mercer.swap_sides(parsed(text)))


@functools.lru_cache(4096)
def leaves(text: str) -> frozenset[str]:
    """Which of x, z, w, row, col, i, j the formula reads, and its parameters as "p:name"."""
    expr = parsed(text)
    return frozenset([*_mercer.leaves(expr), *(f"p:{name}" for name in expr.parameters)])


@functools.lru_cache(1024)
def steps(text: str, along: str, wrt: str) -> list[tuple[str, tuple[int, ...], float, int, str]]:
    """The formula differentiated in the direction number d of each target along[d], then by wrt at
    the free feature, as steps that read earlier ones."""
    return _mercer.steps(parsed(text), list(along), wrt or None)
