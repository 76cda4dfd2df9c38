"""What ``metric=`` of scikit-learn's neighbours says becomes a formula and a map of the points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mercer as mc
from mercer import _mercer
from mercer.models._arrays import Space, host
from mercer.models._base import why_not_products

PRECOMPUTED = "precomputed"
# scikit-learn's names that the zoo lacks.
_ALIASES = {"p": "minkowski", "infinity": "chebyshev"}
_MINKOWSKI = {1.0: "cityblock", 2.0: "euclidean", float("inf"): "chebyshev"}


@dataclass(frozen=True)
class FittedDistance:
    """A formula with the numbers that a fit gave it; without a formula distances are the input."""

    formula: mc.Kernel | None
    params: dict[str, Any] = field(default_factory=dict)
    w: Any = None  # [d] in the space
    root: Any = None  # [d, d] or [d]: what points less the centre are multiplied with
    centre: Any = None

    @property
    def precomputed(self) -> bool:
        return self.formula is None

    def points(self, x: Any, space: Space) -> Any:
        """x [n, d] as the formula sees it."""
        if self.root is None:
            return x
        x = x - self.centre
        return space.array(x * self.root if self.root.ndim == 1 else x @ self.root)


def why_not_distances(estimator: Any, kind: str) -> str | None:
    """Why points of Dask ("dask") or DTensors ("dtensor") cannot be fitted, if so."""
    metric = estimator.metric if isinstance(estimator.metric, str) else ""
    if metric == PRECOMPUTED:
        return "metric='precomputed' needs the distances in memory"
    if kind == "dask" and metric in ("seuclidean", "mahalanobis"):
        return f"metric={metric!r} needs the points in memory"
    return why_not_products(estimator, kind)


def fit_distance(
    metric: Any, x: Any, space: Space, *, p: float = 2, params: Mapping[str, Any] | None = None
) -> FittedDistance:
    """The distance of an estimator on its points x [n, d].

    metric: "precomputed", a name of scikit-learn or of Mercer's zoo, the text of a formula, an
    expression, or a function of two points. p: the power of "minkowski". params: metric_params of
    scikit-learn, with w of weighted metrics, V of "seuclidean" (the variances of x unless given)
    and V or VI of "mahalanobis" (the covariance of x unless given).
    """
    given = dict(params or {})
    if isinstance(metric, str):
        metric = _ALIASES.get(metric, metric)
        if metric == PRECOMPUTED:
            return FittedDistance(None)
        if metric in ("seuclidean", "mahalanobis"):
            return _mapped(metric, x, space, given)
        if metric == "minkowski":
            p = float(given.pop("p", p))
            metric = _MINKOWSKI.get(p, metric)
            given |= {"p": p} if metric == "minkowski" else {}
    w = given.pop("w", None)
    if isinstance(metric, str) and metric == "haversine":
        if w is not None:
            raise ValueError("metric_params: haversine takes no weights w")
        if x.shape[1] != 2:
            raise ValueError(
                "haversine is of points with two features, latitude and longitude in radians. "
                f"Received {x.shape[1]}"
            )
        w = [1.0, 0.0]  # the formula tells the latitude by its weight
    w = None if w is None else space.array(np.asarray(host(w)))
    formula = _mercer.formula_for(metric, "knn", w is not None, given)
    _refuse_unknown(given, formula.parameters, metric)
    return FittedDistance(formula, given, w)


def _refuse_unknown(given: Mapping[str, Any], known: Mapping[str, Any], metric: Any) -> None:
    unknown = given.keys() - known.keys()
    if unknown:
        raise ValueError(
            f"metric_params: the parameters of {metric} are {sorted(known)}. "
            f"Received {sorted(unknown)}"
        )


def _mapped(metric: str, x: Any, space: Space, given: dict[str, Any]) -> FittedDistance:
    """Distances that are euclidean after a linear map of the points."""
    wide = np.asarray(host(x), np.float64)
    centre = wide.mean(0)
    root = _scales(wide, given) if metric == "seuclidean" else _inverse_root(wide, given)
    _refuse_unknown(given, {}, metric)
    formula = _mercer.formula_for("euclidean", "knn", False, {})
    return FittedDistance(formula, {}, None, space.array(root), space.array(centre))


def _scales(x: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    variances = given.pop("V", None)
    v = x.var(0, ddof=1) if variances is None else np.asarray(host(variances), np.float64)
    if v.shape != x.shape[1:] or not (v > 0).all():
        raise ValueError(f"seuclidean: V must be {x.shape[1]} positive numbers. Received {v}")
    return 1 / np.sqrt(v)


def _inverse_root(x: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """L with L L^T = VI."""
    inverse, covariance = given.pop("VI", None), given.pop("V", None)
    if inverse is None:
        v = np.cov(x.T) if covariance is None else np.asarray(host(covariance), np.float64)
        inverse = np.linalg.inv(np.atleast_2d(v))
    vi = np.asarray(host(inverse), np.float64)
    if vi.shape != (x.shape[1], x.shape[1]):
        raise ValueError(
            f"mahalanobis: VI must have the shape {(x.shape[1],) * 2}. Received {vi.shape}"
        )
    return np.linalg.cholesky((vi + vi.T) / 2)
