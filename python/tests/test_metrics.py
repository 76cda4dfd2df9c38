"""Metrics with arguments of their own, condensed vectors and paired points, against SciPy."""

from __future__ import annotations

import math

import mercer as mc
import numpy as np
import pytest
from conftest import to_library, to_numpy

distance = pytest.importorskip("scipy.spatial.distance")

M, N, K = 13, 9, 4
# K terms of 3 roundings and a root; features transformed by a matrix add K roundings each.
TOLERANCE = {"float32": 4e-6, "float64": 1e-14}


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def points(rng, dtype):
    return rng.normal(size=(M, K)).astype(dtype), rng.normal(size=(N, K)).astype(dtype)


def positive(rng, size=K):
    factor = rng.normal(size=(size, size))
    return factor @ factor.T + np.eye(size)


def check(result, expected, dtype):
    assert str(result.dtype).endswith(dtype)
    np.testing.assert_allclose(to_numpy(result), expected, 5 * TOLERANCE[dtype], TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["yule", "russellrao"])
def test_sets(rng, library, dtype, name):
    x, z = (rng.random((M, 7)) * rng.integers(0, 2, (M, 7)) for _ in range(2))
    x[0], z[1], w = 0, 1, rng.random(7)
    one, other, weights = (to_library(library, a.astype(dtype)) for a in (x, z, w))
    check(mc.cdist(one, other, metric=name), distance.cdist(x != 0, z != 0, name), dtype)
    exact = distance.cdist(x != 0, z != 0, name, w=w)
    check(mc.cdist(one, other, metric=name, w=weights), exact, dtype)


def test_seuclidean(rng, points, library, dtype):
    x, z = points
    one, other = (to_library(library, a) for a in points)
    v = (rng.random(K) + 0.5).astype(dtype)
    exact = distance.cdist(x, z, "seuclidean", V=v)
    check(mc.cdist(one, other, metric="seuclidean", V=to_library(library, v)), exact, dtype)
    check(mc.cdist(one, other, metric="seuclidean", V=v.tolist()), exact, dtype)
    check(mc.pairwise(mc.seuclidean(), one, other, w=to_library(library, v)), exact, dtype)
    check(mc.cdist(one, other, metric="seuclidean"), distance.cdist(x, z, "seuclidean"), dtype)
    check(mc.cdist(one, None, metric="seuclidean"), distance.cdist(x, x, "seuclidean"), dtype)
    check(mc.pdist(one, metric="seuclidean"), distance.pdist(x, "seuclidean"), dtype)


def test_a_feature_without_variance_has_no_standard_distance(dtype):
    x = np.array([[1, 2], [1, 3], [1, 5]], dtype)
    assert np.isnan(mc.cdist(x, x, metric="seuclidean")).all()  # 0/0, as in SciPy


def test_mahalanobis(rng, points, library, dtype):
    x, z = points
    one, other = (to_library(library, a) for a in points)
    vi = positive(rng).astype(dtype)
    exact = distance.cdist(x, z, "mahalanobis", VI=vi)
    check(mc.cdist(one, other, metric="mahalanobis", VI=to_library(library, vi)), exact, dtype)
    check(mc.cdist(one, other, metric="mahalanobis", VI=vi.tolist()), exact, dtype)
    skew = vi + np.triu(np.ones((K, K), dtype), 1) - np.tril(np.ones((K, K), dtype), -1)
    check(mc.cdist(one, other, metric="mahalanobis", VI=to_library(library, skew)), exact, dtype)
    check(mc.cdist(one, other, metric="mahalanobis"), distance.cdist(x, z, "mahalanobis"), dtype)
    check(mc.pdist(one, metric="mahalanobis"), distance.pdist(x, "mahalanobis"), dtype)


