"""scipy.spatial.distance.cdist and pdist through Mercer, in float64 as SciPy computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mercer as mc

#: Metrics that give SciPy's values for all numbers, with the words that each takes. Weighted
#: correlations of constant rows are the rounding of SciPy's own sums.
_METRICS = {
    **dict.fromkeys(("euclidean", "sqeuclidean", "cityblock", "chebyshev", "canberra"), ("w",)),
    **dict.fromkeys(("cosine", "hamming"), ("w",)),
    "correlation": (),
    "minkowski": ("p", "w"),
    "seuclidean": ("V",),
    "mahalanobis": ("VI",),
}
_ONE = np.ones(1)
#: What Mercer raises before it writes anything, where it does not serve a call.
_REFUSED = (ValueError, TypeError, NotImplementedError)


def _points(*arrays: Any) -> list[np.ndarray] | None:
    """Sets of points as SciPy reads them; None for what only SciPy may judge."""
    read = [np.asarray(a) for a in arrays]
    plain = all(a.ndim == 2 and a.dtype.kind in "biuf" and a.size for a in read)
    return [a.astype(np.float64, copy=False) for a in read] if plain else None


def _words(metric: Any, words: dict[str, Any]) -> dict[str, Any] | None:
    """The words of a metric that Mercer computes, in float64; None for others."""
    if isinstance(metric, mc.Kernel):
        return words
    taken = _METRICS.get(metric) if isinstance(metric, str) else None
    given = {name: value for name, value in words.items() if value is not None}
    if taken is None or not given.keys() <= set(taken) or not given.get("p", 2) > 0:
        return None
    given = {n: v if n == "p" else np.asarray(v, np.float64) for n, v in given.items()}
    w = given.get("w", _ONE)
    return given if ((w >= 0) & (w < np.inf)).all() else None


def _is_largest(metric: Any, words: dict[str, Any]) -> bool:
    """Whether a distance is a largest difference, of which SciPy drops those that are NaN."""
    name = metric if isinstance(metric, str) else None
    return name == "chebyshev" or (name == "minkowski" and words.get("p", 2) == np.inf)


def _served(verb: Callable[..., Any], sets: tuple[Any, ...], metric: Any, words: Any) -> Any:
    """The distances, or None."""
    if words.get("out") is not None:
        return None
    try:
        points = _points(*sets)
        given = _words(metric, {n: v for n, v in words.items() if n != "out"})
        if points is None or given is None:
            return None
        found = verb(*points, metric=metric, **given)
    except _REFUSED:
        return None
    return None if _is_largest(metric, given) and np.isnan(found).any() else found


def _cdist(original: Callable[..., Any]) -> Callable[..., Any]:
    def cdist(XA: Any, XB: Any, metric: Any = "euclidean", **words: Any) -> Any:
        found = _served(mc.cdist, (XA, XB), metric, words)
        return original(XA, XB, metric, **words) if found is None else found

    return cdist


def _pdist(original: Callable[..., Any]) -> Callable[..., Any]:
    def pdist(X: Any, metric: Any = "euclidean", **words: Any) -> Any:
        found = _served(mc.pdist, (X,), metric, words)
        return original(X, metric, **words) if found is None else found

    return pdist


REPLACEMENTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "scipy.spatial.distance.cdist": _cdist,
    "scipy.spatial.distance.pdist": _pdist,
}
