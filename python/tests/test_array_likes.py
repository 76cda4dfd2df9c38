"""Lists, tables, whole numbers and truth values as points; kernels as functions of points."""

from __future__ import annotations

import importlib
import inspect

import mercer as mc
import numpy as np
import pytest
from conftest import minkowski
from mercer import _verbs

X = np.array([[0, 1, 5], [2, 2, 1], [7, 0, 3], [1, 1, 1]])
Z = np.array([[1, 1, 0], [3, 2, 2], [0, 4, 4], [2, 2, 1], [9, 9, 9]])
D = minkowski(X, Z, 2)
LISTS = (X.tolist(), Z.tolist())


def tables(name):
    """X and Z as tables of a library."""
    library = pytest.importorskip(name)
    columns = [{k: a[:, i].tolist() for i, k in enumerate("abc")} for a in (X, Z)]
    return tuple(library.DataFrame(c) for c in columns)


KINDS = {
    "lists": lambda: LISTS,
    "tuples": lambda: tuple(tuple(map(tuple, a)) for a in LISTS),
    "lists of arrays": lambda: (list(X), list(Z)),
    "int64": lambda: (X, Z),
    "int16": lambda: (X.astype("i2"), Z.astype("i2")),
    "uint64": lambda: (X.astype("u8"), Z.astype("u8")),
    "int64 with float32": lambda: (X, Z.astype("f")),
    "float32 with int32": lambda: (X.astype("f"), Z.astype("i4")),
    "float32 with a list": lambda: (X.astype("f"), LISTS[1]),
    "int8 with uint8": lambda: (X.astype("i1"), Z.astype("u1")),
    "no mask": lambda: (np.ma.masked_array(X), np.ma.masked_array(Z.astype("f"), mask=False)),
    "pandas": lambda: tables("pandas"),
    "polars": lambda: tables("polars"),
    "pandas with an array": lambda: (tables("pandas")[0], Z.astype("d")),
    "matrix": lambda: (np.asmatrix(X), np.asmatrix(Z)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_points_are_read_as_float64(kind):
    x, z = KINDS[kind]()
    found = mc.cdist(x, z)
    assert (type(found), found.dtype) == (np.ndarray, np.float64)
    np.testing.assert_allclose(found, D, rtol=1e-15)


def test_every_verb_reads_lists():
    x, z = LISTS
    plain = (X.astype("d"), Z.astype("d"))
    ones, coef = [1] * 5, np.ones(5)
    calls = {
        "pairwise": lambda a, c: mc.pairwise("gauss", *a, bandwidth=9.0),
        "kernel_matrix": lambda a, c: mc.kernel_matrix("gauss", *a, bandwidth=9.0),
        "kernel_product": lambda a, c: mc.kernel_product("gauss", *a, c, bandwidth=9.0),
        "kernel_reduce": lambda a, c: mc.kernel_reduce("euclidean", *a, "argmin"),
        "knn": lambda a, c: mc.knn("euclidean", *a, 2),
        "kernel_gradient": lambda a, c: mc.kernel_gradient("gauss", *a, c, bandwidth=9.0),
        "kernel_agop": lambda a, c: mc.kernel_agop("gauss", *a, c, bandwidth=9.0),
        "gradient_field": lambda a, c: mc.gradient_field("x-z", *a, np.ones((4, 5), type(c[0])), c),
        "cdist": lambda a, c: mc.cdist(*a, metric="cosine", w=c[:3]),
    }
    assert set(calls) == set(_verbs.NAMES)
    for name, call in calls.items():
        np.testing.assert_array_equal(call((x, z), ones), call(plain, coef), err_msg=name)


def test_row_col_and_parameters_go_along():
    x, z = LISTS
    found = mc.pairwise("(row+col)*sum(x*z)*b", x, z, row=[1, 2, 3, 4], col=[0, 1, 0, 1, 0], b=2.0)
    row, col = np.arange(1, 5), np.array([0, 1, 0, 1, 0])
    np.testing.assert_allclose(found, 2 * (row[:, None] + col) * (X @ Z.T), rtol=1e-15)


def test_truth_values_of_scipy():
    distance = pytest.importorskip("scipy.spatial.distance")
    a, b = X % 5 > 0, Z > 1
    for name in ("jaccard", "dice", "yule", "russellrao", "rogerstanimoto", "sokalsneath"):
        np.testing.assert_allclose(
            mc.cdist(a, b, metric=name), distance.cdist(a, b, name), atol=1e-12, err_msg=name
        )


def test_functions_in_python_read_lists():
    distance = pytest.importorskip("scipy.spatial.distance")
    x = LISTS[0]
    np.testing.assert_allclose(mc.pdist(x), distance.pdist(x), rtol=1e-14)
    np.testing.assert_allclose(mc.squareform([1, 2, 3]), distance.squareform([1, 2, 3]))
    np.testing.assert_allclose(mc.paired_distances(x, x[::-1]), np.diag(mc.cdist(x, x[::-1])))
    for name in ("seuclidean", "mahalanobis"):
        np.testing.assert_allclose(
            mc.cdist(*LISTS, metric=name), distance.cdist(*LISTS, name), rtol=1e-10
        )


def test_missing_values_of_tables_are_nan():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1, 2, None], "b": [True, False, True], "c": [0.5, 1.0, 2.0]})
    found = mc.cdist(table.convert_dtypes(), None, metric="nan_euclidean")
    expected = mc.cdist(np.array([[1, 1, 0.5], [2, 0, 1], [np.nan, 1, 2]]), None,
                        metric="nan_euclidean")  # fmt: skip
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="DataFrame"):
        mc.cdist(pandas.DataFrame({"a": ["1", "2"]}), None)


