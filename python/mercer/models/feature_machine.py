"""Recursive feature machines: kernel ridge regression that learns its metric."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import assert_all_finite, check_is_fitted

import mercer as mc
from mercer.models import _low_rank, _memory, _select
from mercer.models._agop import metric_root, outer_products
from mercer.models._arrays import (
    ClassifierScore,
    Data,
    RegressorScore,
    Space,
    host,
    restores,
    validate,
)
from mercer.models._categories import fit_encoder
from mercer.models._kernels import PRECOMPUTED, FittedKernel, fit_kernel
from mercer.models._labels import answers, encode, indicator
from mercer.models._solve import SOLVERS, Buffer, Solution, System, warn_unconverged

#: Points up to which "auto" takes a Cholesky factor at once.
_DIRECT = {"cpu": 3000, "cuda": 32768}


@dataclasses.dataclass
class _Sample:
    """Encoded rows [n, d], targets [n, k] without their mean, weights [n] or None."""

    x: Any
    y: Any
    weights: Any

    def rows(self, chosen: np.ndarray, space: Space) -> _Sample:
        i = space.index(chosen)
        weights = None if self.weights is None else self.weights[i]
        return _Sample(space.array(self.x[i]), space.array(self.y[i]), weights)


@dataclasses.dataclass
class _Round:
    kernel: FittedKernel
    points: Any
    solution: Solution
    root: np.ndarray
    error: float


class _FeatureMachine(BaseEstimator):
    """What regression and classification share: rounds of solves and metrics."""

    def __init__(self, kernel: Any = "matern12", *, bandwidth: float | str = 10.0,
                 alpha: float = 1e-3, n_rounds: int = 5, diag: bool = False,
                 agop_power: float = 0.5, agop_samples: int = 20_000, center_grads: bool = False,
                 validation: float | str | None = 0.1, early_stopping: bool = True,
                 categorical_features: Any = None, solver: str = "auto", rank: int | str = "auto",
                 tol: float = 1e-3, max_iter: int | None = None,
                 kernel_params: Mapping[str, float] | None = None, device: str | None = None,
                 random_state: Any = None) -> None:  # fmt: skip
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
        self.solver = solver
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter
        self.kernel_params = kernel_params
        self.device = device
        self.random_state = random_state

    def _check(self, X_val: Any, y_val: Any) -> None:
        share = self.validation
        known = share is None or (isinstance(share, str) and share == "gcv") or (
            isinstance(share, (int, float, np.number)) and 0 < share < 1
        )  # fmt: skip
        rules = {
            'kernel must have gradients: "precomputed" has none':
                not (isinstance(self.kernel, str) and self.kernel == PRECOMPUTED),
            "alpha must be a positive number": 0 < self.alpha < np.inf,
            "n_rounds must be 0 or more": self.n_rounds >= 0,
            "agop_power must be a positive number": 0 < self.agop_power < np.inf,
            "agop_samples must be 1 or more": self.agop_samples >= 1,
            'validation must be a number between 0 and 1, "gcv" or None': known,
            f"solver must be one of {SOLVERS}": self.solver in SOLVERS,
            "X_val and y_val must be given together": (X_val is None) == (y_val is None),
        }  # fmt: skip
        for rule, kept in rules.items():
            if not kept:
                name = rule.partition(" ")[0]
                raise ValueError(f"{rule}. Received {getattr(self, name, None)!r}")

    def _fit(self, data: Data, targets: Any, held: tuple[Any, Any] | None) -> None:
        """Rounds for targets [n, k]; held: X_val and targets of it. Writes what was found."""
        space, seed = data.space, check_random_state(self.random_state).randint(2**31 - 1)
        self._encoder = fit_encoder(
            self.categorical_features, data.x, getattr(self, "feature_names_in_", None)
        )
        self.intercept_ = _mean(targets, data.weights)
        every = _Sample(self._encoder(data.x, space), targets - self.intercept_, data.weights)
        order, validation = _split(data, seed, self.validation if held is None else None)
        buffer = Buffer()
        if self.solver == "direct":
            n, itemsize = every.x.shape[0], np.dtype(space.dtype).itemsize
            name = type(self).__name__
            _memory.require(n * n * itemsize, space, 'solver="direct"', n, name, has_centers=False)
            buffer.take(space, n, n)
        if held is not None:
            held_out = _Sample(self._encoder(held[0], space), held[1] - self.intercept_, None)
            best = self._rounds(every, held_out, order, space, buffer, seed)
        elif validation.any():
            parts = [every.rows(np.flatnonzero(m), space) for m in (~validation, validation)]
            inside = (np.cumsum(~validation) - 1)[order[~validation[order]]]
            best = self._rounds(*parts, inside, space, buffer, seed)
            best = self._round(every, None, best.root, None, space, buffer, seed)
        else:
            best = self._rounds(every, None, order, space, buffer, seed)
        self._write(best, every, space)

    def _rounds(self, train: _Sample, held: _Sample | None, order: np.ndarray, space: Space,
                buffer: Buffer, seed: int) -> _Round:  # fmt: skip
        """The best round by the held rows or by GCV; the last one where there is neither."""
        d = train.x.shape[1]
        root: np.ndarray | None = np.ones(d) if self.diag else np.eye(d)
        best, last = None, None
        self.history_, self.best_round_ = [], 0
        for i in range(self.n_rounds + 1):
            last = self._round(train, held, root, last, space, buffer, seed)
            self.history_.append(_row(last))
            if best is None or not last.error >= best.error:
                best, self.best_round_ = last, i
            if i == self.n_rounds or (self.early_stopping and last.error > 1.1 * best.error):
                break
            root = self._next_root(train, last, order, space)
            if root is None:
                break
        return best

    def _round(self, train: _Sample, held: _Sample | None, root: Any, before: _Round | None,
               space: Space, buffer: Buffer, seed: int) -> _Round:  # fmt: skip
        points = FittedKernel(None, root=root).points(train.x, space)
        kernel = fit_kernel(
            self.kernel, points, space, bandwidth=self.bandwidth, weights=train.weights,
            kernel_params=self.kernel_params, random_state=seed,
        )  # fmt: skip
        kernel = dataclasses.replace(kernel, root=root)
        system = System(kernel, points, space, float(self.alpha), train.weights, buffer)
        by_gcv = held is None and self.validation == "gcv"
        solution = self._solve(system, train.y, before, by_gcv, seed)
        error = np.nan
        if held is not None:
            scores = kernel.product(kernel.points(held.x, space), points, solution.coef)
            error = _mean_square(held.y - scores, held.weights, space)
        elif by_gcv:
            error = _gcv(system, solution, seed)
        solution.factor = solution.preconditioner = None
        return _Round(kernel, points, solution, root, error)

    def _solve(self, system: System, y: Any, before: _Round | None, keep_factor: bool,
               seed: int) -> Solution:  # fmt: skip
        """By the way that ``solver`` says; "auto" tries "cg" within the cost of a factor."""
        direct = self.solver == "direct" or (self.solver == "auto" and (
            (before is not None and before.solution.solver == "direct")
            or system.n <= _DIRECT[system.space.device.partition(":")[0]]
        ))  # fmt: skip
        if not direct:
            limit = self.max_iter or (_budget(system, y) if self.solver == "auto" else 1000)
            solution, converged = _low_rank.solve(
                system, y, rank=self.rank, tol=self.tol, max_iter=limit, seed=seed,
                coef0=None if before is None else before.solution.coef,
            )  # fmt: skip
            needed = 2 * system.n**2 * np.dtype(system.space.dtype).itemsize
            if converged or self.solver == "cg" or needed > _memory.free(system.space):
                return solution
        with warnings.catch_warnings():  # the residual of the round that is kept is what counts
            warnings.simplefilter("ignore", ConvergenceWarning)
            return system.solve(
                y, solver="direct", keep_factor=keep_factor, name=type(self).__name__
            )

    def _next_root(self, train: _Sample, last: _Round, order: np.ndarray, space: Space) -> Any:
        rows, weights = last.points, train.weights
        if len(order) > self.agop_samples:
            chosen = space.index(order[: self.agop_samples])
            rows = space.array(rows[chosen])
            weights = weights if weights is None else weights[chosen]
        products = outer_products(
            last.kernel, rows, last.points, last.solution.coef, space, weights=weights,
            center=self.center_grads,
        )  # fmt: skip
        return metric_root(products, last.root, self._encoder.groups, float(self.agop_power))

    def _write(self, best: _Round, every: _Sample, space: Space) -> None:
        root, solution = best.root, best.solution
        self.metric_ = root * root if root.ndim == 1 else root @ root
        diagonal = self.metric_ if root.ndim == 1 else np.diag(self.metric_)
        sources = self._encoder.sources
        self.feature_importances_ = np.bincount(sources, diagonal, self.n_features_in_)
        self._kernel, self._space, self._points = best.kernel, space, best.points
        self.X_fit_, self.bandwidth_ = every.x, best.kernel.bandwidth
        self.dual_coef_ = solution.coef
        self.solver_, self.n_iter_ = solution.solver, solution.n_iter
        self.residual_ = solution.residual
        met = 2 * self.tol if solution.solver == "cg" else max(self.tol, 1e-2)
        if solution.residual > met:
            warn_unconverged(type(self).__name__, solution, self.tol)

    def _scores(self, X: Any) -> tuple[Any, Any]:
        """Predictions [m, k] and the way back to X's library."""
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        points = self._kernel.points(self._encoder(data.x, data.space), data.space)
        coef = self.dual_coef_.reshape(self.dual_coef_.shape[0], -1)
        return self._kernel.product(points, self._points, coef) + self.intercept_, data.like

    def _held(self, X_val: Any, y_val: Any, data: Data) -> tuple[Any, Any] | None:
        """X_val in the fit's space, and y_val as it is, checked against each other."""
        if X_val is None:
            return None
        x = validate(self, X_val, reset=False, space=data.space).x
        check_consistent_length(host(X_val), host(y_val))
        return x, y_val


