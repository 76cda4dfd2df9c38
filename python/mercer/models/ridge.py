"""Kernel ridge regression and classification."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if

import mercer as mc
from mercer.models import _calibrate, _centers, _fixed, _select
from mercer.models._arrays import (
    ClassifierScore,
    Data,
    RegressorScore,
    host,
    restores,
)
from mercer.models._base import KernelModel, checked_alphas
from mercer.models._labels import answers, encode, indicator
from mercer.models._rules import COUNT, FRACTION, NOT_NEGATIVE, OF_KERNELS, refuse_ignored
from mercer.models._solve import ALL_SOLVERS, Solution, System, warn_unconverged
from mercer.models._spread import by_rows


class _Ridge(KernelModel):
    """What regression and classification share: a system and its solution."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **OF_KERNELS,
        "alpha": [NOT_NEGATIVE],
        "centers": [COUNT, "array-like", None],
        "solver": [StrOptions({*ALL_SOLVERS, "falkon", "fixed"})],
        "tol": [FRACTION],
        "max_iter": [COUNT, None],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        kernel: Any = "gauss",
        *,
        bandwidth: float | str = "scale",
        alpha: Any = 1.0,
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
        progress: bool = False,
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
        self.progress = progress

    def _fit(self, data: Data, targets: Any, **options: Any) -> Solution:
        """Solves for targets [n, k] and writes what the fit found."""
        rng = check_random_state(self.random_state)
        self.alpha_ = checked_alphas(self, targets.shape[1])
        kernel = self._fit_kernel(data, rng)
        points = kernel.points(data.x, data.space)
        if self.centers is not None:
            return self._fit_centers(data, kernel, points, targets, rng)
        system = System(kernel, points, data.space, self.alpha_, data.weights)
        guess = self._first_guess(data, targets.shape)
        solution = self._solve(system, targets, rng, coef0=guess, **options)
        self._keep(data, kernel, points, solution, X_fit_=data.x)
        return solution

    def _fit_centers(self, data: Data, kernel: Any, points: Any, targets: Any,
                     rng: np.random.RandomState) -> Solution:  # fmt: skip
        name = type(self).__name__
        centers = _centers.choose(self.centers, data.x, data.space, rng)
        mapped = kernel.points(centers, data.space)
        guess = self._first_guess(data, (centers.shape[0], targets.shape[1]))
        solution, converged, moments = _centers.solve(
            kernel, points, mapped, targets, data.weights, self.alpha_, data.space,
            solver=self.solver, tol=self.tol, max_iter=self.max_iter, coef0=guess, name=name,
        )  # fmt: skip
        self._keep(data, kernel, mapped, solution, centers_=centers, _moments=moments)
        if not converged:
            warn_unconverged(name, solution, self.tol)
        return solution

    def _first_guess(self, data: Data, shape: tuple[int, ...]) -> Any:
        """The coefficients of the fit before where they are asked for, as many and numbers."""
        coef = getattr(self, "dual_coef_", None) if self.warm_start else None
        if coef is None or coef.reshape(-1).shape[0] != shape[0] * shape[1]:
            return None
        guess = data.space.array(coef).reshape(shape)
        return guess if bool(data.space.xp.isfinite(guess).all()) else None


