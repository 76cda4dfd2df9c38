"""What models of a kernel and a regularised system share."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.validation import check_is_fitted

from mercer.models._arrays import Data, host, library_of, validate
from mercer.models._kernels import PRECOMPUTED, FittedKernel, check_precomputed, fit_kernel
from mercer.models._rules import NOT_NEGATIVE, check, refuse_ignored
from mercer.models._solve import ALL_SOLVERS, Solution, System
from mercer.models._spread import Ready


class MayBePrecomputed(BaseEstimator):
    """An estimator whose parameter ``kernel`` may say that X is the kernel matrix."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self._precomputed
        return tags

    @property
    def _precomputed(self) -> bool:
        return isinstance(self.kernel, str) and self.kernel == PRECOMPUTED


class KernelModel(MayBePrecomputed):
    """Reads the parameters kernel, bandwidth, metric, kernel_params, solver, rank, tol, max_iter
    and device of the class that has them, and ``centers`` where there are some."""

    _solvers: tuple[str, ...] = ALL_SOLVERS
    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    def _why_not(self, kind: str) -> str | None:
        """Why points of Dask ("dask") or DTensors ("dtensor") cannot be fitted, if so."""
        return why_not_products(self, kind)

    def _data(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> Data:
        """Checks what scikit-learn checks, and the parameters before that."""
        self._check_parameters()
        data = validate(self, X, y, sample_weight=sample_weight, device=self.device,
                        keep_rows=self._precomputed, reads=self._reads, **options)  # fmt: skip
        if self._precomputed:
            check_precomputed(data.x)
        return data

    def _check_parameters(self) -> None:
        check(self, *([] if self._reads else self._held()))
        centers = getattr(self, "centers", None)
        allowed = self._solvers if centers is None else ("auto", "direct", "falkon")
        if self.solver not in allowed:
            said = "out centers" if centers is None else " centers"
            raise InvalidParameterError(
                f"The 'solver' parameter of {type(self).__name__} must be one of {allowed} "
                f"with{said}. Got {self.solver!r} instead."
            )
        refuse_with_precomputed(self)
        if self._precomputed and not self._reads:
            raise InvalidParameterError(
                f"The 'kernel' parameter of {type(self).__name__} must be of points with "
                "solver='fixed'. Got 'precomputed' instead."
            )

    def _held(self) -> list[str]:
        """Parameters in arrays that solver="fixed" does not read."""
        names = ("alpha", "bandwidth", "metric")
        return [name for name in names if library_of(getattr(self, name, None)) != "numpy"]

    @property
    def _reads(self) -> bool:
        """Whether a fit looks at numbers where they are computed."""
        return not (isinstance(self.solver, str) and self.solver == "fixed")

    def _fit_kernel(self, data: Data, rng: np.random.RandomState) -> FittedKernel:
        return fit_kernel(
            self.kernel, data.x, data.space, bandwidth=self.bandwidth, weights=data.weights,
            metric=self.metric, kernel_params=self.kernel_params, random_state=rng,
            reads=self._reads,
        )  # fmt: skip

    def _solve(self, system: System, targets: Any, rng: np.random.RandomState,
               **options: Any) -> Solution:  # fmt: skip
        return system.solve(
            targets, solver=self.solver, rank=self.rank, tol=self.tol, max_iter=self.max_iter,
            seed=int(rng.randint(2**31 - 1)), name=type(self).__name__, **options,
        )  # fmt: skip

    def _keep(self, data: Data, kernel: FittedKernel, points: Any, solution: Solution,
              **fitted: Any) -> None:  # fmt: skip
        """Writes what a fit found; ``fitted`` has X_fit_, or centers_ and their sums."""
        for name in ("X_fit_", "centers_", "_moments"):
            self.__dict__.pop(name, None)
        self.__dict__.update(fitted)
        self._kernel, self._space, self._points = kernel, data.space, points
        self.dual_coef_, self.bandwidth_ = solution.coef, kernel.bandwidth
        self.solver_, self.n_iter_ = solution.solver, solution.n_iter
        self.residual_ = solution.residual

    def _scores(self, X: Any) -> tuple[Any, Any]:
        """The kernel of X with the fitted points times the coefficients, and the way back."""
        if isinstance(X, Ready):
            return X.parts[0], lambda scores: scores
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space, reads=self.solver_ != "fixed")
        return self._parts(data.x)[0], data.like

    def _parts(self, x: Any) -> tuple[Any]:
        """What the pairs of x [m, d] and the fitted points give: [m, k] in all."""
        points = self._kernel.points(x, self._space)
        return (self._kernel.product(points, self._points, self.dual_coef_),)


def refuse_with_precomputed(estimator: Any) -> None:
    """Parameters that a matrix has no use for."""
    if estimator._precomputed:
        names = ("bandwidth", "metric", "kernel_params", "centers")
        known = [name for name in names if name in estimator.get_params(deep=False)]
        refuse_ignored(estimator, "kernel='precomputed'", *known)


def why_not_products(estimator: Any, kind: str, **wanted: Any) -> str | None:
    """What the parameters ask for that products with the kernel matrix do not give."""
    stored = {"solver": ("direct", "sap", "fixed"), **wanted}
    for name, values in stored.items():
        value = getattr(estimator, name, None)
        if isinstance(value, str) and value in values:
            other = ', solver="cg" does not' if name == "solver" else ""
            return f"{name}={value!r} needs the points in memory{other}"
    if getattr(estimator, "centers", None) is not None:
        return "centers= needs the points in memory"
    kernel = getattr(estimator, "kernel", None)
    if isinstance(kernel, str) and kernel == PRECOMPUTED:
        return 'kernel="precomputed" needs the matrix in memory'
    if kind == "dask" and getattr(estimator, "device", None) not in (None, "cpu"):
        return "device= needs the points in memory; chunks of CuPy compute on their device"
    return None


def checked_alphas(estimator: Any, outputs: int) -> Any:
    """Its ``alpha`` as a float, or as an array [outputs] where there is one for each."""
    numbers = np.asarray(host(estimator.alpha))
    ok = numbers.dtype.kind in "biuf" and numbers.shape in ((), (1,), (outputs,))
    if not ok or not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise InvalidParameterError(
            f"The 'alpha' parameter of {type(estimator).__name__} must be a number from 0 on, or "
            f"one for each output of y, of the shape ({outputs},). Got {estimator.alpha!r} instead."
        )
    return float(numbers.reshape(())) if numbers.size == 1 else numbers.astype(np.float64)


def checked_alpha(alpha: Any) -> float:
    """One of several."""
    if not NOT_NEGATIVE.is_satisfied_by(alpha):
        raise InvalidParameterError(f"alphas must be numbers from 0 on. Received {alpha!r}")
    return float(alpha)