def test_mahalanobis_of_singular_matrices(rng, points, library, dtype):
    x, z = points
    one, other = (to_library(library, a) for a in points)
    factor = rng.normal(size=(K, 2))
    vi = factor @ factor.T
    exact = np.sqrt((((x[:, None] - z).astype("f8") @ factor) ** 2).sum(-1))
    result = mc.cdist(one, other, metric="mahalanobis", VI=to_library(library, vi.astype(dtype)))
    # An eigenvalue of 0 that rounds to e adds up to e |x - z|^2 to the square.
    bound = math.sqrt(2.0 ** (-23 if dtype == "float32" else -52) * np.linalg.norm(vi)) * 10
    np.testing.assert_allclose(to_numpy(result), exact, bound, bound)
    zero = to_library(library, np.zeros((K, K), dtype))
    assert (to_numpy(mc.cdist(one, other, metric="mahalanobis", VI=zero)) == 0).all()


def test_mahalanobis_of_near_and_of_unlucky_points(rng, dtype):
    x = rng.normal(size=(M, K)).astype(dtype)
    vi = positive(rng).astype(dtype)
    far = mc.cdist(x + 1000, None, metric="mahalanobis", VI=vi)
    exact = distance.cdist(x + 1000, x + 1000, "mahalanobis", VI=vi)
    check(far, exact, dtype)  # the centre is taken off first
    assert (np.diag(mc.cdist(x, x.copy(), metric="mahalanobis", VI=vi)) == 0).all()
    x[2, 1], x[3, 0] = np.nan, np.inf
    result = mc.cdist(x, x[:2], metric="mahalanobis", VI=vi)
    assert np.isfinite(result[[0, 1, *range(4, M)]]).all()
    assert not np.isfinite(result[2:4]).any()


def test_nan_euclidean(rng, points, library, dtype):
    metrics = pytest.importorskip("sklearn.metrics.pairwise")
    x, z = points
    x[rng.random(x.shape) < 0.3] = np.nan
    z[rng.random(z.shape) < 0.3] = np.nan
    x[0] = np.nan
    one, other = (to_library(library, a) for a in points)
    result = mc.cdist(one, other, metric="nan_euclidean")
    gaps = x[:, None].astype("f8") - z
    with np.errstate(invalid="ignore", divide="ignore"):
        exact = np.sqrt(np.nansum(gaps**2, -1) * K / np.isfinite(gaps).sum(-1))
    assert np.isnan(exact[0]).all()
    check(result, exact, dtype)
    theirs = metrics.nan_euclidean_distances(x.astype("f8"), z.astype("f8"))  # squares expanded
    np.testing.assert_allclose(to_numpy(result), theirs, 1e-5, 1e-5)


def test_haversine(rng, library, dtype):
    metrics = pytest.importorskip("sklearn.metrics.pairwise")
    x = (rng.uniform(-1, 1, (M, 2)) * [math.pi / 2, math.pi]).astype(dtype)
    z = (rng.uniform(-1, 1, (N, 2)) * [math.pi / 2, math.pi]).astype(dtype)
    z[0], z[1] = x[0], x[1] * np.array([1 + 1e-5, 1], dtype)
    one, other = to_library(library, x), to_library(library, z)
    result = to_numpy(mc.cdist(one, other, metric="haversine"))
    check(result, metrics.haversine_distances(x.astype("f8"), z.astype("f8")), dtype)
    assert result[0, 0] == 0
    near = abs(float(x[1, 0]) - float(z[1, 0]))
    assert abs(result[1, 1] - near) <= 4 * TOLERANCE[dtype] * near
    opposite = np.stack([-x[:, 0], x[:, 1] + np.array(math.pi, dtype)], 1)
    pairs = mc.paired_distances(one, to_library(library, opposite), metric="haversine")
    np.testing.assert_allclose(to_numpy(pairs), math.pi, TOLERANCE[dtype])
    ones = to_library(library, np.array([1, 0], dtype))
    assert (to_numpy(mc.pairwise(mc.haversine(), one, other, w=ones)) == result).all()


