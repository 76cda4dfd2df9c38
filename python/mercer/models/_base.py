"""What models of a kernel and a regularised system share."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from mercer.models._arrays import Data, validate
from mercer.models._kernels import PRECOMPUTED, FittedKernel, check_precomputed, fit_kernel
from mercer.models._solve import ALL_SOLVERS, Solution, System


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

    def _data(self, X: Any, y: Any, sample_weight: Any, **options: Any) -> Data:
        """Checks what scikit-learn checks, and the solver's name."""
        data = validate(self, X, y, sample_weight=sample_weight, device=self.device,
                        keep_rows=self._precomputed, reads=self._reads, **options)  # fmt: skip
        centers = getattr(self, "centers", None)
        allowed = self._solvers if centers is None else ("auto", "direct", "falkon")
        if self.solver not in allowed:
            said = "" if centers is None else " with centers"
            raise ValueError(f"solver must be one of {allowed}{said}. Received {self.solver!r}")
        if self._precomputed:
            if not self._reads:
                raise ValueError('solver="fixed" needs points. Received kernel="precomputed"')
            check_precomputed(data.x, centers=centers)
        return data

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
        """Writes what a fit found; ``fitted`` has X_fit_ or centers_."""
        for name in ("X_fit_", "centers_"):
            vars(self).pop(name, None)
        vars(self).update(fitted)
        self._kernel, self._space, self._points = kernel, data.space, points
        self.dual_coef_, self.bandwidth_ = solution.coef, kernel.bandwidth
        self.solver_, self.n_iter_ = solution.solver, solution.n_iter
        self.residual_ = solution.residual

    def _scores(self, X: Any) -> tuple[Any, Any]:
        """The kernel of X with the fitted points times the coefficients, and the way back."""
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space, reads=self.solver_ != "fixed")
        points = self._kernel.points(data.x, data.space)
        return self._kernel.product(points, self._points, self.dual_coef_), data.like


def checked_alpha(alpha: Any) -> float:
    number = float(alpha)
    if not (number >= 0 and np.isfinite(number)):
        raise ValueError(f"alpha must be a number from 0 on. Received {alpha!r}")
    return number
