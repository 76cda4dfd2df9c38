"""k nearest neighbours with scikit-learn's estimators, searched exactly by ``mercer.knn``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.exceptions import DataConversionWarning
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

import mercer as mc
from mercer.models._arrays import (
    ClassifierScore,
    Data,
    RegressorScore,
    host,
    restores,
    validate,
)
from mercer.models._distances import PRECOMPUTED, fit_distance, why_not_distances
from mercer.models._neighbour_lists import refuse_negative, smallest
from mercer.models._products import knn
from mercer.models._rules import DEVICE, check, refuse_ignored
from mercer.models._spread import Ready, by_rows

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "KNeighborsTransformer"]

_EFFECTIVE = {1: "manhattan", 2: "euclidean", math.inf: "chebyshev"}
_WEIGHTS = [StrOptions({"uniform", "distance"}), callable, None]


class _Neighbors(BaseEstimator):
    """The points of a fit, their distance, and the search."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "algorithm": [StrOptions({"auto", "ball_tree", "kd_tree", "brute"})],
        "leaf_size": [Interval(Integral, 1, None, closed="left")],
        "p": [Interval(Real, 0, None, closed="right"), None],
        "metric": [str, mc.Expr, callable],
        "metric_params": [Mapping, None],
        "n_jobs": [Integral, None],
        "device": DEVICE,
        "progress": ["boolean"],
    }

    _takes: ClassVar[tuple[str, ...]] = ("dask", "dtensor")

    def _why_not(self, kind: str) -> str | None:
        return why_not_distances(self, kind)

    def _check(self) -> None:
        check(self)
        if isinstance(self.metric, str) and self.metric == PRECOMPUTED:
            refuse_ignored(self, "metric='precomputed'", "p", "metric_params")

    def _fit_points(self, data: Data) -> None:
        self._space, self._fit_X, self.n_samples_fit_ = data.space, data.x, data.x.shape[0]
        given = dict(self.metric_params or {})
        p: Any = given.get("p", 2 if self.p is None else self.p)
        self.effective_metric_, self.effective_metric_params_ = self.metric, given
        if isinstance(self.metric, str) and self.metric == "minkowski":
            plain = given.get("w") is None and p in _EFFECTIVE
            self.effective_metric_ = _EFFECTIVE[p] if plain else "minkowski"
            self.effective_metric_params_ = {} if plain else {**given, "p": p}
        self._distance = fit_distance(self.metric, data.x, data.space, p=p, params=given)
        if self._distance.precomputed and data.x.shape[0] != data.x.shape[1]:
            raise ValueError(
                "Precomputed matrix must be square. Input is a {}x{} matrix.".format(*data.x.shape)
            )
        if self._distance.precomputed:
            refuse_negative(data.x)

    @by_rows
    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """The nearest points that were fitted: (distances, indices), each [m, n_neighbors].

        X: [m, d], with a precomputed metric the distances [m, n]; None for the fitted points, of
        which none is then a neighbour of its own. Neighbours ascend by distance and, where
        distances are equal, by index. return_distance=False gives the indices alone. Raises
        ValueError where there are fewer than n_neighbors points.
        """
        check_is_fitted(self)
        count = self._count(n_neighbors)
        if X is None:
            found = self._without_self(*self._search(None, self._checked(count, None)), count)
            return found if return_distance else found[1]
        data = validate(self, X, reset=False, space=self._space)
        if not isinstance(data.x, Ready):
            count = self._checked(count, data.x)
        found = self._search(data.x, count)
        return tuple(map(data.like, found)) if return_distance else data.like(found[1])

    def _count(self, n_neighbors: Any) -> int:
        if n_neighbors is None:
            return self.n_neighbors
        if not isinstance(n_neighbors, Integral):
            raise TypeError(
                f"n_neighbors does not take {type(n_neighbors)} value, enter integer value"
            )
        if n_neighbors <= 0:
            raise ValueError(f"Expected n_neighbors > 0. Got {n_neighbors}")
        return int(n_neighbors)

    def _checked(self, count: int, x: Any) -> int:
        """How many to search for: one more among the fitted points."""
        own = x is None
        if count + own > self.n_samples_fit_:
            raise ValueError(
                f"Expected n_neighbors {'<' if own else '<='} n_samples_fit, but n_neighbors = "
                f"{count}, n_samples_fit = {self.n_samples_fit_}, "
                f"n_samples = {self.n_samples_fit_ if own else x.shape[0]}"
            )
        return count + own

    def _search(self, x: Any, count: int) -> tuple[Any, Any]:
        """(distances, indices) [m, count] in the space of the fit; x None: the fitted points."""
        if isinstance(x, Ready):
            return x.parts
        f, space = self._distance, self._space
        if f.precomputed:
            if x is not None:
                refuse_negative(x)
            return smallest(self._fit_X if x is None else x, count, space)
        points = f.points(self._fit_X, space)
        queries = points if x is None else f.points(x, space)
        return knn(f.formula, queries, points, count, w=f.w, **f.params)

    def _parts(self, x: Any, n_neighbors: int | None = None, **rest: Any) -> tuple[Any, Any]:
        """What ``_search`` gives, where the fitted points are in chunks."""
        return self._search(x, self._checked(self._count(n_neighbors), x))

    def _without_self(self, values: Any, indices: Any, count: int) -> tuple[Any, Any]:
        """Drops each point from its own list, or the first where duplicates push it out."""
        n = self.n_samples_fit_
        keep = host(indices) != np.arange(n)[:, None]
        keep[keep.all(1), 0] = False
        columns = self._space.index(np.nonzero(keep)[1].reshape(n, count))
        rows = self._space.index(np.arange(n)[:, None])
        return values[rows, columns], indices[rows, columns]

    def kneighbors_graph(
        self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> Any:
        """The neighbours as a sparse matrix of SciPy, CSR [m, n]: ones, or the distances.

        Arguments and errors: those of ``kneighbors``; mode: "connectivity" or "distance".
        """
        check_is_fitted(self)
        if mode not in ("connectivity", "distance"):
            raise ValueError(
                f'Unsupported mode, must be one of "connectivity", or "distance" but got "{mode}" '
                "instead"
            )
        values, indices = map(host, self.kneighbors(X, n_neighbors))
        m, count = indices.shape
        filled = np.ones(m * count) if mode == "connectivity" else values.ravel()
        starts = np.arange(0, m * count + 1, count)
        return scipy.sparse.csr_matrix(
            (filled, indices.ravel(), starts), shape=(m, self.n_samples_fit_)
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = isinstance(self.metric, str) and self.metric == PRECOMPUTED
        return tags


class _Supervised(_Neighbors):
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Neighbors._parameter_constraints,
        "weights": _WEIGHTS,
    }

    def __init__(
        self, n_neighbors: int = 5, *, weights: Any = "uniform", algorithm: str = "auto",
        leaf_size: int = 30, p: float = 2, metric: Any = "minkowski",
        metric_params: dict[str, Any] | None = None, n_jobs: int | None = None,
        device: str | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.p = p
        self.metric = metric
        self.metric_params = metric_params
        self.n_jobs = n_jobs
        self.device = device
        self.progress = progress

    def _voters(self, X: Any) -> tuple[Any, Any, Any]:
        """(indices [m, k] and weights [m, k] or None, in the space; how results come back)."""
        check_is_fitted(self)
        if X is None:
            count = self.n_neighbors
            values, indices = self._without_self(
                *self._search(None, self._checked(count, None)), count
            )
            return indices, self._votes(values), lambda result: result
        data = validate(self, X, reset=False, space=self._space)
        count = self.n_neighbors
        if not isinstance(data.x, Ready):
            count = self._checked(count, data.x)
        values, indices = self._search(data.x, count)
        return indices, self._votes(values), data.like

    def _votes(self, distances: Any) -> Any:
        if self.weights in (None, "uniform"):
            return None
        if callable(self.weights):
            return self._space.array(self.weights(distances))
        with np.errstate(divide="ignore"):
            inverse = 1 / distances
        xp = self._space.xp
        coincident = ~xp.isfinite(inverse)
        return xp.where(coincident.any(1)[:, None], coincident * xp.ones_like(inverse), inverse)


class KNeighborsRegressor(RegressorScore, MultiOutputMixin, RegressorMixin, _Supervised):
    """The mean of the k nearest targets: scikit-learn's estimator on ``mercer.knn``.

    n_neighbors: k. weights: "uniform", "distance" (1/d; where points coincide only they count) or a
    function of the distances [m, k]. metric: "minkowski" of the power p, any other metric of
    ``mercer.cdist`` by its name, the text of a formula, an expression, a function of two points
    that is traced once, or "precomputed". metric_params: its parameters by name. device: where host
    arrays are computed with, such as "cuda". progress: a search of more than two seconds shows a
    bar. algorithm, leaf_size and n_jobs are scikit-learn's and change nothing: every search is
    exact, on ``mercer.get_num_threads()`` threads.

    After ``fit``: ``n_samples_fit_``, ``effective_metric_``, ``effective_metric_params_``,
    ``n_features_in_``, ``feature_names_in_``.

    >>> KNeighborsRegressor(3, weights="distance", metric="sum(abs(x-z)^0.5)").fit(X, y).predict(Z)
    """

    @restores
    def fit(self, X: Any, y: Any) -> KNeighborsRegressor:
        """X: [n, d], or distances [n, n]; y: [n] or [n, outputs]. Returns the estimator.

        Raises ValueError for NaN, wrong shapes and parameters out of their range.
        """
        self._check()
        data = validate(self, X, y, multi_output=True, device=self.device)
        self._fit_points(data)
        self._y = data.y
        return self

    @by_rows
    def predict(self, X: Any) -> Any:
        """[m] or [m, outputs] for the points X [m, d]; None: each fitted point by the others."""
        indices, votes, like = self._voters(X)
        columns = self._y.reshape(self.n_samples_fit_, -1)
        if votes is None:
            mean = columns[indices].sum(1) / indices.shape[1]
        else:
            sums = self._space.xp.einsum("mk,mke->me", votes, columns[indices])
            mean = sums / votes.sum(1)[:, None]
        return like(mean.reshape((-1, *self._y.shape[1:])))


class KNeighborsClassifier(ClassifierScore, MultiOutputMixin, ClassifierMixin, _Supervised):
    """The vote of the k nearest points: scikit-learn's estimator on ``mercer.knn``.

    Parameters and attributes are those of KNeighborsRegressor, and ``classes_``, ``outputs_2d_``.

    >>> KNeighborsClassifier(5, metric="cosine").fit(X, labels).predict_proba(X_new)
    """

    @restores
    def fit(self, X: Any, y: Any) -> KNeighborsClassifier:
        """X: [n, d], or distances [n, n]; y: labels [n] or [n, outputs]. Returns the estimator.

        Raises ValueError for NaN, wrong shapes, targets that are no classes and parameters out of
        their range.
        """
        self._check()
        data = validate(self, X, y, labels=True, multi_output=True, device=self.device)
        labels = data.y
        self.outputs_2d_ = labels.ndim == 2 and labels.shape[1] > 1
        if labels.ndim == 2 and not self.outputs_2d_:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected. Please change the "
                "shape of y to (n_samples,), for example using ravel().",
                DataConversionWarning,
                stacklevel=3,
            )
        check_classification_targets(labels)
        columns = labels.reshape(labels.shape[0], -1).T
        coded = [np.unique(column, return_inverse=True) for column in columns]
        classes = [names for names, _ in coded]
        self.classes_ = classes if self.outputs_2d_ else classes[0]
        self._fit_points(data)
        self._codes = [data.space.index(codes.astype(np.int64)) for _, codes in coded]
        return self

    @by_rows
    def predict_proba(self, X: Any) -> Any:
        """[m, classes] for the points X [m, d], a list of these where there are several outputs.

        X None: each fitted point by the others. Raises ValueError where all neighbours of a point
        weigh 0.
        """
        shares, like = self._shares(X)
        shares = [like(share) for share in shares]
        return shares if self.outputs_2d_ else shares[0]

    @by_rows
    def predict(self, X: Any) -> Any:
        """The labels [m] or [m, outputs] with the most votes, the first of equal ones."""
        shares, like = self._shares(X)
        classes = self.classes_ if self.outputs_2d_ else [self.classes_]
        labels = np.stack(
            [names[host(s).argmax(1)] for names, s in zip(classes, shares, strict=True)], axis=1
        )
        labels = labels if self.outputs_2d_ else labels[:, 0]
        return like(labels) if labels.dtype.kind in "biuf" else labels

    def _shares(self, X: Any) -> tuple[list[Any], Any]:
        """The shares [m, classes] of each output in the space of the fit, in float64."""
        indices, votes, like = self._voters(X)
        if votes is not None and not host((votes != 0).any(1)).all():
            raise ValueError(
                "All neighbors of some sample is getting zero weights. Please modify 'weights' to "
                "avoid this case if you are using a user-defined function."
            )
        classes = self.classes_ if self.outputs_2d_ else [self.classes_]
        wide, rows = self._space.of("float64"), self._space.index(np.arange(indices.shape[0]))
        shares = []
        for names, codes in zip(classes, self._codes, strict=True):
            share = wide.zeros(indices.shape[0], len(names))
            for k in range(indices.shape[1]):
                share[rows, codes[indices[:, k]]] += 1.0 if votes is None else votes[:, k]
            shares.append(share / share.sum(1)[:, None])
        return shares, like

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class KNeighborsTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Neighbors):
    """The graph of the k nearest neighbours: scikit-learn's estimator on ``mercer.knn``.

    mode: "distance", where a fitted point counts as one more neighbour, or "connectivity".
    Other parameters and attributes are those of KNeighborsRegressor.

    >>> KNeighborsTransformer(n_neighbors=10, metric="cityblock").fit_transform(X)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_Neighbors._parameter_constraints,
        "mode": [StrOptions({"distance", "connectivity"})],
    }

    def __init__(
        self, *, mode: str = "distance", n_neighbors: int = 5, algorithm: str = "auto",
        leaf_size: int = 30, metric: Any = "minkowski", p: float = 2,
        metric_params: dict[str, Any] | None = None, n_jobs: int | None = None,
        device: str | None = None, progress: bool = False,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.n_neighbors = n_neighbors
        self.algorithm = algorithm
        self.leaf_size = leaf_size
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.n_jobs = n_jobs
        self.device = device
        self.progress = progress

    @restores
    def fit(self, X: Any, y: Any = None) -> KNeighborsTransformer:
        """X: [n, d], or distances [n, n]; y is ignored. Returns the estimator.

        Raises ValueError for NaN, wrong shapes and parameters out of their range.
        """
        self._check()
        self._fit_points(validate(self, X, device=self.device))
        self._n_features_out = self.n_samples_fit_
        return self

    def transform(self, X: Any) -> Any:
        """The graph of the points X [m, d] and the fitted ones: a sparse CSR matrix [m, n]."""
        check_is_fitted(self)
        count = self.n_neighbors + (self.mode == "distance")
        return self.kneighbors_graph(X, count, self.mode)

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """``fit``, then ``transform`` of the same points."""
        return self.fit(X).transform(X)
