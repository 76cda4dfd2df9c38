"""Functions of sklearn.metrics.pairwise through Mercer."""

from __future__ import annotations

import contextlib
import functools
import inspect
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.metrics import pairwise

import mercer as mc

_REFUSED = (ValueError, TypeError, NotImplementedError)
_CHI2 = "s = x + z; sum(square(x - z)/where(s == 0, 1, s))"


def _euclidean(given: dict[str, Any]) -> tuple[str, dict[str, float]] | None:
    norms = (given["X_norm_squared"], given["Y_norm_squared"])
    if not isinstance(given["squared"], bool) or any(norm is not None for norm in norms):
        return None
    return "sqeuclidean" if given["squared"] else "euclidean", {}


def _of_gamma(text: str, plain: float | None = None) -> Callable[..., Any]:
    """A formula with gamma, whose default is 1 / K."""

    def prepared(given: dict[str, Any]) -> tuple[str, dict[str, float]] | None:
        gamma = given["gamma"]
        if gamma is None and plain is None:
            gamma = 1.0 / given["features"]
        is_number = isinstance(gamma, numbers.Real) and not isinstance(gamma, bool)
        return (text, {"gamma": float(gamma)}) if is_number and gamma >= 0 else None

    return prepared


#: Name -> the formula and its parameters for the arguments; None leaves the call to the original.
_FORMULAS: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, float]] | None]] = {
    "euclidean_distances": _euclidean,
    "manhattan_distances": lambda given: ("cityblock", {}),
    "rbf_kernel": _of_gamma("exp(-gamma*sum(square(x - z)))"),
    "laplacian_kernel": _of_gamma("exp(-gamma*sum(abs(x - z)))"),
    "additive_chi2_kernel": lambda given: (_CHI2.replace("sum(", "-sum("), {}),
    "chi2_kernel": _of_gamma(_CHI2.replace("sum(", "exp(-gamma*sum(") + ")", plain=1.0),
}
#: SciPy computes these for scikit-learn, in float64.
_WIDE = ("manhattan_distances", "laplacian_kernel")
_OF_POSITIVE = ("additive_chi2_kernel", "chi2_kernel")


def _read(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Points as scikit-learn reads them; None for what it computes otherwise, or refuses."""
    if get_config()["array_api_dispatch"] or any(map(issparse, (x, y))):
        return None
    x, y = pairwise.check_pairwise_arrays(x, y)
    return (x, y) if x.size and y.size and x.dtype in (np.float32, np.float64) else None


def _matrix(name: str, given: dict[str, Any]) -> Any:
    """The matrix of a function of _FORMULAS, or None."""
    points = _read(given.pop("X"), given.pop("Y"))
    if points is None:
        return None
    x, y = points
    is_one = y is x
    if name in _WIDE:
        x, y = (a.astype(np.float64, copy=False) for a in points)
    prepared = _FORMULAS[name]({**given, "features": x.shape[1]})
    if prepared is None or (name in _OF_POSITIVE and min(x.min(), y.min()) < 0):
        return None
    return mc.pairwise(prepared[0], x, None if is_one else y, **prepared[1])


def _replaced(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        found = None
        with contextlib.suppress(*_REFUSED):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            found = _matrix(name, dict(bound.arguments))
        return original(*args, **kwargs) if found is None else found

    return function


def _of_kernels(original: Callable[..., Any]) -> Callable[..., Any]:
    """pairwise_kernels and pairwise_distances: a kernel of Mercer is asked for a whole matrix."""

    @functools.wraps(original)
    def function(X: Any, Y: Any = None, metric: Any = None, **words: Any) -> Any:
        found = None
        if isinstance(metric, mc.Kernel):
            own = {n: v for n, v in words.items() if n not in ("n_jobs", "filter_params")}
            with contextlib.suppress(*_REFUSED):
                points = _read(X, Y)
                if points is not None:
                    x, y = points
                    found = mc.pairwise(metric, x, None if y is x else y, **own)
        if metric is not None:
            words["metric"] = metric
        return original(X, Y, **words) if found is None else found

    return function


REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    **{f"sklearn.metrics.pairwise.{n}": functools.partial(_replaced, n) for n in _FORMULAS},
    "sklearn.metrics.pairwise.pairwise_kernels": _of_kernels,
    "sklearn.metrics.pairwise.pairwise_distances": _of_kernels,
}
