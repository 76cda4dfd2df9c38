"""Sparse Gaussian process regression: inducing points and Titsias' bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.utils._param_validation import StrOptions

from mercer.models import _gp_parameters
from mercer.models._arrays import host, restores
from mercer.models._gp_base import GaussianProcess, Task, require
from mercer.models._gp_parameters import Optimum
from mercer.models._gp_posterior import SparsePosterior
from mercer.models._gp_sparse import SparseLikelihood
from mercer.models._rules import COUNT

SUBSET = 20_000  # rows among which inducing points are drawn


class SparseGaussianProcessRegressor(GaussianProcess):
    """Gaussian process regression through m inducing points: time n m^2, memory n d + m^2.

    The amplitude, the length scales, the variance of the noise, and where asked for the inducing
    points maximise Titsias' bound of the log marginal likelihood, which is computed by blocks of
    rows in float64. With all points of X as inducing points it is the likelihood itself.

    Parameters
    ----------
    kernel, ard, lengthscale, amplitude, noise, bounds, normalize_y, kernel_params, random_state,
        device, progress : those of GaussianProcessRegressor.
    n_inducing : how many inducing points k-means++ draws from the rows of X, divided by the first
        length scales; all different rows where there are no more of them.
    inducing : the inducing points [m, d] in their place, in X's units.
    train_inducing : the inducing points are parameters as well.
    optimizer : "lbfgs" or None.
    max_iter : its iterations at most.

    Attributes
    ----------
    amplitude_, lengthscale_, noise_, theta_, bounds_, kernel_, n_iter_, n_features_in_,
        feature_names_in_ : those of GaussianProcessRegressor.
    inducing_ : [m, d]. lower_bound_ : Titsias' bound, summed over outputs, of the normalised y.
    alpha_ : the mean's coefficients of the inducing points, [m] or [m, p].

    A weight counts as repetitions of its row. Titsias, "Variational learning of inducing variables
    in sparse Gaussian processes", 2009.

    Examples
    --------
    >>> import numpy as np
    >>> from mercer.models import SparseGaussianProcessRegressor
    >>> x = np.linspace(0, 6, 300)[:, None]
    >>> gp = SparseGaussianProcessRegressor("gauss", n_inducing=20).fit(x, np.sin(x[:, 0]))
    >>> bool(abs(gp.predict(x) - np.sin(x[:, 0])).max() < 0.02)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GaussianProcess._parameter_constraints,
        "n_inducing": [COUNT],
        "inducing": ["array-like", None],
        "train_inducing": ["boolean"],
        "optimizer": [StrOptions({"lbfgs"}), None],
        "max_iter": [COUNT],
    }

    def __init__(
        self, kernel: Any = "matern52", *, n_inducing: int = 256, inducing: Any = None,
        train_inducing: bool = False, ard: bool = True, lengthscale: Any = "scale",
        amplitude: float = 1.0, noise: float = 0.1, bounds: Any = None, normalize_y: bool = True,
        optimizer: str | None = "lbfgs", max_iter: int = 200,
        kernel_params: Mapping[str, float] | None = None, random_state: Any = None,
        device: str | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.inducing = inducing
        self.train_inducing = train_inducing
        self.ard = ard
        self.lengthscale = lengthscale
        self.amplitude = amplitude
        self.noise = noise
        self.bounds = bounds
        self.normalize_y = normalize_y
        self.optimizer = optimizer
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.random_state = random_state
        self.device = device
        self.progress = progress

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SparseGaussianProcessRegressor:
        """Fits to X [n, d] and y [n] or [n, p]; sample_weight: [n], not negative.

        Raises scikit-learn's ValueErrors for what it is given, MemoryError where the matrices
        [m, m] would not fit, LinAlgError where the kernel is not positive definite; then, and
        where it is interrupted, the estimator stays as it was.
        """
        task = self._task(X, y, sample_weight, double=True)
        u = self._inducing(task)
        likelihood = SparseLikelihood(task.problem)
        best = self._optimum(task, likelihood, u)
        size = len(task.theta)
        self._finish(task, best.theta[:size])
        self.inducing_, unit = u, _gp_parameters.values(task.theta).lengthscale
        if self.train_inducing and self.optimizer is not None:
            self.inducing_ = task.problem.space.array(best.theta[size:].reshape(u.shape) * unit)
        found = likelihood.factored(self.theta_, self.inducing_)
        coef = found.coef
        self._posterior = SparsePosterior(
            task.problem.f, self.amplitude_, found.inducing, coef, found.factor, found.inner
        )
        self.alpha_ = coef[:, 0] if task.one_output else coef
        self.lower_bound_, self.n_iter_ = best.value, best.n_iter
        return self

    def _inducing(self, task: Task) -> Any:
        """[m, d] in X's units."""
        given = task.problem
        if self.inducing is not None:
            u = given.space.array(self.inducing)
            if u.ndim != 2 or u.shape[1] != given.x.shape[1] or not u.shape[0]:
                raise ValueError(
                    f"inducing must have shape (m, {given.x.shape[1]}) with m > 0. "
                    f"Received {tuple(u.shape)}"
                )
            if not np.isfinite(host(u)).all():
                raise ValueError("inducing must be finite")
        else:
            u = self._drawn(task)
        m = u.shape[0]
        require(self, 64 * m * m, given.space, f"{m} inducing points", "Fewer of them do")
        return u

    def _drawn(self, task: Task) -> Any:
        given, count = task.problem, int(self.n_inducing)
        x = host(given.x)
        if count >= len(x):
            return given.space.array(np.unique(x, axis=0))
        some = np.sort(task.rng.permutation(len(x))[: max(SUBSET, 4 * count)])
        scaled = x[some] / _gp_parameters.values(task.theta).lengthscale
        weights = 1 / host(given.noise_scale)[some]
        _, rows = kmeans_plusplus(scaled, count, sample_weight=weights, random_state=task.rng)
        return given.space.array(x[some[np.sort(rows)]])

    def _optimum(self, task: Task, likelihood: SparseLikelihood, u: Any) -> Optimum:
        """theta, followed by the inducing points where they are trained."""
        if self.optimizer is None:
            return Optimum(task.theta, likelihood(task.theta, u)[0], 0, True)
        start = _gp_parameters.starts(task.theta, task.bounds, 0, task.rng)[0]
        bounds, size, space = task.bounds, len(task.theta), task.problem.space
        unit = _gp_parameters.values(task.theta).lengthscale
        if self.train_inducing:
            points = (host(u) / unit).ravel()
            start = np.r_[start, points]
            bounds = np.concatenate([bounds, np.tile([-np.inf, np.inf], (len(points), 1))])

        def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
            if not self.train_inducing:
                return likelihood(t, u)[:2]
            moved = space.array(t[size:].reshape(u.shape) * unit)
            value, slope, by_u = likelihood(t[:size], moved, by_inducing=True)
            return value, np.r_[slope, (by_u * unit).ravel()]

        best = _gp_parameters.lbfgs(objective, start, bounds, self.max_iter)
        if not best.converged:
            _gp_parameters.warn_not_converged(type(self).__name__, self.max_iter)
        return best
