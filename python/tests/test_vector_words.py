"""Matrices and vectors of parameters in formulas of one number for each pair, against NumPy."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

RNG = np.random.default_rng(11)
X, Z, V = RNG.normal(size=(7, 3)), RNG.normal(size=(9, 3)), RNG.normal(size=(9, 2))
L, B, C = RNG.normal(size=(2, 3)), RNG.random(3) + 0.5, RNG.random(3) + 0.5
GAP = X[:, None] - Z
SQUARE = ((GAP @ L.T) ** 2).sum(-1)
GAUSS = "exp(-sum(matvec(a, x-z)^2)/h)"
K = np.exp(-SQUARE / 1.5)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12, atol=1e-13)


def test_a_matrix_as_a_metric_in_every_verb():
    given = {"a": L, "h": 1.5}
    close(mc.pairwise(GAUSS, X, Z, **given), K)
    close(mc.kernel_product(GAUSS, X, Z, V, **given), K @ V)
    softmax = "-sum(matvec(a, x-z)^2)/h"
    weighted = mc.kernel_product(softmax, X, Z, V, normalize="softmax", **given)
    close(weighted, K / K.sum(1, keepdims=True) @ V)
    close(mc.kernel_reduce(GAUSS, X, Z, "max", **given), K.max(1))
    values, indices = mc.knn("sum(matvec(a, x-z)^2)", X, Z, 2, a=L)
    close(values, np.sort(SQUARE, 1)[:, :2])
    close(indices, np.argsort(SQUARE, 1)[:, :2])
    ranges = ([[0, 3]], [1], [[2, 5]])
    close(mc.kernel_product(GAUSS, X, Z, V, ranges=ranges, **given)[:3], K[:3, 2:5] @ V[2:5])


def test_chosen_pairs():
    rows, cols = np.array([0, 3, 3, 6]), np.array([2, 2, 8, 0])
    close(mc.edges(GAUSS, X, Z, rows, cols, a=L, h=1.5), K[rows, cols])
    product = mc.edge_product(GAUSS, X, Z, rows, cols, V, a=L, h=1.5)
    close(product[3], K[3, [2, 8]] @ V[[2, 8]])
    _, indices, values = mc.radius_neighbors("sum(matvec(a, x-z)^2)", X, Z, 4.0, a=L)
    close(indices, np.nonzero(SQUARE <= 4)[1])
    close(values, SQUARE[SQUARE <= 4])


def test_one_set_of_points_gives_a_symmetric_matrix():
    matrix = mc.kernel_matrix(GAUSS, X, a=L, h=1.5)
    assert (matrix == matrix.T).all()
    assert (np.diag(matrix) == 1).all()
    close(matrix, np.exp(-(((X[:, None] - X) @ L.T) ** 2).sum(-1) / 1.5))
    for points in (X.tolist(), X.astype(np.float16), (10 * X).astype(np.int32)):
        matrix = mc.kernel_matrix(GAUSS, points, a=L, h=1.5)
        assert (matrix == matrix.T).all()
    other = mc.pairwise("dot(x, matvec(a, z))", X, None, a=L.T @ L + np.diag(B))
    close(other, X @ (L.T @ L + np.diag(B)).T @ X.T)


FORMULAS = {
    "sum(vector(b)*(x-z)^2)": (GAP**2) @ B,
    "sum(vector(b)*(x-z)^2)*sum(abs(x-z)/vector(c))": (GAP**2 @ B) * (abs(GAP) @ (1 / C)),
    "sum(vector(b)*x)*sum(vector(c)*z)": (X @ B)[:, None] * (Z @ C),
    "row*dot(x, z) + col": np.arange(7.0)[:, None] * (X @ Z.T) + np.arange(9.0),
    "max(concat(x-z, x[0]))": np.concatenate([GAP, X[:, None, :1] + 0 * GAP[..., :1]], -1).max(-1),
    "sum(outer(x, z-vector(b)))": X.sum(-1)[:, None] * (Z - B).sum(-1),
    "max(vector(b)-x[0])*dot(x, z)": (B.max() - X[:, :1]) * (X @ Z.T),
    "sum(vector(b)*z[1])*dot(x, z)": B.sum() * Z[:, 1] * (X @ Z.T),
    "prod(vector(b)+x[0]*z[1])": (B + X[:, None, :1] * Z[:, 1, None]).prod(-1),
    "where(i < j, dot(x, z), 0)": np.triu(X @ Z.T, 1),
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_vectors_of_parameters(formula):
    given = {n: v for n, v in (("b", B), ("c", C)) if f"({n})" in formula}
    if "row" in formula:
        given |= {"row": np.arange(7.0), "col": np.arange(9.0)}
    close(mc.pairwise(formula, X, Z, **given), FORMULAS[formula])


def test_groups_batches_and_dtypes():
    formula = "exp(-sum(matvec(a, x.place-z.place)^2)/x.size)"
    x, z = {"place": X, "size": B[0] + np.arange(7.0)}, {"place": Z}
    close(mc.pairwise(formula, x, z, a=L), np.exp(-SQUARE / x["size"][:, None]))
    several = RNG.normal(size=(4, 2, 3))
    expected = ((GAP @ np.swapaxes(several, -1, -2)[:, None]) ** 2).sum(-1)
    close(mc.pairwise("sum(matvec(a, x-z)^2)", X, Z, a=several), expected)
    single = mc.pairwise(GAUSS, X.astype(np.float32), Z.astype(np.float32), a=L, h=1.5)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, K, rtol=1e-5, atol=1e-6)
    far = (X + 1e4).astype(np.float32), (Z + 1e4).astype(np.float32)
    exact = ((far[0].astype(np.float64)[:, None] - far[1]) @ L.T) ** 2
    found = mc.pairwise("sum(matvec(a, x-z)^2)", *far, a=L)  # less a centre, so 1e4 costs nothing
    np.testing.assert_allclose(found, exact.sum(-1), rtol=1e-5, atol=1e-5)


REFUSED = [
    (lambda: mc.pairwise("matvec(a, x-z)", X, Z, a=L), ValueError, "kernel_sum takes vectors"),
    (lambda: mc.pairwise("sum(1)*sum(matvec(a, x-z))", X, Z, a=L), ValueError,
     "a reduction must read features; 'sum' reads none"),
    (lambda: mc.pairwise("logsumexp(vector(b)-x[0])", X, Z, b=B), NotImplementedError,
     "one of parameters with numbers of points"),
    (lambda: mc.pairwise("*".join(["sum(matvec(a, x-z))"] * 400), X, Z, a=L), ValueError,
     "at most 150 operations deep"),
    (lambda: mc.pairwise(GAUSS, X, Z, h=1.0), ValueError, "the parameter 'a' must be given"),
    (lambda: mc.pairwise(GAUSS, X, Z, a=L, h=1.0, q=1), ValueError, "must read each parameter"),
    (lambda: mc.pairwise(GAUSS, X, Z, a=L.T, h=1.0), ValueError, "as many columns as the vector"),
    (lambda: mc.kernel_gradient(GAUSS, X, Z, V[:, 0], a=L, h=1.0), NotImplementedError,
     "are offered by pairwise"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_pytorch_differentiates_by_matrices():
    torch = pytest.importorskip("torch")
    x, z, a = (torch.tensor(t[:4] if len(t) > 4 else t, requires_grad=True) for t in (X, Z, L))

    def gauss(x, z, a):
        return mc.pairwise(GAUSS, x, z, a=a, h=1.5)

    assert torch.autograd.gradcheck(gauss, (x, z, a))
    assert torch.autograd.gradgradcheck(gauss, (x, z, a))
    assert torch.autograd.gradcheck(lambda x, a: gauss(x, None, a), (x, a))


def test_jax_traces_matrices():
    jax = pytest.importorskip("jax")
    x, z, a = (jax.numpy.asarray(t, "float32") for t in (X, Z, L))

    def total(a):
        return mc.kernel_product(GAUSS, x, z, jax.numpy.ones(9, "float32"), a=a, h=1.5).sum()

    found = jax.jit(jax.grad(total))(a)
    expected = np.einsum("mn,mnd,mnk->dk", -2 / 1.5 * K, GAP @ L.T, GAP)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
