"""Sparse points of SciPy against dense ones, by SciPy's distances and NumPy in float64."""

from __future__ import annotations

import tracemalloc

import mercer as mc
import numpy as np
import pytest
from mercer import _sparse

sparse = pytest.importorskip("scipy.sparse")
distance = pytest.importorskip("scipy.spatial.distance")

EPS = np.finfo(np.float64).eps


@pytest.fixture
def points():
    """x [50, 40], z [30, 40] with a fifth of their values, some whole, none of the rows empty."""
    made = []
    for rows, seed in ((50, 1), (30, 2)):
        rng = np.random.default_rng(seed)
        a = rng.integers(-2, 3, (rows, 40)) + rng.choice([0, 0.5], (rows, 40))
        a *= rng.random((rows, 40)) < 0.2
        a[:, 7] = rng.integers(1, 3, rows)
        made.append(a)
    made[0][3] = made[0][4] = made[1][5]  # duplicates
    return made


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of rows, and of near pairs."""
    monkeypatch.setattr(_sparse, "_BLOCK", 200)
    monkeypatch.setattr(_sparse, "_CACHED", 100)


def dots(x, z):
    return x @ z.T


def squares(x, z):
    return ((x[:, None] - z) ** 2).sum(-1)


SCIPYS = {"euclidean": "euclidean", "sqeuclidean": "sqeuclidean", "cosine": "cosine",
          "hamming": "hamming"}  # fmt: skip
OF_TRUTH = ("jaccard", "dice", "rogerstanimoto", "yule", "russellrao")
FORMULAS = {
    "dot": ({}, dots),
    "polynomial": ({"degree": 3, "gamma": 0.5}, lambda x, z: (0.5 * dots(x, z) + 1) ** 3),
    "gauss": ({"bandwidth": 3.0}, lambda x, z: np.exp(-squares(x, z) / 18)),
    "laplace": ({"p": 2.0, "bandwidth": 3.0}, lambda x, z: np.exp(-(squares(x, z) ** 0.5) / 3)),
    "thin_plate": (
        {},
        lambda x, z: np.where(s := squares(x, z), s * np.log(np.where(s, s, 1)) / 2, 0),
    ),
    "cosine_similarity": (
        {},
        lambda x, z: dots(x, z) / np.sqrt((x * x).sum(1))[:, None] / np.sqrt((z * z).sum(1)),
    ),
    "sum((x-z)^2) + sum(x*z)*h - sum(z)*sum(x != 0) + K": (
        {"h": 0.25},
        lambda x, z: squares(x, z) + dots(x, z) / 4 - (x != 0).sum(1)[:, None] * z.sum(1) + 40,
    ),
}


def close(found, exact):
    np.testing.assert_allclose(found, exact, rtol=400 * EPS, atol=400 * EPS)


@pytest.mark.parametrize("metric", SCIPYS)
@pytest.mark.parametrize("kinds", ["sparse, sparse", "sparse, dense", "dense, sparse", "one"])
def test_metrics_of_scipy(points, metric, kinds):
    x, z = points
    first, _, second = kinds.partition(", ")
    a = x if first == "dense" else sparse.csr_array(x)
    b = {"sparse": sparse.csc_matrix(z), "dense": z, "": None}[second]
    exact = distance.cdist(x, x if b is None else z, metric)
    close(mc.cdist(a, b, metric=metric), exact)


@pytest.mark.parametrize("metric", OF_TRUTH)
def test_metrics_of_truth_values(points, metric):
    x, z = points
    exact = distance.cdist(x != 0, z != 0, metric)
    close(mc.cdist(sparse.coo_matrix(x), sparse.csr_matrix(z), metric=metric), exact)


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas(points, text):
    x, z = points
    params, exact = FORMULAS[text]
    a, b = map(sparse.csr_matrix, points)
    close(mc.pairwise(text, a, b, **params), exact(x, z))
    found = mc.kernel_matrix(text, a, **params)
    close(found, exact(x, x))
    assert np.array_equal(found, found.T) == (" - sum(z)*" not in text)
    v = np.random.default_rng(0).normal(size=(30, 3))
    for some in (v, v[:, 0], v.astype("f")):
        product = exact(x, z) @ some.astype("d")
        bound = 1e3 * EPS * (abs(exact(x, z)) @ abs(some).astype("d")).max()
        np.testing.assert_allclose(
            mc.kernel_product(text, a, b, some, **params), product, rtol=0, atol=bound
        )


REDUCTIONS = {
    "sum": lambda k: k.sum(1),
    "max": lambda k: k.max(1),
    "argmin": lambda k: k.argmin(1),
    "logsumexp": lambda k: np.log(np.exp(k).sum(1)),
}


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions(points, reduce):
    a, b = map(sparse.csr_matrix, points)
    exact = REDUCTIONS[reduce](distance.cdist(*points))
    found = mc.kernel_reduce("euclidean", a, b, reduce)
    assert found.dtype == exact.dtype
    close(found, exact)


def test_neighbours(points):
    a, b = map(sparse.csr_matrix, points)
    exact = distance.cdist(*points, "sqeuclidean")  # whole quarters: ties are ties
    values, indices = mc.knn("sqeuclidean", a, b, 5)
    order = np.argsort(exact, axis=1, kind="stable")[:, :5]
    close(values, np.take_along_axis(exact, order, 1))
    assert np.array_equal(indices, order)
    values, indices = mc.knn("gauss", a.astype("f"), None, 1, bandwidth=[1.0, 2.0])
    assert values.dtype == np.float32
    assert values.shape == indices.shape == (2, 50, 1)


def test_weights(points):
    x, z = points
    w = np.random.default_rng(0).random(40)
    a, b = map(sparse.csr_matrix, points)
    for metric in ("euclidean", "sqeuclidean", "cosine"):
        close(mc.cdist(a, b, metric=metric, w=w), distance.cdist(x, z, metric, w=w))
    close(mc.cdist(a, b, metric="seuclidean", V=w), distance.cdist(x, z, "seuclidean", V=w))
    signed = w - 0.5
    close(mc.pairwise("sum(w*x*z)", a, b, w=signed), (x * signed) @ z.T)
    close(mc.pairwise("sum(w*square(x-z))", a, b, w=signed), ((x[:, None] - z) ** 2) @ signed)


WEIGHTED_SETS = ("jaccard", "dice", "rogerstanimoto", "sokalsneath", "russellrao")
COUNTS = {
    "sum(w*(x != z))": lambda x, z: x != z,
    "sum(w*(x != 0 && z != 0))": lambda x, z: (x != 0) & (z != 0),
    "sum(w*((x != 0) != (z != 0)))": lambda x, z: (x != 0) != (z != 0),
    "sum(w*(x != 0))": lambda x, z: (x != 0) & (z == z),
    "sum(w*(z != 0))": lambda x, z: (z != 0) & (x == x),
    "sum(rcp(w)*(x != z))": None,
    "sum(w*(x != z))/sum(w) + K*sum(w)": None,
}


def test_weighted_counts(points):
    x, z = points
    x[6] = 0
    z[2] = x[6]
    a, b = map(sparse.csr_matrix, points)
    # Differences that are small parts of the counts keep their digits; zeros stay zeros.
    for w in (np.random.default_rng(0).random(40), 10.0 ** -np.arange(40), np.arange(40) % 2 * 1.0):
        for metric in WEIGHTED_SETS:
            exact = mc.cdist(x, z, metric=metric, w=w)
            with np.errstate(invalid="ignore"):
                other = distance.cdist(x != 0, z != 0, metric, w=w)
            known = np.isfinite(other)  # two points of nothing: docs/guide/metrics.md
            np.testing.assert_allclose(exact[known], other[known], rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(
                mc.cdist(a, b, metric=metric, w=w), exact, rtol=8 * EPS / _sparse._NEAR, atol=EPS
            )
        exact = distance.cdist(x, z, "hamming", w=w)
        found = mc.cdist(a, b, metric="hamming", w=w)
        np.testing.assert_allclose(found, exact, rtol=8 * EPS / _sparse._NEAR)
        assert np.array_equal(found == 0, exact == 0)
        found = mc.cdist(a, None, metric="hamming", w=w)
        assert np.array_equal(found, found.T)
        assert (found.diagonal() == 0).all()


@pytest.mark.parametrize("text", COUNTS)
def test_weighted_sums_of_counts(points, text):
    x, z = points
    a, b = map(sparse.csr_matrix, points)
    w = np.random.default_rng(0).random(40) - 0.5
    unequal = x[:, None] != z
    if text.startswith("sum(rcp"):
        exact = unequal @ (1 / w)
    elif "K" in text:
        exact = unequal @ w / w.sum() + 40 * w.sum()
    else:
        exact = COUNTS[text](x[:, None], z) @ w
    sizes = np.ones_like(exact) * max(abs(w).sum(), abs(1 / w).sum() if "rcp" in text else 0)
    found = mc.pairwise(text, a, b, w=w)
    assert (abs(found - exact) <= 400 * EPS * (sizes + abs(exact))).all()
    close(mc.pairwise(text, a, b.toarray(), w=w), found)


def test_values_that_are_not_finite_stay_in_their_pair(points):
    """The engine computes several rows at once, of which one has NaN or an infinity."""
    x, z = points
    x[9] = 0
    a, b = map(sparse.csr_matrix, points)
    for text in ("1/sum(x*z)", "sum(square(x - z))/sum(x*x)", "cosine"):
        dense = mc.pairwise(text, x, z)
        assert not np.isfinite(dense[9]).all()
        np.testing.assert_allclose(mc.pairwise(text, a, b), dense, rtol=400 * EPS, atol=400 * EPS)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 50])
def test_symmetric_matrices_are_computed_by_halves(points, rows):
    x = points[0][:rows]
    a = sparse.csr_matrix(x)
    for text in ("gauss", "sum(x != z)", "sum(square(x - z)) + sum(x) + sum(z)", "sum(z)*sum(x*z)"):
        dense = mc.pairwise(text, x)
        found = mc.pairwise(text, a)
        close(found, dense)
        assert np.array_equal(found, found.T) == np.array_equal(dense, dense.T)
    found = mc.kernel_matrix("gauss", a, bandwidth=[1.0, 2.0])
    close(found, mc.kernel_matrix("gauss", x, bandwidth=[1.0, 2.0]))


def test_several_values_of_a_parameter(points):
    x, z = points
    a, b = map(sparse.csr_matrix, points)
    found = mc.pairwise("gauss", a, b, bandwidth=[1.0, 3.0])
    close(found, np.exp(-squares(x, z) / np.array([2.0, 18.0])[:, None, None]))
    y = mc.kernel_product("gauss", a, b, np.ones(30), bandwidth=[1.0, 3.0])
    close(y, found.sum(-1))


def test_near_points_keep_their_digits():
    rng = np.random.default_rng(0)
    x = 1e3 * rng.random((20, 300)) * (rng.random((20, 300)) < 0.3)
    z = x + 1e-6 * rng.normal(size=x.shape) * (x != 0)
    exact = distance.cdist(x, z)
    assert exact.diagonal().max() < 1e-4
    found = mc.cdist(sparse.csr_array(x), sparse.csr_array(z))
    np.testing.assert_allclose(found, exact, rtol=1e-12)
    same = mc.cdist(sparse.csr_array(x), sparse.csr_array(x))
    assert (same.diagonal() == 0).all()
    assert np.array_equal(same, same.T)


def test_rows_of_zeros_are_as_dense_ones(points):
    x = points[0]
    x[2] = 0
    for metric in ("cosine", "euclidean", "hamming", "jaccard", "cosine_similarity"):
        dense = mc.pairwise(metric, x, points[1])
        close(mc.pairwise(metric, sparse.csr_matrix(x), points[1]), dense)


@pytest.mark.parametrize(
    ("given", "computed"), [("f4", "f4"), ("f8", "f8"), ("i4", "f8"), ("?", "f8")]
)
def test_dtypes(points, given, computed):
    x, z = (a.astype(given) for a in points)
    found = mc.cdist(sparse.csr_matrix(x), sparse.csr_matrix(z))
    assert found.dtype == np.dtype(computed)
    exact = distance.cdist(x.astype("d"), z.astype("d"))
    np.testing.assert_allclose(found, exact, rtol=2 * np.finfo(computed).eps)


def test_stored_zeros_and_doubles_count_as_their_sums():
    a = sparse.coo_array(([1.0, 2, 0], ([0, 0, 1], [1, 1, 0])), shape=(2, 3))
    dense = np.array([[0.0, 3, 0], [0, 0, 0]])
    assert np.array_equal(mc.cdist(a, a, metric="hamming"), distance.cdist(dense, dense, "hamming"))
    assert np.array_equal(mc.cdist(a, a, metric="jaccard"), [[0, 1], [1, 0]])
    assert a.nnz == 3
    truth = sparse.coo_array(([True, True], ([0, 0], [1, 1])), shape=(1, 3))
    assert mc.cdist(truth, np.zeros((1, 3), bool)) == 1


def test_indices_of_any_order_and_width(points):
    """Unsorted and repeated columns, in int32 and int64; the caller's arrays stay as they are."""
    x, z = points
    rng = np.random.default_rng(0)
    for kind in (np.int32, np.int64):
        made = []
        for dense in (x, z):
            i, j = np.nonzero(dense)
            i, j, parts = np.r_[i, i], np.r_[j, j], np.r_[dense[i, j] - 0.25, np.full(len(i), 0.25)]
            order = np.argsort(i + rng.random(len(i)) / 2)
            indptr = np.searchsorted(i[order], np.arange(len(dense) + 1)).astype(kind)
            a = sparse.csr_array((parts[order], j[order].astype(kind), indptr), shape=dense.shape)
            assert not a.has_canonical_format
            assert a.indices.dtype == kind
            made.append(a)
        before = [part.copy() for a in made for part in (a.indptr, a.indices, a.data)]
        for text in ("sqeuclidean", "dot", "hamming"):
            close(mc.pairwise(text, *made), mc.pairwise(text, x, z))
            close(mc.pairwise(text, made[0]), mc.pairwise(text, x))
        after = [part for a in made for part in (a.indptr, a.indices, a.data)]
        assert all(map(np.array_equal, before, after))