class KernelRidge(RegressorScore, MultiOutputMixin, RegressorMixin, _Ridge):
    """Kernel ridge regression: squared errors plus alpha times the squared norm of the function.

    kernel: a name of ``mercer.zoo``, the text of a formula, an expression, a function of two
    points, or "precomputed" (X is then the matrix [n, n], and [m, n] to predict from).
    bandwidth: a number, "scale" (the root of the sum of the features' variances) or "median" (of
    distances); the words serve formulas whose parameter ``bandwidth`` has no value of its own.
    alpha: added to the diagonal of the kernel matrix, as in scikit-learn: a number, or one for each
    output of y, [k]. metric: M of the squared distance (x - z)^T M (x - z), [d, d] or its diagonal
    [d]. kernel_params: other parameters of the formula, by name.

    centers: a number, or points [m, d]; the function is then a sum over these alone, in memory of
    m x m, and ``partial_fit`` adds points. solver: "direct" (Cholesky), "cg" (conjugate gradients,
    nothing of n x n stored), "sap" (sketch and project, by blocks of rows), with centers "direct"
    (sums over all points) or "falkon" (products); "auto" begins with what is reckoned to be the
    quicker of "direct" and "cg", and goes from "cg" to a factor, where its matrix fits in memory,
    as soon as that is. Up to 6000 points (32768 on CUDA devices) it is as exact as a factor.
    rank: columns of the preconditioner of "cg".
    tol: the relative residual that "cg" and "falkon" stop at; max_iter: their steps at most, by
    default the lesser of 10 n and 10 000 for "cg" and 100 for "falkon".
    solver="fixed" is "cg" with ``max_iter`` steps (50 where it is None) of which nothing is read:
    the call returns before its numbers are there, and a CUDA graph can hold it. ``alpha``,
    one number, ``bandwidth`` and values of ``kernel_params`` may be tensors of one number then,
    ``metric`` a tensor [d], and ``alpha_``, ``bandwidth_`` and ``residual_`` are tensors. Nothing
    is warned of, and what is refused elsewhere (NaN, negative weights and ridges, in tensors) makes
    NaN. Rows of weight 0 stay in ``X_fit_`` where the weights are tensors.
    warm_start: "cg" and "falkon" begin at the coefficients of the fit before, where these are
    finite. device: where arrays
    of the host are computed with, such as "cuda". progress: a fit of more than two seconds shows a
    bar with the residual.

    Float32 points are computed in float32, all others in float64. Attributes: ``dual_coef_`` [n] or
    [n, k] of ``X_fit_`` or ``centers_``, ``bandwidth_``, ``alpha_``, ``solver_`` (what was taken),
    ``n_iter_`` (its products), ``residual_`` (the largest relative residual of an output; with
    centers that of the m equations of their coefficients), ``n_features_in_``,
    ``feature_names_in_``. Rows of weight 0 are not in ``X_fit_``.

    >>> KernelRidge("laplace", alpha=0.1).fit(x, y).predict(x_new)
    """

    _solvers = (*ALL_SOLVERS, "fixed")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Ridge._parameter_constraints,
        "alpha": [NOT_NEGATIVE, "array-like"],
    }

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """X: [n, d] (or the matrix [n, n]), y: [n] or [n, k], sample_weight: [n], from 0 on.

        Errors are scikit-learn's; LinAlgError, which names an alpha that would do, for a matrix
        that is not positive definite; MemoryError, which names what fits, before anything is made;
        ConvergenceWarning where ``tol`` is not met. A fit that fails changes nothing.
        """
        data = self._data(X, y, sample_weight, multi_output=True)
        fit = self._fit if self._reads else self._fit_fixed
        fit(data, data.y.reshape(data.y.shape[0], -1))
        if data.y.ndim == 1:
            self.dual_coef_ = self.dual_coef_[:, 0]
        return self

    def _fit_fixed(self, data: Data, targets: Any) -> None:
        rng = check_random_state(self.random_state)
        kernel = self._fit_kernel(data, rng)
        points = kernel.points(data.x, data.space)
        ridges = _fixed.ridges_of(self.alpha, data.space)
        if tuple(ridges.shape) != (1,):
            raise ValueError(f"alpha must be one number. Received {tuple(ridges.shape)} of them")
        found = _fixed.fit(
            kernel, points, targets, ridges, data.space, weights=data.weights, rank=self.rank,
            tol=self.tol, steps=self.max_iter, seed=int(rng.randint(2**31 - 1)),
        )  # fmt: skip
        self.alpha_ = ridges[0]
        steps = self.max_iter or _fixed.STEPS
        solution = Solution(found.coef[:, 0], "fixed", steps, found.residuals[0])
        self._keep(data, kernel, points, solution, X_fit_=data.x)

    @available_if(lambda self: self.centers is not None and self.solver != "falkon")
    @restores
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """Adds points to a model of centres: exact, in any order.

        The first call chooses bandwidth and centres from its points; a call after ``fit`` adds to
        the sums that solver="direct" keeps. Arguments and errors: those of fit.
        """
        first = not hasattr(self, "dual_coef_")
        if not first and getattr(self, "_moments", None) is None:
            without = "" if hasattr(self, "centers_") else " without centres"
            raise ValueError(
                "partial_fit adds to the sums of fits before, which solver='direct' keeps of "
                f"centres. This model was fitted by {self.solver_!r}{without}"
            )
        data = self._data(X, y, sample_weight, multi_output=True, reset=first,
                          space=None if first else self._space)  # fmt: skip
        targets = data.y.reshape(data.y.shape[0], -1)
        if first:
            self._begin(data, targets)
        outputs = self._moments.target.shape[1]
        if not first and (targets.shape[1] != outputs or data.y.ndim != self.dual_coef_.ndim):
            raise ValueError(
                f"partial_fit: y must have as many outputs as before, {outputs} in an array of "
                f"{self.dual_coef_.ndim} axes. Received {tuple(data.y.shape)}"
            )
        self.alpha_ = checked_alphas(self, outputs)
        kernel, z, space = self._kernel, self._points, data.space
        x = kernel.points(data.x, space)
        moments = self._moments.plus(kernel, x, z, targets, data.weights, space)
        solution = moments.solve(kernel, z, self.alpha_, space)
        if data.y.ndim == 1:
            solution.coef = solution.coef[:, 0]
        self._keep(data, kernel, z, solution, centers_=self.centers_, _moments=moments)
        return self

    def _begin(self, data: Data, targets: Any) -> None:
        """Chooses the bandwidth and the centres."""
        rng = check_random_state(self.random_state)
        self._kernel = self._fit_kernel(data, rng)
        self.centers_ = _centers.choose(self.centers, data.x, data.space, rng)
        self._points = self._kernel.points(self.centers_, data.space)
        m, columns = self.centers_.shape[0], targets.shape[1]
        self._moments = _centers.Moments.none(m, columns, data.space)

    @by_rows
    def predict(self, X: Any) -> Any:
        """[m] or [m, k] for X [m, d], in the library and on the device of X."""
        scores, back = self._scores(X)
        return back(scores)


