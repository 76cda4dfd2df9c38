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


def _euclidean(given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    norms = (given["X_norm_squared"], given["Y_norm_squared"])
    if not isinstance(given["squared"], bool) or any(norm is not None for norm in norms):
        return None
    return "sqeuclidean" if given["squared"] else "euclidean", {}


def _of_gamma(text: str, plain: float | None = None) -> Callable[..., Any]:
    """A formula with gamma, whose default is 1 / K."""

    def prepared(given: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        gamma = given["gamma"]
        if gamma is None and plain is None:
            gamma = 1.0 / given["features"]
        is_number = isinstance(gamma, numbers.Real) and not isinstance(gamma, bool)
        return (text, {"gamma": float(gamma)}) if is_number and 0 < gamma < np.inf else None

    return prepared


#: Name -> the formula and its parameters for the arguments; None leaves the call to the original.
_FORMULAS: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]] | None]] = {
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


def _read(x: Any, y: Any, *, sparse: bool = False) -> tuple[Any, Any] | None:
    """Points as scikit-learn reads them; None for what it computes otherwise, or refuses."""
    if get_config()["array_api_dispatch"] or (not sparse and any(map(issparse, (x, y)))):
        return None
    x, y = pairwise.check_pairwise_arrays(x, y)
    has_all = all((*x.shape, *y.shape))
    return (x, y) if has_all and x.dtype in (np.float32, np.float64) else None


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

    def function(*args: Any, **kwargs: Any) -> Any:
        found = None
        with contextlib.suppress(*_REFUSED):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            found = _matrix(name, dict(bound.arguments))
        return original(*args, **kwargs) if found is None else found

    return function


def _options(words: dict[str, Any], offered: dict[str, Any]) -> dict[str, Any] | None:
    """The words for a kernel, without the options of the function; None where one is no option."""
    own = {n: v for n, v in words.items() if n not in offered}
    given = [(words[name], kind) for name, kind in offered.items() if name in words]
    return own if all(isinstance(value, kind) for value, kind in given) else None


def _of_kernel(kernel: mc.Kernel, points: tuple[Any, Any], jobs: Any, words: Any) -> Any:
    """The matrix of a kernel, mirrored as scikit-learn's loop on the pairs of one set does."""
    x, y = points
    found = mc.pairwise(kernel, x, None if y is x else y, **words)
    if y is x and not kernel.symmetric and pairwise.effective_n_jobs(jobs) == 1:
        found = np.triu(found) + np.triu(found, 1).T
    return found


def _of_kernels(offered: dict[str, Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """pairwise_kernels and pairwise_distances: a kernel of Mercer is asked for a whole matrix."""

    def function(X: Any, Y: Any = None, *args: Any, **words: Any) -> Any:
        metric, found = args[0] if len(args) == 1 else words.get("metric"), None
        if isinstance(metric, mc.Kernel) and not (args and "metric" in words):
            own = _options({n: v for n, v in words.items() if n != "metric"}, offered)
            with contextlib.suppress(*_REFUSED):
                points = None if own is None else _read(X, Y, sparse=True)
                if points is not None:
                    found = _of_kernel(metric, points, words.get("n_jobs"), own)
        return original(X, Y, *args, **words) if found is None else found

    return function


_JOBS = (numbers.Integral, type(None))

REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    **{f"sklearn.metrics.pairwise.{n}": functools.partial(_replaced, n) for n in _FORMULAS},
    "sklearn.metrics.pairwise.pairwise_kernels": functools.partial(
        _of_kernels, {"n_jobs": _JOBS, "filter_params": bool}
    ),
    "sklearn.metrics.pairwise.pairwise_distances": functools.partial(
        _of_kernels, {"n_jobs": _JOBS}
    ),
}
