"""Gaussian process regression: exact by Cholesky factors, iterative beyond."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import truediv
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

import mercer as mc
from mercer._progress import between, part
from mercer.models import _gp_parameters, _memory
from mercer.models._arrays import exact_products, restores
from mercer.models._gp_base import GaussianProcess, Solver, Task, require, subset
from mercer.models._gp_draft import draft_of
from mercer.models._gp_exact import ExactLikelihood, Problem, not_definite
from mercer.models._gp_iterative import IterativeLikelihood
from mercer.models._gp_parameters import Optimum
from mercer.models._gp_posterior import ExactPosterior, SolvedPosterior
from mercer.models._products import is_shared
from mercer.models._rules import COUNT, COUNT_OR_NONE, FRACTION, RANK, SOLVER
from mercer.models._solve import DIRECT, auto_rank, rank_of
from mercer.models._spread import mapped

SUBSET = 1000  # points whose exact fit starts an iterative one


class GaussianProcessRegressor(GaussianProcess):
    """Gaussian process regression with a kernel amplitude * f(x / lengthscale) and noise.

    The amplitude, the length scales and the variance of the noise maximise the log marginal
    likelihood, from one pass over the pairs for its gradient, whatever the number of length scales.

    Parameters
    ----------
    kernel : a name of the zoo ("matern52", "gauss", "rbf", ...), the text of a formula, an
        expression or a function of two points; positive definite. Its own bandwidth is 1.
    ard : a length scale for each feature; False: one for all.
    lengthscale : the first guess: "scale" (the features' standard deviations times sqrt(d)), a
        number, or with ard [d].
    amplitude, noise : first guesses of the kernel's factor and of the noise's variance, in units
        of the normalised y.
    bounds : None, "fixed", or a dict with a pair (low, high), or "fixed", for "amplitude",
        "lengthscale" (also [d, 2]) and "noise". By default (1e-5, 1e5), (1e-2, 1e3) times the
        features' standard deviations, and (1e-5, 1e5).
    normalize_y : the mean and the standard deviation of each output are taken out, weighted.
    optimizer : "auto" ("lbfgs" where the solver is direct, else "adam"), one of the two, None for
        the first guesses as they are, or with the direct solver a function (objective, theta,
        bounds) -> (theta, value) of a minimiser, as scikit-learn's.
    n_restarts : more starts of "lbfgs", uniform in the logarithms between the bounds.
    solver : "auto" ("direct" up to 6000 points on CPUs, 32768 on CUDA devices), "direct": float64
        up to 16384 points and X's dtype above, memory of two n x n matrices; "cg": products with
        the kernel matrix, which is never stored, gradients from probes.
    rank : columns of the preconditioner of "cg", or "auto".
    tol : the relative residual to which "cg" solves while it fits; predictions take a tenth.
    n_probes : random vectors of the gradient of "cg"; its error falls with their root.
    max_iter : iterations of the optimizer at most; None: 200 of "lbfgs", 50 of "adam".
    kernel_params : numbers for the kernel's other parameters.
    random_state : of restarts, probes and pivots.
    device : "cuda" computes there with arrays of the host.
    progress : a fit of more than two seconds shows a bar with the likelihood, or its gradient.

    Attributes
    ----------
    amplitude_, lengthscale_ ([d], or a number without ard), noise_ : the values that were found.
    theta_ : their logarithms [d + 2] in this order. bounds_ : those of theta_, [d + 2, 2].
    log_marginal_likelihood_value_ : at theta_, summed over outputs, of the normalised y; where the
        solver is "cg", an estimate with the standard error log_marginal_likelihood_error_.
    alpha_ : (K + noise)^-1 y, [n] or [n, p]. L_ : the Cholesky factor [n, n], of "direct".
    X_train_, y_train_ : what was fitted, y normalised: each row once, with the mean of its y where
        up to 16384 points repeat some, and none of weight 0.
    solver_, n_iter_, n_products_ : what was chosen, iterations of the optimizer, and products with
        the matrix of "cg". kernel_ : the formula. n_features_in_, feature_names_in_ :
        scikit-learn's.

    A weight counts as repetitions of its row: it divides the noise, and integers give the
    likelihood of repeated rows. Rasmussen, Williams, "Gaussian processes for machine learning",
    2006; the probes: Gardner, Pleiss, Bindel, Weinberger, Wilson, "GPyTorch", 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from mercer.models import GaussianProcessRegressor
    >>> x = np.linspace(0, 6, 50)[:, None]
    >>> gp = GaussianProcessRegressor("gauss").fit(x, np.sin(x[:, 0]))
    >>> mean, std = gp.predict(x, return_std=True)
    >>> bool(abs(mean - np.sin(x[:, 0])).max() < 0.02)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **GaussianProcess._parameter_constraints,
        "optimizer": [StrOptions({"auto", "lbfgs", "adam"}), callable, None],
        "n_restarts": [COUNT_OR_NONE],
        "solver": SOLVER,
        "rank": RANK,
        "tol": [FRACTION],
        "n_probes": [COUNT],
        "max_iter": [COUNT, None],
    }

    def __init__(
        self, kernel: Any = "matern52", *, ard: bool = True, lengthscale: Any = "scale",
        amplitude: float = 1.0, noise: float = 0.1, bounds: Any = None, normalize_y: bool = True,
        optimizer: str | Callable | None = "auto", n_restarts: int = 0, solver: str = "auto",
        rank: int | str = "auto", tol: float = 1e-2, n_probes: int = 16,
        max_iter: int | None = None, kernel_params: Mapping[str, float] | None = None,
        random_state: Any = None, device: str | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        self.kernel = kernel
        self.ard = ard
        self.lengthscale = lengthscale
        self.amplitude = amplitude
        self.noise = noise
        self.bounds = bounds
        self.normalize_y = normalize_y
        self.optimizer = optimizer
        self.n_restarts = n_restarts
        self.solver = solver
        self.rank = rank
        self.tol = tol
        self.n_probes = n_probes
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.random_state = random_state
        self.device = device
        self.progress = progress

    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GaussianProcessRegressor:
        """Fits to X [n, d] and y [n] or [n, p]; sample_weight: [n], not negative.

        Raises scikit-learn's ValueErrors for what it is given, MemoryError where the matrices of
        "direct" would not fit, LinAlgError where the kernel is not positive definite; then, and
        where it is interrupted, the estimator stays as it was.
        """
        task = self._task(X, y, sample_weight)
        solver = self._solver(task)
        optimizer = self._optimizer(solver)
        (self._fit_direct if solver == "direct" else self._fit_iterative)(task, optimizer)
        self.solver_ = solver
        return self

    def _solver(self, task: Task) -> str:
        """MemoryError where two matrices [n, n] are wanted and more than what is free."""
        given, n = task.problem, task.problem.x.shape[0]
        place = given.space.device.partition(":")[0]
        if (
            self.solver == "cg"
            or is_shared(given.x)
            or (self.solver == "auto" and n > DIRECT[place])
        ):
            return "cg"
        itemsize = np.dtype(given.space.dtype).itemsize
        advice = 'solver="cg" stores no matrix, SparseGaussianProcessRegressor a small one'
        require(self, 2 * n * n * itemsize, given.space, f"the likelihood of {n} points", advice)
        return "direct"

    def _optimizer(self, solver: str) -> str | Callable | None:
        if self.optimizer == "auto":
            return "lbfgs" if solver == "direct" else "adam"
        if self.optimizer is None or self.optimizer == "adam":
            return self.optimizer
        if solver == "cg":
            raise ValueError(
                'optimizer must be "auto", "adam" or None with solver="cg", which has gradients '
                f"alone. Received {self.optimizer!r}"
            )
        return self.optimizer

    def _fit_direct(self, task: Task, optimizer: str | Callable | None) -> None:
        likelihood = ExactLikelihood(task.problem)
        best = self._optimum(task, optimizer, likelihood)
        given = likelihood.data = task.in_order
        try:
            scaled, factor, coef = likelihood.factored(best.theta)
        except mc.LinAlgError as error:
            raise not_definite(given, best.theta) from error
        self._finish(task, best.theta)
        self._posterior = ExactPosterior(given.f, self.amplitude_, scaled, coef, factor)
        self._keep(task, given, coef)
        self.L_ = factor
        self.n_iter_, self.n_products_ = best.n_iter, 0
        self.log_marginal_likelihood_value_ = best.value
        self.log_marginal_likelihood_error_ = 0.0

    def _optimum(self, task: Task, optimizer: Any, objective: Any) -> Optimum:
        first, *others = _gp_parameters.starts(
            task.theta, task.bounds, self.n_restarts if optimizer == "lbfgs" else 0, task.rng
        )
        if optimizer is None:
            return Optimum(task.theta, objective(task.theta, gradient=False)[0], 0, True)
        if callable(optimizer):
            theta, value = optimizer(
                lambda t, eval_gradient=True: _negative(objective(t), eval_gradient), first,
                task.bounds,
            )  # fmt: skip
            return Optimum(np.asarray(theta, dtype=np.float64), -float(value), 1, True)
        if optimizer == "adam":
            steps = self.max_iter or 50
            best = _gp_parameters.adam(lambda t: objective(t)[1], first, task.bounds, steps)
            best = best._replace(value=objective(best.theta, gradient=False)[0])
        else:
            steps = self.max_iter or 200
            found, draft = [], draft_of(objective)
            for i, start in enumerate((first, *others)):
                with part(i, 1 + len(others)):
                    found.append(_gp_parameters.lbfgs(objective, start, task.bounds, steps, draft))
            best = max(found, key=lambda one: one.value)
        if not best.converged:
            _gp_parameters.warn_not_converged(type(self).__name__, steps)
        return best

    def _fit_iterative(self, task: Task, optimizer: str | Callable | None) -> None:
        given = task.in_order
        n = given.x.shape[0]
        # Each step makes a factor anew: on devices half of the rank is soonest.
        wanted = max(1, auto_rank(n) // (2 if given.space.on_device else 1))
        rank = rank_of(self.rank, n, given.space, wanted)
        other = "SparseGaussianProcessRegressor fits"
        columns = given.y.shape[1] + self.n_probes
        _memory.require_columns(
            n, min(rank, n), columns, given.space, type(self).__name__, other
        )  # fmt: skip
        options = {
            "rank": rank, "tol": self.tol,
            "n_probes": self.n_probes, "max_products": max(50, n // 20),
            "seed": int(task.rng.randint(2**31 - 1)),
        }  # fmt: skip
        likelihood = IterativeLikelihood(given, **options)
        best = self._descend(task, optimizer, likelihood)
        operator, inverse = likelihood.system(best.theta)
        found = likelihood.solve(operator, given.y, inverse, tol=0.1 * self.tol)
        if not found.met:
            _gp_parameters.warn_unsolved(type(self).__name__, likelihood.max_products)
        self._finish(task, best.theta)
        solver = Solver(
            operator, inverse, 0.1 * self.tol, likelihood.max_products, given.space
        )  # fmt: skip
        scaled = mapped(truediv, given.x, given.space.array(self.lengthscale_))
        coef = found.x / self.amplitude_
        self._posterior = SolvedPosterior(given.f, self.amplitude_, scaled, coef, solver)
        self._keep(task, given, coef)
        self._iterative = options
        self.__dict__.pop("L_", None)
        self.log_marginal_likelihood_value_, self.log_marginal_likelihood_error_ = likelihood.value(
            best.theta
        )
        self.n_iter_, self.n_products_ = best.n_iter, likelihood.n_products

    def _descend(self, task: Task, optimizer: Any, likelihood: IterativeLikelihood) -> Optimum:
        """Adam from the exact optimum of some of the points."""
        if optimizer is None:
            return Optimum(task.theta, np.nan, 0, True)
        few = ExactLikelihood(subset(task.problem, SUBSET, task.rng))
        start = _gp_parameters.starts(task.theta, task.bounds, 0, task.rng)[0]
        with part(0, 10, f"{few.data.x.shape[0]} of the points"):
            start = _gp_parameters.lbfgs(few, start, task.bounds, 50, draft_of(few)).theta
        steps = self.max_iter or 50
        with between(0.1, 1):
            best = _gp_parameters.adam(likelihood.gradient, start, task.bounds, steps)
        if not best.converged and self.max_iter is not None:
            _gp_parameters.warn_not_converged(type(self).__name__, steps)
        return best

    def _keep(self, task: Task, given: Problem, coef: Any) -> None:
        self._problem, self.X_train_ = given, given.x
        self.y_train_ = given.y[:, 0] if task.one_output else given.y
        self.alpha_ = coef[:, 0] if task.one_output else coef

    @exact_products
    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False) -> Any:
        """The log likelihood of theta [d + 2], theta_ where None, and its gradient.

        By a factor, where the solver was direct; an estimate, where it was "cg". ValueError for a
        theta of another shape, NotFittedError before fit.
        """
        check_is_fitted(self)
        if theta is None and not eval_gradient:
            return self.log_marginal_likelihood_value_
        theta = self.theta_ if theta is None else np.asarray(theta, dtype=np.float64)
        if theta.shape != self.theta_.shape:
            raise ValueError(f"theta must have shape {self.theta_.shape}. Received {theta.shape}")
        if self.solver_ == "direct":
            value, gradient = ExactLikelihood(self._problem)(theta, eval_gradient)
            return (value, gradient) if eval_gradient else value
        likelihood = IterativeLikelihood(self._problem, **self._iterative)
        value = likelihood.value(theta)[0]
        return (value, likelihood.gradient(theta)) if eval_gradient else value


def _negative(value: tuple[float, np.ndarray], eval_gradient: bool) -> Any:
    return (-value[0], -value[1]) if eval_gradient else -value[0]
