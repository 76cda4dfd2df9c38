"""Kernel density estimation with scikit-learn's kernels, by products that store no matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import gammainc
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions
from sklearn.utils.validation import _num_samples, check_is_fitted

import mercer as mc
from mercer.models._arrays import host, restores, validate
from mercer.models._distances import PRECOMPUTED, fit_distance, why_not_distances
from mercer.models._products import kernel_product, logsumexp
from mercer.models._rules import DEVICE, check
from mercer.models._spread import Ready, by_rows

__all__ = ["KernelDensity"]

_LOG_PI, _LOG_2PI = math.log(math.pi), math.log(2 * math.pi)


class _Profile(NamedTuple):
    """A kernel as a function of r = distance/bandwidth."""

    value: Callable[[Any], Any]  # the formula; of compact kernels inside r < 1
    log_integral: Callable[[int], float]  # over d dimensions, at bandwidth 1
    log_value: Callable[[Any], Any] | None = None  # of kernels without an edge


def _log_ball(d: int) -> float:
    """The logarithm of the volume of the unit ball."""
    return 0.5 * d * _LOG_PI - math.lgamma(0.5 * d + 1)


def _log_sphere(d: int) -> float:
    """The logarithm of the area of the unit ball."""
    return _log_ball(d) + math.log(d)


def _log_cosine(d: int) -> float:
    """Integrates cos(pi r/2) r^(d-1) over [0, 1] by Gauss and Legendre: a sum of positive terms."""
    nodes, weights = np.polynomial.legendre.leggauss(20 + d // 2)
    r = 0.5 * (nodes + 1)
    logs = (d - 1) * np.log(r) + np.log(0.5 * weights * np.cos(0.5 * math.pi * r))
    return float(logs.max() + np.log(np.exp(logs - logs.max()).sum()))


def _cosine_radii(rng: np.random.RandomState, d: int, count: int) -> np.ndarray:
    """Draws by rejection from epanechnikov's radii: cos(pi r/2) is pi/4 to 1 times 1 - r^2."""
    drawn = np.empty(0)
    while len(drawn) < count:
        r = np.sqrt(rng.beta(0.5 * d, 2.0, size=2 * (count - len(drawn)) + 8))
        kept = rng.uniform(size=len(r)) * (1 - r * r) <= np.cos(0.5 * math.pi * r)
        drawn = np.concatenate([drawn, r[kept]])
    return drawn[:count]


_PROFILES = {
    "gaussian": _Profile(
        lambda r: mc.exp(-mc.square(r) / 2),
        lambda d: 0.5 * d * _LOG_2PI,
        lambda r: -mc.square(r) / 2,
    ),
    "exponential": _Profile(
        lambda r: mc.exp(-r), lambda d: _log_sphere(d) + math.lgamma(d), lambda r: -r
    ),
    "tophat": _Profile(lambda r: 1.0, _log_ball),
    "epanechnikov": _Profile(
        lambda r: 1 - mc.square(r), lambda d: _log_ball(d) + math.log(2 / (d + 2))
    ),
    "linear": _Profile(lambda r: 1 - r, lambda d: _log_ball(d) - math.log(d + 1)),
    "cosine": _Profile(
        lambda r: mc.cos(0.5 * math.pi * r), lambda d: _log_sphere(d) + _log_cosine(d)
    ),
}
#: Kernel -> function of (rng, d, count): draws of r, where scikit-learn has none.
_RADII = {
    "exponential": lambda rng, d, count: rng.gamma(d, size=count),
    "epanechnikov": lambda rng, d, count: np.sqrt(rng.beta(0.5 * d, 2.0, size=count)),
    "linear": lambda rng, d, count: rng.beta(d, 2.0, size=count),
    "cosine": _cosine_radii,
}
_BANDWIDTHS = {
    "scott": lambda n, d: n ** (-1 / (d + 4)),
    "silverman": lambda n, d: (n * (d + 2) / 4) ** (-1 / (d + 4)),
}


