"""What each rank checks of mercer.models: fits on DTensors are those of one process."""

from __future__ import annotations

import pickle

import mercer as mc
import numpy as np
import pytest
import torch
from distributed_worker import ROWS, WHOLE, raises, randn
from mercer.models import (
    GaussianProcessRegressor,
    KernelDensity,
    KernelLogisticRegression,
    KernelPCA,
    KernelRidge,
    KernelRidgeClassifier,
    KernelRidgeCV,
    KNeighborsClassifier,
    KNeighborsRegressor,
    SparseGaussianProcessRegressor,
    SpectralEmbedding,
    _memory,
    _paths,
)
from sklearn.base import clone

X, NEW = randn(201, 3, seed=1), randn(31, 3, seed=2)
Y = torch.sin(X[:, 0]) + 0.1 * randn(201, seed=3)
# Products are summed by rows as in one process; what differs are sums of a call's points.
BOUND = 1e-9


def near(found, expected, bound=BOUND):
    np.testing.assert_allclose(found.full_tensor(), expected, atol=bound, rtol=0)
    assert tuple(found.placements) == (ROWS,)


def check_ridge(ranks):
    x, y, new = (ranks.put(t) for t in (X, Y, NEW))
    for weights in (None, torch.arange(201) % 3):
        given = {} if weights is None else {"sample_weight": ranks.put(weights)}
        model = KernelRidge(alpha=0.1, tol=1e-10, random_state=0).fit(x, y, **given)
        one = KernelRidge(alpha=0.1, tol=1e-10, solver="cg", random_state=0).fit(
            X, Y, sample_weight=weights
        )
        assert model.solver_ == "cg"
        assert model.n_iter_ == one.n_iter_
        np.testing.assert_allclose(model.dual_coef_, one.dual_coef_, atol=BOUND)
        near(model.predict(new), one.predict(NEW))
        near(one.predict(new), one.predict(NEW))
        np.testing.assert_allclose(model.predict(NEW), one.predict(NEW), atol=BOUND)
        assert model.score(new, ranks.put(NEW[:, 0])) == pytest.approx(one.score(NEW, NEW[:, 0]))
    few = model.predict(ranks.put(NEW[:1]))
    np.testing.assert_allclose(few.full_tensor(), one.predict(NEW[:1]), atol=BOUND)
    whole = KernelRidge(alpha=0.1).fit(ranks.put(X, WHOLE), Y).predict(ranks.put(NEW, WHOLE))
    assert tuple(whole.placements) == (WHOLE,)


def check_choices(ranks):
    options = {"alphas": (0.01, 0.1), "bandwidths": (0.5, 1.0), "random_state": 0, "tol": 1e-8}
    model = KernelRidgeCV(**options).fit(ranks.put(X), ranks.put(Y))
    one = KernelRidgeCV(**options, select="gcv").fit(X, Y)
    assert (model.alpha_, model.bandwidth_) == (one.alpha_, one.bandwidth_)
    np.testing.assert_allclose(model.cv_results_["scores"], one.cv_results_["scores"], rtol=1e-7)


def check_classes(ranks):
    labels = (Y > 0).long() + (Y > 0.5)
    model = KernelRidgeClassifier(tol=1e-10, probability=True, random_state=0).fit(
        ranks.put(X), ranks.put(labels)
    )
    one = KernelRidgeClassifier(solver="cg", tol=1e-10, probability=True, random_state=0).fit(
        X, labels
    )
    new = ranks.put(NEW)
    near(model.predict(new), one.predict(NEW), 0)
    near(model.decision_function(new), one.decision_function(NEW))
    assert model.predict_proba(new).shape == (31, 3)
    words = KernelRidgeClassifier(alpha=0.1).fit(X, np.array(["a", "b"])[(Y > 0).int()])
    raises(NotImplementedError, "labels must be numbers", lambda: words.predict(new))


def check_faults_of_one_rank(ranks):
    """All ranks raise, and go on."""
    from mercer.models import _ranks

    def broken(*arguments, **named):
        raise ValueError("this rank is broken")

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    model, x, y = KernelRidge(random_state=0), ranks.put(X), ranks.put(Y)
    last = ranks.size - 1
    if ranks.size > 1:
        with pytest.MonkeyPatch.context() as patch:
            if ranks.rank == last:
                patch.setattr(_ranks, "_product", broken)
            raises(RuntimeError, f"rank {last}: ValueError: this rank", lambda: model.fit(x, y))
    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank == 0:
            patch.setattr(_paths._Run, "polish", interrupted)
        raises(KeyboardInterrupt, "", lambda: model.fit(x, y))
    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank == last:
            patch.setattr(_memory, "free", lambda space: 100)
        raises(MemoryError, "all points [201, 3], which each rank holds", lambda: model.fit(x, y))
    assert not hasattr(model, "dual_coef_")
    np.testing.assert_allclose(
        model.fit(x, y).predict(NEW),
        KernelRidge(solver="cg", random_state=0).fit(X, Y).predict(NEW),
    )


