"""Kernel ridge regression and classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from mercer.models import _calibrate, _centers, _select
from mercer.models._arrays import (
    ClassifierScore,
    Data,
    RegressorScore,
    host,
    like,
    restores,
    validate,
)
from mercer.models._kernels import PRECOMPUTED, check_precomputed, fit_kernel
from mercer.models._solve import SOLVERS, Solution, System, warn_unconverged


class _Ridge(BaseEstimator):
    """What regression and classification share: a system, its solution, and scores of points."""

    def __init__(
        self,
        kernel: Any = "gauss",
        *,
        bandwidth: float | str = "scale",
        alpha: float = 1.0,
        metric: Any = None,
        centers: Any = None,
        solver: str = "auto",
        rank: int | str = "auto",
        tol: float = 1e-3,
        max_iter: int | None = None,
        kernel_params: Mapping[str, float] | None = None,
        warm_start: bool = False,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.alpha = alpha
        self.metric = metric
        self.centers = centers
        self.solver = solver
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed
        return tags

    @property
    def _precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == PRECOMPUTED

    def _data(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> Data:
        """Checks what scikit-learn checks, and the parameters that fits share."""
        data = validate(self, X, y, sample_weight=sample_weight, device=self.device,
                        keep_rows=self._precomputed, **options)  # fmt: skip
        alpha = float(self.alpha)
        if not (alpha >= 0 and np.isfinite(alpha)):
            raise ValueError(f"alpha must be a number from 0 on. Received {self.alpha!r}")
        solvers = (*SOLVERS, "falkon") if self.centers is not None else SOLVERS
        if self.solver not in solvers or (self.centers is not None and self.solver == "cg"):
            raise ValueError(
                f"solver must be one of {SOLVERS}, or with centers one of "
                f"('auto', 'direct', 'falkon'). Received {self.solver!r}"
            )
        if self._precomputed:
            check_precomputed(data.x, centers=self.centers)
        return data

    def _fit(self, data: Data, targets: Any, **options: Any) -> Solution:
        """Solves for targets [n, k] and writes what the fit found."""
        rng = check_random_state(self.random_state)
        kernel = self._fit_kernel(data, rng)
        points = kernel.points(data.x, data.space)
        before = getattr(self, "dual_coef_", None) if self.warm_start else None
        if self.centers is not None:
            chosen = _centers.choose(self.centers, data.x, data.space, rng)
            solution = self._solve_centers(data, kernel, points, chosen, targets, before)
        else:
            system = System(kernel, points, data.space, float(self.alpha), data.weights)
            solution = self._solve(system, targets, _reshaped(before, targets.shape), rng, options)
            self.X_fit_, self._points = data.x, points
        self.dual_coef_ = solution.coef
        self.solver_, self.n_iter_ = solution.solver, solution.n_iter
        self.residual_ = solution.residual
        return solution

    def _fit_kernel(self, data: Data, rng: np.random.RandomState) -> Any:
        kernel = fit_kernel(
            self.kernel, data.x, data.space, bandwidth=self.bandwidth, weights=data.weights,
            metric=self.metric, kernel_params=self.kernel_params, random_state=rng,
        )  # fmt: skip
        self._kernel, self._space, self.bandwidth_ = kernel, data.space, kernel.bandwidth
        self.alpha_ = float(self.alpha)
        return kernel

    def _solve(self, system: System, targets: Any, coef0: Any, rng: np.random.RandomState,
               options: dict[str, Any]) -> Solution:  # fmt: skip
        return system.solve(
            targets, solver=self.solver, rank=self.rank, tol=self.tol, max_iter=self.max_iter,
            coef0=coef0, seed=int(rng.randint(2**31 - 1)), name=type(self).__name__, **options,
        )  # fmt: skip

    def _solve_centers(self, data: Data, kernel: Any, points: Any, chosen: Any, targets: Any,
                       before: Any) -> Solution:  # fmt: skip
        name = type(self).__name__
        mapped = kernel.points(chosen, data.space)
        solution, converged, self._moments = _centers.solve(
            kernel, points, mapped, targets, data.weights, float(self.alpha), data.space,
            solver=self.solver, tol=self.tol, max_iter=self.max_iter,
            coef0=_reshaped(before, (chosen.shape[0], targets.shape[1])), name=name,
        )  # fmt: skip
        self.centers_, self._points = chosen, mapped
        if not converged:
            warn_unconverged(name, solution, self.tol)
        return solution

    def _scores(self, X: Any) -> tuple[Any, Any]:
        """The kernel of X with the fitted points times the coefficients, and the way back."""
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        points = self._kernel.points(data.x, data.space)
        return self._kernel.product(points, self._points, self.dual_coef_), data.like


def _reshaped(coef: Any, shape: tuple[int, ...]) -> Any:
    """Coefficients of a fit before as a first guess of so many, or None."""
    if coef is None or coef.reshape(-1).shape[0] != shape[0] * shape[1]:
        return None
    return coef.reshape(shape)


class KernelRidge(RegressorScore, MultiOutputMixin, RegressorMixin, _Ridge):
    """Kernel ridge regression: squared errors plus alpha times the squared norm of the function.

    kernel: a name of ``mercer.zoo``, the text of a formula, an expression, a function of two
    points, or "precomputed" (X is then the matrix [n, n], and [m, n] to predict from).
    bandwidth: a number, "scale" (the root of the sum of the features' variances) or "median" (of
    distances); the words serve formulas whose parameter ``bandwidth`` has no value of its own.
    alpha: added to the diagonal of the kernel matrix, as in scikit-learn. metric: M of the squared
    distance (x - z)^T M (x - z), [d, d] or its diagonal [d]. kernel_params: other parameters of the
    formula, by name.

    centers: a number, or points [m, d]; the function is then a sum over these alone, in memory of
    m x m, and ``partial_fit`` adds points. solver: "direct" (Cholesky), "cg" (conjugate gradients,
    nothing of n x n stored), with centers "direct" (sums over all points) or "falkon" (products);
    "auto" is direct where that is quickest, else "cg" within the cost of a factor, and the factor
    where that does not converge and fits in memory. rank: columns of the preconditioner of "cg".
    tol: the relative residual that "cg" and "falkon" stop at; max_iter: their steps at most.
    warm_start: "cg" and "falkon" begin at the coefficients of the fit before. device: where arrays
    of the host are computed with, such as "cuda".

    Float32 points are computed in float32, all others in float64. Attributes: ``dual_coef_`` [n] or
    [n, k] of ``X_fit_`` or ``centers_``, ``bandwidth_``, ``alpha_``, ``solver_`` (what was taken),
    ``n_iter_`` (its products), ``residual_`` (the largest relative residual of an output),
    ``n_features_in_``, ``feature_names_in_``. Rows of weight 0 are not in ``X_fit_``.

    >>> KernelRidge("laplace", alpha=0.1).fit(x, y).predict(x_new)
    """

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """X: [n, d] (or the matrix [n, n]), y: [n] or [n, k], sample_weight: [n], from 0 on.

        Errors are scikit-learn's; LinAlgError, which names an alpha that would do, for a matrix
        that is not positive definite; MemoryError, which names what fits, before anything is made;
        ConvergenceWarning where ``tol`` is not met. A fit that fails changes nothing.
        """
        data = self._data(X, y, sample_weight, multi_output=True)
        self._fit(data, data.y.reshape(data.y.shape[0], -1))
        if data.y.ndim == 1:
            self.dual_coef_ = self.dual_coef_[:, 0]
        return self

    @available_if(lambda self: self.centers is not None and self.solver != "falkon")
    @restores
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """Adds points to a model of centres: exact, in any order.

        The first call chooses bandwidth and centres from its points; a call after ``fit`` adds to
        the sums that solver="direct" keeps. Arguments and errors: those of fit.
        """
        first = not hasattr(self, "dual_coef_")
        if not first and getattr(self, "_moments", None) is None:
            raise ValueError(
                "partial_fit adds to the sums of fits before, which solver='direct' keeps. This "
                f"model was fitted by {self.solver_!r}"
            )
        data = self._data(X, y, sample_weight, multi_output=True, reset=first)
        targets = data.y.reshape(data.y.shape[0], -1)
        if first:
            self._begin(data, targets)
        x = self._kernel.points(data.x, data.space)
        self._moments = self._moments.plus(
            self._kernel, x, self._points, targets, data.weights, data.space
        )
        coef = self._moments.solve(self._kernel, self._points, float(self.alpha), data.space)
        coef = self._space.array(coef)
        self.dual_coef_ = coef[:, 0] if data.y.ndim == 1 else coef
        self.solver_, self.n_iter_, self.residual_ = "direct", 1, 0.0
        return self

    def _begin(self, data: Data, targets: Any) -> None:
        rng = check_random_state(self.random_state)
        kernel = self._fit_kernel(data, rng)
        self.centers_ = _centers.choose(self.centers, data.x, data.space, rng)
        self._points = kernel.points(self.centers_, data.space)
        m, columns = self.centers_.shape[0], targets.shape[1]
        self._moments = _centers.Moments.none(m, columns, data.space)

    def predict(self, X: Any) -> Any:
        """[m] or [m, k] for X [m, d], in the library and on the device of X."""
        scores, back = self._scores(X)
        return back(scores)


class KernelRidgeClassifier(ClassifierScore, ClassifierMixin, _Ridge):
    """Classification by kernel ridge regression on targets of 1 and -1, one against the rest.

    Parameters and attributes are those of KernelRidge, and ``classes_``. probability: with True the
    fit computes what each point's scores would be in a fit without it, and ``predict_proba`` is
    there: the softmax of a slope times the scores, the slope of the largest likelihood of these.

    >>> KernelRidgeClassifier(probability=True).fit(x, labels).predict_proba(x_new)
    """

    def __init__(
        self,
        kernel: Any = "gauss",
        *,
        bandwidth: float | str = "scale",
        alpha: float = 1.0,
        metric: Any = None,
        centers: Any = None,
        solver: str = "auto",
        rank: int | str = "auto",
        tol: float = 1e-3,
        max_iter: int | None = None,
        kernel_params: Mapping[str, float] | None = None,
        probability: bool = False,
        warm_start: bool = False,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            kernel, bandwidth=bandwidth, alpha=alpha, metric=metric, centers=centers,
            solver=solver, rank=rank, tol=tol, max_iter=max_iter, kernel_params=kernel_params,
            warm_start=warm_start, device=device, random_state=random_state,
        )  # fmt: skip
        self.probability = probability

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidgeClassifier:
        """X: [n, d], y: labels [n] of two classes or more, sample_weight: [n], from 0 on.

        Errors and warnings: those of KernelRidge.fit, and ValueError for labels of one class.
        """
        data = self._data(X, y, sample_weight, labels=True)
        check_classification_targets(data.y)
        self.classes_, codes = np.unique(data.y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of two classes or more. The data has one "
                f"class: {self.classes_[0]!r}"
            )
        signs = np.where(codes[:, None] == np.arange(len(self.classes_)), 1.0, -1.0)
        targets = data.space.array(signs[:, 1:] if len(self.classes_) == 2 else signs)
        solution = self._fit(data, targets, keep_factor=self.probability)
        if self.probability:
            self._slope = self._calibrated(data, targets, solution)
        return self

    def decision_function(self, X: Any) -> Any:
        """[m] for two classes, positive for the second; else [m, classes]."""
        scores, back = self._scores(X)
        return back(scores[:, 0] if len(self.classes_) == 2 else scores)

    def predict(self, X: Any) -> Any:
        """The class [m] of the largest score; numbers in the library of X."""
        scores = _a_column_each(host(self._scores(X)[0]))
        labels = self.classes_[scores.argmax(1)]
        return like(labels, X) if labels.dtype.kind in "biuf" else labels

    @available_if(lambda self: self.probability)
    def predict_proba(self, X: Any) -> Any:
        """[m, classes], rows of which sum to 1, in the library of X."""
        scores, back = self._scores(X)
        p = _calibrate.softmax(self._slope * _a_column_each(host(scores)))
        return back(p.astype(self._space.dtype))

    def _calibrated(self, data: Data, targets: Any, solution: Solution) -> float:
        """The slope of the softmax, from the scores that points would have in fits without them."""
        if self.centers is not None:
            raise ValueError("probability must be False with centers")
        system = System(self._kernel, self._points, data.space, float(self.alpha), data.weights)
        if solution.factor is not None:
            diagonal = _select.inverse_diagonal(system, solution.factor)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            diagonal = _select.mean_inverse(system, solution, seed)
        scores = _a_column_each(host(targets - _select.left_out(system, solution, diagonal)))
        codes = _a_column_each(host(targets)).argmax(1)
        weights = np.ones(len(codes)) if data.weights is None else host(data.weights)
        return _calibrate.fit_slope(scores, codes, weights.astype("float64"))


def _a_column_each(scores: np.ndarray) -> np.ndarray:
    """Scores [m, classes] in float64; those of two classes come in one column."""
    scores = scores.astype("float64")
    return np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores
