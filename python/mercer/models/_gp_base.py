"""What both Gaussian processes share: data, hyper-parameters, predictions, samples."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

import mercer as mc
from mercer._progress import silent
from mercer.models import _gp_parameters, _memory
from mercer.models._arrays import RegressorScore, Space, host, validate
from mercer.models._base import why_not_products
from mercer.models._gp_exact import Problem, problem
from mercer.models._gp_posterior import Posterior, root_of_covariance
from mercer.models._kernels import PRECOMPUTED
from mercer.models._low_rank import Solved, solved
from mercer.models._rules import DEVICE, KERNEL, POSITIVE, check
from mercer.models._spread import Ready, by_rows, kind_of, known, mapped

ZOO = {name: row["name"] for row in mc.zoo.table for name in (row["name"], *row["aliases"])}
#: Points up to which a likelihood is computed in float64, whatever the dtype of X.
DOUBLE = 16384


def formula_of(kernel: Any, kernel_params: Mapping[str, float] | None) -> mc.Kernel:
    """A symmetric kernel of points that are divided by their length scales, no parameter open."""
    if isinstance(kernel, str) and kernel == PRECOMPUTED:
        raise ValueError(
            "kernel must be a function of two points, whose length scales are fitted. "
            f"Received {kernel!r}"
        )
    given: dict[str, Any] = dict(kernel_params or {})
    if isinstance(kernel, str) and kernel in ZOO:
        unit = {"gamma": 0.5} if ZOO[kernel] == "rbf" else {}
        formula = mc.metric(kernel, **{**unit, **given})
    else:
        formula = mc.kernel(kernel)
        unknown = given.keys() - formula.parameters.keys()
        if unknown:
            raise ValueError(
                f"kernel_params: the formula's parameters are {sorted(formula.parameters)}. "
                f"Received {sorted(unknown)}"
            )
        formula = formula.bind(**given) if given else formula
    open_ones = [name for name, value in formula.parameters.items() if value is None]
    if "bandwidth" in open_ones:
        formula = formula.bind(bandwidth=1.0)
        open_ones.remove("bandwidth")
    if open_ones:
        raise ValueError(f"kernel_params must give {open_ones}, which {formula} reads")
    if not formula.symmetric:
        raise ValueError(f"kernel must be symmetric in x and z. Received {formula}")
    return formula


@dataclass(frozen=True)
class Task:
    """What a fit begins with."""

    problem: Problem
    order: Any  # that of the rows as they were given
    theta: np.ndarray
    bounds: np.ndarray  # [d + 2, 2]
    mean: Any  # of y [p]
    scale: Any  # of y [p]
    one_output: bool
    rng: np.random.RandomState

    @property
    def in_order(self) -> Problem:
        return self.problem if self.order is None else self.problem.rows(self.order)


def _merged(space: Space, x: Any, y: Any, weights: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Each row of x once, sorted: x, means of y, weights, the order of the first ones, and squares
    [p] about the means. Optimizers then take the same way whatever the order of the rows, and
    whether they are repeated or weighted."""
    points, first, groups = np.unique(host(x), axis=0, return_index=True, return_inverse=True)
    order = space.index(np.argsort(first, kind="stable"))
    if len(points) == x.shape[0]:
        rows = space.index(first)
        weights = None if weights is None else space.array(weights[rows])
        return space.array(points), space.array(y[rows]), weights, order, np.zeros(y.shape[1])
    each = np.ones(x.shape[0]) if weights is None else host(weights)
    values, groups, sums = host(y), groups.ravel(), np.zeros(len(points))
    np.add.at(sums, groups, each)
    means = np.zeros((len(points), values.shape[1]))
    np.add.at(means, groups, each[:, None] * values)
    means /= sums[:, None]
    squares = (each[:, None] * (values - means[groups]) ** 2).sum(0)
    return (*map(space.array, (points, means, sums)), order, squares)


def require(model: Any, needed: int, space: Space, what: str, advice: str) -> None:
    """MemoryError where so many bytes are not free."""
    free = _memory.free(space)
    if needed > free:
        raise MemoryError(
            f"{type(model).__name__}: {what} needs {needed / 2**30:.3g} GiB on {space.device}, "
            f"where {free / 2**30:.3g} GiB are free. {advice}"
        )


