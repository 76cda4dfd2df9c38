"""mercer.linalg.sap: residuals by the matrix in float64, blocks, weights, failures."""

from __future__ import annotations

import mercer as mc
import numpy as np
import pytest

linalg = mc.linalg
GAUSS = "exp(-sum(square(x-z))/4)"
N = 400


def points(dtype="float64"):
    rng = np.random.default_rng(1)
    return rng.normal(size=(N, 3)).astype(dtype), rng.normal(size=(N, 3)).astype(dtype)


def residuals(operator, b, x):
    """The operator's matrix in float64, made by another function than the products."""
    a = np.asarray(operator.rows(slice(None))).astype("d")
    gap = np.asarray(b).astype("d") - a @ np.asarray(x).astype("d")
    return np.linalg.norm(gap, axis=0) / np.linalg.norm(np.asarray(b).astype("d"), axis=0)


@pytest.mark.parametrize("rank", [None, 30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_residuals_are_what_is_promised(library, dtype, rank):
    array = np.asarray if library == "numpy" else pytest.importorskip("torch").from_numpy
    x, b = map(array, points(dtype))
    operator = linalg.KernelOperator(GAUSS, x, ridge=0.5)
    kept = np.asarray(b).copy()
    for right in (b, b[:, 0]):
        solved, info, sweeps = linalg.sap(operator, right, rank=rank, block=60, check=False)
        assert type(solved) is type(x)
        assert solved.shape == right.shape
        assert info.shape == sweeps.shape == tuple(right.shape[1:])
        assert (info == 0).all()
        assert (sweeps < 60).all()
        # float32 products keep 1e-6 of sums that are some hundred times the residual's scale.
        assert (residuals(operator, right, solved) <= 1.1e-3).all()
    np.testing.assert_array_equal(np.asarray(b), kept)


def test_seeds():
    x, b = points()
    operator = linalg.KernelOperator(GAUSS, x, ridge=0.5)
    first, same, other = (linalg.sap(operator, b, rank=20, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_weights_ridges_and_sides():
    x, b = points()
    rng = np.random.default_rng(2)
    weights = np.where(rng.uniform(size=N) < 0.2, 0, rng.uniform(size=N))
    row = rng.uniform(0.5, 2, size=N)
    operator = linalg.KernelOperator(
        "exp(-sum(w*square(x-z)))*row*col", x, ridge=rng.uniform(0.2, 1, size=N), weights=weights,
        w=np.array([0.5, 0.1, 0.0]), row=row, col=row,
    )  # fmt: skip
    for rank in (None, 40):
        solved = linalg.sap(operator, b, block=100, rank=rank, tol=1e-4)
        assert (residuals(operator, b, solved) <= 1.01e-4).all()


def test_small_tolerances_small_systems_and_guesses():
    x, b = points()
    operator = linalg.KernelOperator(GAUSS, x, ridge=1.0)
    solved = linalg.sap(operator, b, tol=1e-9, block=100, max_iter=300)
    assert (residuals(operator, b, solved) <= 1.01e-9).all()
    assert linalg.sap(operator, b, x0=solved, check=False)[2].tolist() == [0] * 3
    few = linalg.KernelOperator(GAUSS, x[:5], ridge=0.1)
    assert (residuals(few, b[:5], linalg.sap(few, b[:5], tol=1e-8)) <= 1.01e-8).all()
    one = linalg.KernelOperator(GAUSS, x[:1], ridge=0.5)
    np.testing.assert_allclose(linalg.sap(one, b[:1], tol=1e-9), b[:1] / 1.5, rtol=1e-8)
    none = linalg.KernelOperator(GAUSS, x[:0], ridge=0.5)
    assert linalg.sap(none, b[:0]).shape == (0, 3)
    assert linalg.sap(operator, b[:, :0]).shape == (N, 0)


def test_columns_that_fail_and_columns_of_zeros():
    x, b = points()
    b[:, 1] = 0
    b[7, 2] = np.nan
    operator = linalg.KernelOperator(GAUSS, x, ridge=1.0)
    solved, info, _ = linalg.sap(operator, b, check=False)
    assert info.tolist() == [0, 0, -1]
    assert (solved[:, 1] == 0).all()
    assert np.isnan(solved[:, 2]).all()
    assert residuals(operator, b[:, :1], solved[:, :1])[0] <= 1.01e-3
    with pytest.raises(
        mc.LinAlgError, match=r"sap: b, x and products .* NaN or infinity in column 2"
    ):
        linalg.sap(operator, b)
    holed = x.copy()
    holed[3, 1] = np.nan
    assert linalg.sap(linalg.KernelOperator(GAUSS, holed, ridge=1.0), b, check=False)[1][0] == -1


def test_sweeps_that_are_too_few_and_float32_that_gets_no_closer():
    x, b = points("float32")
    operator = linalg.KernelOperator(GAUSS, np.concatenate([x[:200]] * 2), ridge=1e-3)
    b = b[:400]
    solved, info, sweeps = linalg.sap(operator, b, tol=1e-6, max_iter=2, check=False)
    assert (info == 2).all()
    assert (sweeps == 2).all()
    with pytest.raises(mc.LinAlgError, match="after 2 sweeps, which were all of them"):
        linalg.sap(operator, b, tol=1e-6, max_iter=2)
    solved, info, _ = linalg.sap(operator, b, tol=1e-7, max_iter=400, check=False)
    assert (info == -2).all()
    assert np.isfinite(solved).all()
    assert (residuals(operator, b, solved) <= 1).all()  # no worse than zeros


X = np.ones((5, 2))
OF = linalg.KernelOperator(GAUSS, X, ridge=1.0)
REFUSED = {
    "matrix": (lambda: linalg.sap(np.eye(5), X), TypeError, "sap: a must be a KernelOperator"),
    "no ridge": (lambda: linalg.sap(linalg.KernelOperator(GAUSS, X), X), ValueError,
                 "sap: ridges must be positive"),
    "rows": (lambda: linalg.sap(OF, X[1:]), ValueError, r"sap: b must have the shape \[n, k\]"),
    "dtype": (lambda: linalg.sap(OF, X.astype("f")), mc.DtypeError, "sap: b must be float64"),
    "list": (lambda: linalg.sap(OF, [1.0] * 5), ValueError, "sap: b must be an array"),
    "tol": (lambda: linalg.sap(OF, X, tol=0.0), ValueError, "tol must be from 0 to 1. Received 0"),
    "block": (lambda: linalg.sap(OF, X, block=0), ValueError, "block must be positive. Received 0"),
    "rank": (lambda: linalg.sap(OF, X, rank=1.5), TypeError, "rank must be a whole number"),
    "max_iter": (lambda: linalg.sap(OF, X, max_iter=0), ValueError, "max_iter must be positive"),
    "x0": (lambda: linalg.sap(OF, X, x0=X[:, 0]), ValueError, r"x0 must be float64 of shape \(5,"),
    "indices": (lambda: linalg.sap(linalg.KernelOperator(GAUSS + "*exp(-abs(i-j))", X, ridge=1.0),
                                   X), NotImplementedError, "formulas that read indices"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("rank", [None, 30])
def test_on_cuda(cuda, rank):
    x, b = (cuda.from_numpy(a).cuda() for a in points("float32"))
    operator = linalg.KernelOperator(GAUSS, x, ridge=0.5)
    solved = linalg.sap(operator, b, block=60, rank=rank)
    assert solved.is_cuda
    gap = (b - operator.rows(slice(None)).double() @ solved.double()).norm(dim=0)
    assert (gap <= 1.1e-3 * b.double().norm(dim=0)).all()
