"""Rounds of a feature machine: a solve, gradients of what it found, the metric made of them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, InvalidParameterError, StrOptions

import mercer as mc
from mercer._progress import part
from mercer.models import _low_rank, _memory, _select
from mercer.models._agop import metric_root, outer_products
from mercer.models._arrays import Space, host
from mercer.models._categories import Encoder
from mercer.models._kernels import PRECOMPUTED, FittedKernel, fit_kernel
from mercer.models._rules import (
    COUNT,
    COUNT_OR_NONE,
    FRACTION,
    NOT_NEGATIVE,
    OF_KERNELS,
    POSITIVE,
    SOLVER,
    check,
)
from mercer.models._solve import Buffer, Solution, System, auto_rank, most_products

#: Points up to which "auto" takes a Cholesky factor at once.
DIRECT = {"cpu": 3000, "cuda": 32768}


@dataclasses.dataclass
class Sample:
    """Encoded rows [n, d], targets [n, k], weights [n] or None."""

    x: Any
    y: Any
    weights: Any

    @property
    def n(self) -> int:
        return int(self.x.shape[0])

    def rows(self, chosen: np.ndarray, space: Space) -> Sample:
        i = space.index(chosen)
        weights = None if self.weights is None else self.weights[i]
        return Sample(space.array(self.x[i]), space.array(self.y[i]), weights)

    def less(self, mean: Any) -> Sample:
        return Sample(self.x, self.y - mean, self.weights)


@dataclasses.dataclass
class Work:
    """Where a fit computes, the memory of its matrices, and the seed of what it draws."""

    space: Space
    buffer: Buffer
    seed: int


@dataclasses.dataclass
class Round:
    kernel: FittedKernel
    points: Any
    solution: Solution
    root: np.ndarray
    error: float = np.nan
    scores: Any = None  # [h, k] at the rows that were held out


class Rounds(BaseEstimator):
    """The parameters of feature machines, and rounds of solves and metrics."""

    _encoder: Encoder
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **{name: rule for name, rule in OF_KERNELS.items() if name != "metric"},
        "alpha": [POSITIVE],
        "n_rounds": [COUNT_OR_NONE],
        "diag": ["boolean"],
        "agop_power": [POSITIVE],
        "agop_samples": [COUNT],
        "center_grads": ["boolean"],
        "validation": [FRACTION, StrOptions({"gcv"}), None],
        "early_stopping": ["boolean"],
        "categorical_features": ["array-like", None],
        "max_leaf_size": [COUNT, None],
        "split_temperature": [NOT_NEGATIVE, StrOptions({"auto"})],
        "overlap": [Interval(Real, 0, 0.25, closed="both")],
        "n_trees": [COUNT],
        "solver": SOLVER,
        "tol": [FRACTION],
        "max_iter": [COUNT, None],
    }

    def __init__(self, kernel: Any = "matern12", *, bandwidth: float | str = 10.0,
                 alpha: float = 1e-3, n_rounds: int = 5, diag: bool = False,
                 agop_power: float = 0.5, agop_samples: int = 20_000, center_grads: bool = False,
                 validation: float | str | None = 0.1, early_stopping: bool = True,
                 categorical_features: Any = None, max_leaf_size: int | None = None,
                 split_temperature: float | str = "auto", overlap: float = 0.0, n_trees: int = 1,
                 solver: str = "auto", rank: int | str = "auto", tol: float = 1e-3,
                 max_iter: int | None = None,
                 kernel_params: Mapping[str, float] | None = None, device: str | None = None,
                 random_state: Any = None, progress: bool = False) -> None:  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.alpha = alpha
        self.n_rounds = n_rounds
        self.diag = diag
        self.agop_power = agop_power
        self.agop_samples = agop_samples
        self.center_grads = center_grads
        self.validation = validation
        self.early_stopping = early_stopping
        self.categorical_features = categorical_features
        self.max_leaf_size = max_leaf_size
        self.split_temperature = split_temperature
        self.overlap = overlap
        self.n_trees = n_trees
        self.solver = solver
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.device = device
        self.random_state = random_state
        self.progress = progress

    def _check(self, X_val: Any, y_val: Any) -> None:
        check(self)
        if isinstance(self.kernel, str) and self.kernel == PRECOMPUTED:
            raise InvalidParameterError(
                f"The 'kernel' parameter of {type(self).__name__} must have gradients. Got "
                "'precomputed' instead."
            )
        if (X_val is None) != (y_val is None):
            missing = "X_val" if X_val is None else "y_val"
            raise ValueError(f"X_val and y_val must be given together. Received None for {missing}")

    def _require_memory(self, n: int, space: Space) -> None:
        """MemoryError where not even a system of n points fits."""
        itemsize, is_direct = np.dtype(space.dtype).itemsize, self._is_direct(n, space)

        def most(free: int) -> int:
            return int(
                (free / itemsize) ** 0.5 if is_direct else (free / (18 * itemsize)) ** (2 / 3)
            )

        if is_direct:
            needed, what, other = (
                n * n * itemsize,
                'solver="direct"',
                'solver="cg" stores no matrix; ',
            )
        else:  # factors of n x rank numbers, rank near 6 sqrt(n)
            rank = auto_rank(n) if self.rank == "auto" else min(int(self.rank), n)
            needed, what, other = 3 * n * rank * itemsize, f'solver="cg" with rank={rank}', ""
        _memory.require(
            needed, space, what, n, type(self).__name__,
            lambda free: f"{other}max_leaf_size={max(most(free), 1)} makes systems that fit",
        )  # fmt: skip

    def _rounds(self, train: Sample, held: Sample | None, order: np.ndarray,
                work: Work) -> Round:  # fmt: skip
        """The best round by the held rows or by GCV; the last one where there is neither."""
        best: Any = None
        last: Any = None
        root: np.ndarray | None = self._first_root(train)
        self.history_, self.best_round_ = [], 0
        for i in range(self.n_rounds + 1):
            note = "" if last is None else f"round {i}, error {best.error:.4g}"
            with part(i, self.n_rounds + 1, note):
                last = self._judged(self._round(train, root, last, work), train, held, work)
            self.history_.append(_row(last))
            if best is None or not last.error >= best.error:
                best, self.best_round_ = last, i
            if i == self.n_rounds or (self.early_stopping and last.error > 1.1 * best.error):
                break
            products = self._products(train, last, order, work)
            root = metric_root(products, last.root, self._encoder.groups, float(self.agop_power))
            if root is None:
                break
        self._warn_of_rounds_without_error()
        return best

    def _warn_of_rounds_without_error(self) -> None:
        missed = sum(row["error"] == np.inf for row in self.history_)
        if missed:
            warnings.warn(
                f"{type(self).__name__}: {missed} of {len(self.history_)} rounds have no error, "
                "which counts as infinite: their predictions are not finite, or the products of "
                f"validation='gcv' did not converge at alpha = {self.alpha:g}. A larger alpha, or "
                'solver="direct" where its matrix fits, ends it',
                ConvergenceWarning,
                stacklevel=4,
            )

    def _first_root(self, train: Sample) -> np.ndarray:
        d = train.x.shape[1]
        return np.ones(d) if self.diag else np.eye(d)

    def _round(self, train: Sample, root: Any, before: Round | None, work: Work) -> Round:
        space = work.space
        points = FittedKernel(None, root=root).points(train.x, space)
        kernel = fit_kernel(
            self.kernel, points, space, bandwidth=self.bandwidth, weights=train.weights,
            kernel_params=self.kernel_params, random_state=work.seed,
        )  # fmt: skip
        kernel = dataclasses.replace(kernel, root=root)
        system = System(kernel, points, space, float(self.alpha), train.weights, work.buffer,
                        has_centers=False)  # fmt: skip
        return Round(kernel, points, self._solve(system, train.y, before, work.seed), root)

    def _judged(self, found: Round, train: Sample, held: Sample | None, work: Work) -> Round:
        """The round with its error; of what the solver made only the coefficients are kept."""
        kernel, solution, space = found.kernel, found.solution, work.space
        if held is not None:
            points = kernel.points(held.x, space)
            found.scores = kernel.product(points, found.points, solution.coef)
            found.error = _or_inf(mean_square(held.y - found.scores, held.weights, space))
        elif self.validation == "gcv":
            system = System(kernel, found.points, space, float(self.alpha), train.weights,
                            work.buffer, has_centers=False)  # fmt: skip
            found.error = _or_inf(_gcv(system, solution, work.seed, type(self).__name__))
        solution.factor = solution.preconditioner = None
        return found

    def _is_direct(self, n: int, space: Space) -> bool:
        few = n <= DIRECT[space.device.partition(":")[0]]
        return self.solver == "direct" or (self.solver == "auto" and few)

    def _solve(self, system: System, y: Any, before: Round | None, seed: int) -> Solution:
        """Solves in the way that ``solver`` names; "auto" tries "cg" for a factor's cost."""
        direct = self._is_direct(system.n, system.space) or (
            self.solver == "auto" and before is not None and before.solution.solver == "direct"
        )
        if not direct:
            limit = _budget(system, y) if self.solver == "auto" else most_products(system.n)
            solution, converged = _low_rank.solve(
                system, y, rank=self.rank, tol=self.tol, max_iter=self.max_iter or limit, seed=seed,
                coef0=None if before is None else before.solution.coef,
            )  # fmt: skip
            needed = 2 * system.n**2 * np.dtype(system.space.dtype).itemsize
            if converged or self.solver == "cg" or needed > _memory.free(system.space):
                return solution
        with warnings.catch_warnings():  # the residual of the round that is kept is what counts
            warnings.simplefilter("ignore", ConvergenceWarning)
            return system.solve(
                y, solver="direct", keep_factor=self.validation == "gcv", name=type(self).__name__
            )

    def _products(self, train: Sample, last: Round, order: np.ndarray, work: Work) -> np.ndarray:
        """The sum [d, d] of outer products of the round's gradients, by the points it mapped."""
        space, rows, weights = work.space, last.points, train.weights
        if len(order) > self.agop_samples:
            chosen = space.index(order[: self.agop_samples])
            rows = space.array(rows[chosen])
            weights = weights if weights is None else weights[chosen]
        return outer_products(
            last.kernel, rows, last.points, last.solution.coef, space, weights=weights,
            center=self.center_grads,
        )  # fmt: skip