@pytest.mark.parametrize("metric", ["euclidean", "kl_divergence", "sum(abs(x-z))+i-j", "chebyshev"])
def test_pdist_is_what_lies_above_the_diagonal(rng, library, dtype, metric, monkeypatch):
    from mercer import _metrics

    x = to_library(library, rng.random((2, M, K)).astype(dtype))
    whole = to_numpy(mc.cdist(x, x, metric=metric))[(..., *np.triu_indices(M, 1))]
    assert (to_numpy(mc.pdist(x, metric=metric)) == whole).all()
    monkeypatch.setattr(_metrics, "_BLOCK", 3 * M)
    assert (to_numpy(mc.pdist(x, metric=metric)) == whole).all()


def test_pdist_as_scipy(rng, points, library, dtype):
    x, w = points[0], rng.random(K).astype(dtype)
    one = to_library(library, x)
    check(mc.pdist(one), distance.pdist(x), dtype)
    check(mc.pdist(one, 3), distance.pdist(x, "minkowski", p=3), dtype)
    check(
        mc.pdist(one, metric="minkowski", p=1.5, w=to_library(library, w)),
        distance.pdist(x, "minkowski", p=1.5, w=w),
        dtype,
    )
    for count in (0, 1):
        assert tuple(mc.pdist(one[:count]).shape) == (0,)


