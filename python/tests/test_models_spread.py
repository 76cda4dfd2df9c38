"""Models on points that no one array holds: arrays of Dask here, DTensors by ranks of gloo."""

from __future__ import annotations

import pickle
import warnings
import weakref

import mercer as mc
import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from mercer.models import (
    HSIC,
    MMD,
    GaussianProcessRegressor,
    KernelDensity,
    KernelLogisticRegression,
    KernelPCA,
    KernelRidge,
    KernelRidgeClassifier,
    KernelRidgeCV,
    KNeighborsClassifier,
    KNeighborsRegressor,
    Nystroem,
    RFMRegressor,
    SparseGaussianProcessRegressor,
    SpectralEmbedding,
)
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

RNG = np.random.default_rng(0)
X, NEW, W = RNG.normal(size=(301, 3)), RNG.normal(size=(41, 3)), RNG.integers(0, 3, 301)
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=301)
LABELS = (Y > 0).astype(int) + (Y > 0.5)
NAMES = np.array(["a", "bc", "d"])[LABELS]


def chunks(a, rows=120):
    da = pytest.importorskip("dask.array")
    return da.from_array(a, chunks=(rows, *a.shape[1:]))


def near(found, expected, bound):
    """Results have these kinds and shapes, and are lazy where one is of Dask."""
    pairs = (a if isinstance(a, tuple) else (a,) for a in (found, expected))
    for part, own in zip(*pairs, strict=True):
        assert (part.shape, part.dtype) == (own.shape, own.dtype)
        part = part.compute() if hasattr(part, "compute") else part
        if own.dtype.kind in "iU":
            np.testing.assert_array_equal(part, own)
        else:
            np.testing.assert_allclose(part, own, atol=bound, rtol=0)


# (estimator, what is said to that of points in memory, targets, methods, bound)
ESTIMATORS = [
    (KernelRidge(alpha=0.1, tol=1e-12), {"solver": "cg"}, Y, ("predict",), 1e-9),
    (KernelRidge(metric=[1.0, 2.0, 0.5], bandwidth="median", alpha=[1.0, 0.3], random_state=0,
                 tol=1e-12),
     {"solver": "cg"}, np.stack([Y, LABELS], 1), ("predict",), 1e-9),
    (KernelRidgeClassifier(tol=1e-12), {"solver": "cg"}, NAMES,
     ("predict", "decision_function"), 1e-9),
    (KernelLogisticRegression(tol=1e-13, random_state=0), {"solver": "cg"}, LABELS,
     ("predict", "predict_proba", "decision_function"), 1e-5),
    (KNeighborsRegressor(4, weights="distance"), {}, Y, ("predict", "kneighbors"), 1e-12),
    (KNeighborsClassifier(4, metric="sum(abs(x-z)^0.5)"), {}, LABELS,
     ("predict", "predict_proba"), 1e-12),
    (KernelDensity(bandwidth=0.5), {}, None, ("score_samples",), 1e-12),
    (KernelDensity(bandwidth=2.0, kernel="linear"), {}, None, ("score_samples",), 1e-12),
    (KernelPCA(3, kernel="rbf"), {"eigen_solver": "arpack"}, None, ("transform",), 1e-10),
    (GaussianProcessRegressor("gauss", optimizer=None, tol=1e-11, random_state=0),
     {"solver": "cg"}, Y, ("predict",), 1e-9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "more", "target", "methods", "bound"), ESTIMATORS,
    ids=[f"{type(row[0]).__name__}{i}" for i, row in enumerate(ESTIMATORS)],
)  # fmt: skip
def test_dask_is_as_memory(estimator, more, target, methods, bound):
    model = clone(estimator).fit(chunks(X), None if target is None else chunks(target, 50))
    one = clone(estimator).set_params(**more).fit(X, target)
    again = pickle.loads(pickle.dumps(model))
    for method in methods:
        expected = getattr(one, method)(NEW)
        lazy = getattr(model, method)(chunks(NEW, 30))
        for part in lazy if isinstance(lazy, tuple) else (lazy,):
            assert part.chunks[0] == (30, 11)
        near(lazy, expected, bound)
        near(getattr(again, method)(NEW), expected, bound)
        near(getattr(one, method)(chunks(NEW, 30)), expected, 1e-12)