def test_what_is_read_only_or_mapped_is_not_copied(tmp_path):
    x = X.astype("d")
    x.flags.writeable = False
    np.testing.assert_allclose(mc.cdist(x, x), minkowski(X, X, 2))
    np.save(tmp_path / "x.npy", X)
    np.testing.assert_allclose(mc.cdist(np.load(tmp_path / "x.npy", mmap_mode="r"), Z), D)


def test_the_second_call_raises_of_the_arrays_that_were_read():
    with pytest.raises(ValueError, match="same number of features") as raised:
        mc.cdist(LISTS[0], [[1, 2]])
    assert raised.value.__context__ is None
    with pytest.raises(ValueError, match="out"):
        mc.cdist(*LISTS, out=np.empty((4, 5), "f"))
    out = np.empty((4, 5))
    assert mc.cdist(*LISTS, out=out) is out


# ---- kernels are called --------------------------------------------------------------------------

K = mc.gauss(bandwidth=4.0)


def masked_calls():
    sparse = pytest.importorskip("scipy.sparse")
    keops = importlib.import_module("mercer.compat.pykeops.numpy")
    a, b, v = (np.random.default_rng(0).normal(size=shape) for shape in ((5, 3), (7, 3), (7, 2)))
    hidden = [np.ma.masked_array(array, array > 0) for array in (a, b, v)]
    f, rows, columns = "sum((x-z)^2)", np.array([0, 1]), np.array([2, 3])
    ranges = (np.array([[0, 5]]), np.array([2]), np.array([[0, 2], [4, 6]]))
    two = "sum(x.a*z.a) + sum(x.b*z.b)"
    groups = {"a": b, "b": v}
    return {
        "groups": lambda: mc.pairwise(two, {"a": hidden[1], "b": v}, groups),
        "features": lambda: mc.pairwise("sum(x[:2]*z[:2])*exp(x[0]*z[2])", hidden[0], b),
        "ranges z": lambda: mc.kernel_product(f, a, hidden[1], v, ranges=ranges),
        "ranges v": lambda: mc.kernel_product(f, a, b, hidden[2], ranges=ranges),
        "listed v": lambda: mc.edge_product(f, a, b, rows, columns, hidden[2]),
        "listed rows": lambda: mc.edges(f, a, b, np.ma.masked_array(rows, rows > 0), columns),
        "pointers": lambda: mc.csr_rows(np.ma.masked_array([0, 1, 3], [0, 1, 0])),
        "normalized": lambda: mc.kernel_product(f, a, b, hidden[2], normalize="sum"),
        "sparse": lambda: mc.kernel_product(f, sparse.csr_array(a), sparse.csr_array(b), hidden[2]),
        "lazy": lambda: (keops.Vi(a) * keops.Vj(hidden[1])).sum_reduction(axis=1),
    }


def test_masks_are_not_lost_on_the_way_to_the_engine():
    for name, call in masked_calls().items():
        with pytest.raises(NotImplementedError, match="must have no mask"):
            pytest.fail(f"{name}: {call()}")