def _budget(system: System, y: Any) -> int:
    """Products that cost about what a factor does; on a device half of that."""
    if system.space.on_device:
        return max(20, system.n // 600)
    return max(20, int(system.n / (4 * (10 + system.x.shape[1] + y.shape[1]))))


def _row(found: Round) -> dict[str, Any]:
    solution = found.solution
    return {
        "error": found.error, "bandwidth": found.kernel.bandwidth, "solver": solution.solver,
        "n_iter": solution.n_iter, "residual": solution.residual,
    }  # fmt: skip


def mean(y: Any, weights: Any) -> Any:
    if weights is None:
        return y.sum(0) / y.shape[0]
    return (y * weights[:, None]).sum(0) / weights.sum()


def mean_square(rest: Any, weights: Any, space: Space) -> float:
    squares = space.of("float64").array((rest * rest).sum(1))
    return float(mean(squares[:, None], weights)[0])


def _or_inf(error: float) -> float:
    return error if np.isfinite(error) else np.inf


def _gcv(system: System, solution: Solution, seed: int, name: str) -> float:
    if solution.factor is not None:
        trace = float(host(mc.linalg.cho_inverse_diagonal(solution.factor)).sum(dtype=np.float64))
    else:
        trace = system.n * _select.mean_inverse(system, seed, name)
    return _select.gcv(system, system.unscaled(solution.coef), system.ridge, trace)


def split(sample: Sample, seed: int, share: Any) -> tuple[np.ndarray, np.ndarray]:
    """(a random order of the rows, a mask of those held out: ``share`` of the weights, or none).

    Both follow from the rows' bits, so that equal rows stay together and a weight of 2 is the same
    as the row twice.
    """
    rows = np.ascontiguousarray(host(sample.x), np.float64) + 0.0  # -0 is 0
    factors = np.random.default_rng(seed).integers(0, 2**63, rows.shape[1], np.uint64) * 2 + 1
    keys = np.zeros(len(rows), np.uint64)
    for column, factor in zip(rows.T, factors, strict=True):
        keys ^= np.ascontiguousarray(column).view(np.uint64) * factor
        keys = (keys ^ (keys >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    order = np.argsort(keys, kind="stable")
    if share is None or isinstance(share, str):
        return order, np.zeros(len(rows), bool)
    weights = np.ones(len(rows)) if sample.weights is None else np.asarray(host(sample.weights))
    reached = np.cumsum(weights[order])
    last = keys[order[np.searchsorted(reached, share * reached[-1])]]
    held = keys <= last
    return order, held & ~held.all()