def test_weights_paths_and_components_of_chunks():
    options = {"alphas": (0.01, 0.1), "bandwidths": (0.5, 1.0), "random_state": 0, "tol": 1e-9}
    model = KernelRidgeCV(**options).fit(chunks(X), Y, sample_weight=chunks(W, 301))
    one = KernelRidgeCV(**options, select="gcv").fit(X, Y, sample_weight=W)
    assert (model.select_, model.alpha_, model.bandwidth_) == ("gcv", one.alpha_, one.bandwidth_)
    # The traces are estimates, with two preconditioners.
    np.testing.assert_allclose(model.cv_results_["scores"], one.cv_results_["scores"], rtol=2e-2)
    np.testing.assert_allclose(model.predict(NEW), one.predict(NEW), atol=1e-6)
    density = KernelDensity(bandwidth=0.5).fit(chunks(X), sample_weight=W)
    one = KernelDensity(bandwidth=0.5).fit(X, sample_weight=W)
    np.testing.assert_array_equal(density.sample(9, 0), one.sample(9, 0))
    assert density.score(chunks(NEW)) == pytest.approx(one.score(NEW), rel=1e-12)
    places = SpectralEmbedding(2, affinity="rbf", random_state=0).fit_transform(chunks(X))
    near(places, SpectralEmbedding(2, affinity="rbf", random_state=0).fit_transform(X), 1e-9)


def test_a_ridge_that_outweighs_the_kernel():
    for alpha in (1e4, 1e-3):
        model = KernelRidge(alpha=alpha, tol=1e-12).fit(chunks(X), Y)
        one = KernelRidge(alpha=alpha).fit(X, Y)
        np.testing.assert_allclose(model.dual_coef_, one.dual_coef_, rtol=1e-6, atol=1e-9 / alpha)


def test_probabilities_and_scores_of_chunks():
    model = KernelRidgeClassifier(probability=True, random_state=0).fit(chunks(X), NAMES)
    p = model.predict_proba(chunks(NEW, 30))
    np.testing.assert_allclose(p.sum(1).compute(), 1, rtol=1e-12)
    assert model.score(chunks(X), chunks(NAMES)) > 0.8


def test_a_gaussian_process_of_chunks_takes_steps():
    options = {"random_state": 0, "max_iter": 2, "n_probes": 2, "tol": 1e-3}
    x, y = X[:120], Y[:120]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        gp = GaussianProcessRegressor("gauss", **options).fit(chunks(x, 70), y)
        one = GaussianProcessRegressor("gauss", **options, solver="cg").fit(x, y)
    assert gp.solver_ == "cg"
    np.testing.assert_allclose(gp.theta_, one.theta_, atol=0.05)  # by the probes of two factors
    for option in ("return_std", "return_cov"):
        with pytest.raises(NotImplementedError, match=rf"{option} .* write fit\(X.compute\(\), y"):
            gp.predict(NEW, **{option: True})
    near(one.predict(chunks(NEW, 30), return_std=True), one.predict(NEW, return_std=True), 1e-12)
    with pytest.raises(NotImplementedError, match=r"return_cov .* write X.compute\(\)"):
        one.predict(chunks(NEW), return_cov=True)


class Stored:
    """Points in a file, as it were: counts the blocks that are in memory."""

    shape, dtype, ndim = (180, 3), np.dtype("float64"), 2

    def __init__(self):
        self.points, self.alive, self.most = RNG.normal(size=self.shape), [], 0

    def __getitem__(self, index):
        block = self.points[index] + 0.0
        self.alive.append(weakref.ref(block))
        self.most = max(self.most, sum(ref() is not None for ref in self.alive))
        return block