def test_squareform(library, dtype):
    for count in (2, 3, 7):
        v = np.arange(1, count * (count - 1) // 2 + 1).astype(dtype)
        matrix = mc.squareform(to_library(library, v))
        assert (to_numpy(matrix) == distance.squareform(v)).all()
        assert str(matrix.dtype).endswith(dtype)
        assert (to_numpy(mc.squareform(matrix)) == v).all()
    empty = mc.squareform(to_library(library, np.zeros(0, dtype)))
    assert (to_numpy(empty) == distance.squareform(np.zeros(0))).all()
    assert tuple(mc.squareform(empty).shape) == (0,)


def test_paired_distances(rng, points, library, dtype):
    x, z = points[0], rng.normal(size=(M, K)).astype(dtype)
    one, other = to_library(library, x), to_library(library, z)
    w, v, vi = rng.random(K).astype(dtype), rng.random(K).astype(dtype), positive(rng).astype(dtype)
    cases = [
        ({}, {}), ({"p": 1}, {"metric": "cityblock"}), ({"metric": "canberra"},) * 2,
        ({"metric": "seuclidean", "V": v},) * 2, ({"metric": "mahalanobis", "VI": vi},) * 2,
        ({"metric": "sqeuclidean", "w": w},) * 2,
    ]  # fmt: skip
    for words, theirs in cases:
        given = {
            n: to_library(library, a) if n in ("w", "V", "VI") else a for n, a in words.items()
        }
        exact = np.diag(distance.cdist(x, z, **theirs))
        check(mc.paired_distances(one, other, **given), exact, dtype)
    many, others = (to_library(library, rng.normal(size=(2, 37, 3)).astype(dtype)) for _ in "xz")
    whole = to_numpy(mc.cdist(many, others))
    result = mc.paired_distances(many, others)
    check(result, np.diagonal(whole, 0, -2, -1), dtype)
    assert tuple(mc.paired_distances(many[:, :0], others[:, :0]).shape) == (2, 0)
    batch = mc.paired_distances(one[None], other, metric="h*sum(abs(x-z))", h=[1.0, 2.0])
    check(batch[1], 2 * np.abs(x - z).sum(-1), dtype)


REFUSED = [
    (lambda x: mc.cdist(x, x, metric="mahalanobis", VI=-np.eye(K)), "positive semi-definite"),
    (lambda x: mc.cdist(x, x, metric="mahalanobis", VI=np.full((K, K), np.nan)), "finite"),
    (lambda x: mc.cdist(x, x, metric="mahalanobis", VI=np.eye(3)), "shape"),
    (lambda x: mc.cdist(x[:2], x[:2], metric="mahalanobis"), "more points than features"),
    (lambda x: mc.cdist(x[None], x, metric="mahalanobis"), "leading axes"),
    (lambda x: mc.cdist(x, x, metric="seuclidean", V=np.ones(3)), "one variance"),
    (lambda x: mc.cdist(x, x, metric="seuclidean", w=np.ones(K)), "no weights"),
    (lambda x: mc.cdist(x, x, metric="seuclidean", VI=np.eye(K)), "VI"),
    (lambda x: mc.cdist(x, x, metric="haversine"), "two features"),
    (lambda x: mc.cdist(x, x[:, :2], metric="haversine"), "features"),
    (lambda x: mc.pairwise("mahalanobis", x), "cdist"),
    (lambda x: mc.pairwise("seuclidean", x), "w"),
    (lambda x: mc.pdist(x[0]), r"\[..., M, K\]"),
    (lambda x: mc.paired_distances(x, x[:2]), "same number"),
    (lambda x: mc.paired_distances(x, x, metric="sum(x*z)+i"), "i or j"),
    (lambda x: mc.squareform(np.ones(4)), "whole M"),
    (lambda x: mc.squareform(np.ones((2, 3))), "square"),
    (lambda x: mc.squareform(np.ones((2, 2))), "diagonal"),
    (lambda x: mc.squareform(np.triu(np.ones((2, 2)), 1)), "symmetric"),
    (lambda x: mc.squareform(np.ones(3), force="tovector"), "square matrix"),
    (lambda x: mc.squareform(np.ones(3), force="both"), "force"),
]


@pytest.mark.parametrize(("call", "rule"), REFUSED, ids=range(len(REFUSED)))
def test_refusals(rng, call, rule):
    with pytest.raises(ValueError, match=rule):
        call(rng.normal(size=(M, K)))


@pytest.mark.parametrize("metric", ["mahalanobis", "seuclidean", "haversine", "canberra"])
def test_points_are_checked_before_they_are_prepared(metric):
    wrong = np.ones((M, 2), complex)
    with pytest.raises(mc.DtypeError):
        mc.cdist(wrong, None, metric=metric)
    with pytest.raises(mc.DtypeError):
        mc.pdist(wrong, metric=metric)
    with pytest.raises(mc.DtypeError):
        mc.paired_distances(wrong, wrong, metric=metric)
    with pytest.raises(ValueError, match="must be an array"):
        mc.paired_distances([["a", "b"]], [["a", "b"]], metric=metric)


# Metrics of SciPy by the values that they are of, and those that take no w there or here.
OF_SETS = {"dice", "jaccard", "rogerstanimoto", "russellrao", "sokalsneath", "yule", "hamming"}
WITHOUT_WEIGHTS = {"jensenshannon", "mahalanobis", "seuclidean"}


@pytest.mark.parametrize("name", sorted(distance._METRICS))
def test_every_metric_of_scipy(rng, name):
    x, z, w = rng.random((M, K)), rng.random((N, K)), rng.random(K) + 0.1
    if name in OF_SETS:
        x, z = (np.vstack([a > 0.5, np.eye(K, dtype=bool)]) for a in (x, z))
    for weights in ({}, {"w": w}) if name not in WITHOUT_WEIGHTS else ({},):
        for words in ({"p": 3.0}, {"p": 1.5}) if name == "minkowski" else ({},):
            given = {**words, **weights}
            exact = distance.cdist(x, z, name, **given)
            np.testing.assert_allclose(
                mc.cdist(x, z, metric=name, **given), exact, rtol=1e-12, atol=1e-12
            )
            np.testing.assert_allclose(
                mc.pdist(x, metric=name, **given), distance.pdist(x, name, **given),
                rtol=1e-12, atol=1e-12,
            )  # fmt: skip


def test_other_refusals(rng):
    x = rng.normal(size=(M, K))
    with pytest.raises(TypeError, match="it does not take row"):
        mc.pdist(x, row=x)
    with pytest.raises(mc.LinAlgError, match="singular"):
        mc.cdist(np.zeros((M, K)), np.zeros((M, K)), metric="mahalanobis")
    with pytest.raises(NotImplementedError, match="euclidean"):
        mc.workspace_size("cdist", x, x, metric="mahalanobis")
    assert mc.workspace_size("cdist", x, x, metric="seuclidean") == 0


def test_gradients():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()

    x, z, vi, v = draw(5, 2), draw(5, 2), draw(2, 2), draw(2)

    def distances(x, z, vi, v):
        inverse = vi @ vi.T + torch.eye(2)
        return (
            mc.cdist(x, z, metric="mahalanobis", VI=inverse),
            mc.cdist(x, z, metric="mahalanobis"),
            mc.cdist(x, z, metric="seuclidean", V=v),
            mc.cdist(x, z, metric="seuclidean"),
            mc.cdist(x, z, metric="haversine"),
            mc.squareform(mc.pdist(x)),
            mc.paired_distances(x, z, metric="cosine"),
        )

    assert torch.autograd.gradcheck(distances, (x, z, vi, v))
    singular = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="positive definite"):
        mc.cdist(x, z, metric="mahalanobis", VI=singular)