def _budget(system: System, y: Any) -> int:
    """Products that cost about what a factor does."""
    return max(20, int(system.n / (4 * (10 + system.x.shape[1] + y.shape[1]))))


def _row(found: _Round) -> dict[str, Any]:
    solution = found.solution
    return {
        "error": found.error, "bandwidth": found.kernel.bandwidth, "solver": solution.solver,
        "n_iter": solution.n_iter, "residual": solution.residual,
    }  # fmt: skip


def _mean(y: Any, weights: Any) -> Any:
    if weights is None:
        return y.sum(0) / y.shape[0]
    return (y * weights[:, None]).sum(0) / weights.sum()


def _mean_square(rest: Any, weights: Any, space: Space) -> float:
    squares = space.of("float64").array((rest * rest).sum(1))
    return float(_mean(squares[:, None], None if weights is None else weights)[0])


def _gcv(system: System, solution: Solution, seed: int) -> float:
    if solution.factor is not None:
        trace = float(host(mc.linalg.cho_inverse_diagonal(solution.factor)).sum(dtype=np.float64))
    else:
        trace = system.n * _select.mean_inverse(system, seed)
    a = solution.coef if system.weights is None else solution.coef / system.scale
    return _select.gcv(system, a, system.ridge, trace)


def _split(data: Data, seed: int, share: Any) -> tuple[np.ndarray, np.ndarray]:
    """(a random order of the rows, a mask of those held out).

    Both follow from the rows' bits, so that equal rows stay together and a weight of 2 is the same
    as the row twice.
    """
    rows = np.ascontiguousarray(host(data.x), np.float64) + 0.0  # -0 is 0
    factors = np.random.default_rng(seed).integers(0, 2**63, rows.shape[1], np.uint64) * 2 + 1
    keys = np.zeros(len(rows), np.uint64)
    for column, factor in zip(rows.T, factors, strict=True):
        keys ^= np.ascontiguousarray(column).view(np.uint64) * factor
        keys = (keys ^ (keys >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    order = np.argsort(keys, kind="stable")
    if share is None or isinstance(share, str):
        return order, np.zeros(len(rows), bool)
    weights = np.ones(len(rows)) if data.weights is None else np.asarray(host(data.weights))
    reached = np.cumsum(weights[order])
    last = keys[order[np.searchsorted(reached, share * reached[-1])]]
    held = keys <= last
    return order, held & ~held.all()


class RFMRegressor(RegressorScore, MultiOutputMixin, RegressorMixin, _FeatureMachine):
    """A recursive feature machine: kernel ridge regression in a metric learned from its gradients.

    Each round solves a kernel ridge regression and takes M = the average of its gradients' outer
    products (AGOP) as the next metric, divided by its largest entry (Radhakrishnan, Beaglehole,
    Pandit, Belkin, Science 2024). The best round by ``validation`` is kept. Features should be of
    comparable scale at first, as ``StandardScaler`` makes them.

    kernel, bandwidth, kernel_params: those of ``KernelRidge``; xRFM's "l2" is "matern12", its "l1"
    "product_laplace", and "lpq" and "sum_power_laplace" are called so here too. bandwidth in words
    is measured anew in each round. alpha: added to the diagonal. n_rounds: metrics that are
    learned. diag: learn weights of features alone. agop_power: the root of M that points are
    multiplied with. agop_samples: rows whose gradients are taken at most. center_grads: take the
    gradients' mean away. validation: the part of the rows that is held out to judge rounds, after
    which the best one is solved for all rows; "gcv" (generalised cross-validation of all rows), or
    None for the last round. early_stopping: end where a round is a tenth worse than the best.
    categorical_features: numbers, names or a mask of columns whose numbers name categories; each
    category gets a column, and metrics are 0 between features of which one is categorical. solver,
    rank, tol, max_iter: those of ``KernelRidge``; "cg" starts from the last round's coefficients.

    Attributes: ``metric_`` [D, D] or [D], what (x - z)^T metric (x - z) is taken with, which
    ``KernelRidge(metric=)`` takes too; ``feature_importances_`` [d], its diagonal; ``history_``
    (a dict of each round: error, bandwidth, solver, n_iter, residual), ``best_round_``;
    ``dual_coef_``, ``X_fit_``, ``intercept_``, ``bandwidth_``, ``solver_``, ``residual_``.

    >>> import numpy as np
    >>> from mercer.models import RFMRegressor
    >>> x = np.random.default_rng(0).normal(size=(300, 10))
    >>> m = RFMRegressor(n_rounds=2, random_state=0).fit(x, np.sin(x[:, 3]))
    >>> int(m.feature_importances_.argmax())
    3
    """

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None,
            y_val: Any = None) -> RFMRegressor:  # fmt: skip
        """X: [n, d]; y: [n] or [n, k]; sample_weight: [n] from 0 on; X_val, y_val: judge rounds.

        Raises ValueError as scikit-learn does, MemoryError and LinAlgError as ``KernelRidge``.
        """
        self._check(X_val, y_val)
        data = validate(
            self, X, y, sample_weight=sample_weight, multi_output=True, device=self.device
        )
        held, one = self._held(X_val, y_val, data), data.y.ndim == 1
        if held is not None:
            assert_all_finite(host(held[1]), input_name="y_val")
            held = held[0], data.space.array(held[1]).reshape(held[0].shape[0], -1)
        self._fit(data, data.y.reshape(data.y.shape[0], -1), held)
        if one:
            self.dual_coef_, self.intercept_ = self.dual_coef_[:, 0], self.intercept_[0]
        return self

    def predict(self, X: Any) -> Any:
        """X: [m, d]; values [m] or [m, k]."""
        scores, like = self._scores(X)
        return like(scores[:, 0] if self.dual_coef_.ndim == 1 else scores)


class RFMClassifier(ClassifierScore, ClassifierMixin, _FeatureMachine):
    """A recursive feature machine for classes: regression of 1 for each row's class and 0 else.

    Parameters and attributes: those of ``RFMRegressor``, and ``classes_``. Rounds are judged by the
    mean square of the errors (the Brier score).

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from mercer.models import RFMClassifier
    >>> X, y = load_wine(return_X_y=True)
    >>> RFMClassifier(n_rounds=2, random_state=0).fit(scale(X), y).predict_proba(scale(X)).shape
    (178, 3)
    """

    @restores
    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None,
            y_val: Any = None) -> RFMClassifier:  # fmt: skip
        """X: [n, d]; y: [n] labels; sample_weight: [n] from 0 on; X_val, y_val: judge rounds.

        Raises what ``RFMRegressor.fit`` does, and ValueError for one class and for labels in y_val
        that y does not have.
        """
        self._check(X_val, y_val)
        data = validate(self, X, y, sample_weight=sample_weight, labels=True, device=self.device)
        self.classes_, numbers = encode(self, data.y)
        held = self._held(X_val, y_val, data)
        if held is not None:
            labels = np.asarray(host(held[1])).reshape(-1)
            if not np.isin(labels, self.classes_).all():
                raise ValueError("y_val must have labels that y has")
            found = np.searchsorted(self.classes_, labels)
            held = held[0], indicator(found, len(self.classes_), data.space)
        self._fit(data, indicator(numbers, len(self.classes_), data.space), held)
        return self

    def decision_function(self, X: Any) -> Any:
        """X: [m, d]; for two classes [m], positive for the second one, else [m, k]."""
        scores, like = self._scores(X)
        return like(2 * scores[:, 0] - 1 if len(self.classes_) == 2 else scores)

    def predict_proba(self, X: Any) -> Any:
        """X: [m, d]; the regressions' values, cut off below 0.001, as shares of their sum."""
        scores, like = self._scores(X)
        xp = self._space.xp
        if len(self.classes_) == 2:
            scores = xp.concatenate([1 - scores, scores], 1)
        scores = xp.where(scores > 1e-3, scores, 0 * scores + 1e-3)
        return like(scores / scores.sum(1)[:, None])

    def predict(self, X: Any) -> Any:
        """X: [m, d]; labels [m]."""
        scores, like = self._scores(X)
        two = len(self.classes_) == 2
        return answers(self.classes_, (scores[:, 0] > 0.5) * 1 if two else scores.argmax(1), like)