def test_no_pass_holds_all_chunks():
    from mercer.models import _gp_base, _products
    from mercer.models._arrays import Space
    from mercer.models._spread import mapped

    dask = pytest.importorskip("dask")
    pytest.importorskip("dask.array")
    stored, ones = Stored(), np.ones(180)
    x = dask.array.from_array(stored, chunks=(30, -1), inline_array=True, asarray=None)
    with warnings.catch_warnings(), dask.config.set(scheduler="synchronous"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KernelRidge(metric=[1.0, 2.0, 3.0], max_iter=2, rank=9, random_state=0)
        model.fit(x, ones, sample_weight=ones).predict(x).compute()
        KernelDensity().fit(x).score_samples(x).compute()
        _gp_base._spread(x, ones)
        scaled = mapped(np.divide, x, np.array([1.0, 2.0, 3.0]))
        _products.gradient_sums(
            mc.gauss(bandwidth=1.0), scaled, ones[:, None], ones[:, None], Space()
        )
    assert 1 <= stored.most <= 3  # of 6


def test_gradients_of_chunks_are_those_of_memory():
    from mercer.models import _products
    from mercer.models._arrays import Space

    left, right = RNG.normal(size=(2, 301, 4))
    f = mc.matern32(bandwidth=1.5)
    found = _products.gradient_sums(f, chunks(X), left, right, Space())
    whole = mc.parameter_gradient(f, X, weights=(left, right), by="x")["x"]
    np.testing.assert_allclose(found, (X * whole).sum(0), rtol=1e-9)


def test_what_goes_to_other_processes():
    """A task names its method: functions under a decorator do not pickle."""
    from mercer.models import _chunks

    model = KernelRidgeClassifier(probability=True).fit(X, NAMES)
    for method in ("predict", "predict_proba", "decision_function"):
        call = _chunks._Call(method, model, {}, _chunks._plain, [NEW[:1]])
        again = pickle.loads(pickle.dumps(call))
        np.testing.assert_array_equal(again(NEW), getattr(model, method)(NEW))
        assert len(again(NEW[:0])) == 0


def test_what_is_computed_later_is_of_the_model_of_then():
    model = KernelRidge(alpha=0.1).fit(X, Y)
    expected, lazy = model.predict(NEW), model.predict(chunks(NEW, 30))
    model.fit(X, -Y)
    near(lazy, expected, 1e-12)
    empty = model.predict(chunks(NEW, 30)[30:30])
    assert empty.compute().shape == (0,)


def refused(kind, words, call):
    with pytest.raises(kind, match=words) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (KernelRidge(solver="direct"), r'solver="cg" does not; write X.compute\(\)'),
        (KernelRidge(solver="sap"), "solver='sap'"),
        (KernelRidge(centers=5), "centers="),
        (KernelRidge("precomputed"), "precomputed"),
        (KernelRidge(device="cuda"), "device="),
        (KernelRidgeCV(select="loo"), "select='loo'"),
        (GaussianProcessRegressor(solver="direct"), "solver='direct'"),
        (SparseGaussianProcessRegressor(), "X must be in memory"),
        (RFMRegressor(), "X must be in memory"),
        (Nystroem(), "X must be in memory"),
        (KernelPCA(), "n_components=None"),
        (KernelPCA(2, eigen_solver="dense"), "eigen_solver='dense'"),
        (SpectralEmbedding(), "affinity='nearest_neighbors'"),
        (KNeighborsRegressor(metric="precomputed"), "precomputed"),
        (KNeighborsRegressor(metric="mahalanobis"), "mahalanobis"),
    ],
)
def test_what_is_not_offered_is_refused_before_any_work(estimator, words):
    def read(block):
        raise AssertionError("a chunk was read")

    x = chunks(X)
    x = x.map_blocks(read, dtype=x.dtype, meta=x._meta)
    text = refused(NotImplementedError, words, lambda: estimator.fit(x, Y))
    assert text.startswith(f"{type(estimator).__name__}.fit: ")
    assert text.endswith("Received an array of Dask, float64 [301, 3]")
    assert not hasattr(estimator, "n_features_in_")


def test_other_refusals():
    lazy = chunks(X)
    model = KernelRidge().fit(lazy, Y)
    refused(ValueError, r"KernelRidge.fit: y must be in memory .* y.compute\(\)",
            lambda: KernelRidge().fit(X, chunks(Y)))  # fmt: skip
    refused(NotImplementedError, "partial_fit",
            lambda: KernelRidge(centers=5).partial_fit(lazy, Y))  # fmt: skip
    refused(NotImplementedError, "MMD: Y must", lambda: MMD().test(X, lazy))
    refused(NotImplementedError, "HSIC: X must", lambda: HSIC().test(lazy, X))
    refused(ValueError, "KernelRidge: X must have chunks of known sizes",
            lambda: KernelRidge().fit(lazy[lazy[:, 0] > 0], Y))  # fmt: skip
    refused(ValueError, r"X.rechunk\(\{1: -1\}\)", lambda: model.predict(lazy.rechunk((301, 1))))
    refused(ValueError, "expecting 3 features", lambda: model.predict(lazy[:, :2]))
    refused(ValueError, "inconsistent numbers of samples", lambda: model.fit(lazy, Y[:5]))
    refused(ValueError, "Input X contains NaN", lambda: model.fit(lazy * np.nan, Y))
    refused(ValueError, "Input X contains NaN", lambda: model.predict(lazy * np.nan).compute())
    neighbours = KNeighborsRegressor().fit(lazy, Y)
    refused(NotImplementedError, "X must be points", lambda: neighbours.predict(None))


def test_ranks():
    pytest.importorskip("torch.distributed.tensor")
    from test_distributed import run

    assert run(2, "gloo", "distributed_models").count("8 checks, failed: []") == 2
