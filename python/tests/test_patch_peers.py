"""SciPy's and scikit-learn's distances and kernels under mercer.patch, against the originals."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys

import mercer as mc
import numpy as np
import pytest

distance = pytest.importorskip("scipy.spatial.distance")
pairwise = pytest.importorskip("sklearn.metrics.pairwise")
sparse = pytest.importorskip("scipy.sparse")

NAMES = ("scipy", "sklearn")


@pytest.fixture(autouse=True)
def untouched():
    before = distance.cdist, pairwise.rbf_kernel
    yield
    mc.unpatch()
    assert (distance.cdist, pairwise.rbf_kernel) == before


@pytest.fixture
def served(monkeypatch):
    """What Mercer was asked for."""
    asked = []

    def watched(verb):
        def call(*args, **kwargs):
            found = verb(*args, **kwargs)
            asked.append(found.shape)
            return found

        return call

    for name in ("cdist", "pdist", "pairwise"):
        monkeypatch.setattr(mc, name, watched(getattr(mc, name)))
    return asked


@pytest.fixture
def points(rng):
    x, z = rng.normal(size=(8, 4)), rng.normal(size=(6, 4))
    x[0], z[0], x[1] = 0, 0, z[1]
    return x, z


def both(call):
    """What a call gives or raises with the originals and under the patch."""
    outcomes = []
    for block in (contextlib.nullcontext, lambda: mc.patch(*NAMES)):
        with block():
            try:
                outcomes.append(call())
            except Exception as error:
                outcomes.append((type(error), str(error)))
    return outcomes


SCIPY = {
    **{name: {} for name in ("euclidean", "sqeuclidean", "cityblock", "chebyshev", "canberra")},
    **{name: {} for name in ("correlation", "cosine", "hamming", "seuclidean", "mahalanobis")},
    "minkowski": {"p": 1.5},
}


@pytest.mark.parametrize("name", SCIPY)
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, list])
def test_metrics_of_scipy(served, points, name, kind):
    x, z = ((3 * a).tolist() if kind is list else (3 * a).astype(kind) for a in points)
    words = [SCIPY[name]]
    if name not in ("seuclidean", "mahalanobis", "correlation"):
        words.append({**SCIPY[name], "w": [0.5, 1, 2, 3]})
    for given in words:
        theirs, ours = both(lambda given=given: distance.cdist(x, z, name, **given))
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
        assert ours.dtype == np.float64
        theirs, ours = both(lambda given=given: distance.pdist(x, name, **given))
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-12)
    assert served == [(8, 6), (28,)] * len(words)


CONSTANT = [[3, 3, 3], [0.1, 0.1, 0.1], [2, 0, 1]]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, z: distance.cdist(x, z, "braycurtis"),
        lambda x, z: distance.cdist(x > 0, z > 0, "jaccard"),
        lambda x, z: distance.cdist(x, z, lambda a, b: float(a[0] - b[0])),
        lambda x, z: distance.cdist(x, z, out=np.empty((8, 6))),
        lambda x, z: distance.cdist(x, z[:, :2]),
        lambda x, z: distance.cdist(x[0], z),
        lambda x, z: distance.cdist(x, z, "no metric"),
        lambda x, z: distance.cdist(x, z, "euclidean", p=2),
        lambda x, z: distance.cdist(x, z, "minkowski", p=-1),
        lambda x, z: distance.cdist(x, z, "cityblock", w=[-1, 1, 1, 1]),
        lambda x, z: distance.cdist(x, z, "cityblock", w=[1, 1]),
        lambda x, z: distance.cdist(np.empty((0, 4)), z),
        lambda x, z: distance.pdist(x, "mahalanobis", VI=np.eye(2)),
        lambda x, z: distance.cdist(x + 1j, z),
        lambda x, z: distance.cdist(x, [["a"] * 4]),
        lambda x, z: distance.cdist(x, z, "correlation", w=[0.5, 1, 2, 3]),
        lambda x, z: distance.cdist([[3, 3, 3], [1, 2, 3]], CONSTANT, "correlation", w=[1, 2, 0.5]),
        lambda x, z: distance.pdist(CONSTANT, "correlation", w=[1, 2, 0.5]),
        lambda x, z: distance.cdist(x, z, "euclidean", w=[1, np.inf, 1, 1]),
        lambda x, z: distance.cdist(x, z, "minkowski", p=3, w=[1, np.inf, 1, 1]),
        lambda x, z: pairwise.laplacian_kernel(x, z, gamma=0),
        lambda x, z: pairwise.laplacian_kernel(x, z, gamma=np.inf),
        lambda x, z: pairwise.chi2_kernel(abs(x), abs(z), gamma=0.0),
        lambda x, z: pairwise.rbf_kernel(x, z, gamma=0),
        lambda x, z: pairwise.rbf_kernel(x, z, gamma=np.inf),
        lambda x, z: pairwise.pairwise_kernels(x, z, metric=None),
        lambda x, z: pairwise.pairwise_kernels(x, z, None),
        lambda x, z: pairwise.pairwise_distances(x, z, metric=None),
        lambda x, z: pairwise.pairwise_kernels(x, z, metric=mc.gauss(), n_jobs="2"),
        lambda x, z: pairwise.pairwise_kernels(x, z, metric=mc.gauss(), filter_params=3),
        lambda x, z: pairwise.pairwise_distances(x, z, mc.gauss(), n_jobs=1.5),
        lambda x, z: pairwise.rbf_kernel(x, z, gamma=-1.0),
        lambda x, z: pairwise.rbf_kernel(x, z, gamma="scale"),
        lambda x, z: pairwise.rbf_kernel(x, z, 1.0, 2.0),
        lambda x, z: pairwise.rbf_kernel(x, z[:, :2]),
        lambda x, z: pairwise.rbf_kernel(np.where(x > 1, np.nan, x), z),
        lambda x, z: pairwise.chi2_kernel(x, z),
        lambda x, z: pairwise.euclidean_distances(x, z, squared=3),
        lambda x, z: pairwise.euclidean_distances(x, z, X_norm_squared=(x * x).sum(1)),
        lambda x, z: pairwise.laplacian_kernel(sparse.csr_matrix(x), sparse.csr_matrix(z)),
        lambda x, z: pairwise.pairwise_kernels(x, z, metric="linear"),
        lambda x, z: pairwise.pairwise_distances(x, z),
        lambda x, z: pairwise.pairwise_kernels(x, z, "no kernel"),
    ],
)
def test_the_rest_is_the_originals(points, call):
    theirs, ours = both(lambda: call(*points))
    if isinstance(theirs, tuple):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("name", "words"), [("chebyshev", {}), ("minkowski", {"p": np.inf})])
@pytest.mark.parametrize("w", [None, [1, 2, 0.5, 3]])
def test_the_largest_difference_drops_nan_as_scipy_does(served, points, name, words, w):
    x, z = points
    x[2, 1], z[3] = np.nan, [np.inf, 1, np.nan, 2]
    x[3] = z[3]
    words = words if w is None else {**words, "w": w}
    theirs, ours = both(lambda: distance.cdist(x, z, name, **words))
    assert not np.isnan(theirs).any()
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    theirs, ours = both(lambda: distance.pdist(x, name, **words))
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert served == [(8, 6), (28,)]


SKLEARN = {
    "euclidean": lambda x, z: pairwise.euclidean_distances(x, z),
    "squared": lambda x, z: pairwise.euclidean_distances(x, z, squared=True),
    "manhattan": lambda x, z: pairwise.manhattan_distances(x, z),
    "rbf": lambda x, z: pairwise.rbf_kernel(x, z),
    "rbf of gamma": lambda x, z: pairwise.rbf_kernel(x, z, gamma=0.3),
    "laplacian": lambda x, z: pairwise.laplacian_kernel(x, Y=z),
    "chi2": lambda x, z: pairwise.chi2_kernel(abs(x), None if z is None else abs(z), 0.5),
    "additive chi2": lambda x, z: pairwise.additive_chi2_kernel(
        abs(x), None if z is None else abs(z)
    ),
    "by name": lambda x, z: pairwise.pairwise_kernels(x, z, metric="laplacian", gamma=0.2),
    "distances by name": lambda x, z: pairwise.pairwise_distances(x, z, metric="l1"),
}


@pytest.mark.parametrize("name", SKLEARN)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_functions_of_scikit_learn(served, points, name, dtype):
    x, z = (a.astype(dtype) for a in points)
    tolerance = 1e-5 if dtype == np.float32 else 1e-10
    for second in (z, None):
        theirs, ours = both(lambda second=second: SKLEARN[name](x, second))
        assert ours.dtype == theirs.dtype
        # Squared distances of scikit-learn come from inner products.
        root = tolerance**0.5 if name == "euclidean" else tolerance
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=root)
    assert served == [(8, 6), (8, 8)]


def test_kernels_are_asked_for_whole_matrices(served, points):
    ridge = pytest.importorskip("sklearn.kernel_ridge")
    x, z = points
    k = mc.gauss(bandwidth=0.7)
    expected = ridge.KernelRidge(kernel=k).fit(x, x[:, 0]).predict(z)
    served.clear()
    with mc.patch("sklearn.metrics.pairwise.pairwise_kernels"):
        found = ridge.KernelRidge(kernel=k).fit(x, x[:, 0]).predict(z)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert served == [(8, 8), (6, 8)]
    with mc.patch(*NAMES):
        np.testing.assert_array_equal(distance.cdist(x, z, k), k(x, z))
        found = pairwise.pairwise_distances(x, z, metric=mc.metric("canberra"))
        np.testing.assert_allclose(found, distance.cdist(x, z, "canberra"), rtol=1e-12)
        with pytest.raises(ValueError, match="NaN"):
            pairwise.pairwise_kernels(np.full((2, 2), np.nan), metric=k)


@pytest.mark.parametrize("call", [pairwise.pairwise_kernels, pairwise.pairwise_distances])
@pytest.mark.parametrize("text", ["sum(x*square(z))", "abs(sum(x - 2*z))"])
def test_kernels_of_one_set_are_mirrored(served, points, call, text):
    (x, z), k = points, mc.kernel(text)
    for second, jobs in ((None, 1), (x, None), (x.copy(), 1), (z, 1), (None, 2)):
        theirs = call(x, second, metric=k, n_jobs=jobs)
        served.clear()
        with mc.patch("sklearn"):
            ours = getattr(pairwise, call.__name__)(x, second, metric=k, n_jobs=jobs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        assert served == [theirs.shape]


def test_tables_of_scikit_learn_have_the_replacements():
    original = pairwise.manhattan_distances
    with mc.patch("sklearn"):
        assert pairwise.manhattan_distances is not original
        for name in ("cityblock", "l1", "manhattan"):
            assert pairwise.PAIRWISE_DISTANCE_FUNCTIONS[name] is pairwise.manhattan_distances
    assert pairwise.PAIRWISE_DISTANCE_FUNCTIONS["l1"] is original


# Left out for their time: array API and callables are the originals', the rest has long loops.
LONG = "array_api or argmin_min or readonly or parallel or callable"
OWN_TESTS = f"""
import sys
import mercer as mc, pytest
asked, pairwise = [], mc.pairwise
mc.pairwise = lambda *a, **k: (pairwise(*a, **k), asked.append(1))[0]
mc.patch("sklearn", "scipy")
options = ["-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore", "-k", "not ({LONG})"]
code = pytest.main([*options, "-c", sys.argv[1], "--pyargs", "sklearn.metrics.tests.test_pairwise"])
print("asked", len(asked))
sys.exit(code)
"""


def test_scikit_learns_own_tests_pass_with_our_functions(tmp_path):
    if importlib.util.find_spec("sklearn.metrics.tests") is None:
        pytest.skip("scikit-learn without its tests")
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")  # not those of this project
    command = [sys.executable, "-c", OWN_TESTS, str(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    assert int(run.stdout.rsplit("asked ", 1)[1]) > 200
