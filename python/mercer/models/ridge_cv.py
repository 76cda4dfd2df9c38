"""Kernel ridge regression that chooses its ridge and its bandwidth."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import InvalidParameterError, StrOptions

from mercer._progress import part
from mercer.models import _fixed, _select
from mercer.models._arrays import Data, RegressorScore, restores
from mercer.models._base import KernelModel, checked_alpha, why_not_products
from mercer.models._kernels import FittedKernel
from mercer.models._rules import COUNT, FRACTION, NOT_NEGATIVE, OF_KERNELS, POSITIVE
from mercer.models._solve import ALL_SOLVERS, Buffer, Solution, System
from mercer.models._spread import by_rows


class KernelRidgeCV(RegressorScore, MultiOutputMixin, RegressorMixin, KernelModel):
    """Kernel ridge regression with the ridge and the bandwidth that predict best.

    alphas: the ridges to choose from. bandwidths: multiples of ``bandwidth`` to choose from, where
    the formula has a bandwidth to choose. select: "loo", the errors of all points left out one by
    one, exactly, from the eigenvalues of each bandwidth's matrix; "gcv", generalised
    cross-validation, for which one run of conjugate gradients serves all ridges, outputs and at
    most ``n_probes`` random vectors of a ridge and bandwidth, in ``max_iter`` products at most, by
    default 300; "auto", the first up to 1500 points (8192 on CUDA). The other parameters, and how
    the last fit is solved: those of KernelRidge.

    Attributes of KernelRidge, with ``alpha_`` and ``bandwidth_`` chosen, and ``best_score_``, the
    mean squared error of the choice; ``select_``; ``cv_results_``, a dict of ``alphas`` [A],
    ``bandwidths`` [B] and ``scores`` [B, A], infinite where a solver met no tolerance.

    solver="fixed", as in KernelRidge, has the whole of it in one CUDA graph: ``alphas`` may be a
    tensor [A], the choice is made where the scores are, its coefficients are those of the path, and
    ``cv_results_`` has ``residuals`` [B, A] too. Where no choice has a score they are NaN.

    >>> KernelRidgeCV("matern32").fit(x, y).alpha_
    """

    _solvers = (*ALL_SOLVERS, "fixed")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **OF_KERNELS,
        "alphas": ["array-like", NOT_NEGATIVE],
        "bandwidths": ["array-like", POSITIVE],
        "select": [StrOptions({"auto", "loo", "gcv"})],
        "n_probes": [COUNT],
        "solver": [StrOptions({*ALL_SOLVERS, "fixed"})],
        "tol": [FRACTION],
        "max_iter": [COUNT, None],
    }

    def __init__(
        self,
        kernel: Any = "gauss",
        *,
        alphas: Sequence[float] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        bandwidth: float | str = "scale",
        bandwidths: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
        metric: Any = None,
        select: str = "auto",
        n_probes: int = 16,
        solver: str = "auto",
        rank: int | str = "auto",
        tol: float = 1e-3,
        max_iter: int | None = None,
        kernel_params: Mapping[str, float] | None = None,
        device: str | None = None,
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.alphas = alphas
        self.bandwidth = bandwidth
        self.bandwidths = bandwidths
        self.metric = metric
        self.select = select
        self.n_probes = n_probes
        self.solver = solver
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.device = device
        self.random_state = random_state
        self.progress = progress

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidgeCV:
        """X: [n, d] (or the matrix [n, n]), y: [n] or [n, k], sample_weight: [n], from 0 on.

        A point of weight 2 counts as two points, one of which is left out; "gcv" is of the weighted
        problem. Errors and warnings: those of KernelRidge.fit.
        """
        data = self._data(X, y, sample_weight, multi_output=True)
        targets = data.y.reshape(data.y.shape[0], -1)
        rng = check_random_state(self.random_state)
        fit = self._fit_read if self._reads else self._fit_fixed
        fit(data, targets, rng)
        if data.y.ndim == 1:
            self.dual_coef_ = self.dual_coef_[:, 0]
        return self

    def _fit_read(self, data: Data, targets: Any, rng: np.random.RandomState) -> None:
        alphas = self._alphas()
        kernels, points = self._kernels(data, rng)
        buffer, seed = Buffer(), int(rng.randint(2**31 - 1))
        systems = [
            System(k, points, data.space, 0.0, data.weights, buffer, has_centers=False)
            for k in kernels
        ]
        self.select_ = self._selection(systems[0])
        found = []
        for i, system in enumerate(systems):
            with part(i, len(systems) + 1, f"bandwidth {i + 1} of {len(systems)}"):
                found.append(self._scored(system, targets, alphas, seed))
        system, self.alpha_ = self._choose(systems, alphas, np.stack(found))
        with part(len(systems), len(systems) + 1, f"alpha {self.alpha_:g}"):
            solution = self._solve(system, targets, rng)
        self._keep(data, system.kernel, points, solution, X_fit_=data.x)

    def _fit_fixed(self, data: Data, targets: Any, rng: np.random.RandomState) -> None:
        if self.select == "loo":
            raise ValueError('select must be "gcv" or "auto" with solver="fixed". Received "loo"')
        kernels, points = self._kernels(data, rng)
        ridges, steps = _fixed.ridges_of(self.alphas, data.space), self.max_iter or _fixed.STEPS
        found = _fixed.fit_best(
            kernels, points, targets, ridges, data.space, weights=data.weights, rank=self.rank,
            tol=self.tol, steps=steps, probes=self.n_probes, seed=int(rng.randint(2**31 - 1)),
        )  # fmt: skip
        self.select_, self.alpha_, self.best_score_ = "gcv", found.ridge, found.score
        self.cv_results_ = {"alphas": ridges} | found.table
        solution = Solution(found.coef, "fixed", steps, found.residual)
        self._keep(data, found.kernel, points, solution, X_fit_=data.x)

    def _why_not(self, kind: str) -> str | None:
        return why_not_products(self, kind, select=("loo",))

    @by_rows
    def predict(self, X: Any) -> Any:
        """[m] or [m, k] for X [m, d], in the library and on the device of X."""
        scores, back = self._scores(X)
        return back(scores)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._factors()
        if self._reads:
            self._alphas()

    def _alphas(self) -> np.ndarray:
        alphas = np.array([checked_alpha(alpha) for alpha in np.ravel(self.alphas)])
        if len(alphas) == 0:
            raise InvalidParameterError("alphas must have one number at least. Received none")
        return alphas

    def _factors(self) -> list[float]:
        factors = list(np.ravel(self.bandwidths))
        if not factors or not all(map(POSITIVE.is_satisfied_by, factors)):
            raise InvalidParameterError(
                f"bandwidths must be positive numbers. Received {self.bandwidths!r}"
            )
        return [float(factor) for factor in factors]

    def _kernels(self, data: Data, rng: np.random.RandomState) -> tuple[list[FittedKernel], Any]:
        """One for each bandwidth, and the points as all of them see these."""
        first = self._fit_kernel(data, rng)
        points = first.points(data.x, data.space)
        if first.bandwidth is None:
            return [first], points
        return [first.with_bandwidth(first.bandwidth * f) for f in self._factors()], points

    def _selection(self, system: System) -> str:
        if self.select != "auto":
            return self.select
        if system.is_shared:
            return "gcv"
        few = system.n <= _select.SPECTRUM[system.space.device.partition(":")[0]]
        return "loo" if few or self.solver == "direct" else "gcv"

    def _scored(self, system: System, targets: Any, alphas: np.ndarray, seed: int) -> np.ndarray:
        if self.select_ == "loo":
            system.require_matrix(type(self).__name__)
            return _select.leave_one_out(system, targets, alphas)
        return _select.generalised(
            system, targets, alphas, rank=self.rank, tol=self.tol, max_iter=self.max_iter,
            probes=self.n_probes, seed=seed, name=type(self).__name__,
        )[0]  # fmt: skip

    def _choose(self, systems: list[System], alphas: np.ndarray,
                scores: np.ndarray) -> tuple[System, float]:  # fmt: skip
        name = type(self).__name__
        scores = np.where(np.isfinite(scores), scores, np.inf)
        missed = np.isinf(scores)
        if missed.any():
            warnings.warn(
                f"{name}: {missed.sum()} of {scores.size} choices have no score, as with alpha = "
                f"{alphas[missed.any(0)].min():g}: their systems are not positive definite, or "
                f"tol = {self.tol:g} was not met",
                ConvergenceWarning,
                stacklevel=4,
            )
        i, j = np.unravel_index(np.argmin(scores), scores.shape)
        self.cv_results_ = {
            "alphas": alphas,
            "bandwidths": [system.kernel.bandwidth for system in systems],
            "scores": scores,
        }
        self.best_score_ = float(scores[i, j])
        return systems[i].with_ridge(float(alphas[j])), float(alphas[j])