@pytest.mark.parametrize("text", ["dot", "cosine_similarity", "cosine", "euclidean", "sqeuclidean"])
@pytest.mark.parametrize("kind", ["spare", "swapped", "half", "strided", "coo", "csc", "whole"])
def test_every_storage_gives_the_same_bits(points, text, kind):
    """Room after the last value, other byte orders and widths, strides: all as plain rows."""
    x, z = points
    x[6] = z[2] = 0
    plain, z = sparse.csr_array(x), sparse.csr_array(z)
    indptr, indices, data = plain.indptr, plain.indices, plain.data
    if kind == "spare":
        a = plain.copy()
        a.indices, a.data = np.r_[indices, [10**6] * 3], np.r_[data, [np.nan] * 3]
    elif kind == "strided":
        a = plain.copy()
        a.indices, a.data = np.repeat(indices, 2)[::2], np.repeat(data, 3)[::3]
    elif kind == "whole":
        a = sparse.csr_array(((2 * data).astype("i2"), indices, indptr), shape=x.shape)
        plain = 2 * plain
    else:
        dtypes = {"swapped": np.dtype("f8").newbyteorder(), "half": np.float16}
        a = sparse.csr_array((data.astype(dtypes.get(kind, "f8")), indices, indptr), shape=x.shape)
        a = a.asformat(kind) if kind in ("coo", "csc") else a
    for other in (z, None):
        np.testing.assert_array_equal(mc.pairwise(text, a, other), mc.pairwise(text, plain, other))
    np.testing.assert_array_equal(mc.pairwise(text, z, a), mc.pairwise(text, z, plain))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_units_with_weights_and_points_of_nothing(points, dtype):
    x, z = (a.astype(dtype) for a in points)
    x[6] = z[2] = 0
    w = np.random.default_rng(0).random(40)
    w[7] = 0  # leaves nothing of some points
    tolerance = 400 * np.finfo(dtype).eps
    weighted = "a = sqrt(sum(w*x*x)); b = sqrt(sum(w*z*z)); "
    for text, given in (
        ("cosine_similarity", None),
        ("cosine", None),
        (weighted + "sum(w*x/a*(z/b))", w),
        (weighted + "sum(w*square(x/a - z/b))", w),
    ):
        exact = mc.pairwise(text, x.astype("f8"), z.astype("f8"), w=given)
        found = mc.pairwise(text, *map(sparse.csr_array, (x, z)), w=given)
        assert found.dtype == dtype
        assert np.isnan(found[6]).all()
        assert np.isnan(found[:, 2]).all()
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("storage", ["csr", "csc", "dense"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_few_points_and_many(points, dtype, storage):
    """Sides that change places within the call: against few values of x, and as without."""
    x, z = points[0][:2].astype(dtype), np.concatenate([*points] * 3).astype(dtype)
    x[1] = z[2] = 0
    a, w = sparse.csr_array(x), np.random.default_rng(0).random(40)
    b = z if storage == "dense" else sparse.csr_array(z).asformat(storage)
    assert _sparse._is_less_turned(a, sparse.csr_array(z))
    assert not _sparse._is_less_turned(sparse.csr_array(z), a)
    tolerance = 400 * np.finfo(dtype).eps
    for text, given, params in (
        ("dot", None, {}),
        ("euclidean", None, {}),
        ("cosine", None, {}),
        ("hamming", w, {}),
        ("jaccard", None, {}),
        ("russellrao", w, {}),
        ("sum(x)*3 - sum(z) + sum(x*x)*sum(z != 0) - sum(z*z)*sum(x != 0)", None, {}),
        ("sum(w*x*z) + sum(w*x) - K*sum(w*z)", w, {}),
        ("gauss", None, {"bandwidth": np.array([1.0, 3.0])}),
    ):
        exact = mc.pairwise(text, x.astype("f8"), z.astype("f8"), w=given, **params)
        found = mc.pairwise(text, a, b, w=given, **params)
        assert found.dtype == dtype
        assert found.flags.c_contiguous
        largest = np.nanmax(abs(exact))
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance * largest)
    # Verbs that reduce over z keep their sides.
    v = np.random.default_rng(1).normal(size=len(z))
    exact = distance.cdist(x.astype("f8"), z.astype("f8"))
    bound = tolerance * (exact @ abs(v)).max()
    np.testing.assert_allclose(mc.kernel_product("euclidean", a, b, v), exact @ v, atol=bound)
    assert np.array_equal(mc.kernel_reduce("euclidean", a, b, "argmin"), exact.argmin(1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_values_that_are_not_finite_are_named(points, value, dtype, kind):
    a = sparse.csr_array(points[0].astype(dtype))
    a.data[5] = value
    with pytest.raises(ValueError, match=f"Received {value} in x"):
        mc.pairwise("dot", a.asformat(kind), sparse.csr_array(points[1].astype(dtype)))


@pytest.mark.parametrize("text", ["euclidean", "cosine", "hamming", "sum(w*square(x - z))"])
def test_features_that_no_point_has_are_left_out(monkeypatch, points, text):
    monkeypatch.setattr(_sparse, "_FEW", 0)
    places = np.sort(np.random.default_rng(0).choice(10**5, 40, replace=False))
    wide = []
    for dense in points:
        made = sparse.lil_array((len(dense), 10**5))
        made[:, places] = dense
        wide.append(made)
    w = np.random.default_rng(1).random(10**5) if "w" in text else None
    chosen = None if w is None else w[places]
    found, exact = mc.pairwise(text, *wide, w=w), mc.pairwise(text, *points, w=chosen)
    close(found * (10**5 / 40 if text == "hamming" else 1), exact)  # a part of the features
    found, exact = mc.pairwise(text, wide[0], w=w), mc.pairwise(text, points[0], w=chosen)
    close(found * (10**5 / 40 if text == "hamming" else 1), exact)


@pytest.mark.parametrize("part", ["indptr", "indices"])
@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_arrays_that_are_no_sparse_matrix_are_refused(points, part, kind):
    for value in (-1, 10**6):
        a = sparse.csr_array(points[0]).asformat(kind)
        getattr(a, part)[1] = value
        for call in (
            lambda a: mc.cdist(a, None),
            lambda a: mc.cdist(points[0], a),
            lambda a: mc.knn("euclidean", a, None, 2),
        ):
            with pytest.raises(ValueError, match="must be those of its shape"):
                call(a)


def test_symmetric_matrices_have_the_same_bits_on_both_sides(points):
    a = sparse.csr_array(points[0])
    w = np.random.default_rng(0).random(40)
    for text in ("sum(w*x*z)", "sum(w*square(x - z))", "seuclidean"):
        found = mc.pairwise(text, a, w=w)
        assert np.array_equal(found, found.T)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (3, 2, 0), (0, 0, 0)])
def test_empty(m, n, k):
    x, z = np.ones((m, k)), np.ones((n, k))
    a, b = map(sparse.csr_array, (x, z))
    for metric in ("euclidean", "dot", "gauss"):
        close(mc.pairwise(metric, a, b), mc.pairwise(metric, x, z))


def test_nothing_of_the_features_is_stored(monkeypatch):
    monkeypatch.setattr(_sparse, "_BLOCK", 2**16)
    x = sparse.random_array((2000, 100_000), density=1e-4, format="csr", rng=0)
    z = sparse.random_array((3000, 100_000), density=1e-4, format="csr", rng=1)
    v = np.ones(3000)
    mc.kernel_product("gauss", x[:2], z[:2], v[:2])
    tracemalloc.start()
    try:
        mc.kernel_product("gauss", x, z, v)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24e6  # the matrix is 48 MB, the dense points 4 GB


REFUSED = [
    (lambda x, z: mc.cdist(x, z, p=1), "sum(abs(x - z))"),
    (lambda x, z: mc.pairwise("correlation", x, z), "of sparse points a formula may read"),
    (lambda x, z: mc.pairwise("sum(x*z) + i", x, z), "Received i + sum(x*z); pass x.toarray()"),
    (lambda x, z: mc.pairwise("sum(x*z)*row", x, z, row=np.ones(50)), "row= is not offered"),
    (lambda x, z: mc.cdist(x, z, metric="yule", w=np.ones(40)), "of sparse points a formula"),
    (lambda x, z: mc.cdist(x, z[:, :5]), "as many features. Received 40 and 5"),
    (lambda x, z: mc.cdist(x.astype("f"), z), "one dtype. Received float32 and float64"),
    (lambda x, z: mc.cdist(x, z.astype("F")), "z must be real. Received complex64"),
    (lambda x, z: mc.cdist(x, z * 1e200), "from 1e-130 to 1e+150. Received"),
    (lambda x, z: mc.cdist(x.astype("i8") * 2**53, z), "Received one of the size"),
    (lambda x, z: mc.cdist(x, z * np.nan), "Received nan in z"),
    (lambda x, z: mc.cdist(x, z[0].toarray()[0]), "two axes. Received 1 of z"),
    (lambda x, z: mc.cdist(x, [[1.0] * 40]), "go with those of NumPy. Received list as z"),
    (lambda x, z: mc.cdist(x, z, w=np.ones(3)), "w must be 40 finite numbers"),
    (
        lambda x, z: mc.pairwise("seuclidean", x, z, w=np.arange(40.0)),
        "must not divide by weights of 0. Received 0.0 as weight 0",
    ),
    (
        lambda x, z: mc.cdist(x * 1e149, z, metric="sqeuclidean", w=np.full(40, 1e10)),
        "weights times squares of values of sparse points must be 0 or of sizes from",
    ),
    (lambda x, z: mc.cdist(x * 1e-129, z, w=np.full(40, 1e-70)), "1e-260 to 1e+300. Received"),
    (lambda x, z: mc.cdist(x, z, metric="seuclidean"), "must be given the variances V"),
    (lambda x, z: mc.cdist(x, z, metric="seuclidean", w=np.ones(40)), "takes no weights w"),
    (lambda x, z: mc.cdist(x, z, "cosine"), "goes by keyword (metric=). Received 'cosine'"),
    (
        lambda x, z: mc.pairwise("sum(x*z)", x, np.ma.masked_less(z.toarray(), 0)),
        "z must have no mask",
    ),
    (lambda x, z: mc.cdist(x, z, out=np.ones((50, 30))), "out= is not offered"),
    (lambda x, z: mc.pairwise("gauss", x, z, q=3.0), 'pairwise: the formula has no parameter "q"'),
    (lambda x, z: mc.knn("gauss", x, z, 2, q=3.0), 'knn: the formula has no parameter "q"'),
    (lambda x, z: mc.kernel_product("gauss", x, z, np.ones(4)), "the shape (30,) or (30, E)"),
    (lambda x, z: mc.knn("gauss", x, z, 31), "number of points of z (30). Received 31"),
    (lambda x, z: mc.knn("gauss", x[:0], z, 0), "number of points of z (30). Received 0"),
    (lambda x, z: mc.kernel_reduce("gauss", x, z, "mean"), 'logsumexp. Received "mean"'),
    (lambda x, z: mc.kernel_gradient("gauss", x, z, np.ones(30)), "sparse ones are not offered"),
    (lambda x, z: mc.kernel_agop("gauss", x, z, np.ones(30)), "sparse ones are not offered"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_refusals(points, call, words):
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        call(*map(sparse.csr_matrix, points))
    assert words in str(caught.value)


def test_estimators_of_scikit_learn(points):
    svm = pytest.importorskip("sklearn.svm")
    ridge, neighbors = (pytest.importorskip(f"sklearn.{n}") for n in ("kernel_ridge", "neighbors"))
    from mercer.sklearn import FormulaKernel

    x, k = points[0], mc.gauss(bandwidth=3.0)
    a, y = sparse.csr_array(x), np.arange(50) % 2
    assert np.array_equal(*(svm.SVC(kernel=k).fit(p, y).predict(p) for p in (a, x)))
    near = neighbors.KNeighborsClassifier(metric=mc.metric("euclidean"), algorithm="brute")
    with mc.patch("sklearn"):
        found, exact = (ridge.KernelRidge(kernel=k).fit(p, y).predict(p) for p in (a, x))
        # The ridge is 1, so that errors of the matrix [50, 50] grow by at most 1 + its norm.
        np.testing.assert_allclose(found, exact, atol=400 * EPS * 51**2)
        assert np.array_equal(*(near.fit(p, y).predict(p) for p in (a, x)))
    with pytest.raises(TypeError, match=r"must be dense. Received csr_array; pass X.toarray\(\)"):
        FormulaKernel("dot")(a)
