"""Kernel logistic regression."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import InvalidParameterError, StrOptions
from sklearn.utils.validation import check_is_fitted

import mercer as mc
from mercer.models import _centers, _memory
from mercer.models._arrays import ClassifierScore, Data, host, restores, validate
from mercer.models._base import MayBePrecomputed, refuse_with_precomputed, why_not_products
from mercer.models._kernels import FittedKernel, check_precomputed, fit_kernel
from mercer.models._labels import answers, class_weights, encode, indicator
from mercer.models._newton import (
    BinaryLoss,
    CentredExpansion,
    Expansion,
    Minimum,
    MultinomialLoss,
    minimise,
)
from mercer.models._products import is_shared
from mercer.models._rules import COUNT, NOT_NEGATIVE, OF_KERNELS, POSITIVE, SOLVER, check
from mercer.models._solve import System, rank_of
from mercer.models._spread import Ready, by_rows

_DIRECT = 4_000_000  # numbers in all factors up to which "auto" stores them


class KernelLogisticRegression(ClassifierScore, ClassifierMixin, MayBePrecomputed):
    """Logistic regression in a kernel's function space: probabilities of two or more classes.

    Minimises sum_i s_i loss(f(x_i), y_i) + |f|^2 / (2 C) over f(x) = sum_n k(x, x_n) coef_n,
    without an intercept; the loss is the negative log-likelihood of the label, multinomial where
    there are more than two classes, and s are the weights. Newton's method with conjugate
    gradients: a randomly pivoted Cholesky factor of the kernel matrix, made once and weighted anew
    in each step, is the preconditioner, and no matrix is stored; of few points factors are exact.
    Each step lowers the objective.

    kernel, bandwidth, metric, kernel_params: those of ``KernelRidge``. C: the inverse of the
    regularisation, scikit-learn's. centers: a number, or points [m, d]: the function is then a sum
    over these alone, and [n, m] is stored. class_weight: None, "balanced" or a dict of labels.
    solver: "auto", "direct" (factors of [n, n], one for each class) or "cg". rank: columns of the
    preconditioner's factor. tol: a fit ends where a step promises less than this part of the
    objective. max_iter: Newton steps at most. warm_start: begins with the coefficients of the fit
    before, where it had as many rows and classes and no centres. device: "cuda" takes arrays of the
    host there. progress: a fit of more than two seconds shows a bar with the objective.

    Attributes: ``classes_``; ``dual_coef_`` [n] or [n, classes] of ``X_fit_`` [n, d] or
    ``centers_`` [m, d]; ``objective_``, ``objectives_`` (of each step), ``residual_`` (the
    gradient's length as a part of the losses'), ``n_iter_`` (steps), ``n_products_`` (with the
    kernel matrix), ``solver_``, ``bandwidth_``.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from mercer.models import KernelLogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> KernelLogisticRegression(C=10.0).fit(scale(X), y).predict_proba(scale(X)[:2]).shape
    (2, 2)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **OF_KERNELS,
        "C": [POSITIVE],
        "centers": [COUNT, "array-like", None],
        "class_weight": [Mapping, StrOptions({"balanced"}), None],
        "solver": SOLVER,
        "tol": [NOT_NEGATIVE],
        "max_iter": [COUNT],
        "warm_start": ["boolean"],
    }

    def __init__(self, kernel: Any = "gauss", *, bandwidth: float | str = "scale", C: float = 1.0,
                 metric: Any = None, centers: Any = None, class_weight: Any = None,
                 solver: str = "auto", rank: int | str = "auto", tol: float = 1e-8,
                 max_iter: int = 100, kernel_params: Mapping[str, float] | None = None,
                 warm_start: bool = False, device: str | None = None,
                 random_state: Any = None, progress: bool = False) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.C = C
        self.metric = metric
        self.centers = centers
        self.class_weight = class_weight
        self.solver = solver
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.warm_start = warm_start
        self.device = device
        self.random_state = random_state
        self.progress = progress

    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    def _why_not(self, kind: str) -> str | None:
        return why_not_products(self, kind)

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelLogisticRegression:
        """X: [n, d]; y: [n] labels; sample_weight: [n] from 0 on.

        Raises ValueError as scikit-learn does, and for values of options that are none; MemoryError
        where "direct" does not fit. ConvergenceWarning: max_iter steps did not reach tol.
        """
        self._check()
        data = validate(
            self, X, y, sample_weight=sample_weight, labels=True, device=self.device,
            keep_rows=self._precomputed,
        )  # fmt: skip
        if self._precomputed:
            check_precomputed(data.x)
        classes, numbers = encode(self, data.y)
        kernel = fit_kernel(
            self.kernel, data.x, data.space, bandwidth=self.bandwidth, weights=data.weights,
            metric=self.metric, kernel_params=self.kernel_params, random_state=self.random_state,
        )  # fmt: skip
        weights = None if data.weights is None else np.asarray(host(data.weights))
        weights = class_weights(self.class_weight, classes, numbers, weights)
        centers = None if self.centers is None else _centers.choose(
            self.centers, data.x, data.space, check_random_state(self.random_state)
        )  # fmt: skip
        kernel.require_symmetric()
        expansion = self._expansion(kernel, data, len(classes), centers)
        try:
            found = self._minimise(expansion, data, classes, numbers, weights)
        except mc.LinAlgError as error:
            raise self._not_definite(kernel, data, weights) from error
        for name in ("X_fit_", "centers_"):
            self.__dict__.pop(name, None)
        if self.centers is None:
            self.X_fit_, self._points = data.x, expansion.x
        else:
            assert isinstance(expansion, CentredExpansion)
            self.centers_, self._points = centers, expansion.centers
        self._kernel, self._space, self.bandwidth_ = kernel, data.space, kernel.bandwidth
        coef = expansion.coefficients(found.coef)
        self.classes_, self.dual_coef_ = classes, coef if len(classes) > 2 else coef[:, 0]
        self.objective_, self.objectives_ = found.objective, np.array(found.history)
        self.residual_, self.n_iter_ = found.residual, len(found.history) - 1
        self.n_products_ = expansion.products
        self.solver_ = "direct" if expansion.direct else "cg"
        return self

    def _check(self) -> None:
        check(self)
        if self.solver == "direct" and self.centers is not None:
            raise InvalidParameterError(
                f"The 'solver' parameter of {type(self).__name__} must be 'auto' or 'cg' with "
                "centers. Got 'direct' instead."
            )
        refuse_with_precomputed(self)

    def _expansion(self, kernel: FittedKernel, data: Data, classes: int,
                   centers: Any) -> Expansion:  # fmt: skip
        n, columns = int(data.x.shape[0]), classes if classes > 2 else 1
        space, ridge = data.space, 1 / float(self.C)
        itemsize, name = np.dtype(space.dtype).itemsize, type(self).__name__
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        points = kernel.points(data.x, space)
        if centers is not None:
            m = int(centers.shape[0])
            _memory.require(2 * n * m * itemsize + 16 * m * m, space, f"{m} centres", n, name)
            mapped = kernel.points(centers, space)
            return CentredExpansion(kernel, points, space, ridge, m, False, seed, centers=mapped)
        direct = self.solver == "direct" or (
            self.solver == "auto" and n * n * columns <= _DIRECT and not is_shared(points)
        )
        if direct:
            _memory.require(n * n * (columns + 1) * itemsize, space, 'solver="direct"', n, name)
        rank = min(rank_of(self.rank, n, space), n)
        if not direct:  # a copy of the factor for each class, as it is weighted
            other = _memory.centers_that_fit(n, space, _memory.free(space))
            copies = max(4, 2 + columns)
            _memory.require_columns(n, rank, columns, space, name, other, copies)
        return Expansion(kernel, points, space, ridge, rank, direct, seed)

    def _not_definite(self, kernel: FittedKernel, data: Data,
                      weights: np.ndarray | None) -> mc.LinAlgError:  # fmt: skip
        """The second derivative of a point's loss is at most its weight: that many of the smallest
        eigenvalue must 1 / C outweigh."""
        system = System(kernel, kernel.points(data.x, data.space), data.space, 0.0)
        smallest, rounding = system.smallest_eigenvalue()
        heaviest = 1.0 if weights is None else float(weights.max(initial=1))
        return mc.LinAlgError(
            f"{type(self).__name__}: the kernel matrix must be positive semi-definite up to 1 / C. "
            f"Received an eigenvalue near {smallest:.2g} with C = {self.C:g}. "
            f"C = {0.5 / (heaviest * (max(-smallest, 0) + rounding)):.1e} would do"
        )

    def _minimise(self, expansion: Expansion, data: Data, classes: np.ndarray, numbers: np.ndarray,
                  weights: np.ndarray | None) -> Minimum:  # fmt: skip
        space = data.space
        rows = np.ones((len(numbers), 1)) if weights is None else weights[:, None]
        loss = (MultinomialLoss if len(classes) > 2 else BinaryLoss)(
            indicator(numbers, len(classes), space), space.array(rows), space
        )
        found = minimise(
            loss, expansion, tol=self.tol, max_iter=self.max_iter, coef0=self._start(loss, space)
        )
        if not found.converged:
            warnings.warn(
                f"{type(self).__name__}: {self.max_iter} steps of Newton's method did not reach "
                f"tol = {self.tol:g}. A larger max_iter, tol or rank, or a smaller C, ends it",
                ConvergenceWarning,
                stacklevel=4,
            )
        return found

    def _start(self, loss: Any, space: Any) -> Any:
        before = getattr(self, "dual_coef_", None) if self.warm_start else None
        if before is None or self.centers is not None:
            return None
        before = before.reshape(before.shape[0], -1)
        return space.array(before) if tuple(before.shape) == tuple(loss.y.shape) else None

    def _scores(self, X: Any) -> tuple[Any, Any]:
        """f(X) [m, k], k = 1 for two classes, and the way back to X's library."""
        if isinstance(X, Ready):
            return X.parts[0], lambda scores: scores
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        return self._parts(data.x)[0], data.like

    def _parts(self, x: Any) -> tuple[Any]:
        """What the pairs of x [m, d] and the fitted points give: f(x) [m, k]."""
        coef = self.dual_coef_.reshape(self.dual_coef_.shape[0], -1)
        points = self._kernel.points(x, self._space)
        return (self._kernel.product(points, self._points, coef),)

    @by_rows
    def decision_function(self, X: Any) -> Any:
        """X: [m, d]; the logarithms of odds [m] of the second class, of more classes [m, k]."""
        f, like = self._scores(X)
        return like(f[:, 0] if len(self.classes_) == 2 else f)

    @by_rows
    def predict_proba(self, X: Any) -> Any:
        """X: [m, d]; the probabilities [m, k] of ``classes_``."""
        f, like = self._scores(X)
        if len(self.classes_) > 2:
            return like(MultinomialLoss(None, None, self._space).probabilities(f))
        loss = BinaryLoss(None, None, self._space)
        return like(self._space.xp.concatenate([loss.probabilities(g) for g in (-f, f)], 1))

    @by_rows
    def predict(self, X: Any) -> Any:
        """X: [m, d]; labels [m]."""
        f, like = self._scores(X)
        numbers = f.argmax(1) if len(self.classes_) > 2 else (f[:, 0] > 0) * 1
        return answers(self.classes_, numbers, like)