def _spread(x: Any, weights: Any) -> np.ndarray:
    """Standard deviations of the columns, weighted, on the host; 0 where rounding made them."""
    x = x - known(x[:1])
    share = (weights / weights.sum())[:, None]
    mean = known((x * share).sum(0))
    spread = host((((x - mean) ** 2) * share).sum(0)) ** 0.5
    reach = np.abs(host(mean)) + spread
    return np.where(spread > 10 * np.finfo(spread.dtype).eps * reach, spread, 0).astype(np.float64)


class GaussianProcess(RegressorScore, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """The base: subclasses write ``_posterior`` and the attributes of their fit."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": KERNEL,
        "ard": ["boolean"],
        "lengthscale": [POSITIVE, "array-like", StrOptions({"scale"})],
        "amplitude": [POSITIVE],
        "noise": [POSITIVE],
        "bounds": [Mapping, StrOptions({"fixed"}), None],
        "normalize_y": ["boolean"],
        "kernel_params": [Mapping, None],
        "random_state": ["random_state"],
        "device": DEVICE,
        "progress": ["boolean"],
    }

    kernel: Any
    ard: bool
    lengthscale: Any
    amplitude: float
    noise: float
    bounds: Any
    normalize_y: bool
    kernel_params: Any
    random_state: Any
    device: str | None
    _posterior: Posterior

    def _task(self, X: Any, y: Any, sample_weight: Any, double: bool = False) -> Task:
        """Checks everything that a fit is given; double: in float64 whatever the size."""
        check(self)
        data = validate(
            self, X, y, sample_weight=sample_weight, multi_output=True, device=self.device
        )
        formula = formula_of(self.kernel, self.kernel_params)
        double = double or data.x.shape[0] <= DOUBLE
        space = data.space.of("float64") if double else data.space
        in_chunks = kind_of(data.x) == "dask"
        x = data.x.astype(space.dtype) if in_chunks else space.array(data.x)
        y = space.array(data.y)
        one_output, y = y.ndim == 1, y.reshape(y.shape[0], -1)
        weights = None if data.weights is None else space.array(data.weights)
        order, deviations = None, np.zeros(y.shape[1])
        if x.shape[0] <= DOUBLE and not in_chunks:
            x, y, weights, order, deviations = _merged(space, x, y, weights)
        ones = space.zeros(x.shape[0]) + 1 if weights is None else weights
        theta, units = self._start(_spread(x, ones))
        bounds = _gp_parameters.bounds_of(self.bounds, theta, units)
        mean, scale = np.zeros(y.shape[1]), np.ones(y.shape[1])
        if self.normalize_y:
            share = ones / ones.sum()
            mean = host((y * share[:, None]).sum(0))
            scale = np.sqrt(_spread(y, ones) ** 2 + deviations / float(ones.sum()))
            scale = np.where(scale > 0, scale, 1.0)
        within = float((deviations / scale**2).sum())
        mean, scale = space.array(mean), space.array(scale)
        given = problem(space, formula, x, space.array((y - mean) / scale), weights, within)
        rng = check_random_state(self.random_state)
        return Task(given, order, theta, bounds, mean, scale, one_output, rng)

    def _start(self, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """theta, and the scales [d] or [1] of the features."""
        d = len(spread)
        units = np.where(spread > 0, spread, 1.0)
        if not self.ard:
            total = float((spread**2).mean() ** 0.5)
            units = np.array([total if total > 0 else 1.0])
        if isinstance(self.lengthscale, str):
            lengths = units * d**0.5
        else:
            _gp_parameters.positive("lengthscale", host(self.lengthscale))
            lengths = np.asarray(host(self.lengthscale), dtype=np.float64)
            if lengths.shape not in {(), (1,), units.shape}:
                raise ValueError(
                    f"lengthscale must be a number or have shape {units.shape}. "
                    f"Received shape {lengths.shape}"
                )
            lengths = np.broadcast_to(lengths, units.shape)
        return _gp_parameters.pack(self.amplitude, lengths, self.noise), units

    def _finish(self, task: Task, theta: np.ndarray) -> None:
        """The attributes that all fits have."""
        given = task.problem
        found = _gp_parameters.values(theta)
        self.theta_, self.bounds_ = theta, task.bounds
        self.amplitude_, self.noise_ = found.amplitude, found.noise
        self.lengthscale_ = found.lengthscale if self.ard else float(found.lengthscale[0])
        self.kernel_, self._space = given.f, given.space
        self._y_mean, self._y_scale, self._one_output = task.mean, task.scale, task.one_output

    @by_rows
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False,
        include_noise: bool = False,
    ) -> Any:  # fmt: skip
        """Means of the posterior at X [m, d], and deviations or covariances with them.

        X is an array of any library; results are of its library, on its device, and float32 where
        X is. Means are [m] or [m, p], as y was. return_std: (mean, std), std of the mean's shape.
        return_cov: (mean, cov), cov [m, m] or [m, m, p]. Both are those of the function itself;
        ``include_noise=True`` adds the noise, as of new observations of weight 1. RuntimeError
        where both are asked for, NotFittedError before fit, and scikit-learn's ValueErrors of X.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise RuntimeError("At most one of return_std or return_cov can be requested.")
        data = validate(self, X, reset=False, space=self._space)
        dtype = "float32" if str(X.dtype if hasattr(X, "dtype") else "").endswith("float32") else (
            "float64"
        )  # fmt: skip
        out = data.space.of(dtype)
        if isinstance(X, Ready):
            (mean,) = X.parts
        else:
            x = data.x / data.space.array(self.lengthscale_)
            mean = self._posterior.mean(x)
        mean = mean * self._y_scale + self._y_mean
        mean = data.like(out.array(mean[:, 0] if self._one_output else mean))
        if return_cov:
            covariance = self._posterior.covariance(x)
            if include_noise:
                covariance += self.noise_ * data.space.array(np.eye(x.shape[0]))
            return mean, data.like(out.array(self._in_units(covariance)))
        if not return_std:
            return mean
        variance = self._posterior.variance(x) + (self.noise_ if include_noise else 0.0)
        variance = variance * (variance > 0)
        return mean, data.like(out.array(self._in_units(variance) ** 0.5))

    def _parts(self, x: Any, **asked: Any) -> tuple[Any]:
        """Means of the posterior, [m, p], where the fitted points are in chunks."""
        for name in ("return_std", "return_cov"):
            if asked.get(name):
                raise NotImplementedError(
                    f"{type(self).__name__}.predict: {name} needs the fitted points in memory; "
                    "write fit(X.compute(), y). Received points in chunks"
                )
        x = mapped(operator.truediv, x, self._space.array(self.lengthscale_))
        return (self._posterior.mean(x),)

    def _why_not(self, kind: str) -> str | None:
        return why_not_products(self, kind)

    def _in_units(self, variance: Any) -> Any:
        """Variances [...] in the units of y: the same shape, or [..., p] for several outputs."""
        if self._one_output:
            return variance * self._y_scale[0] ** 2
        return variance[..., None] * self._y_scale**2

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, include_noise: bool = False
    ) -> Any:
        """Functions drawn from the posterior, at X [m, d]: [m, n_samples] or [m, p, n_samples].

        They take the covariance [m, m] of the points. ``include_noise=True`` adds noise to every
        value. Arrays and errors: those of predict.
        """
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        space, rng = data.space.of("float64"), check_random_state(random_state)
        x, p, m = data.x / data.space.array(self.lengthscale_), len(self._y_scale), len(data.x)
        covariance = space.array(self._posterior.covariance(x))
        if include_noise:
            covariance += self.noise_ * space.array(np.eye(m))
        root = root_of_covariance(covariance, self.amplitude_)
        normal = space.array(rng.standard_normal((m, p * n_samples)))
        mean = space.array(self._posterior.mean(x))[:, :, None]
        drawn = mean + (root @ normal).reshape(m, p, n_samples)
        drawn = drawn * space.array(self._y_scale)[:, None] + space.array(self._y_mean)[:, None]
        return data.like(space.array(drawn[:, 0] if self._one_output else drawn))


@dataclass(frozen=True)
class Solver:
    """Solutions with K + ridge by conjugate gradients, as a fit's bar does not see."""

    operator: Any
    inverse: Any
    tol: float
    max_iter: int
    space: Space

    def __call__(self, b: Any, first: Any = None) -> Solved:
        """The solution for b [n, k], from a first guess on, to residuals of 2 tol at most."""
        with silent():
            return solved(
                lambda v: self.operator @ v, self.inverse.solve, b, first, self.space,
                tol=self.tol, limit=self.max_iter, strict=False,
            )  # fmt: skip


def subset(given: Problem, count: int, rng: np.random.RandomState) -> Problem:
    """Some rows of a problem, drawn uniformly, in float64."""
    rows = given.space.index(np.sort(rng.permutation(given.x.shape[0])[:count]))
    space = given.space.of("float64")
    x, y, scale = (space.array(a[rows]) for a in (given.x, given.y, given.noise_scale))
    return problem(space, given.f, x, y, 1 / scale)