def test_gradients_of_missing_and_of_coincident_points():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.0, math.nan, 2.0]], requires_grad=True)
    mc.cdist(x, torch.tensor([[2.0, 1.0, 4.0]]), metric="nan_euclidean").sum().backward()
    assert x.grad[0, 1] == 0
    assert torch.isfinite(x.grad).all()
    for metric in ("haversine", "seuclidean", "mahalanobis"):
        x = torch.tensor([[0.5, 0.25], [0.5, 0.5], [0.75, 0.125]], requires_grad=True)
        mc.cdist(x, x.detach(), metric=metric).sum().backward()
        assert torch.isfinite(x.grad).all(), metric


def test_torch_compile():
    torch = pytest.importorskip("torch")
    x = torch.rand(5, 2, dtype=torch.float64)
    inverse = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    for call in (
        lambda x: mc.cdist(x, x, metric="haversine"),
        lambda x: mc.cdist(x, x, metric="seuclidean", V=torch.ones(2)),
        lambda x: mc.cdist(x, x, metric="mahalanobis", VI=inverse),
        lambda x: mc.squareform(mc.pdist(x, 3), checks=False),
        lambda x: mc.paired_distances(x, x.flip(0), metric="minkowski", p=3),
    ):
        compiled = torch.compile(call, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), call(x))


def test_jax(rng):
    jax = pytest.importorskip("jax")
    x, vi = rng.normal(size=(M, 2)).astype("f"), positive(rng, 2).astype("f")
    one = jax.numpy.asarray(x)
    for words in (
        {"metric": "haversine"},
        {"metric": "seuclidean"},
        {"metric": "mahalanobis", "VI": vi},
    ):
        given = {n: jax.numpy.asarray(a) if n == "VI" else a for n, a in words.items()}
        exact = mc.cdist(x, x, **words)
        check(mc.cdist(one, one, **given), exact, "float32")
        check(jax.jit(lambda a, g=given: mc.cdist(a, a, **g))(one), exact, "float32")
    check(mc.squareform(mc.pdist(one)), mc.cdist(x, x), "float32")
    check(mc.paired_distances(one, one[::-1]), np.diag(mc.cdist(x, x[::-1])), "float32")


def test_on_a_gpu(cuda, rng):
    x, vi = rng.normal(size=(M, 2)), positive(rng, 2)
    one = cuda.tensor(x, device="cuda")
    for words in (
        {"metric": "haversine"}, {"metric": "seuclidean"}, {"metric": "nan_euclidean"},
        {"metric": "yule"}, {"metric": "russellrao"}, {"metric": "mahalanobis", "VI": vi},
    ):  # fmt: skip
        given = {n: cuda.tensor(a, device="cuda") if n == "VI" else a for n, a in words.items()}
        check(mc.cdist(one, one, **given).cpu(), mc.cdist(x, x, **words), "float64")
    check(mc.squareform(mc.pdist(one)).cpu(), mc.cdist(x, x), "float64")
    check(mc.paired_distances(one, one.flip(0)).cpu(), np.diag(mc.cdist(x, x[::-1])), "float64")