class KernelRidgeClassifier(ClassifierScore, ClassifierMixin, _Ridge):
    """Classification by kernel ridge regression on targets of 1 and -1, one against the rest.

    Parameters and attributes are those of KernelRidge, and ``classes_``; alpha is one number, and
    solver="fixed" is refused. probability: with True the fit computes what each point's scores
    would be in a fit without it, and ``predict_proba`` is there: the softmax of a slope times the
    scores, the slope of the largest likelihood of these. The scores are exact where a factor was
    made; "cg" and "sap" take the mean share of all points in the place of each one's own, and a
    factor where their products do not give it. Where that does not fit either, a ConvergenceWarning
    says so and probabilities are NaN.

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
        progress: bool = False,
    ) -> None:
        super().__init__(
            kernel, bandwidth=bandwidth, alpha=alpha, metric=metric, centers=centers,
            solver=solver, rank=rank, tol=tol, max_iter=max_iter, kernel_params=kernel_params,
            warm_start=warm_start, device=device, random_state=random_state,
            progress=progress,
        )  # fmt: skip
        self.probability = probability

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Ridge._parameter_constraints,
        "probability": ["boolean"],
    }

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidgeClassifier:
        """X: [n, d], y: labels [n] of two classes or more, sample_weight: [n], from 0 on.

        Errors and warnings: those of KernelRidge.fit, and ValueError for labels of one class.
        """
        if self.centers is not None:
            refuse_ignored(self, "centers", "probability")
        data = self._data(X, y, sample_weight, labels=True)
        self.classes_, numbers = encode(self, data.y)
        targets = 2 * indicator(numbers, len(self.classes_), data.space) - 1
        solution = self._fit(data, targets, keep_factor=self.probability)
        self.__dict__.pop("_slope", None)
        if self.probability:
            self._slope = self._calibrated(data, targets, solution)
        return self

    @by_rows
    def decision_function(self, X: Any) -> Any:
        """[m] for two classes, positive for the second; else [m, classes]."""
        scores, back = self._scores(X)
        return back(scores[:, 0] if len(self.classes_) == 2 else scores)

    @by_rows
    def predict(self, X: Any) -> Any:
        """The class [m] of the largest score; numbers in the library of X."""
        scores, back = self._scores(X)
        return answers(self.classes_, _a_column_each(host(scores)).argmax(1), back)

    @available_if(lambda self: self.probability)
    @by_rows
    def predict_proba(self, X: Any) -> Any:
        """[m, classes], rows of which sum to 1, in the library of X."""
        scores, back = self._scores(X)
        if not hasattr(self, "_slope"):
            raise NotFittedError("predict_proba: the model was fitted with probability=False")
        p = _calibrate.softmax(self._slope * _a_column_each(host(scores)))
        return back(p.astype(self._space.dtype))

    def _calibrated(self, data: Data, targets: Any, solution: Solution) -> float:
        """The slope of the softmax, from the scores that points would have in fits without them."""
        system = System(self._kernel, self._points, data.space, self.alpha_, data.weights)
        diagonal = self._inverse_diagonal(system, solution)
        if diagonal is None:
            return np.nan
        missed = _select.left_out(system, solution.coef, self.alpha_, diagonal)
        scores = _a_column_each(host(targets - missed))
        codes = _a_column_each(host(targets)).argmax(1)
        weights = np.ones(len(codes)) if data.weights is None else host(data.weights)
        return _calibrate.fit_slope(scores, codes, weights.astype("float64"))

    def _inverse_diagonal(self, system: System, solution: Solution) -> Any:
        """The diagonal [n] of A^-1, or its mean; None, and a warning, where neither is found."""
        if solution.factor is not None:
            return mc.linalg.cho_inverse_diagonal(solution.factor)
        seed, name = check_random_state(self.random_state).randint(2**31 - 1), type(self).__name__
        mean = _select.mean_inverse(system, int(seed), name)
        if np.isfinite(mean):
            return mean
        if system.fits() and not system.is_shared:
            factor, info = mc.linalg.cholesky(system.matrix(), overwrite_a=True, check=False)
            if not int(info):
                return mc.linalg.cho_inverse_diagonal(factor)
        warnings.warn(
            f"{name}: predict_proba is NaN, since the products that probability=True takes did not "
            f"converge at alpha = {self.alpha_:g} and a factor of the kernel matrix was not made. "
            "A larger alpha ends it",
            ConvergenceWarning,
            stacklevel=4,
        )
        return None


def _a_column_each(scores: np.ndarray) -> np.ndarray:
    """Scores [m, classes] in float64; those of two classes come in one column."""
    scores = scores.astype("float64")
    return np.concatenate([-scores, scores], axis=1) if scores.shape[1] == 1 else scores
