"""Recursive feature machines: kernel ridge regression that learns its metric."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import assert_all_finite, check_is_fitted

from mercer._progress import part
from mercer.models import _tree
from mercer.models._arrays import (
    ClassifierScore,
    Data,
    RegressorScore,
    host,
    restores,
    validate,
)
from mercer.models._categories import fit_encoder
from mercer.models._labels import answers, encode, indicator
from mercer.models._rounds import Round, Rounds, Sample, Work, mean, split
from mercer.models._solve import Buffer, warn_unconverged
from mercer.models._spread import by_rows

_OF_ROUNDS = (
    "history_", "best_round_", "dual_coef_", "intercept_", "X_fit_", "bandwidth_", "solver_",
    "n_iter_", "residual_", "_kernel", "_points",
)  # fmt: skip
_OF_TREES = ("tree_", "split_temperature_", "trees_")
#: Rows of a tree's leaves at most whose gradients say where to split them.
_SAMPLE = 3000
#: Rows at most by which a temperature is chosen.
_JUDGES = 4096


class _FeatureMachine(Rounds):
    """What regression and classification share: one machine, or a tree of them."""

    def _fit(self, data: Data, targets: Any, held: tuple[Any, Any] | None, one: bool) -> None:
        """For targets [n, k]; held: X_val and targets of it. Writes what was found."""
        space, seed = data.space, check_random_state(self.random_state).randint(2**31 - 1)
        for name in (*_OF_ROUNDS, *_OF_TREES):
            self.__dict__.pop(name, None)
        self._encoder = fit_encoder(
            self.categorical_features, data.x, getattr(self, "feature_names_in_", None)
        )
        self._space, self._one = space, one
        self.leaves_: list[Any] = []
        every = Sample(self._encoder(data.x, space), targets, data.weights)
        given = None if held is None else Sample(self._encoder(held[0], space), held[1], None)
        work, most = Work(space, Buffer(), seed), min(self.max_leaf_size or every.n, every.n)
        self._require_memory(most, space)
        if self.solver == "direct":
            work.buffer.take(space, most, most)
        if every.n > most and self.n_trees > 1:
            self._fit_trees(every, given, work)
        elif every.n > most:
            self._fit_leaves(every, given, work)
        else:
            self._fit_alone(every, given, work)

    def _fit_alone(self, every: Sample, held: Sample | None,
                   work: Work) -> tuple[np.ndarray, Any] | None:  # fmt: skip
        """One machine; numbers of the rows that judged it, with what it said of them."""
        self.intercept_ = mean(every.y, every.weights)
        every, judges = every.less(self.intercept_), None
        order, chosen = split(every, work.seed, self.validation if held is None else None)
        if chosen.any():
            train, own = (every.rows(np.flatnonzero(m), work.space) for m in (~chosen, chosen))
            inside = (np.cumsum(~chosen) - 1)[order[~chosen[order]]]
            with part(0, 2):
                best = self._rounds(train, own, inside, work)
            judges = np.flatnonzero(chosen), best.scores + self.intercept_
            with part(1, 2, f"round {self.best_round_} of all rows"):
                best = self._round(every, best.root, None, work)
        else:
            held = None if held is None else held.less(self.intercept_)
            best = self._rounds(every, held, order, work)
        self._write(best, every)
        return judges

    def _fit_trees(self, every: Sample, held: Sample | None, work: Work) -> None:
        """Trees of other draws, one after the other."""
        self.trees_ = []
        for i in range(self.n_trees):
            self.trees_.append(self._part(n_trees=1))
            with part(i, self.n_trees, f"tree {i + 1} of {self.n_trees}"):
                self.trees_[-1]._fit_leaves(every, held, replace(work, seed=work.seed + i))
        self._summarise(self.trees_, np.full(self.n_trees, 1 / self.n_trees))

    def _fit_leaves(self, every: Sample, held: Sample | None, work: Work) -> None:
        """A machine for each leaf of a tree, one after the other."""
        order, _ = split(every, work.seed, None)
        most = self.max_leaf_size or every.n
        directions = partial(self._directions, every, work, most)
        self.tree_, leaves = _tree.grow(
            every.x, order, most, directions, work.space, self.overlap
        )  # fmt: skip
        routes = None if held is None else self.tree_.routes(held.x, 0.0, work.space)
        judges = []
        for i, rows in enumerate(leaves):
            mine = None
            if routes is not None and held is not None:
                mine = held.rows(routes[i][0], work.space)
            if mine is not None and mine.n < min(100, len(rows) / 10):
                mine = None  # too few to judge by
            self.leaves_.append(self._part(max_leaf_size=None))
            with part(i, len(leaves), f"leaf {i + 1} of {len(leaves)}"):
                own = every.rows(rows, work.space)
                judges.append(self.leaves_[-1]._fit_alone(own, mine, work))
        self.split_temperature_: Any = self.split_temperature
        if self.split_temperature == "auto":
            self.split_temperature_ = self._temperature(every, held, leaves, judges, work)
        sizes = np.array([len(rows) for rows in leaves])
        self._summarise(self.leaves_, sizes / sizes.sum())

    def _summarise(self, parts: list[Any], shares: np.ndarray) -> None:
        self.n_iter_ = max(own.n_iter_ for own in parts)
        self.residual_ = max(own.residual_ for own in parts)
        self.metric_ = sum(s * own.metric_ for s, own in zip(shares, parts, strict=True))
        self._weigh_features()

    def _directions(self, every: Sample, work: Work, most: int, rows: np.ndarray) -> np.ndarray:
        """Along which the function of some of these rows changes, most first: [d, d]."""
        some = every.rows(rows[: min(_SAMPLE, most)], work.space)
        some = some.less(mean(some.y, some.weights))
        found = self._round(some, self._first_root(some), None, work)
        products = self._products(some, found, np.arange(some.n), work)
        return np.linalg.eigh(products)[1][:, ::-1]

    def _part(self, **params: Any) -> Any:
        """A leaf or a tree, before its fit."""
        made = clone(self).set_params(**params)
        for name in ("n_features_in_", "feature_names_in_", "classes_", "_encoder", "_space",
                     "_one"):  # fmt: skip
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        made.leaves_ = []
        return made

    def _temperature(self, every: Sample, held: Sample | None, leaves: list[np.ndarray],
                     judges: list[Any], work: Work) -> float:  # fmt: skip
        """The best one, judged by rows that no leaf's rounds were solved for; 0 without any."""
        space, count = work.space, max(1, _JUDGES // len(judges))
        if held is not None:
            drawn = np.random.default_rng(work.seed).permutation(held.n)[:_JUDGES]
            some, own = held.rows(drawn, space), []
        else:
            told = [(rows[found[0]], found[1]) for rows, found in zip(leaves, judges, strict=True)
                    if found is not None]  # fmt: skip
            if not told:
                return 0.0
            drawn = np.unique(np.concatenate([rows[:count] for rows, _ in told]))
            own = _own_words(drawn, leaves, judges)
            kept = ~np.any([solved for solved, _, _ in own], axis=0)
            drawn = drawn[kept]
            some = every.rows(drawn, space)
            own = _own_words(drawn, leaves, judges)
        if not some.n:
            return 0.0
        table = np.stack([host(leaf._values(some.x)).astype(np.float64) for leaf in self.leaves_])
        for i, (_, places, values) in enumerate(own):
            table[i, places] = values  # a leaf's own rows are judged by its rounds without them
        weights = None if some.weights is None else host(some.weights)
        return _tree.best_temperature(self.tree_, host(some.x), table, host(some.y), weights)

    def _write(self, best: Round, every: Sample) -> None:
        root, solution = best.root, best.solution
        self.metric_ = root * root if root.ndim == 1 else root @ root
        self._weigh_features()
        self._kernel, self._points = best.kernel, best.points
        self.X_fit_, self.bandwidth_ = every.x, best.kernel.bandwidth
        self.dual_coef_ = solution.coef[:, 0] if self._one else solution.coef
        self.intercept_ = self.intercept_[0] if self._one else self.intercept_
        self.solver_, self.n_iter_ = solution.solver, solution.n_iter
        self.residual_ = solution.residual
        met = 2 * self.tol if solution.solver == "cg" else max(self.tol, 1e-2)
        if solution.residual > met:
            warn_unconverged(type(self).__name__, solution, self.tol)

    def _weigh_features(self) -> None:
        diagonal = self.metric_ if self.metric_.ndim == 1 else np.diag(self.metric_)
        self.feature_importances_ = np.bincount(
            self._encoder.sources, diagonal, self.n_features_in_
        )

    def _scores(self, X: Any) -> tuple[Any, Any]:
        """Predictions [m, k] and the way back to X's library."""
        check_is_fitted(self)
        data = validate(self, X, reset=False, space=self._space)
        return self._values(self._encoder(data.x, data.space)), data.like

    def _values(self, x: Any) -> Any:
        """Predictions [m, k] at encoded points."""
        if "trees_" in vars(self):
            return sum(tree._values(x) for tree in self.trees_) / len(self.trees_)
        if self.leaves_:
            return self._values_of_leaves(x)
        coef = self.dual_coef_.reshape(self.dual_coef_.shape[0], -1)
        points = self._kernel.points(x, self._space)
        return self._kernel.product(points, self._points, coef) + self.intercept_

    def _values_of_leaves(self, x: Any) -> Any:
        space, found = self._space, None
        routes = self.tree_.routes(x, self.split_temperature_, space)
        for leaf, (rows, shares) in zip(self.leaves_, routes, strict=True):
            if not len(rows):
                continue
            i = space.index(rows)
            part = leaf._values(space.array(x[i])) * space.array(shares)[:, None]
            found = space.zeros(x.shape[0], part.shape[1]) if found is None else found
            found[i] += part
        return found

    def _held(self, X_val: Any, y_val: Any, data: Data) -> tuple[Any, Any] | None:
        """X_val in the fit's space, and y_val as it is, checked against each other."""
        if X_val is None:
            return None
        x = validate(self, X_val, reset=False, space=data.space).x
        check_consistent_length(host(X_val), host(y_val))
        return x, y_val


def _own_words(drawn: np.ndarray, leaves: list[np.ndarray],
               judges: list[Any]) -> list[tuple[np.ndarray, np.ndarray, Any]]:  # fmt: skip
    """For each leaf: which of the rows drawn its rounds were solved for, places of those that they
    were not solved for, and what they said of these."""
    found = []
    for rows, judged in zip(leaves, judges, strict=True):
        held = rows[:0] if judged is None else rows[judged[0]]
        _, places, own = np.intersect1d(drawn, held, return_indices=True)
        solved = np.isin(drawn, rows)
        solved[places] = False
        found.append((solved, places, None if judged is None else host(judged[1])[own]))
    return found


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
    category gets a column, and metrics are 0 between features of which one is categorical.
    max_leaf_size: rows that one system is solved for at most. More are split in two near the median
    of their projections onto the direction in which a first fit of some of them changes most,
    again and again; each leaf is a machine of its own, with its own validation. split_temperature:
    0, and a point is predicted by the leaf that it falls into; T > 0, by an average of leaves, with
    shares that change over T times the interquartile range of the projections at each split; or
    "auto", the best of 0 and 20 others for the validation data. overlap: the part, up to 0.25, of
    the rows of a split on either side of it, next to it, that both halves are solved for. n_trees:
    such trees, whose splits and validation data are drawn anew, and whose predictions are averaged.
    solver, rank, tol, max_iter: those
    of ``KernelRidge``; "cg" starts from the last round's coefficients. progress: a fit of more than
    two seconds shows a bar with the rounds' errors.

    Attributes: ``metric_`` [D, D] or [D], what (x - z)^T metric (x - z) is taken with, which
    ``KernelRidge(metric=)`` takes too; ``feature_importances_`` [d], its diagonal; ``history_``
    (a dict of each round: error, infinite where it was not found, bandwidth, solver, n_iter,
    residual), ``best_round_``;
    ``dual_coef_``, ``X_fit_``, ``intercept_``, ``bandwidth_``, ``solver_``, ``residual_``. Where
    rows were split, ``leaves_`` is a list of fitted estimators with these attributes, ``metric_``
    their metrics' mean, ``n_iter_`` and ``residual_`` the largest of theirs, and ``tree_`` and
    ``split_temperature_`` say how points find them. Several trees are estimators in ``trees_``, in
    the place of leaves.

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
        targets = data.y.reshape(data.y.shape[0], -1)
        if held is not None:
            assert_all_finite(host(held[1]), input_name="y_val")
            held = held[0], data.space.array(held[1]).reshape(held[0].shape[0], -1)
            outputs, others = targets.shape[1], held[1].shape[1]
            if others != outputs:
                raise ValueError(
                    f"y_val must have as many outputs as y, {outputs}. Received {others}"
                )
        self._fit(data, targets, held, one)
        return self

    @by_rows
    def predict(self, X: Any) -> Any:
        """X: [m, d]; values [m] or [m, k]."""
        scores, like = self._scores(X)
        return like(scores[:, 0] if self._one else scores)


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
            labels = np.asarray(host(held[1]))
            if labels.size != held[0].shape[0]:
                raise ValueError(
                    f"y_val must be one label for each row of X_val, [{held[0].shape[0]}]. "
                    f"Received the shape {labels.shape}"
                )
            labels = labels.reshape(-1)
            if not np.isin(labels, self.classes_).all():
                raise ValueError("y_val must have labels that y has")
            found = np.searchsorted(self.classes_, labels)
            held = held[0], indicator(found, len(self.classes_), data.space)
        self._fit(data, indicator(numbers, len(self.classes_), data.space), held, False)
        return self

    @by_rows
    def decision_function(self, X: Any) -> Any:
        """X: [m, d]; for two classes [m], positive for the second one, else [m, k]."""
        scores, like = self._scores(X)
        return like(2 * scores[:, 0] - 1 if len(self.classes_) == 2 else scores)

    @by_rows
    def predict_proba(self, X: Any) -> Any:
        """X: [m, d]; the regressions' values, cut off below 0.001, as shares of their sum."""
        scores, like = self._scores(X)
        xp = self._space.xp
        if len(self.classes_) == 2:
            scores = xp.concatenate([1 - scores, scores], 1)
        scores = xp.where(scores > 1e-3, scores, 0 * scores + 1e-3)
        return like(scores / scores.sum(1)[:, None])

    @by_rows
    def predict(self, X: Any) -> Any:
        """X: [m, d]; labels [m]."""
        scores, like = self._scores(X)
        two = len(self.classes_) == 2
        return answers(self.classes_, (scores[:, 0] > 0.5) * 1 if two else scores.argmax(1), like)