def check_refusals(ranks):
    x, y = ranks.put(X), ranks.put(Y)
    model = KernelRidge().fit(x, y)
    before = dict(vars(model))
    for estimator, given, kind, words in (
        (KernelRidge(solver="direct"), (x, y), NotImplementedError, "X.full_tensor()"),
        (KernelRidge(solver="fixed"), (x, y), NotImplementedError, "solver='fixed'"),
        (KernelRidge(centers=3), (x, y), NotImplementedError, "centers="),
        (KernelRidgeCV(select="loo"), (x, y), NotImplementedError, "select='loo'"),
        (SparseGaussianProcessRegressor(), (x, y), NotImplementedError, "must be in memory"),
        (KernelRidge(), (X, y), ValueError, "y must be in memory"),
        (model, (x, ranks.put(Y[:7])), ValueError, "inconsistent numbers of samples"),
        (model, (ranks.put(X / 0), y), ValueError, "X contains"),
        (KernelRidge("euclidean", alpha=1e-9), (x, y), mc.LinAlgError, "would do"),
        (
            model,
            (x.redistribute(placements=[torch.distributed.tensor.Shard(1)]), y),
            ValueError,
            "split by rows",
        ),
        (
            KernelRidge(alpha=1.0 + ranks.rank),
            (x, y),
            ValueError if ranks.size > 1 else None,
            "same call",
        ),
    ):
        if kind is not None:
            raises(kind, words, lambda e=estimator, g=given: e.fit(*g))
    assert vars(model) == before
    bad = NEW.clone()
    bad[-1] = torch.nan
    raises(ValueError, "contains NaN", lambda: model.predict(ranks.put(bad)))
    raises(ValueError, "features", lambda: model.predict(ranks.put(NEW[:, :2])))


GP = {"max_iter": 2, "random_state": 0, "tol": 1e-8, "n_probes": 2}
NEWTON = {"tol": 1e-12, "random_state": 0}
LABELS = (Y > 0).long() + (Y > 0.5)
# (estimator of DTensors, what is also said to that of one process, targets, methods)
ESTIMATORS = (
    (KNeighborsRegressor(weights="distance"), {}, Y, ("predict", "kneighbors")),
    (KNeighborsClassifier(metric="mahalanobis"), {}, LABELS, ("predict", "predict_proba")),
    (KNeighborsRegressor(metric=lambda x, z: mc.max(abs(x - z))), {}, Y, ("predict",)),
    (KernelDensity(bandwidth=0.5), {}, None, ("score_samples",)),
    (KernelPCA(3, kernel="rbf"), {"eigen_solver": "arpack"}, None, ("transform",)),
    (KernelLogisticRegression(**NEWTON), {"solver": "cg"}, LABELS, ("predict_proba", "predict")),
    (GaussianProcessRegressor(**GP), {"solver": "cg"}, Y, ("predict",)),
)


def check_estimators(ranks):
    new = ranks.put(NEW)
    for estimator, more, target, methods in ESTIMATORS:
        model = clone(estimator).fit(ranks.put(X), None if target is None else ranks.put(target))
        one = clone(estimator).set_params(**more).fit(X, target)
        for method in methods:
            found, expected = (getattr(m, method)(p) for m, p in ((model, new), (one, NEW)))
            pairs = [(found, expected)]
            if isinstance(found, tuple):
                pairs = list(zip(found, expected, strict=True))
            for part, own in pairs:
                near(part, own, 1e-7)
        if not callable(getattr(estimator, "metric", None)):
            again = getattr(pickle.loads(pickle.dumps(model)), methods[0])(NEW[:2])
            assert len(again[0] if isinstance(again, tuple) else again) == 2


def check_gaussian_process(ranks):
    gp = GaussianProcessRegressor(**GP).fit(ranks.put(X), ranks.put(Y))
    one = GaussianProcessRegressor(**GP, solver="cg").fit(X, Y)
    np.testing.assert_allclose(gp.theta_, one.theta_, atol=1e-6)
    for found, expected in zip(
        gp.predict(ranks.put(NEW), return_std=True), one.predict(NEW, return_std=True), strict=True
    ):
        near(found, expected, 1e-6)
    raises(NotImplementedError, "return_cov", lambda: gp.predict(ranks.put(NEW), return_cov=True))
    raises(NotImplementedError, "X.full_tensor()", lambda: gp.sample_y(ranks.put(NEW)))


def check_components(ranks):
    options = {"n_components": 3, "kernel": "rbf", "random_state": 0}
    found = KernelPCA(**options).fit_transform(ranks.put(X))
    near(found, KernelPCA(**options).fit_transform(X), 1e-8)
    places = SpectralEmbedding(2, affinity="rbf", random_state=0).fit_transform(ranks.put(X))
    near(places, SpectralEmbedding(2, affinity="rbf", random_state=0).fit_transform(X), 1e-8)