class KernelDensity(BaseEstimator):
    """Kernel density estimation: scikit-learn's estimator on products that store no matrix.

    bandwidth: a positive number, "scott" or "silverman". kernel: "gaussian", "tophat",
    "epanechnikov", "exponential", "linear" or "cosine". metric: "euclidean", another metric of
    ``mercer.cdist`` by its name, the text of a formula, an expression or a function; densities are
    normalised for the Euclidean distance. metric_params: the metric's own parameters by name.
    device: where host arrays are computed with, such as "cuda". progress: a call of more than two
    seconds shows a bar. algorithm, atol, rtol, breadth_first and leaf_size are scikit-learn's, for
    trees; results here are exact and they change nothing.

    After ``fit``: ``bandwidth_``, ``X_fit_`` [n, d], ``n_features_in_``, ``feature_names_in_``.
    Densities have the dtype of the points that were fitted, float32 or float64, and come in the
    library of the points that were asked for. Far tails keep all their digits.

    >>> KernelDensity(bandwidth=0.5, kernel="epanechnikov").fit(X).score_samples(X_new)

    Source: Silverman, Density Estimation for Statistics and Data Analysis, 1986.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bandwidth": [Interval(Real, 0, None, closed="neither"), StrOptions(set(_BANDWIDTHS))],
        "algorithm": [StrOptions({"auto", "kd_tree", "ball_tree"})],
        "kernel": [StrOptions(set(_PROFILES))],
        "metric": [str, mc.Expr, callable],
        "atol": [Interval(Real, 0, None, closed="left")],
        "rtol": [Interval(Real, 0, None, closed="left")],
        "breadth_first": ["boolean"],
        "leaf_size": [Interval(Integral, 1, None, closed="left")],
        "metric_params": [Mapping, None],
        "device": DEVICE,
        "progress": ["boolean"],
    }

    def __init__(
        self, *, bandwidth: float | str = 1.0, algorithm: str = "auto", kernel: str = "gaussian",
        metric: Any = "euclidean", atol: float = 0, rtol: float = 0, breadth_first: bool = True,
        leaf_size: int = 40, metric_params: dict[str, Any] | None = None,
        device: str | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        self.bandwidth = bandwidth
        self.algorithm = algorithm
        self.kernel = kernel
        self.metric = metric
        self.atol = atol
        self.rtol = rtol
        self.breadth_first = breadth_first
        self.leaf_size = leaf_size
        self.metric_params = metric_params
        self.device = device
        self.progress = progress

    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    def _why_not(self, kind: str) -> str | None:
        return why_not_distances(self, kind)

    @restores
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> KernelDensity:
        """X: [n, d]. sample_weight: [n], not negative. y is ignored. Returns the estimator.

        Raises ValueError for NaN, wrong shapes, negative weights and parameters out of their range.
        """
        check(self)
        if isinstance(self.metric, str) and self.metric == PRECOMPUTED:
            raise InvalidParameterError(
                "The 'metric' parameter of KernelDensity must be of points. Got 'precomputed' "
                "instead."
            )
        data = validate(self, X, sample_weight=sample_weight, device=self.device)
        n, d = _num_samples(X), data.x.shape[1]
        rule = _BANDWIDTHS.get(self.bandwidth) if isinstance(self.bandwidth, str) else None
        self.bandwidth_ = float(rule(n, d) if rule else self.bandwidth)
        self._space, self.X_fit_ = data.space, data.x
        self._distance = fit_distance(self.metric, data.x, data.space, params=self.metric_params)
        self._weights = data.weights
        return self

    @by_rows
    def score_samples(self, X: Any) -> Any:
        """The logarithms of the density at the points X [m, d]: [m]; -inf where it is 0."""
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        d, total = self.n_features_in_, self._total()
        shift = _PROFILES[self.kernel].log_integral(d) + d * math.log(self.bandwidth_)
        logs = self._logs(*X.parts) if isinstance(X, Ready) else self._log_sums(data.x)
        return data.like(logs - (shift + math.log(total)))

    def score(self, X: Any, y: Any = None) -> float:
        """The sum of the logarithms of the density at the points X [m, d]."""
        return float(host(self.score_samples(X).sum()))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draws [n_samples, d] of the density, for every kernel with the Euclidean distance.

        With "gaussian" and "tophat" they are those of scikit-learn for the same seed. Raises
        NotImplementedError for other metrics.
        """
        check_is_fitted(self)
        if not (isinstance(self.metric, str) and self.metric in ("euclidean", "l2", "minkowski")):
            raise NotImplementedError(
                "KernelDensity.sample: the metric must be euclidean. Received " + repr(self.metric)
            )
        rng = check_random_state(random_state)
        u = rng.uniform(0, 1, size=n_samples)
        if self._weights is None:
            rows = (u * self.X_fit_.shape[0]).astype(np.int64)
        else:
            steps = np.cumsum(host(self._weights).astype(np.float64))
            rows = np.searchsorted(steps, u * steps[-1])
        centres = np.asarray(host(self.X_fit_[self._space.index(rows)]), np.float64)
        return _moved(self.kernel, centres, self.bandwidth_, rng)

    def _total(self) -> float:
        return float(self.X_fit_.shape[0] if self._weights is None else self._weights.sum())

    def _parts(self, x: Any) -> tuple[Any]:
        """Sums of kernels where the fitted points are in chunks; logarithms of those that have no
        edge, whose tails need no second look then."""
        f, z, points, weights, options = self._pairs(x)
        profile, h = _PROFILES[self.kernel], mc.param("kde_bandwidth")
        if profile.log_value is None:
            return (kernel_product(self._inside(), z, points, weights, **options),)
        term = profile.log_value(f.formula / h) + mc.col
        return (logsumexp(term, z, points, col=self._space.xp.log(weights), **options),)

    def _logs(self, found: Any) -> Any:
        with np.errstate(divide="ignore"):
            return found if _PROFILES[self.kernel].log_value else self._space.xp.log(found)

    def _pairs(self, queries: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """(the distance, queries and fitted points as it sees them, weights, options)."""
        space, f = self._space, self._distance
        options = {"w": f.w, **f.params, "kde_bandwidth": self.bandwidth_}
        z, x = f.points(queries, space), f.points(self.X_fit_, space)
        weights = space.zeros(x.shape[0]) + 1 if self._weights is None else self._weights
        return f, z, x, weights, options

    def _inside(self) -> Any:
        """The kernel, 0 beyond its edge."""
        f, profile, h = self._distance.formula, _PROFILES[self.kernel], mc.param("kde_bandwidth")
        assert f is not None
        inside = profile.value(f / h)
        return inside if profile.log_value else mc.where(f < h, inside, 0.0)

    def _log_sums(self, queries: Any) -> Any:
        """log sum_n weights[n] k(distance(queries[m], x[n]) / bandwidth), [m].

        One product. Where its sum is so small that terms below the smallest number may count, as in
        far tails, the row is computed again as a log-sum-exp.
        """
        space, profile, h = self._space, _PROFILES[self.kernel], mc.param("kde_bandwidth")
        f, z, x, weights, options = self._pairs(queries)
        sums = mc.kernel_product(self._inside(), z, x, weights, **options)
        limits = np.finfo(space.dtype)
        lost = ~host(sums > float(weights.sum()) * float(limits.tiny / limits.eps))
        with np.errstate(divide="ignore"):
            logs = space.xp.log(sums)
            if profile.log_value is not None and lost.any():
                rows, term = space.index(np.flatnonzero(lost)), profile.log_value(f.formula / h)
                logs[rows] = mc.kernel_reduce(
                    term + mc.col, z[rows], x, "logsumexp", col=space.xp.log(weights), **options
                )
        return logs


def _moved(kernel: str, centres: np.ndarray, h: float, rng: np.random.RandomState) -> np.ndarray:
    """The centres [n, d], each moved by a draw of the kernel."""
    if kernel == "gaussian":
        return np.atleast_2d(rng.normal(centres, h))
    n, d = centres.shape
    direction = rng.normal(size=(n, d))
    squares = np.square(direction).sum(1)
    if kernel == "tophat":
        radii = gammainc(0.5 * d, 0.5 * squares) ** (1 / d)
    else:
        radii = _RADII[kernel](rng, d, n)
    return centres + direction * (radii * h / np.sqrt(squares))[:, None]
