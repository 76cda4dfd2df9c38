"""Densities, neighbours, components, features and tests of two samples, against scikit-learn and
dense float64 algebra."""

from __future__ import annotations

import math
import pickle
import warnings

import mercer as mc
import numpy as np
import pytest
import scipy.sparse

pytest.importorskip("sklearn", minversion="1.6")
import sklearn.decomposition
import sklearn.kernel_approximation
import sklearn.manifold
import sklearn.neighbors
from mercer import models
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import pairwise_kernels, rbf_kernel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

ESTIMATORS = [
    models.KernelDensity(),
    models.KNeighborsClassifier(),
    models.KNeighborsRegressor(),
    models.KNeighborsTransformer(),
    models.KernelPCA(),
    models.KernelPCA(n_components=2, kernel="gauss", fit_inverse_transform=True),
    models.Nystroem(),
    models.Nystroem("matern32", landmarks="rpcholesky"),
    models.SpectralEmbedding(),
    models.SpectralEmbedding(affinity="gauss"),
]
PROFILES = {
    "gaussian": lambda r: -r * r / 2,
    "exponential": lambda r: -r,
    "tophat": lambda r: np.where(r < 1, 0, -np.inf),
    "epanechnikov": lambda r: np.log(np.where(r < 1, 1 - r * r, 0)),
    "linear": lambda r: np.log(np.where(r < 1, 1 - r, 0)),
    "cosine": lambda r: np.log(np.where(r < 1, np.cos(np.pi * r / 2), 0)),
}


