"""NumPy's functions on expressions: ``np.exp(e)`` is ``mercer.exp(e)``, ``2.0 * e`` with a NumPy scalar works too."""

from __future__ import annotations

import operator
from typing import Any

from mercer import _mercer
from mercer._mercer import Expr

# NumPy's name of each ufunc that has a counterpart. Those that share Mercer's name are found by it.
_NAMED_OTHERWISE = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "negative": operator.neg,
    "positive": operator.pos,
    "absolute": _mercer.abs,
    "fabs": _mercer.abs,
    "power": _mercer.pow,
    "float_power": _mercer.pow,
    "reciprocal": _mercer.rcp,
    "arcsin": _mercer.asin,
    "arccos": _mercer.acos,
    "arctan2": _mercer.atan2,
    "rint": _mercer.round,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "bitwise_and": _mercer.logical_and,
    "bitwise_or": _mercer.logical_or,
    "invert": _mercer.logical_not,
}
_SAME_NAME = (
    "exp exp2 expm1 log log2 log1p sqrt square sin cos tanh floor ceil sign maximum minimum "
    "copysign equal not_equal logical_and logical_or logical_not"
).split()
_UFUNCS = _NAMED_OTHERWISE | {name: getattr(_mercer, name) for name in _SAME_NAME}


def _array_ufunc(self: Expr, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    function = _UFUNCS.get(ufunc.__name__)
    if function is None or method != "__call__" or options:
        return NotImplemented
    plain = [value if isinstance(value, Expr) else _mercer_number(value) for value in inputs]
    return NotImplemented if any(value is None for value in plain) else function(*plain)


def _mercer_number(value: Any) -> float | None:
    return float(value) if getattr(value, "ndim", 0) == 0 else None


def install() -> None:
    """Gives Expr NumPy's protocol."""
    Expr.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