def test_lists_keep_masks_and_gradients():
    masked = [np.ma.array([1.0, 999.0], mask=[0, 1]), [1.0, 2.0]]
    torch = pytest.importorskip("torch")
    for points in (masked, [[1.0, torch.tensor(2.0, requires_grad=True)]]):
        with pytest.raises(ValueError, match=r"x must be an array of NumPy, .* builtins.list"):
            mc.pairwise("sqeuclidean", points)


def test_whole_numbers_are_refused_by_the_verbs_name():
    with pytest.raises(ValueError, match=r"knn: x must have whole numbers of at most 2\*\*53"):
        mc.knn("sqeuclidean", np.array([[2**53 + 1]]), None, 1)
    with pytest.raises(mc.DtypeError, match=r"pairwise: whole numbers .* out must be float64"):
        mc.pairwise("sqeuclidean", np.array([[2]]), out=np.empty((1, 1), "f"))


def test_sets_of_points_give_the_matrix():
    x, z = X.astype("d"), Z.astype("d")
    np.testing.assert_array_equal(K(x), mc.kernel_matrix(K, x))
    np.testing.assert_array_equal(K(x, z), mc.kernel_matrix(K, x, z))
    np.testing.assert_array_equal(K(*LISTS), K(x, z))
    loose = mc.kernel("exp(-sum(abs(x-z))/b)")
    np.testing.assert_array_equal(loose(x, z, b=2.0), mc.pairwise(loose, x, z, b=2.0))


def test_two_points_give_a_number():
    x, z = X.astype("d"), Z.astype("d")
    expected = K(x, z)[1, 2]
    assert K(x[1], z[2]) == K(LISTS[0][1], LISTS[1][2]) == K(X[1], Z[2]) == expected
    assert isinstance(K(x[1], z[2]), float)


@pytest.mark.parametrize("points", [(X[0],), (X[0], Z), (X, Z[0])])
def test_a_point_with_a_set_is_refused(points):
    with pytest.raises(ValueError, match="sets of points"):
        K(*points)


def test_tensors_keep_their_gradients():
    torch = pytest.importorskip("torch")
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    K(x[0], x[1]).backward()
    assert x.grad[0].abs().sum() > 0


def test_a_kernel_is_still_a_formula():
    x = X.astype("d")
    assert str(mc.kernel(K)) == str(K)
    np.testing.assert_array_equal(mc.linalg.KernelOperator(K, x) @ x, K(x) @ x)
    with pytest.raises(ValueError, match="a must be an array"):
        mc.linalg.cg(K, x)
    assert list(inspect.signature(mc.Kernel.__call__).parameters) == ["self", "x", "z", "params"]


@pytest.fixture
def data():
    datasets = pytest.importorskip("sklearn.datasets")
    rows, labels = datasets.load_iris(return_X_y=True)
    return rows[::3], labels[::3]


def test_estimators_of_scikit_learn_take_kernels(data):
    svm, ridge = pytest.importorskip("sklearn.svm"), pytest.importorskip("sklearn.kernel_ridge")
    selection = pytest.importorskip("sklearn.model_selection")
    rows, labels = data
    k, gamma = mc.gauss(bandwidth=1.0), 0.5
    ours = svm.SVC(kernel=k).fit(rows, labels)
    theirs = svm.SVC(kernel="rbf", gamma=gamma).fit(rows, labels)
    np.testing.assert_allclose(ours.decision_function(rows), theirs.decision_function(rows))
    ours = ridge.KernelRidge(kernel=k).fit(rows, labels)
    theirs = ridge.KernelRidge(kernel="rbf", gamma=gamma).fit(rows, labels)
    np.testing.assert_allclose(ours.predict(rows), theirs.predict(rows), atol=1e-9)
    search = selection.GridSearchCV(svm.SVC(), {"kernel": [k, mc.laplace(bandwidth=2.0)]}, cv=3)
    assert search.fit(rows, labels).best_score_ > 0.9


@pytest.mark.parametrize("algorithm", ["brute", "ball_tree"])
def test_neighbours_of_scikit_learn_take_metrics(data, algorithm):
    neighbors = pytest.importorskip("sklearn.neighbors")
    rows, labels = data
    ours = neighbors.KNeighborsClassifier(metric=mc.metric("cityblock"), algorithm=algorithm)
    theirs = neighbors.KNeighborsClassifier(metric="cityblock")
    found = ours.fit(rows, labels).kneighbors(rows)[0]
    np.testing.assert_allclose(found, theirs.fit(rows, labels).kneighbors(rows)[0])