def points(n, d=3, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(size=(n, d)) * scale


def distances(x, z):
    return np.sqrt(np.square(x[:, None] - z[None]).sum(-1))


def as_torch(a):
    return pytest.importorskip("torch").as_tensor(np.array(a))


def as_jax(a):
    return pytest.importorskip("jax").numpy.asarray(a)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_scikit_learns_own_checks(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert [r for r in results if r["status"] not in ("passed", "skipped")] == []
    assert sum(r["status"] == "passed" for r in results) > 35


# Densities


def dense_log_densities(kernel, x, queries, h, weights, log_integral):
    logs = PROFILES[kernel](distances(queries, x) / h)
    with np.errstate(divide="ignore"):
        sums = logsumexp(logs, b=weights[None], axis=1)
    return sums - np.log(weights.sum()) - log_integral - x.shape[1] * np.log(h)


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("kernel", PROFILES)
@pytest.mark.parametrize("bandwidth", [0.4, 2.0, "scott", "silverman"])
@pytest.mark.parametrize("weighted", [False, True])
def test_densities_are_scikit_learns(kernel, bandwidth, weighted):
    x, near = points(200), points(60, seed=1)
    weights = np.random.default_rng(2).random(200) + 0.01 if weighted else None
    peer = sklearn.neighbors.KernelDensity(bandwidth=bandwidth, kernel=kernel)
    ours = models.KernelDensity(bandwidth=bandwidth, kernel=kernel)
    peer.fit(x, sample_weight=weights)
    ours.fit(x, sample_weight=weights)
    assert ours.bandwidth_ == peer.bandwidth_
    # scikit-learn's tree sums in the order of its bounds, whose cancellation adds errors to
    # the normalisation, so its normalisation is what the dense sums take over, at a point of X.
    own = models.KernelDensity(bandwidth=bandwidth, kernel=kernel).fit(x[:1])
    one = sklearn.neighbors.KernelDensity(bandwidth=own.bandwidth_, kernel=kernel).fit(x[:1])
    log_integral = -one.score_samples(x[:1])[0] - 3 * np.log(own.bandwidth_)
    expected = dense_log_densities(
        kernel, x, near, ours.bandwidth_, np.ones(200) if weights is None else weights, log_integral
    )
    result = ours.score_samples(near)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
    if bandwidth == 2.0:  # without tails the tree's sums are good
        np.testing.assert_allclose(result, peer.score_samples(near), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ours.score(near), peer.score(near), rtol=1e-9)


@pytest.mark.parametrize("kernel", ["gaussian", "exponential"])
@pytest.mark.parametrize("library", [np.array, as_torch])
def test_far_tails_keep_their_digits(kernel, library):
    x = points(50)
    queries = np.concatenate([points(3), [[1e3, 0, 0], [1e6, 1e6, 0], [-40.0, 0, 0]]])
    integral = 1.5 * np.log(2 * np.pi) if kernel == "gaussian" else np.log(8 * np.pi)
    expected = dense_log_densities(kernel, x, queries, 0.1, np.ones(50), integral)
    assert expected.min() < -1e6
    result = models.KernelDensity(bandwidth=0.1, kernel=kernel).fit(library(x))
    np.testing.assert_allclose(result.score_samples(library(queries)), expected, rtol=1e-13)


@pytest.mark.parametrize("kernel", [k for k in PROFILES if k not in ("gaussian", "exponential")])
def test_compact_kernels_end(kernel):
    density = models.KernelDensity(kernel=kernel).fit(np.zeros((1, 2)))
    inside, edge = density.score_samples([[1 - 1e-9, 0.0], [1.0, 0.0]])
    assert np.isfinite(inside)
    assert edge == -np.inf


@pytest.mark.parametrize("kernel", PROFILES)
@pytest.mark.parametrize("d", [1, 2, 7, 40])
def test_densities_integrate_to_one(kernel, d):
    """The integral around a single point is the area of the sphere times a line integral."""
    density = models.KernelDensity(kernel=kernel, bandwidth=0.7).fit(np.zeros((1, d)))
    reach = 0.7 if kernel not in ("gaussian", "exponential") else 0.7 * (d + 40 + 12 * np.sqrt(d))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    panels, width = np.arange(40)[:, None], reach / 40
    r = ((panels + (nodes + 1) / 2) * width).ravel()
    line = np.zeros((len(r), d))
    line[:, 0] = r
    log_sphere = np.log(2) + d / 2 * np.log(np.pi) - math.lgamma(d / 2)
    logs = density.score_samples(line) + (d - 1) * np.log(r) + log_sphere
    total = np.exp(logsumexp(logs, b=np.tile(weights, 40) * width / 2))
    np.testing.assert_allclose(total, 1, rtol=1e-9)


@pytest.mark.parametrize("kernel", PROFILES)
def test_samples_follow_the_density(kernel):
    """Radii around one point: the empirical distribution lies within its bound (DKW, 1e-6)."""
    d, n = 3, 4000
    density = models.KernelDensity(kernel=kernel, bandwidth=0.5).fit(np.zeros((1, d)))
    drawn = density.sample(n, random_state=0)
    radii = np.sort(np.linalg.norm(drawn, axis=1))
    grid = np.linspace(0, max(0.5, radii[-1]), 20001)[1:]
    line = np.zeros((len(grid), d))
    line[:, 0] = grid
    mass = np.exp(density.score_samples(line)) * 4 * np.pi * grid**2
    law = np.cumsum(mass) * grid[0]
    gap = np.abs(np.interp(radii, grid, law) - np.arange(1, n + 1) / n).max()
    assert gap < np.sqrt(np.log(2 / 1e-6) / (2 * n)) + 1e-3
    np.testing.assert_allclose(drawn.mean(0), 0, atol=5 * drawn.std() / np.sqrt(n))


@pytest.mark.parametrize("kernel", ["gaussian", "tophat"])
def test_samples_are_scikit_learns_for_the_same_seed(kernel):
    x, weights = points(30), np.random.default_rng(1).random(30)
    ours = models.KernelDensity(kernel=kernel).fit(x, sample_weight=weights)
    peer = sklearn.neighbors.KernelDensity(kernel=kernel).fit(x, sample_weight=weights)
    np.testing.assert_allclose(ours.sample(9, 3), peer.sample(9, 3), rtol=1e-13)


def test_densities_of_other_metrics_and_their_faults():
    x = points(40, 2)
    for metric, params in [("cityblock", None), ("sum(abs(x-z)^p)", {"p": 1.0})]:
        density = models.KernelDensity(metric=metric, metric_params=params).fit(x)
        peer = sklearn.neighbors.KernelDensity(metric="manhattan").fit(x)
        np.testing.assert_allclose(density.score_samples(x), peer.score_samples(x), rtol=1e-9)
        with pytest.raises(NotImplementedError, match="euclidean"):
            density.sample()
    with pytest.raises(ValueError, match="bandwidth"):
        models.KernelDensity(bandwidth=-1.0).fit(x)
    with pytest.raises(ValueError, match="precomputed"):
        models.KernelDensity(metric="precomputed").fit(x)


# Neighbours

METRICS = [
    {},
    {"p": 1},
    {"p": np.inf},
    {"p": 3},
    {"p": 1.5, "metric_params": {"w": np.array([1, 2, 0.5])}},
    {"metric": "canberra"},
    {"metric": "cosine"},
    {"metric": "mahalanobis", "metric_params": {"VI": np.diag([1.0, 2.0, 3.0])}},
    {"metric": "seuclidean", "metric_params": {"V": np.array([1.0, 2.0, 3.0])}},
]
WEIGHTS = ["uniform", "distance", lambda d: np.exp(-d)]


def fitted(name, x, y, **options):
    """Ours and scikit-learn's; its brute force, since its trees know fewer metrics."""
    ours = getattr(models, name)(4, **options).fit(x, y)
    return ours, getattr(sklearn.neighbors, name)(4, algorithm="brute", **options).fit(x, y)


@pytest.mark.filterwarnings("ignore:Parameter p is found")
@pytest.mark.parametrize("metric", METRICS, ids=str)
@pytest.mark.parametrize("weights", WEIGHTS, ids=["uniform", "distance", "callable"])
def test_neighbours_are_scikit_learns(metric, weights):
    x, queries = points(150), np.concatenate([points(40, seed=1), points(150)[:5]])
    rng = np.random.default_rng(3)
    labels = np.array(["a", "b", "c"])[rng.integers(0, 3, 150)]
    targets = rng.normal(size=(150, 2))
    options = {"weights": weights, **metric}
    ours, peer = fitted("KNeighborsClassifier", x, labels, **options)
    np.testing.assert_allclose(
        ours.predict_proba(queries), peer.predict_proba(queries), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_array_equal(ours.predict(queries), peer.predict(queries))
    ours, peer = fitted("KNeighborsRegressor", x, targets, **options)
    np.testing.assert_allclose(ours.predict(queries), peer.predict(queries), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ours.predict(None), peer.predict(None), rtol=1e-9, atol=1e-9)
    assert ours.effective_metric_ == peer.effective_metric_
    found, known = ours.kneighbors(queries), peer.kneighbors(queries)
    np.testing.assert_array_equal(found[1], known[1])
    # scikit-learn's squared distances are made of products: half of their digits are left near 0.
    np.testing.assert_allclose(found[0], known[0], rtol=1e-9, atol=1e-7)


def test_labels_of_several_outputs():
    x, rng = points(80), np.random.default_rng(0)
    y = np.stack([rng.integers(0, 3, 80), rng.integers(5, 7, 80)], axis=1)
    ours, peer = fitted("KNeighborsClassifier", x, y)
    np.testing.assert_array_equal(ours.predict(x), peer.predict(x))
    for a, b in zip(ours.predict_proba(x), peer.predict_proba(x), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(classes) for classes in ours.classes_] == [3, 2]


def test_duplicates_are_found_as_sets():
    x = np.repeat(points(20), 3, axis=0)
    ours = models.KNeighborsTransformer(n_neighbors=3).fit(x)
    values, indices = ours.kneighbors(x)
    np.testing.assert_array_equal(values, 0)
    np.testing.assert_array_equal(indices // 3, np.repeat(np.arange(20), 9).reshape(60, 3))
    values, indices = ours.kneighbors(n_neighbors=2)
    np.testing.assert_array_equal(values, 0)
    assert (indices != np.arange(60)[:, None]).all()
    # More duplicates than neighbours: one list may lack the point itself.
    many = models.KNeighborsTransformer(n_neighbors=2).fit(np.zeros((9, 2)))
    assert (many.kneighbors()[1] != np.arange(9)[:, None]).all()


@pytest.mark.parametrize("mode", ["connectivity", "distance"])
def test_graphs(mode):
    x = points(70)
    ours = models.KNeighborsTransformer(mode=mode, n_neighbors=4).fit(x)
    peer = sklearn.neighbors.KNeighborsTransformer(mode=mode, n_neighbors=4, algorithm="kd_tree")
    peer.fit(x)
    graph, known = ours.transform(x), peer.transform(x)
    assert graph.format == "csr"
    assert graph.nnz == known.nnz
    np.testing.assert_allclose(graph.toarray(), known.toarray(), rtol=1e-12)
    own, known = ours.kneighbors_graph(mode=mode), peer.kneighbors_graph(mode=mode)
    np.testing.assert_allclose(own.toarray(), known.toarray(), rtol=1e-12)
    with pytest.raises(ValueError, match="Unsupported mode"):
        ours.kneighbors_graph(mode="radius")


@pytest.mark.parametrize("library", [np.array, as_torch])
def test_distances_may_be_given(library):
    x, queries, y = points(60), points(9, seed=1), points(60, 1)[:, 0]
    plain = models.KNeighborsRegressor(3, weights="distance").fit(x, y)
    given = models.KNeighborsRegressor(3, weights="distance", metric="precomputed")
    given.fit(library(distances(x, x)), library(y))
    predicted = given.predict(library(distances(queries, x)))
    np.testing.assert_allclose(predicted, plain.predict(queries), rtol=1e-12)
    grid = {"n_neighbors": [1, 3, 5]}
    search = GridSearchCV(given, grid, cv=3).fit(distances(x, x), y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"],
        GridSearchCV(plain, grid, cv=3).fit(x, y).cv_results_["mean_test_score"],
    )
    with pytest.raises(ValueError, match="must be square"):
        given.fit(np.ones((3, 2)), [1.0, 2.0, 3.0])


def test_formulas_are_metrics():
    x, y = points(50), points(50, 1)[:, 0]
    known = models.KNeighborsRegressor(3, p=1).fit(x, y).predict(x)
    for metric in ["sum(abs(x-z))", mc.metric("cityblock"), lambda x, z: mc.sum(abs(x - z))]:
        ours = models.KNeighborsRegressor(3, metric=metric).fit(x, y)
        np.testing.assert_array_equal(ours.predict(x), known)
    for metric in ["cityblock", "mahalanobis", "seuclidean", "minkowski"]:
        with pytest.raises(ValueError, match="metric_params"):
            models.KNeighborsRegressor(metric=metric, metric_params={"q": 2}).fit(x, y)
    with pytest.raises(ValueError, match="kernel_params"):
        models.KernelPCA(kernel="rbf", kernel_params={"q": 2}).fit(x)
    with pytest.raises(ValueError, match="haversine"):
        models.KNeighborsRegressor(metric="haversine").fit(x, y)
    globe = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    ours = models.KNeighborsTransformer(metric="haversine").fit(globe).kneighbors()
    peer = sklearn.neighbors.NearestNeighbors(metric="haversine").fit(globe).kneighbors()
    np.testing.assert_allclose(ours[0], peer[0], rtol=1e-9)


def test_faults_of_neighbours():
    x, y = points(10), np.arange(10) % 2
    model = models.KNeighborsClassifier(11).fit(x, y)
    with pytest.raises(ValueError, match="Expected n_neighbors <= n_samples_fit"):
        model.predict(x)
    with pytest.raises(ValueError, match="Expected n_neighbors < n_samples_fit"):
        model.kneighbors(n_neighbors=10)
    with pytest.raises(ValueError, match="n_neighbors > 0"):
        model.kneighbors(x, 0)
    with pytest.raises(TypeError, match="integer"):
        model.kneighbors(x, 1.5)
    with pytest.raises(ValueError, match="zero weights"):
        models.KNeighborsClassifier(3, weights=np.zeros_like).fit(x, y).predict(x)
    with pytest.raises(NotFittedError):
        models.KNeighborsRegressor().predict(x)
    with pytest.raises(ValueError, match="n_neighbors"):
        models.KNeighborsClassifier(0).fit(x, y)


# Arrays of other libraries


@pytest.mark.parametrize("library", [as_torch, as_jax])
def test_arrays_come_back_alike(library):
    x32 = points(60).astype(np.float32)
    x, queries, y = library(x32), library(x32[:7]), library(x32[:, 0])
    labels = library((x32[:, 0] > 0).astype(np.int32))
    kind = type(x)
    results = {
        "density": models.KernelDensity().fit(x).score_samples(queries),
        "regression": models.KNeighborsRegressor().fit(x, y).predict(queries),
        "labels": models.KNeighborsClassifier().fit(x, labels).predict(queries),
        "shares": models.KNeighborsClassifier().fit(x, labels).predict_proba(queries),
        "distances": models.KNeighborsTransformer().fit(x).kneighbors(queries)[0],
        "components": models.KernelPCA(2, kernel="rbf").fit(x).transform(queries),
        "features": models.Nystroem(n_components=5, random_state=0).fit(x).transform(queries),
        "embedding": models.SpectralEmbedding().fit_transform(x),
        "map": models.SpectralEmbedding(affinity="rbf").fit_transform(x),
    }
    inverse = models.KernelPCA(2, kernel="rbf", fit_inverse_transform=True).fit(x)
    results["inverse"] = inverse.inverse_transform(results["components"])
    assert {name: type(result) for name, result in results.items()} == dict.fromkeys(results, kind)
    host = models.KernelDensity().fit(x32).score_samples(x32[:7])
    np.testing.assert_allclose(results["density"], host, rtol=1e-5)
    plain = models.KernelPCA(2, kernel="rbf").fit(x32).transform(x32[:7])
    np.testing.assert_allclose(results["components"], plain, rtol=1e-3, atol=1e-4)
    for model in (models.MMD(random_state=0), models.HSIC(random_state=0)):
        assert model.test(x, x * x).p_value == model.test(x32, x32 * x32).p_value


def test_device_moves_host_data(cuda):
    x, y = points(300), points(300, 1)[:, 0]
    for model in [
        models.KernelDensity(bandwidth=0.5),
        models.KNeighborsRegressor(weights="distance"),
        models.KNeighborsClassifier(),
        models.KernelPCA(3, kernel="rbf"),
        models.Nystroem(random_state=0),
    ]:
        target = y > 0 if "Classifier" in str(model) else y
        here, there = clone(model).fit(x, target), clone(model).set_params(device="cuda")
        there.fit(x, target)
        names = [n for n in ("score_samples", "predict", "transform") if hasattr(model, n)]
        result = getattr(there, names[0])(x[:50])
        assert isinstance(result, np.ndarray)
        np.testing.assert_allclose(result, getattr(here, names[0])(x[:50]), rtol=1e-6, atol=1e-7)
    for test in (models.MMD, models.HSIC):
        here, there = (
            test(random_state=0, device=d).test(x, x[::-1].copy()) for d in (None, "cuda")
        )
        np.testing.assert_allclose(there.null, here.null, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_estimators_pickle_and_clone(estimator):
    x, y = points(40), np.arange(40) % 2
    model = clone(estimator).fit(x, y)
    names = ("score_samples", "predict", "transform")
    used = next((n for n in names if hasattr(model, n)), None)
    again = pickle.loads(pickle.dumps(model))
    if used is None:
        np.testing.assert_array_equal(again.embedding_, model.embedding_)
    else:
        result, known = getattr(again, used)(x), getattr(model, used)(x)
        if scipy.sparse.issparse(result):
            result, known = result.toarray(), known.toarray()
        np.testing.assert_array_equal(result, known)


def test_a_failed_fit_changes_nothing():
    x = points(30)
    model = models.Nystroem(n_components=4, random_state=0).fit(x)
    before = dict(vars(model))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((30, 3), np.nan))
    assert vars(model) == before


# Components


def up_to_sign(ours, known):
    return ours * np.sign((ours * known).sum(0))


@pytest.mark.parametrize(
    "kernel",
    [
        {"kernel": "rbf", "gamma": 1.3},
        {"kernel": "rbf"},
        {"kernel": "linear"},
        {"kernel": "poly"},
        {"kernel": "poly", "degree": 2, "gamma": 0.3, "coef0": 0.5},
        {"kernel": "sigmoid", "gamma": 0.05},
        {"kernel": "cosine"},
        {"kernel": "laplacian"},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [3, 8])  # by products, and by a factorisation
def test_components_are_scikit_learns(kernel, count):
    x, queries = np.random.default_rng(0).random((300 if count == 3 else 100, 8)), points(20, 8)
    ours = models.KernelPCA(count, fit_inverse_transform=True, **kernel)
    peer = sklearn.decomposition.KernelPCA(
        count, fit_inverse_transform=True, eigen_solver="dense", **kernel
    )
    if kernel["kernel"] == "laplacian":
        kernel = {"kernel": lambda a, b: np.exp(-np.abs(a - b).sum() / 8)}
        peer.set_params(**kernel)
    found, known = ours.fit_transform(x), peer.fit_transform(x)
    np.testing.assert_allclose(ours.eigenvalues_, peer.eigenvalues_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(up_to_sign(found, known), known, rtol=1e-8, atol=1e-9)
    found, known = ours.transform(queries), peer.transform(queries)
    np.testing.assert_allclose(up_to_sign(found, known), known, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        ours.inverse_transform(found), peer.inverse_transform(known), rtol=1e-8, atol=1e-9
    )


def test_all_components_and_zero_eigenvalues():
    x = points(50)
    ours, peer = models.KernelPCA().fit(x), sklearn.decomposition.KernelPCA().fit(x)
    assert ours.eigenvalues_.shape == peer.eigenvalues_.shape == (3,)
    assert ours.get_feature_names_out().tolist() == ["kernelpca0", "kernelpca1", "kernelpca2"]
    more = models.KernelPCA(5).fit(x)
    np.testing.assert_array_equal(more.transform(x)[:, 3:], 0)
    assert models.KernelPCA(5, remove_zero_eig=True).fit_transform(x).shape == (50, 3)


@pytest.mark.parametrize("library", [np.array, as_torch])
def test_kernel_matrices_may_be_given(library):
    x, queries = points(250), points(9, seed=1)
    k, rows = rbf_kernel(x, gamma=0.4), rbf_kernel(queries, x, gamma=0.4)
    plain = models.KernelPCA(3, kernel="rbf", gamma=0.4).fit(x)
    given = models.KernelPCA(3, kernel="precomputed").fit(library(k))
    np.testing.assert_allclose(given.transform(library(rows)), plain.transform(queries), atol=1e-9)
    np.testing.assert_array_equal(k, rbf_kernel(x, gamma=0.4))
    for landmarks in ("uniform", "rpcholesky"):
        options = {"n_components": 20, "random_state": 0, "landmarks": landmarks}
        plain = models.Nystroem(gamma=0.4, **options).fit(x)
        given = models.Nystroem("precomputed", **options).fit(library(k))
        np.testing.assert_array_equal(given.component_indices_, plain.component_indices_)
        features = given.transform(library(rows))
        np.testing.assert_allclose(features, plain.transform(queries), rtol=1e-7, atol=1e-8)
    for model in (models.KernelPCA(kernel="precomputed"), models.Nystroem("precomputed")):
        with pytest.raises(ValueError, match="must be square"):
            model.fit(k[:, :9])
        with pytest.raises(ValueError, match="must be symmetric"):
            model.fit(k[::-1])
    with pytest.raises(ValueError, match="fit_inverse_transform"):
        models.KernelPCA(kernel="precomputed", fit_inverse_transform=True).fit(k)


def test_kernels_of_formulas_in_components():
    x = points(60)
    known = models.KernelPCA(2, kernel="rbf", gamma=0.5).fit_transform(x)
    for kernel in ["gauss", mc.gauss(bandwidth=1.0), "exp(-sum(square(x-z))/2)"]:
        width = {"bandwidth": 1.0} if kernel == "gauss" else {}
        ours = models.KernelPCA(2, kernel=kernel, **width).fit_transform(x)
        np.testing.assert_allclose(ours, known, rtol=1e-9, atol=1e-12)
    params = models.KernelPCA(2, kernel="exp(-g*sum(square(x-z)))", kernel_params={"g": 0.5})
    np.testing.assert_allclose(params.fit_transform(x), known, rtol=1e-9, atol=1e-12)


def test_a_matrix_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("mercer.models._spectra.free", lambda space: 1_000_000)
    x = points(400)
    models.KernelPCA(20, kernel="rbf").fit(x)
    with pytest.raises(MemoryError, match="Up to 20 components store no matrix"):
        models.KernelPCA(21, kernel="rbf").fit(x)


@pytest.mark.parametrize("fits", [True, False])
def test_eigenvalues_that_nearly_agree_are_factored(fits, monkeypatch):
    """Points that are all but alone, in pairs: the top of the spectrum is a crowd near 1."""
    x = points(600, 2)
    model = models.SpectralEmbedding(3, affinity="gauss", bandwidth=0.03)
    if not fits:
        monkeypatch.setattr("mercer.models._spectra.free", lambda space: 1_000_000)
        with pytest.raises(mc.LinAlgError, match="miss the tolerance"):
            model.fit(x)
        return
    affinities = np.exp(-np.square(distances(x, x)) / (2 * 0.03**2))
    np.fill_diagonal(affinities, 0)
    roots = np.sqrt(affinities.sum(0))
    vectors = model.fit(x).embedding_ * roots[:, None]
    vectors /= np.linalg.norm(vectors, axis=0)
    product = affinities / roots / roots[:, None] @ vectors
    np.testing.assert_allclose(product, vectors * (vectors * product).sum(0), atol=1e-12)


def test_an_indefinite_kernel_is_refused():
    with pytest.raises(ValueError, match="negative eigenvalues"):
        models.KernelPCA(kernel="-sum(x*z)").fit(points(30))


# Features


@pytest.mark.parametrize(
    "kernel",
    [
        {},
        {"kernel": "poly", "degree": 2, "coef0": 2.0},
        {"kernel": "laplacian", "gamma": 0.3},
        {"kernel": "chi2"},
        {"kernel": "linear"},
    ],
    ids=str,
)
def test_features_are_scikit_learns(kernel):
    x, queries = np.random.default_rng(0).random((100, 4)), np.random.default_rng(1).random((9, 4))
    count = 3 if kernel.get("kernel") == "linear" else 10
    ours = models.Nystroem(n_components=count, random_state=2, **kernel).fit(x)
    peer = sklearn.kernel_approximation.Nystroem(n_components=count, random_state=2, **kernel)
    peer.fit(x)
    np.testing.assert_array_equal(ours.component_indices_, peer.component_indices_)
    np.testing.assert_allclose(ours.transform(queries), peer.transform(queries), atol=1e-9)


def test_landmarks_by_rpcholesky_represent_more():
    x = np.concatenate([points(380, scale=0.1), points(20, scale=4.0)])
    k = pairwise_kernels(x, metric="rbf", gamma=0.5)
    left = {}
    for landmarks in ("uniform", "rpcholesky"):
        rest = []
        for seed in range(3):
            model = models.Nystroem(
                gamma=0.5, n_components=30, landmarks=landmarks, random_state=seed
            )
            features = model.fit_transform(x)
            assert len(set(model.component_indices_)) == 30
            rest.append(np.trace(k - features @ features.T))
        left[landmarks] = np.mean(rest)
    assert left["rpcholesky"] < 0.3 * left["uniform"]


def test_landmarks_beyond_the_rank_are_different_points():
    model = models.Nystroem("linear", n_components=12, landmarks="rpcholesky", random_state=0)
    assert len(set(model.fit(points(30)).component_indices_)) == 12
    same = models.Nystroem(n_components=4, landmarks="rpcholesky").fit(np.ones((9, 2)))
    assert len(set(same.component_indices_)) == 4


def test_faults_of_features():
    x = points(20)
    with pytest.raises(ValueError, match="Don't pass gamma"):
        models.Nystroem("gauss", gamma=1.0).fit(x)
    with pytest.warns(UserWarning, match="n_components > n_samples"):
        models.Nystroem(n_components=30).fit(x)
    pipeline = make_pipeline(models.Nystroem(n_components=5), models.KNeighborsRegressor())
    assert pipeline.fit(x, x[:, 0]).predict(x).shape == (20,)


# Embeddings


@pytest.mark.parametrize("n", [100, 400])  # by a factorisation, and by products
@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"n_neighbors": 12}, None),
        ({"affinity": "rbf", "gamma": 2.0}, None),
        ({"affinity": "precomputed"}, "affinities"),
        ({"affinity": "precomputed"}, "sparse"),
        ({"affinity": "precomputed_nearest_neighbors", "n_neighbors": 12}, "distances"),
    ],
    ids=str,
)
def test_embeddings_are_scikit_learns(n, options, given):
    x = np.random.default_rng(0).random((n, 3)) * [3, 2, 1]
    d = distances(x, x)
    data = {None: x, "affinities": np.exp(-d), "distances": d,
            "sparse": scipy.sparse.csr_matrix(np.exp(-d) * (d < 1))}[given]  # fmt: skip
    known = sklearn.manifold.SpectralEmbedding(3, random_state=0, **options).fit_transform(data)
    ours = models.SpectralEmbedding(3, random_state=0, **options).fit(data)
    found = up_to_sign(ours.embedding_, known)
    np.testing.assert_allclose(found, known, atol=1e-9 * np.abs(known).max())
    assert ours.affinity_matrix_.shape == (n, n)


def test_affinities_whose_sums_are_negative_are_refused():
    for affinity in ("linear", "precomputed"):
        x = points(30)
        with pytest.raises(ValueError, match="must not be negative"):
            models.SpectralEmbedding(affinity=affinity).fit(x if affinity == "linear" else x @ x.T)


def test_a_graph_of_two_parts_warns():
    x = np.concatenate([points(20), points(20) + 100])
    with pytest.warns(UserWarning, match="not fully connected"):
        models.SpectralEmbedding(n_neighbors=3).fit(x)
    with pytest.warns(UserWarning, match="not fully connected"):
        models.SpectralEmbedding(affinity="gauss", bandwidth=1e-3).fit(x)


# Tests of two samples


def gauss(a, b, h):
    return np.exp(-np.square(distances(a, b)) / (2 * h * h))


def dense_mmd(x, y, h):
    a, b, c = gauss(x, x, h), gauss(y, y, h), gauss(x, y, h)
    m, n = len(x), len(y)
    within = (a.sum() - m) / (m * (m - 1)) + (b.sum() - n) / (n * (n - 1))
    return within - 2 * c.mean()


def dense_hsic(k, l_):
    n = len(k)
    k, l_ = k - np.diag(np.diag(k)), l_ - np.diag(np.diag(l_))
    bound = k.sum() * l_.sum() / ((n - 1) * (n - 2))
    return (np.trace(k @ l_) + bound - 2 / (n - 2) * (k @ l_).sum()) / (n * (n - 3))


@pytest.mark.parametrize("stored", [True, False])
def test_mmd_and_its_permutations(stored, monkeypatch):
    from mercer.models import two_samples

    if not stored:
        monkeypatch.setattr(two_samples, "_STORED", 1000)
    x, y = points(40), points(30, seed=1) + 0.4
    result = models.MMD(bandwidth=1.3, random_state=0, n_permutations=50).test(x, y)
    # Sums of 70^2 terms of at most 1, divided by as many: rounding is a small multiple of eps.
    np.testing.assert_allclose(result.statistic, dense_mmd(x, y, 1.3), atol=1e-14)
    rng, pool = np.random.RandomState(0), np.concatenate([x, y])
    for value in result.null:
        order = rng.permutation(70)
        known = dense_mmd(pool[order[:40]], pool[order[40:]], 1.3)
        np.testing.assert_allclose(value, known, atol=1e-14)
    expected = (1 + (result.null >= result.statistic).sum()) / 51
    assert result.p_value == expected
    alone = models.MMD(bandwidth=1.3).statistic(x, y)
    np.testing.assert_allclose(alone, result.statistic, atol=1e-14)


@pytest.mark.parametrize("batch", [1 << 18, 200])
@pytest.mark.parametrize("given", [False, True])
def test_hsic_and_its_permutations(batch, given, monkeypatch):
    from mercer.models import two_samples

    monkeypatch.setattr(two_samples, "_BATCH", batch)
    x = points(50, 2)
    y = np.square(x[:, :1]) + points(50, 1, seed=1)
    k, l_ = gauss(x, x, 1.0), gauss(y, y, 0.7)
    options = {"random_state": 0, "n_permutations": 50}
    if given:
        result = models.HSIC("precomputed", "precomputed", **options).test(k, l_)
    else:
        result = models.HSIC(bandwidth_x=1.0, bandwidth_y=0.7, **options).test(x, y)
    np.testing.assert_allclose(result.statistic, dense_hsic(k, l_), atol=1e-15)
    rng = np.random.RandomState(0)
    for value in result.null:
        order = rng.permutation(50)
        np.testing.assert_allclose(value, dense_hsic(k, l_[order][:, order]), atol=1e-15)


@pytest.mark.parametrize("kind", ["mmd", "hsic"])
def test_p_values_are_uniform_without_an_effect(kind):
    """Their distribution lies within the bound of Dvoretzky, Kiefer and Wolfowitz at 1e-6."""
    tests, rng = 300, np.random.default_rng(0)
    p = []
    for seed in range(tests):
        x, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
        model = models.MMD if kind == "mmd" else models.HSIC
        p.append(model(n_permutations=99, random_state=seed).test(x, y).p_value)
    p = np.array(p)
    levels = np.arange(1, 101) / 100
    law = (p[:, None] <= levels[None] + 1e-9).mean(0)
    assert np.abs(law - levels).max() < np.sqrt(np.log(2 / 1e-6) / (2 * tests))


def test_p_values_are_small_with_an_effect():
    x, y = points(100), points(80, seed=1)
    assert models.MMD(random_state=0).test(x, y + 0.7).p_value == 1 / 1001
    noise = points(100, 1, seed=2)
    assert models.HSIC(random_state=0).test(x, x[:, :1] ** 2 + 0.3 * noise).p_value == 1 / 1001


def test_permutations_that_change_nothing_count_as_equal():
    """All points in one place: every permutation has the statistic, but for rounding."""
    x = np.full((7, 2), 0.1)
    assert models.MMD(bandwidth=1.0, n_permutations=20).test(x, x[:5]).p_value == 1
    assert models.HSIC(bandwidth_x=1.0, bandwidth_y=1.0, n_permutations=20).test(x, x).p_value == 1


def test_faults_of_tests_of_two_samples():
    x = points(10)
    with pytest.raises(ValueError, match="features"):
        models.MMD().test(x, points(10, 2))
    with pytest.raises(ValueError, match="minimum of 2"):
        models.MMD().test(x, x[:1])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        models.HSIC().test(x, x[:9])
    with pytest.raises(ValueError, match="NaN"):
        models.HSIC().test(x, np.full((10, 1), np.nan))
    with pytest.raises(ValueError, match="must be square"):
        models.HSIC("precomputed").test(x, x)
    with pytest.raises(ValueError, match="precomputed"):
        models.MMD("precomputed").test(x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models.MMD(bandwidth="scale").test(x, x)


def test_kernel_pca_copies_its_points_and_checks_components():
    x = np.random.default_rng(0).normal(size=(30, 3))
    given = x.copy()
    model = models.KernelPCA(3, kernel="rbf", fit_inverse_transform=True).fit(given)
    expected = model.transform(x)
    given[:] = 0
    np.testing.assert_array_equal(model.transform(x), expected)
    with pytest.raises(ValueError, match="NaN"):
        model.inverse_transform(np.full((1, 3), np.nan))
    with pytest.raises(ValueError, match="expects 3 components"):
        model.inverse_transform(np.ones((1, 2)))


@pytest.mark.parametrize("fit", [
    lambda x: models.MMD("sum(x*z*z)").test(x, x), lambda x: models.HSIC("sum(x*z*z)").test(x, x),
    lambda x: models.Nystroem("sum(x*z*z)", n_components=3).fit(x),
])  # fmt: skip
def test_kernels_must_be_symmetric(fit):
    with pytest.raises(ValueError, match="symmetric"):
        fit(np.random.default_rng(0).normal(size=(9, 2)))
