"""NumPy's functions on expressions: ``np.exp(e)`` is ``mercer.exp(e)``, ``np.mean(e)`` that over
the features. What has no counterpart is refused: NumPy would make numbers of an object that has
none."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from mercer import _features, _mercer

# NumPy's name of each ufunc that has an operator or a shorthand; functions of the engine's table
# say theirs there.
_OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negative": operator.neg,
    "positive": operator.pos,
    "square": _mercer.square,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": _mercer.equal,
    "not_equal": _mercer.not_equal,
    "logical_and": _mercer.logical_and,
    "logical_or": _mercer.logical_or,
    "logical_not": _mercer.logical_not,
    "bitwise_and": _mercer.logical_and,
    "bitwise_or": _mercer.logical_or,
    "invert": _mercer.logical_not,
}
# What the second operand does where the first one is an array, whose own operator would come back
# here, as CuPy's does.
_REFLECTED = {
    operator.add: "__radd__",
    operator.sub: "__rsub__",
    operator.mul: "__rmul__",
    operator.truediv: "__rtruediv__",
    operator.lt: "__gt__",
    operator.le: "__ge__",
    operator.gt: "__lt__",
    operator.ge: "__le__",
}
_UFUNCS = _OPERATORS | {
    ufunc: getattr(_mercer, name)
    for _, name, ufuncs, _ in _mercer.ops()
    for ufunc in ufuncs.split()
}

# NumPy's functions that mean the same over the features, the only axis that a formula has, each
# with the number of operands that it takes.
_FUNCTIONS: dict[Any, tuple[Callable[..., Any], int]] = {
    np.sum: (_mercer.sum, 1),
    np.prod: (_mercer.prod, 1),
    np.max: (_mercer.max, 1),
    np.amax: (_mercer.max, 1),
    np.min: (_mercer.min, 1),
    np.amin: (_mercer.min, 1),
    np.mean: (_features.mean, 1),
    np.linalg.norm: (_features.norm, 2),
    np.dot: (_features.dot, 2),
    np.vdot: (_features.dot, 2),
    np.inner: (_features.dot, 2),
    np.where: (_mercer.where, 3),
}


def apply(ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """The expression that a ufunc of NumPy makes of expressions and numbers."""
    name = f"numpy.{ufunc.__name__}"
    if method != "__call__":
        _refuse(f"{name}.{method}", "it goes along an axis, and sum, max, … of mercer do")
    function = _UFUNCS.get(ufunc.__name__)
    if function is None:
        _refuse(name, "write it with mercer's functions")
    _refuse_options(name, options)
    operands = [_operand(value) for value in inputs]
    if function in _REFLECTED and not isinstance(operands[0], _mercer.Expr):
        return getattr(operands[1], _REFLECTED[function])(operands[0])
    return function(*operands)


def call(function: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The expression that one of NumPy's other functions makes."""
    name = f"numpy.{getattr(function, '__name__', function)}"
    known, operands = _FUNCTIONS.get(function, (None, 0))
    if known is None:
        _refuse(name, "write it with mercer's functions")
    if function is np.linalg.norm and len(inputs) == 1:
        inputs = (*inputs, options.pop("ord", None) or 2)
    _refuse_options(name, options)
    if len(inputs) > operands or (len(inputs) < operands and known is not _features.norm):
        _refuse(name, f"it takes {operands} operands and no axes, since it goes over the features")
    return known(*map(_operand, inputs))


def _operand(value: Any) -> Any:
    """NumPy's numbers as Python's, since theirs would ask us again; their arrays are refused."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return float(value)
    return _mercer.fma(value, 1, 0) if isinstance(value, np.ndarray) else value


def _refuse_options(name: str, options: dict[str, Any]) -> None:
    given = [key for key, value in options.items() if value is not None and not _is_absent(value)]
    if given:
        raise TypeError(f"{name}: it takes no options on an expression. Received {given[0]}=")


def _is_absent(value: Any) -> bool:
    return value is np._NoValue


def _refuse(name: str, advice: str) -> NoReturn:
    raise TypeError(f"{name}: it has no meaning for an expression; {advice}. Received an Expr")
