"""NumPy's functions on expressions: ``np.exp(e)`` is ``mercer.exp(e)``."""

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
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "square", "sin", "cos", "tanh",
    "floor", "ceil", "sign", "maximum", "minimum", "copysign", "equal", "not_equal",
    "logical_and", "logical_or", "logical_not",
)  # fmt: skip
_UFUNCS = _NAMED_OTHERWISE | {name: getattr(_mercer, name) for name in _SAME_NAME}


def apply(ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """The expression that a ufunc of NumPy makes of expressions and numbers."""
    function = _UFUNCS.get(ufunc.__name__)
    numbers = all(isinstance(v, Expr) or getattr(v, "ndim", 0) == 0 for v in inputs)
    if function is None or method != "__call__" or options or not numbers:
        return NotImplemented
    return function(*(v if isinstance(v, Expr) else float(v) for v in inputs))
